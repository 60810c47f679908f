"""Every operator against a slow version of itself, one element at a time."""

import math
from fractions import Fraction

import numpy as np
import pytest
from rap_training import reference
from rap_training.data.columns import DataError, RawBatch
from rap_training.plan.graph import Column, Node, Plan, SparseOutput
from rap_training.reference import Value

WORD = 2**64
LIMITS = [-(2**63), -(2**63) + 1, -1, 0, 1, 2, 255, 256, 2**31, 2**32 - 1, 2**62, 2**63 - 1]
FLOATS = [
    -math.inf, -1e30, -2.5, -1.0, -1e-30, -0.0, 0.0, 1e-6, 0.25, 0.5, 0.75, 0.9999999, 1.0, 1.25,
    1.5, 2.0, 7.0, 1e10, 1e30, math.inf, math.nan,
]  # fmt: skip


def f32(*values):
    return np.array(values, dtype=np.float32)


def i64(*values):
    return np.array(values, dtype=np.int64)


def slow_hash(number, salt, modulus):
    def fnv(word):
        h = 0xCBF29CE484222325
        for byte in word.to_bytes(8, "little"):
            h = (h ^ byte) * 0x100000001B3 % WORD
        return h

    k = number % WORD
    k = ((WORD - 1 - k) + (k << 21)) % WORD
    k ^= k >> 24
    k = (k + (k << 3) + (k << 8)) % WORD
    k ^= k >> 14
    k = (k + (k << 2) + (k << 4)) % WORD
    k ^= k >> 28
    k = (k + (k << 31)) % WORD
    high, low, city = fnv(salt % WORD), fnv(k), 0x9DDFEA08EB382D69
    a = (low ^ high) * city % WORD
    a ^= a >> 47
    b = (high ^ a) * city % WORD
    b ^= b >> 47
    b = b * city % WORD
    signed = b - WORD if b >= WORD // 2 else b
    return signed % modulus


@pytest.mark.parametrize("salt", [0, 1, -1, 2**63 - 1, 0x0123456789ABCDEF])
@pytest.mark.parametrize("modulus", [1, 2, 3, 10131227, 2**32, 2**63 - 1])
def test_sigrid_hash_is_exact(salt, modulus):
    ids = LIMITS + np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 40).tolist()
    hashed = reference.sigrid_hash(i64(*ids), salt, modulus)
    assert hashed.dtype == np.int64
    assert hashed.tolist() == [slow_hash(number, salt, modulus) for number in ids]


def test_sigrid_hash_of_more_than_one_block_in_two_dimensions():
    ids = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, (1009, 19))
    hashed = reference.sigrid_hash(ids, 5, 1000)
    assert hashed.shape == ids.shape
    assert hashed[-1].tolist() == [slow_hash(number, 5, 1000) for number in ids[-1].tolist()]
    assert hashed[700].tolist() == [slow_hash(number, 5, 1000) for number in ids[700].tolist()]
    assert np.array_equal(reference.sigrid_hash(ids[:, ::2], 5, 1000), hashed[:, ::2])
    assert reference.sigrid_hash(ids[:0], 5, 1000).shape == (0, 19)


def test_sigrid_hash_leaves_its_input_alone_and_spreads():
    ids = np.arange(-50_000, 50_000)
    hashed = reference.sigrid_hash(ids, 0, 100)
    assert ids[0] == -50_000
    assert ids[-1] == 49_999
    counts = np.bincount(hashed, minlength=100)
    assert counts.min() > 850
    assert counts.max() < 1150


def test_fill_null_looks_at_the_mask_and_not_at_the_value():
    values, valid = f32(math.nan, math.nan, -0.0, 3), np.array([0, 1, 0, 2], dtype=np.uint8)
    filled = reference.fill_null(values, valid, 7)
    assert filled.dtype == np.float32
    assert math.isnan(filled[1])
    assert filled[[0, 2, 3]].tolist() == [7, 7, 3]


