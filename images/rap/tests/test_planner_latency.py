import math
import random
from dataclasses import replace

import pytest
from rap_training.experiments.predictor import hits_of
from rap_training.planner.latency import (
    FAMILIES,
    FAMILY,
    LatencyError,
    LatencyModel,
    Measurement,
    Shape,
    shapes,
)

ROWS = (4096, 8192, 16384, 32768)


def gpu_us(shape):
    """A GPU's usual response: a floor, or a launch with bandwidth and steps per wave of blocks."""
    place = list(FAMILY).index(shape.op)
    per_element = (0.4 + 0.15 * place) * 8 / 3e6
    waves = math.ceil(shape.fused * math.ceil(shape.rows * shape.width / 1024) / (132 * 4))
    linear = 1.7 + shape.elements * per_element + 0.25 * waves + 0.004 * shape.fused
    return max(2.4 + 0.02 * place, linear)


def measured(seed, rows=ROWS):
    dice = random.Random(seed)
    return [Measurement(s, gpu_us(s) * dice.gauss(1, 0.03)) for s in shapes(rows, seed=seed)]


@pytest.fixture(scope="module")
def model():
    return LatencyModel.fit(measured(1), seed=1)


def test_shapes_cover_every_operator_and_the_corners():
    found = shapes(ROWS, seed=3)
    assert 550 <= len(found) <= 700
    assert len(set(found)) == len(found)
    assert {shape.op for shape in found} == set(FAMILY)
    for op in FAMILY:
        own = [shape for shape in found if shape.op == op]
        assert {shape.rows for shape in own} == set(ROWS)
        assert (min(s.fused for s in own), max(s.fused for s in own)) == (1, 64)
        assert (min(s.width for s in own), max(s.width for s in own)) == (1, 64)
        assert sum(shape.fused <= 8 for shape in own) >= len(own) // 3  # log-spaced
    assert max(shape.elements for shape in found) <= 1 << 27
    assert found == shapes(ROWS, seed=3)
    assert found != shapes(ROWS, seed=4)


def test_shapes_of_many_rows_stay_within_memory():
    assert max(shape.elements for shape in shapes((1 << 20,), seed=0)) <= 1 << 26


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_nine_tenths_of_the_held_out_are_within_ten_percent(seed):
    held_out = LatencyModel.fit(measured(seed), seed=seed).held_out
    assert len(held_out) >= 55
    assert sum(point.within for point in held_out) / len(held_out) >= 0.9


def test_every_kernel_is_a_trial_of_its_family_and_of_all(model):
    far = [replace(p, us=2 * p.us) if i % 3 == 0 else p for i, p in enumerate(model.pairs)]
    found = hits_of(far)
    assert list(found) == [
        (family, split) for family in (*FAMILIES, "all") for split in ("train", "test")
    ]
    assert found["all", "train"] == [float(p.within) for p in far if p.split == "train"]
    assert set(found["1d", "train"]) == {0.0, 1.0}
    assert len(found["all", "train"]) + len(found["all", "test"]) == len(measured(1))
    for split in ("train", "test"):
        each = [found[family, split] for family in FAMILIES]
        assert sorted(hit for hits in each for hit in hits) == sorted(found["all", split])
    ngram = [p for p in far if p.shape.family == "ngram" and p.split == "test"]
    assert found["ngram", "test"] == [abs(p.predicted_us - p.us) <= 0.1 * p.us for p in ngram]
    assert list(hits_of(ngram)) == [("ngram", "test"), ("all", "test")]


def test_held_out_points_were_not_learnt_from():
    points = measured(5)
    model = LatencyModel.fit(points, seed=5)
    asked = {point.shape for point in model.held_out}
    absurd = [Measurement(m.shape, m.us * 50 if m.shape in asked else m.us) for m in points]
    other = LatencyModel.fit(absurd, seed=5)
    for shape in list(asked)[:20]:
        assert other.predict(shape) == pytest.approx(model.predict(shape))


def test_predict_agrees_with_the_pairs(model):
    for pair in model.held_out[:10]:
        assert model.predict(pair.shape) == pytest.approx(pair.predicted_us)


def test_outside_the_measured_range_it_follows_the_line(model):
    inside, far = Shape("logit", 32768, 64, 64), Shape("logit", 32768, 64, 640)
    assert not model.extrapolates(inside)
    assert model.extrapolates(far)
    assert model.predict(far) == pytest.approx(gpu_us(far), rel=0.1)
    tiny = Shape("logit", 16, 1, 1)
    assert model.extrapolates(tiny)
    assert model.predict(tiny) == pytest.approx(gpu_us(tiny), rel=0.2)


def test_a_model_saved_and_loaded_predicts_the_same(model):
    loaded = LatencyModel.from_json(model.to_json())
    assert loaded.held_out == model.held_out
    assert loaded.predict(Shape("clamp", 5000, 3, 7)) == model.predict(Shape("clamp", 5000, 3, 7))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"seed": 1, "test": [], "points": [[1]]}'])
def test_text_that_is_no_model_is_refused(text):
    with pytest.raises(LatencyError, match="no saved latency model"):
        LatencyModel.from_json(text)


def test_bad_measurements_are_refused():
    good = measured(1)
    with pytest.raises(LatencyError, match=r"took 0.0 us; fix: measure it again"):
        LatencyModel.fit([*good, Measurement(Shape("logit", 1, 1, 1), 0.0)], seed=1)
    with pytest.raises(LatencyError, match="no family of kernels has sqrt"):
        LatencyModel.fit([*good, Measurement(Shape("sqrt", 1, 1, 1), 1.0)], seed=1)
    with pytest.raises(LatencyError, match="ngram has 3 measurements"):
        LatencyModel.fit([m for m in good if m.shape.op == "ngram"][:3], seed=1)
    with pytest.raises(LatencyError, match="a share of 1 cannot"):
        LatencyModel.fit(good, seed=1, held_out=1)
    with pytest.raises(LatencyError, match="no row counts"):
        shapes((), seed=1)


def test_an_operator_that_was_not_measured_is_refused():
    model = LatencyModel.fit([m for m in measured(1) if m.shape.op == "ngram"], seed=1)
    with pytest.raises(LatencyError, match="logit was not measured"):
        model.predict(Shape("logit", 4096, 1, 1))
    with pytest.raises(LatencyError, match="sqrt was not measured"):
        model.predict(Shape("sqrt", 4096, 1, 1))
