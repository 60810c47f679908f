import math
import random
from collections import Counter
from dataclasses import replace

import pytest
from rap_training.experiments.predictor import hits_of
from rap_training.planner import latency
from rap_training.planner.latency import (
    FAMILIES,
    FAMILY,
    LatencyError,
    LatencyModel,
    Measurement,
    Shape,
    cross_validated,
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
    return LatencyModel(measured(1), seed=1)


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


@pytest.fixture(scope="module")
def held_out():
    return cross_validated(measured(1), seed=1, folds=5)


def test_nine_tenths_of_the_held_out_are_within_ten_percent(held_out):
    points = measured(1)
    assert [(p.shape, p.us) for p in held_out] == [(m.shape, m.us) for m in points]
    assert sum(point.within for point in held_out) / len(held_out) >= 0.9


def test_every_kernel_is_a_trial_of_its_family_and_of_all(held_out):
    far = [replace(p, us=2 * p.us) if i % 3 == 0 else p for i, p in enumerate(held_out)]
    found = hits_of(far)
    assert list(found) == [*FAMILIES, "all"]
    assert found["all"] == [float(p.within) for p in far]
    assert set(found["1d"]) == {0.0, 1.0}
    assert sorted(hit for family in FAMILIES for hit in found[family]) == sorted(found["all"])
    ngram = [p for p in far if p.shape.family == "ngram"]
    assert found["ngram"] == [abs(p.predicted_us - p.us) <= 0.1 * p.us for p in ngram]
    assert list(hits_of(ngram)) == ["ngram", "all"]


def test_no_prediction_has_seen_its_own_measurement():
    points = [m for m in measured(5) if m.shape.op in ("ngram", "cast")]
    before = cross_validated(points, seed=5, folds=3)
    for index in (0, 7, len(points) - 1):
        absurd = [replace(m, us=50 * m.us) if i == index else m for i, m in enumerate(points)]
        after = cross_validated(absurd, seed=5, folds=3)
        assert after[index].predicted_us == pytest.approx(before[index].predicted_us)
        assert any(
            one.predicted_us != two.predicted_us for one, two in zip(before, after, strict=True)
        )


def test_folds_have_an_equal_share_of_every_operator(monkeypatch):
    seen = []

    def fitted(measurements, *, seed):
        seen.append(Counter(m.shape.op for m in measurements))
        return LatencyModel(measurements, seed=seed)

    points = [m for m in measured(2) if m.shape.op in ("ngram", "cast")]
    monkeypatch.setattr(latency, "LatencyModel", fitted)
    cross_validated(points, seed=2, folds=4)
    whole = Counter(m.shape.op for m in points)
    assert len(seen) == 4
    for fold in seen:
        assert all(abs(fold[op] - 0.75 * count) < 1 for op, count in whole.items())


def test_outside_the_measured_range_it_follows_the_line(model):
    far = Shape("logit", 32768, 64, 640)
    assert model.predict(far) == pytest.approx(gpu_us(far), rel=0.1)
    tiny = Shape("logit", 16, 1, 1)
    assert model.predict(tiny) == pytest.approx(gpu_us(tiny), rel=0.2)


def test_bad_measurements_are_refused():
    good = measured(1)
    with pytest.raises(LatencyError, match=r"took 0.0 us; fix: measure it again"):
        LatencyModel([*good, Measurement(Shape("logit", 1, 1, 1), 0.0)], seed=1)
    with pytest.raises(LatencyError, match="no family of kernels has sqrt"):
        LatencyModel([*good, Measurement(Shape("sqrt", 1, 1, 1), 1.0)], seed=1)
    with pytest.raises(LatencyError, match="ngram has 3 measurements"):
        LatencyModel([m for m in good if m.shape.op == "ngram"][:3], seed=1)
    with pytest.raises(LatencyError, match="no row counts"):
        shapes((), seed=1)


def test_an_operator_that_was_not_measured_is_refused():
    model = LatencyModel([m for m in measured(1) if m.shape.op == "ngram"], seed=1)
    with pytest.raises(LatencyError, match="logit was not measured"):
        model.predict(Shape("logit", 4096, 1, 1))
    with pytest.raises(LatencyError, match="sqrt was not measured"):
        model.predict(Shape("sqrt", 4096, 1, 1))