@pytest.mark.parametrize(
    ("value", "stored"),
    [(0.9, 0), (-1.9, -1), (2**63, 2**63 - 1), (-1e30, -(2**63)), (math.inf, 2**63 - 1),
     (2**53 + 1, 2**53 + 1), (math.nan, 0)],
)  # fmt: skip
def test_null_ids_are_filled_by_a_whole_number_in_range(value, stored):
    filled = reference.fill_null(i64(-(2**63), 5), np.array([0, 1], dtype=np.uint8), value)
    assert filled.dtype == np.int64
    assert filled.tolist() == [stored, 5]


def test_cast_to_ids_truncates_toward_zero_and_saturates():
    values = f32(-1.9, -0.5, 0.5, 1.9, 2**24, -(2.0**63), 2.0**63, -1e30, 1e30, *FLOATS[-2:])
    assert reference.cast(values, "int64").tolist() == [
        -1, 0, 0, 1, 2**24, -(2**63), 2**63 - 1, -(2**63), 2**63 - 1, 2**63 - 1, 0,
    ]  # fmt: skip
    below = np.nextafter(np.float32(2.0**63), np.float32(0))
    assert reference.cast(f32(below), "int64").tolist() == [2**63 - 2**39]


def test_cast_to_floats_rounds_to_the_nearest():
    values = reference.cast(i64(*LIMITS, 2**24 + 1, 2**24 + 3), "float32")
    assert values.dtype == np.float32
    for number, value in zip([*LIMITS, 2**24 + 1, 2**24 + 3], values.tolist(), strict=True):
        step = abs(Fraction(float(np.spacing(np.float32(value)))))
        assert abs(Fraction(value) - number) <= step / 2
    assert reference.cast(i64(2**63 - 1), "int64").tolist() == [2**63 - 1]


@pytest.mark.parametrize("borders", [(0.5, 1.0, 1.5), (0.0,), (-1.0, -1.0, 7.0), (0.1, 0.2)])
def test_bucketize_counts_the_borders_below(borders):
    bucket = reference.bucketize(f32(*FLOATS), borders)
    assert bucket.dtype == np.int64
    edges = f32(*borders).tolist()
    assert bucket.tolist() == [sum(b < x for b in edges) for x in f32(*FLOATS).tolist()]


def test_a_border_is_rounded_to_float32_before_it_is_compared():
    assert reference.bucketize(f32(0.1), (0.1,)).tolist() == [0]


