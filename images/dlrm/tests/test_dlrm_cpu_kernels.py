import re

import numpy as np
import pytest
from dlrm_inference.config import Config
from dlrm_inference.cpu import kernels
from dlrm_inference.cpu.variants import Runner, kernel_of, prepare_tables
from dlrm_inference.reference import embedding_bag
from numba import njit
from reprokit.errors import ConfigError

VARIANTS = ("base", "rpf", "l1dpf", "l2p", "rpf_l2p", "best")
LENGTHS = (0, 1, 2, 149, 150, 151)
RAGGED = (3, 0, 150, 7, 0, 1, 64, 2)
ROWS = 300


def bags(lengths, index_dtype, seed=0):
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(index_dtype)
    generator = np.random.default_rng(seed)
    return generator.integers(0, ROWS, offsets[-1], dtype=index_dtype), offsets


def table(dim):
    return np.random.default_rng(1).standard_normal((ROWS, dim), dtype=np.float32)


@pytest.mark.parametrize("index_dtype", ["int32", "int64"])
@pytest.mark.parametrize("dim", [32, 64, 100, 128, 256])
@pytest.mark.parametrize("name", VARIANTS)
def test_a_kernel_equals_the_reference_to_the_last_bit(name, dim, index_dtype):
    """All add in the bag's order, so nothing but equality will do."""
    run = Runner(kernel_of(name, Config(dim=dim)))
    weight = table(dim)
    for lengths in (*([length] * 5 for length in LENGTHS), RAGGED, LENGTHS):
        indices, offsets = bags(lengths, index_dtype)
        np.testing.assert_array_equal(
            run(weight, indices, offsets), embedding_bag(weight, indices, offsets)
        )


@pytest.mark.parametrize("name", ["rpf", "l1dpf", "best"])
@pytest.mark.parametrize("distance", [1, 3, 10])
def test_any_distance_gives_the_same_sums(name, distance):
    run = Runner(kernel_of(name, Config(distance=distance)))
    weight, (indices, offsets) = table(128), bags(RAGGED, "int64")
    np.testing.assert_array_equal(
        run(weight, indices, offsets), embedding_bag(weight, indices, offsets)
    )


@pytest.mark.parametrize("dim", [1, 7, 300])
def test_best_takes_any_width(dim):
    weight, (indices, offsets) = table(dim), bags(RAGGED, "int64")
    np.testing.assert_array_equal(
        Runner(kernels.best(dim))(weight, indices, offsets), embedding_bag(weight, indices, offsets)
    )


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_share_a_batch(threads):
    weight, (indices, offsets) = table(128), bags(RAGGED * 4, "int64")
    run = Runner(kernels.best(128), threads)
    np.testing.assert_array_equal(
        run(weight, indices, offsets), embedding_bag(weight, indices, offsets)
    )


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("bad", [-1, ROWS, 2**40])
@pytest.mark.parametrize("name", VARIANTS)
def test_an_index_outside_the_table_is_an_error_and_no_crash(name, bad, threads):
    run = Runner(kernel_of(name, Config()), threads)
    indices, offsets = bags(RAGGED, "int64")
    indices[-1] = bad
    with pytest.raises(IndexError, match=f"index {bad} at position {len(indices) - 1} is outside"):
        run(table(128), indices, offsets)


@pytest.mark.parametrize("offsets", [[0, 5, 3, 8], [1, 8], [0, 9], [0, 7]])
def test_offsets_that_make_no_sense_are_an_error(offsets):
    with pytest.raises(ValueError, match="offsets must rise"):
        Runner(kernels.base)(table(32), np.zeros(8, dtype=np.int64), np.array(offsets))


WRONG = {
    "float64": lambda w, i, o: (w.astype(np.float64), i, o),
    "a view": lambda w, i, o: (np.hstack([w, w])[:, : w.shape[1]], i, o),
    "by columns": lambda w, i, o: (np.asfortranarray(w), i, o),
    "unsigned ids": lambda w, i, o: (w, i.astype(np.uint16), o),
    "a column of ids": lambda w, i, o: (w, np.stack([i, i], 1)[:, 0], o),
    "unsigned offsets": lambda w, i, o: (w, i, o.astype(np.uint64)),
    "a list": lambda w, i, o: (w, list(i), o),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", ["best", "base"])
def test_arrays_that_a_kernel_would_read_wrongly_are_an_error(name, wrong):
    arrays = [[each] for each in WRONG[wrong](table(16), *bags(RAGGED, "int64"))]
    with pytest.raises(ValueError, match=r"float32 in C order|int32 or int64"):
        prepare_tables(*arrays, name=name)()


def test_tables_side_by_side_and_what_is_not_one():
    weight, (indices, offsets) = table(16), bags(RAGGED, "int64")
    both = prepare_tables([weight, table(8)], [indices, indices], [offsets, offsets])()
    np.testing.assert_array_equal(both[:, :16], embedding_bag(weight, indices, offsets))
    for name in ("stock", "l2p", "fbgemm", "nope"):
        with pytest.raises(ConfigError, match=name):
            prepare_tables([weight], [indices], [offsets], name=name)
    for some in ([], [offsets, offsets[:-1]]):
        with pytest.raises(ValueError, match="all of one length"):
            prepare_tables([weight] * len(some), [indices] * len(some), some)


def assembly(name):
    """Return the machine code of a kernel, compiled for this CPU and dim 128, as text."""
    kernel = njit(kernel_of(name, Config()).py_func)  # code out of the cache cannot be inspected
    indices, offsets = bags(RAGGED, "int64")
    Runner(kernel)(table(128), indices, offsets)
    (text,) = kernel.inspect_asm().values()
    return text


@pytest.mark.parametrize(("name", "instruction"), [("l1dpf", "prefetcht0"), ("best", "prefetcht1")])
def test_prefetch_instructions_are_really_there(name, instruction, x86):
    text = assembly(name)
    assert len(re.findall(rf"^\s+{instruction}\b", text, re.M)) >= (8 if name == "best" else 1)


@pytest.mark.parametrize("name", ["base", "rpf"])
def test_nothing_else_prefetches(name, x86):
    assert "prefetch" not in assembly(name)


def test_best_keeps_its_sum_in_registers(x86):
    """In the row loop every add reads the table: none has a stack slot as operand."""
    adds = re.findall(r"^\s+v?addps\s+(.*)$", assembly("best"), re.M)
    assert len(adds) >= 8
    assert not [add for add in adds if "rsp" in add]


@pytest.fixture
def x86():
    import platform

    if platform.machine() != "x86_64":
        pytest.skip("instruction names are those of x86-64")
