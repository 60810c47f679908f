"""Value patterns: the paper's oracles, and each detector against the plainest way to compute it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from accel_trace.values.accesses import READ, WRITE, Accesses, from_rows
from accel_trace.values.elements import ELEMENTS, LEVELS, bits_of, coarsen, numbers_of
from accel_trace.values.intervals import copy_plan, merge
from accel_trace.values.items import coarser, collect
from accel_trace.values.patterns import Pattern, patterns_of
from accel_trace.values.redundancy import spatial, temporal
from accel_trace.values.widths import narrower, needed_bits
from hypothesis import given
from hypothesis import strategies as st
from values_support import BASE, float_bits, histogram, stream

PAIRS = st.lists(st.tuples(st.integers(0, 12), st.integers(-3, 3)), min_size=1, max_size=60)


def found(element: str, pairs: Sequence[tuple[int, float]]) -> dict[str, Pattern]:
    items = collect(stream(element, pairs), BASE, ELEMENTS[element])
    return {pattern.name: pattern for pattern in patterns_of(items)}


# ---- the oracles: N = 1000, one object each -------------------------------------------------


def test_a_half_of_an_array_is_read_as_zero_and_written_as_one() -> None:
    read = found("f32", [(i, 0.0) for i in range(500)])
    assert {n: p.numbers["items"] for n, p in read.items()} == {"single_zero": 500}
    written = found("f32", [(i, 1.0) for i in range(500)])
    assert {n: p.numbers for n, p in written.items()} == {
        "single_value": {"items": 500, "value": "1.0"}
    }


def test_b_a_quarter_is_set_to_zero() -> None:
    assert found("i32", [(i, 0) for i in range(250)])["single_zero"].numbers["items"] == 250


def test_c_values_that_are_frequent_only_when_they_are_cut() -> None:
    patterns = found("f32", [(i, 1 + i / 10000) for i in range(500)])
    assert set(patterns) == {"structured", "approximate"}
    line = patterns["structured"].numbers
    assert line["k"] == pytest.approx(1e-4, rel=1e-4)
    assert line["b"] == pytest.approx(1, rel=1e-6)
    assert patterns["approximate"].numbers == {"items": 500, "bits": 8, "of": "frequent_values"}
    assert "13 values fill 500 of 500" in patterns["approximate"].text


def test_d_an_int_that_is_three() -> None:
    patterns = found("i32", [(i, 3) for i in range(500)])
    assert set(patterns) == {"single_value", "heavy_type"}
    assert patterns["heavy_type"].numbers["to"] == "int8"


def test_e_the_index_at_odd_indices() -> None:
    patterns = found("i32", [(i, i) for i in range(1, 1000, 2)])
    assert set(patterns) == {"structured", "heavy_type"}
    assert patterns["structured"].numbers == {"items": 500, "k": 1.0, "b": 0.0, "r2": 1.0}
    assert patterns["heavy_type"].numbers["to"] == "int16"


def test_negative_integers_narrow_by_their_sign_bits() -> None:
    values = np.array([1, 127, 32, -120, 15, 12], "<i4")
    bits = bits_of(values, ELEMENTS["i32"])
    assert narrower(bits, ELEMENTS["i32"]) == ELEMENTS["i8"]


def test_what_has_no_pattern_has_none() -> None:
    chance = np.random.default_rng(1)
    assert found("f32", list(enumerate(chance.random(500)))) == {}
    wide = chance.integers(-(2**62), 2**62, 500)
    assert found("i64", list(enumerate(wide.tolist()))) == {}


def test_ten_doubles_are_frequent_and_no_narrower_type() -> None:
    chance = np.random.default_rng(2)
    values = chance.integers(1, 11, 1000) / 10
    patterns = found("f64", list(enumerate(values)))
    assert "frequent_values" in patterns
    assert patterns["frequent_values"].numbers["distinct"] == 10
    assert "heavy_type" not in patterns


# ---- against the plainest way -------------------------------------------------------------------


@given(PAIRS, st.sampled_from(["i8", "i32", "i64", "f16", "f32", "f64"]))
def test_items_are_the_histogram_of_every_element(
    pairs: list[tuple[int, int]], element: str
) -> None:
    kind = ELEMENTS[element]
    items = collect(stream(element, pairs), BASE, kind)
    values = numbers_of(items.value, kind).tolist()
    mine: dict[int, Counter[float]] = {}
    for offset, value, count in zip(items.offset.tolist(), values, items.count, strict=True):
        mine.setdefault(offset, Counter())[value] += int(count)
    plain = histogram(pairs)
    assert mine == plain
    assert len(items) == len(plain)
    assert set(items.offset[items.unique].tolist()) == {i for i, h in plain.items() if len(h) == 1}
    assert items.accesses == len(pairs)


@given(PAIRS)
def test_patterns_are_what_their_words_say(pairs: list[tuple[int, int]]) -> None:
    patterns = found("i32", pairs)
    plain = histogram(pairs)
    unique = {i: next(iter(h)) for i, h in plain.items() if len(h) == 1}
    distinct = set(unique.values())
    all_unique = len(unique) == len(plain)
    zero = all_unique and distinct == {0}
    constant = all_unique and len(distinct) == 1 and not zero
    assert ("single_zero" in patterns) == zero
    assert ("single_value" in patterns) == constant
    few = 1 < len(distinct) <= 0.1 * len(plain) and 2 * len(unique) >= len(plain)
    assert ("frequent_values" in patterns) == few
    assert ("heavy_type" in patterns) == (not zero)  # -3 to 3 fit into a byte
    if "structured" in patterns:
        assert all_unique
        assert len(plain) >= 3
        line = patterns["structured"].numbers
        wrong = [abs(line["k"] * i + line["b"] - v) for i, v in unique.items()]
        assert (
            sum(w * w for w in wrong)
            <= 0.001 * sum((v - sum(unique.values()) / len(unique)) ** 2 for v in unique.values())
            + 1e-6
        )


@given(st.integers(-50, 50), st.integers(-5, 5), st.sets(st.integers(0, 200), min_size=3))
def test_every_line_is_found(b: int, k: int, where: set[int]) -> None:
    patterns = found("i32", [(i, k * i + b) for i in where])
    assert ("structured" in patterns) == (k != 0)
    if k:
        assert patterns["structured"].numbers["k"] == k
        assert patterns["structured"].numbers["b"] == b


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1),
    st.sampled_from(["i16", "i32", "i64", "u16", "u32", "u64"]),
)
def test_the_narrowest_integer_is_found(values: list[int], name: str) -> None:
    element = ELEMENTS[name]
    least, most = np.iinfo(element.dtype).min, np.iinfo(element.dtype).max
    kept = [value for value in values if least <= value <= most] or [0]
    bits = bits_of(np.array(kept, element.dtype), element)
    fits = [
        size
        for size in (1, 2, 4, 8)
        if np.iinfo(f"{element.kind}{size}").min <= min(kept)
        and max(kept) <= np.iinfo(f"{element.kind}{size}").max
    ]
    smaller = narrower(bits, element)
    assert (smaller.size if smaller else element.size) == fits[0]
    assert needed_bits(bits, element) <= 8 * fits[0]


@given(st.lists(st.floats(width=64), min_size=1, max_size=20))
def test_a_narrower_float_gives_every_value_back(values: list[float]) -> None:
    element = ELEMENTS["f64"]
    numbers = np.array(values, element.dtype)
    smaller = narrower(bits_of(numbers, element), element)
    with np.errstate(all="ignore"):
        if smaller is not None:
            back = numbers.astype(smaller.dtype).astype(element.dtype)
            assert back.tobytes() == numbers.tobytes()
        else:
            back = numbers.astype("<f4").astype("<f8")
            assert back.tobytes() != numbers.tobytes()


@given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.sampled_from(list(LEVELS)))
def test_mantissas_are_cut_and_nothing_else(value: float, level: str) -> None:
    element = ELEMENTS["f32"]
    bits = bits_of(np.array([value], "<f4"), element)
    cut = numbers_of(coarsen(bits, element, level), element)[0]
    assert cut == float_bits(value, LEVELS[level][4])


def test_the_exact_level_cuts_nothing_and_coarser_merges() -> None:
    pairs = [(0, 1.0), (0, 1.0 + 2**-20), (1, 2.0)]
    items = collect(stream("f32", pairs), BASE, ELEMENTS["f32"])
    assert len(items.offset) == 3
    cut = coarser(items, "max")
    assert (cut.offset.tolist(), cut.count.tolist()) == ([0, 1], [2, 1])


ACCESSES = st.lists(
    st.fixed_dictionaries({
        "launch": st.integers(0, 1), "block": st.integers(0, 1), "thread": st.integers(0, 2),
        "address": st.integers(0, 2).map(lambda n: BASE + 4 * n), "pc": st.integers(0, 3),
        "low": st.integers(0, 2), "size": st.just(4), "unit": st.just(4), "flags": st.just(WRITE),
    }),
    max_size=80,
)  # fmt: skip


@given(ACCESSES)
def test_temporal_redundancy_is_that_of_each_thread(rows: list[dict[str, int]]) -> None:
    last: dict[tuple[int, ...], tuple[int, int]] = {}
    plain: Counter[tuple[int, int]] = Counter()
    for row in rows:
        key = tuple(row[name] for name in ("launch", "block", "thread", "address"))
        before = last.get(key)
        if before is not None and before[1] == row["low"]:
            plain[before[0], row["pc"]] += 1
        last[key] = (row["pc"], row["low"])
    mine = temporal(from_rows(rows))
    assert mine.pairs == plain
    assert mine.rate == (plain.total() / len(rows) if rows else 0)


@given(ACCESSES)
def test_spatial_redundancy_is_the_most_frequent_value_of_each_instruction(
    rows: list[dict[str, int]],
) -> None:
    plain: dict[int, Counter[int]] = {}
    for row in rows:
        plain.setdefault(row["pc"], Counter())[row["low"]] += 1
    mine = spatial(from_rows(rows))
    assert {pc: (n, of) for pc, (_, n, of) in mine.most.items()} == {
        pc: (max(values.values()), values.total()) for pc, values in plain.items()
    }
    for pc, (value, n, _) in mine.most.items():
        assert plain[pc][value] == n


def test_loads_and_stores_have_denominators_of_their_own() -> None:
    same = [(0, 7)] * 4
    reads, writes = stream("i32", same, READ), stream("i32", [(0, 1), (0, 2)], WRITE)
    both = Accesses(
        **{
            name: np.concatenate([getattr(reads, name), getattr(writes, name)])
            for name in reads.__dataclass_fields__
            if name != "sites"
        }
    )
    assert temporal(both.take(both.reads)).rate == 3 / 4  # not 3 / 6, as with a shared one
    assert temporal(both.take(both.writes)).rate == 0


def test_flags_alone_say_what_an_access_is() -> None:
    rows = [{"flags": flags, "size": 4, "unit": 4} for flags in (READ, WRITE, READ | WRITE)]
    found = from_rows(rows)
    assert found.reads.tolist() == [True, False, False]
    assert found.writes.tolist() == [False, True, False]
    assert found.atomics.tolist() == [False, False, True]


@given(st.lists(st.integers(0, 2**16 - 1), min_size=8, max_size=8))
def test_vector_accesses_are_split_into_their_elements(values: list[int]) -> None:
    whole = np.array(values, "<u2").view("<u8")
    row = {"address": BASE, "size": 16, "unit": 2, "flags": READ,
           "low": int(whole[0]), "high": int(whole[1])}  # fmt: skip
    parts = from_rows([row, {"address": 1, "size": 2, "unit": 2, "low": 5}]).split()
    assert parts.low.tolist() == [*values, 5]
    assert parts.address.tolist() == [*(BASE + 2 * i for i in range(8)), 1]
    assert set(parts.size.tolist()) == {2}


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=40))
def test_intervals_cover_the_same_bytes_and_never_touch(ranges: list[tuple[int, int]]) -> None:
    plain = {byte for start, size in ranges for byte in range(start, start + size)}
    starts = np.array([a for a, _ in ranges], np.int64)
    merged = merge(starts, np.array([n for _, n in ranges], np.int64))
    pairs = merged.pairs()
    assert {byte for a, b in pairs for byte in range(a, b)} == plain
    assert merged.bytes == len(plain)
    assert all(left[1] < right[0] for left, right in pairwise(pairs))


def test_the_cheaper_way_to_copy_is_taken() -> None:
    far = merge(np.array([0, 10**9]), np.array([4, 4]))
    near = merge(np.array([0, 8]), np.array([4, 4]))
    assert copy_plan(far, 1e-5, 1e10)[0] == "segments"
    assert copy_plan(near, 1e-5, 1e10) == ("span", [(0, 12)])