@pytest.mark.parametrize("eps", [1e-5, 0.01, 0.4])
def test_logit_limits_and_takes_the_log_odds(eps):
    result = reference.logit(f32(*FLOATS), eps)
    assert result.dtype == np.float32
    for x, y in zip(f32(*FLOATS).tolist(), result.tolist(), strict=True):
        if math.isnan(x):
            assert math.isnan(y)
            continue
        p = min(max(x, float(np.float32(eps))), float(np.float32(1 - eps)))
        assert y == pytest.approx(math.log(p / (1 - p)), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("lam", [0, 0.5, 1, 2.0, -1.5])
def test_boxcox_transforms_only_what_is_above_zero(lam):
    result = reference.boxcox(f32(*FLOATS), lam)
    assert result.dtype == np.float32
    for x, y in zip(f32(*FLOATS).tolist(), result.tolist(), strict=True):
        if not x > 0:  # NaN too
            assert y == x or (math.isnan(x) and math.isnan(y))
        elif x < 1e-20 or x > 1e20:  # over- and underflow of float32 is float32's
            with np.errstate(all="ignore"):
                limit = math.log(x) if lam == 0 else (np.float32(x) ** np.float32(lam) - 1) / lam
            assert y == pytest.approx(float(limit), rel=1e-5)
        else:
            exact = math.log(x) if lam == 0 else (x**lam - 1) / lam
            assert y == pytest.approx(exact, rel=1e-5, abs=1e-6)


def test_clamp_of_floats_keeps_nan():
    result = reference.clamp(f32(*FLOATS), -1, 1.5)
    assert result.dtype == np.float32
    for x, y in zip(f32(*FLOATS).tolist(), result.tolist(), strict=True):
        assert y == min(max(x, -1), 1.5) or (math.isnan(x) and math.isnan(y))
    assert reference.clamp(f32(-math.inf, 3, math.inf), 0.1, math.inf).tolist() == [
        float(np.float32(0.1)), 3, math.inf,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("lo", "hi", "low", "high"),
    [(0, 255, 0, 255), (-1.9, 1.9, -1, 1), (-math.inf, 7, -(2**63), 7), (0, 2**64, 0, 2**63 - 1),
     (2**53 + 1, 2**62, 2**53 + 1, 2**62)],
)  # fmt: skip
def test_clamp_of_ids_is_exact(lo, hi, low, high):
    result = reference.clamp(i64(*LIMITS), lo, hi)
    assert result.dtype == np.int64
    assert result.tolist() == [min(max(number, low), high) for number in LIMITS]


@pytest.mark.parametrize(("lo", "hi", "k"), [(0, 1, 1), (0, 2, 4), (-1.5, 8, 7), (0.1, 0.7, 6)])
def test_one_hot_puts_what_is_out_of_range_into_bin_0(lo, hi, k):
    values = f32(*FLOATS).reshape(7, 3)
    result = reference.one_hot(values, lo, hi, k)
    assert result.dtype == np.float32
    assert result.shape == (7, 3 * k)
    step = np.float32((hi - lo) / k)
    for x, row in zip(values.reshape(-1), result.reshape(-1, k).tolist(), strict=True):
        with np.errstate(all="ignore"):
            place = float((x - np.float32(lo)) / step)  # the arithmetic is float32's
        inside = math.isfinite(place) and 0 <= math.trunc(place) < k
        assert row.index(1.0) == (math.trunc(place) if inside else 0)
        assert sum(row) == 1


def test_map_id_is_a_permutation_and_0_outside():
    table = reference.map_table(10, 3)
    assert sorted(table.tolist()) == list(range(10))
    assert table.tolist() == np.random.default_rng(3).permutation(10).tolist()
    assert reference.map_table(10, 3) is table
    with pytest.raises(ValueError, match="read-only"):
        table[0] = 1
    ids = i64(*LIMITS, 8, 9, 10, 11)
    expected = [table[number] if 0 <= number < 10 else 0 for number in ids.tolist()]
    assert reference.map_id(ids, 10, 3).tolist() == expected
    assert table[0] != 0  # or the test of ids outside shows nothing


def lists(rows, width, seed, dtype=np.int64):
    """Ragged values with garbage as padding, empty and full rows among them."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(0, width + 1, rows).astype(np.int32)
    lengths[:2] = 0, width
    values = generator.integers(-(2**40), 2**40, (rows, width)).astype(dtype)
    return Value(values=values, lengths=lengths)


def rows_of(value):
    full = [value.width] * len(value.values) if value.lengths is None else value.lengths.tolist()
    return [row[:length] for row, length in zip(value.values.tolist(), full, strict=True)]


def slow_ngram(items, n):
    used = min(n, len(items))
    if not used:
        return []
    windows = [items[i : i + used] for i in range(len(items) - used + 1)]
    return [item for window in windows for item in window]


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 41, 2**40])
@pytest.mark.parametrize("ragged", [True, False])
@pytest.mark.parametrize("width", [1, 2, 7])
def test_ngram(n, ragged, width):
    value = lists(60, width, n % 97)
    if not ragged:
        value = Value(values=value.values)
    result = reference.ngram(value, n)
    assert rows_of(result) == [slow_ngram(row, n) for row in rows_of(value)]
    assert result.values.flags.c_contiguous
    assert (result.lengths is None) == (not ragged)
    if ragged:
        assert result.lengths.dtype == np.int32


@pytest.mark.parametrize("x", [1, 3, 7, 9, 2**40])
@pytest.mark.parametrize("ragged", [True, False])
def test_first_x(x, ragged):
    value = lists(60, 7, x % 97, np.float32)
    if not ragged:
        value = Value(values=value.values)
    result = reference.first_x(value, x)
    assert rows_of(result) == [row[:x] for row in rows_of(value)]
    assert result.width == min(x, 7)
    assert result.values.dtype == np.float32
    assert result.values.flags.c_contiguous


def test_one_hot_of_lists_multiplies_their_lengths():
    value = Value(values=f32(0.5, 9, 9, 1.5).reshape(2, 2), lengths=np.array([1, 2], np.int32))
    node = Node(name="n", op="one_hot", input="v", parameters={"lo": 0, "hi": 2, "k": 2})
    result = reference.apply(node, value)
    assert rows_of(result) == [[1, 0], [1, 0, 0, 1]]
    assert result.lengths.dtype == np.int32
    assert result.elements().tolist() == [1, 0, 1, 0, 0, 1]


PLAN = Plan(
    name="small",
    columns=(
        Column(name="d", kind="dense"),
        Column(name="s", kind="sparse", width=3, ragged=True),
        Column(name="unread", kind="dense"),
    ),
    nodes=(
        Node(name="d_out", op="clamp", input="d_fill", parameters={"lo": 0, "hi": 1}),
        Node(name="d_fill", op="fill_null", input="d", parameters={"value": 0.5}),
        Node(name="d_id", op="cast", input="d_fill", parameters={"dtype": "int64"}),
        Node(name="s_fill", op="fill_null", input="s", parameters={"value": 4}),
        Node(name="s_two", op="first_x", input="s_fill", parameters={"x": 2}),
        Node(name="s_out", op="sigrid_hash", input="s_two", parameters={"salt": 1, "modulus": 9}),
    ),
    dense=("d_out",),
    sparse=(SparseOutput(node="s_out", rows=9), SparseOutput(node="d_id", rows=99)),
)
BATCH = RawBatch(
    dense={"d": (f32(math.nan, 7, -1), np.array([0, 1, 1], dtype=np.uint8))},
    sparse={
        "s": (
            i64(1, -9, 3, 4, 5, 6, 7, 8, 9).reshape(3, 3),
            np.array([[1, 0, 1], [1, 1, 1], [0, 0, 0]], dtype=np.uint8),
            np.array([3, 1, 0], dtype=np.int32),
        )
    },
    labels=f32(0, 1, 0),
)


def test_a_plan_is_evaluated_by_hand():
    result = reference.evaluate(PLAN, BATCH)
    assert list(result) == ["d_out", "s_out", "d_id"]
    assert result["d_out"].values.tolist() == [[0.5], [1], [0]]
    assert result["d_id"].values.tolist() == [[0], [7], [-1]]
    assert rows_of(result["s_out"]) == [
        [slow_hash(1, 1, 9), slow_hash(4, 1, 9)], [slow_hash(4, 1, 9)], [],
    ]  # fmt: skip


def test_only_what_is_asked_for_is_read():
    assert list(reference.evaluate(PLAN, BATCH.select(["d"]), ["d_fill"])) == ["d_fill"]
    both = reference.evaluate(PLAN, BATCH, ["d_fill", "d_out", "s"])
    assert list(both) == ["d_fill", "d_out", "s"]
    assert both["s"].valid is BATCH.sparse["s"][1]
    with pytest.raises(DataError, match=r"the batch has no column s; fix: .*it has d"):
        reference.evaluate(PLAN, BATCH.select(["d"]))


def test_the_batch_is_left_as_it_is():
    before = [array.copy() for array in (*BATCH.dense["d"], *BATCH.sparse["s"])]
    reference.evaluate(PLAN, BATCH)
    for old, new in zip(before, (*BATCH.dense["d"], *BATCH.sparse["s"]), strict=True):
        np.testing.assert_array_equal(old, new)


def test_ids_outside_of_their_table_are_found_and_padding_is_not():
    values = reference.evaluate(PLAN, BATCH)
    inside = {**values, "d_id": Value(values=i64(0, 98, 5)[:, None])}
    reference.check_ids(PLAN, inside)
    with pytest.raises(DataError, match=r"d_id of row 2 is the id -1, .* has 99 rows; fix"):
        reference.check_ids(PLAN, values)
    ids = values["s_out"].values.copy()
    ids[2, 0] = ids[1, 1] = -7  # padding
    reference.check_ids(PLAN, {**inside, "s_out": Value(values=ids, lengths=i64(2, 1, 0))})
    ids[1, 0] = 9
    with pytest.raises(DataError, match="s_out of row 1 is the id 9, and its table has 9 rows"):
        reference.check_ids(PLAN, {**inside, "s_out": Value(values=ids, lengths=i64(2, 1, 0))})
