"""The kernels of `best` run lane by lane on a CPU: every form gives the sums, bit for bit."""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from dlrm_inference.cuda import best, design, frames
from dlrm_inference.cuda.compile import read_source
from dlrm_inference.cuda.design import Case, Shape, Short

HERE = Path(__file__).parent
COMPILER = shutil.which("g++")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler"),
]
ROWS = 700
UNTOUCHED = np.float32(12345.0)
_RUN = """
static const Arguments* given;
extern "C" void run(const Arguments* arguments, unsigned x, unsigned y, unsigned threads,
                    unsigned seed) {
  std::mt19937 random(seed);
  given = arguments;
  simt::body = [] { best(*given); };
  gridDim = {x, y};
  blockDim = {threads, 1};
  for (unsigned row = 0; row < y; ++row)
    for (unsigned block = 0; block < x; ++block) {
      blockIdx = {block, row};
      simt::run_block(threads, random);
    }
}
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("simt")
    made = {}
    command = [COMPILER, "-std=c++17", "-O1", "-w", "-ffp-contract=off", "-fPIC"]
    shutil.copy(HERE / "simt.h", folder)
    # What all begin with is compiled once: of most kernels it is more than the kernel.
    subprocess.run([*command, "-x", "c++-header", folder / "simt.h"], check=True)

    def build(shape, case):
        macros = design._macros(shape, case, "sm_90")
        key = hashlib.sha256(repr((type(shape), sorted(macros.items()))).encode()).hexdigest()
        if key not in made:
            text = read_source("best" if isinstance(shape, Shape) else "short")
            ptx = Path(best.__file__).parent / "kernels/ptx.cuh"
            text = text.replace(ptx.read_text(), (HERE / "simt_ptx.h").read_text())
            assert "asm" not in text
            source = folder / f"{key}.cpp"
            source.write_text('#include "simt.h"\n' + text + _RUN)
            options = [f"-D{name}={value}" for name, value in macros.items()]
            subprocess.run(
                [*command, "-shared", *options, source,
                 "-o", source.with_suffix(".so")],
                check=True,
            )  # fmt: skip
            made[key] = ctypes.CDLL(str(source.with_suffix(".so")))
        return made[key]

    return build


def bags_of(lengths, tables, dim, dtype=np.float32):
    """Weights, ids and offsets of tables whose bags have these lengths."""
    random = np.random.default_rng(4)
    ends = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    return [
        (
            random.standard_normal((ROWS, dim)).astype(dtype),
            random.integers(0, ROWS, ends[-1]),
            ends,
        )
        for _ in range(tables)
    ]


def call(library, shape, case, tables, mode="sum", seed=1, place=None, joined=None):
    """What a launch writes (bags, tables * dim), and the word of its report."""
    bags, dim = len(tables[0][2]) - 1, case.dim
    out = np.full((bags, len(tables) * dim), UNTOUCHED, tables[0][0].dtype)
    report = np.zeros(1, np.uint64)
    place = np.zeros(design.PLACE_BYTES, np.uint8) if place is None else place
    before = place[:8].copy()
    arguments = frames.arguments_type(case.tables, case.joined)(
        out=out.ctypes.data,
        out_stride=out.strides[0],
        report=report.ctypes.data,
        help=place.ctypes.data if case.share else 0,  # whoever asks there all the same is stopped
        bags=bags,
        mean=mode == "mean",
        cut=cut_of(tables),
        count=len(tables),
    )
    bands = (shape.buckets - 1).bit_length()
    for t, (weight, ids, ends) in enumerate(tables):
        bits = (len(weight) - 1).bit_length()
        arguments.tables[t] = frames.Table(
            weight=weight.ctypes.data,
            indices=ids.ctypes.data,
            offsets=ends.ctypes.data,
            total=len(ids),
            average=len(ids) // max(1, bags),
            shift=bits - bands if bits > bands else 0,
            rows=len(weight),
            row_stride=weight.strides[0],
            number=(t + 1) << 32,
        )
    if case.joined:  # then no table's own ids are looked at
        ids, ends = joined
        arguments.indices, arguments.offsets = ids.ctypes.data, ends.ctypes.data
        arguments.total, arguments.average = len(ids), len(ids) // (len(ends) - 1)
        for table in arguments.tables:
            table.indices = table.offsets = table.total = table.average = 0
    grid = (-(-bags // shape.block_bags(case)), len(tables))
    run = library(shape, case).run
    run(ctypes.byref(arguments), *grid, 32 * shape.block_warps, seed)
    assert (place[:8] == before).all(), "jobs are open after the launch"
    return out, int(report[0])


def cut_of(tables):
    longest = max(len(ids) for _, ids, _ in tables)
    return max(design.LONG, 4 * (longest // max(1, len(tables[0][2]) - 1)))


def in_order(tables, mode="sum"):
    """Sums in float32, row after row in the order of ids."""
    parts = []
    for weight, ids, ends in tables:
        sums = np.zeros((len(ends) - 1, weight.shape[1]), np.float32)
        for bag, (begin, end) in enumerate(pairwise(ends)):
            for row in ids[begin:end]:
                sums[bag] += weight[row]
            if mode == "mean" and end > begin:
                sums[bag] *= np.float32(1) / np.float32(end - begin)
        parts.append(sums.astype(weight.dtype))
    return np.concatenate(parts, axis=1)


LENGTHS = {
    "ones": [1] * 37,
    "twos": [2] * 37,
    "ragged": [0, 3, 1, 0, 7, 2, 2, 31, 0, 1, 40, 5, 64, 150, 1],
    "long": [3, 1500, 0, 2, 700, 3, 1, 513, 5, 512],
    "one_very_long": [2, 4, 6000, 1, 0, 3],  # more than 32 pieces
    "more_than_there_are_jobs": [513] * 34 + [0] * 400,
}
SHORTS = [
    Short(flight=2, min_blocks=8, ask=8),
    Short(flight=1, per=2, min_blocks=6, ask=8),
    Short(flight=4, per=2, min_blocks=3, ask=8, piece=32, ahead=16, join=16, spread=1),
]
SHAPES = [
    Shape(bags=8, keys=1, buckets=1, ahead=4, min_blocks=4, ask=8),
    design.BEST_SHORT[-1][1],
    replace(design.BEST_FEW, piece=32, ahead=16, join=16, spread=1),
    replace(design.BEST_MANY, bags=8),
]
CASES = [Case(tables=4), Case(dim=30, vector=8), Case(element=1, dim=64)]


def data_of(case, lengths):
    dtype = np.float16 if case.element == 1 else np.float32
    return bags_of(lengths, min(case.tables, 3), case.dim, dtype)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("shape", SHORTS, ids=range(len(SHORTS)))
def test_short_bags_are_summed_in_the_order_of_their_ids(library, shape, case):
    for share, lengths in product((0, 1), ("ones", "twos", "ragged")):
        tables = data_of(case, LENGTHS[lengths])
        for mode in ("sum", "mean"):
            got, report = call(library, shape, replace(case, share=share), tables, mode)
            assert np.array_equal(got, in_order(tables, mode))
            assert report == 0


@pytest.mark.parametrize("case", CASES[:2], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=range(len(SHAPES)))
def test_code_without_long_bags_gives_the_same_bits(library, shape, case):
    for lengths in ("ones", "ragged"):
        tables = data_of(case, LENGTHS[lengths])
        with_code, _ = call(library, shape, case, tables)
        without, _ = call(library, shape, replace(case, share=0), tables)
        assert np.array_equal(with_code, without)
        np.testing.assert_allclose(without, in_order(tables), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [*SHORTS[:2], *SHAPES[:3]], ids=range(5))
def test_joined_ids_give_the_same_bits(library, shape):
    for share, lengths in product((0, 1), ("twos", "ragged", "long")):
        case = Case(dim=32, tables=4, share=share)
        tables = bags_of(LENGTHS[lengths], 3, 32)
        tables[1][1][7] = ROWS  # outside: bags are told by their table
        want = call(library, shape, case, tables)
        ids = np.concatenate([one for _, one, _ in tables])
        ends = np.concatenate(
            [[0], *(end[1:] + t * end[-1] for t, (_, _, end) in enumerate(tables))]
        )
        joined = replace(case, joined=1)
        got = call(library, shape, joined, tables, joined=(ids, ends))
        assert np.array_equal(got[0], want[0])
        assert got[1] == want[1] != 0


@pytest.mark.parametrize("lengths", ["long", "one_very_long", "more_than_there_are_jobs"])
@pytest.mark.parametrize(
    "shape", [SHORTS[0], replace(design.BEST_FEW, bags=8)], ids=["short", "few"]
)
def test_who_sums_the_pieces_of_a_long_bag_and_how_changes_no_bit(library, shape, lengths):
    tables = bags_of(LENGTHS[lengths], 1, 32)
    for piece in (32, 128):
        bits = set()
        for ahead, join, spread, seed in ((8, 4, 0, 1), (8, 4, 0, 2), (8, 4, 1, 1), (16, 16, 1, 3)):
            form = replace(shape, piece=piece, ahead=ahead, join=join, spread=spread)
            got, _ = call(library, form, Case(dim=32), tables, seed=seed)
            bits.add(got.tobytes())
        assert len(bits) == 1
        np.testing.assert_allclose(got, in_order(tables), rtol=1e-3, atol=1e-4)
        full = np.zeros(design.PLACE_BYTES, np.uint8)
        full[:4] = 255  # nothing can be offered: a warp does its long bag alone
        alone, _ = call(library, form, Case(dim=32), tables, place=full)
        assert alone.tobytes() in bits


@pytest.mark.parametrize("share", [0, 1])
@pytest.mark.parametrize("shape", [SHORTS[0], SHORTS[2], *SHAPES[:3]], ids=range(5))
def test_an_id_outside_its_table_is_reported_and_row_0_read(library, shape, share):
    tables = bags_of(LENGTHS["ragged"], 2, 32)
    case = Case(dim=32, tables=4, share=share)
    _, ids, ends = tables[1]
    ids[ends[7] + 5] = ROWS
    got, report = call(library, shape, case, tables)
    assert report == 2 << 32 | 7
    ids[ends[7] + 5] = 0
    want, report = call(library, shape, case, tables)
    assert report == 0
    if isinstance(shape, Short):
        assert np.array_equal(got, want)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [SHORTS[0], SHAPES[0]], ids=["short", "plain"])
def test_offsets_outside_the_ids_read_nothing_outside_them(library, shape):
    tables = bags_of([2] * 20, 1, 32)
    weight, ids, ends = tables[0]
    broken = ends.copy()
    broken[0], broken[-1] = -5, 10**12
    got, _ = call(library, shape, Case(dim=32, share=0), [(weight, ids, broken)])
    assert np.array_equal(got, in_order(tables))
