"""The search for plans of a wanted ratio, on a made-up machine whose times are known."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from rap_training.config import Config  # noqa: E402
from rap_training.experiments import ratio  # noqa: E402
from rap_training.plan.builtin import builtin  # noqa: E402
from rap_training.plan.graph import Plan  # noqa: E402

WANTED = (0.05, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0)


def ratio_of(plan: Plan) -> float:
    """Three us an operator; training grows with the over arch's products."""
    over = plan.over_arch
    products = sum(one * other for one, other in pairwise(over))
    return 3.0 * len(plan.nodes) / (200.0 + 1e-3 * products)


@pytest.mark.parametrize("number", [0, 2])
def test_every_ratio_is_met_closely(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(ratio, "_ratio", lambda _, plan: ratio_of(plan))
    start = builtin(number, scale=0.001)
    config = Config(experiment="ratio", ratios=WANTED)
    found = list(ratio.plans(SimpleNamespace(plan=start, config=config)))
    assert [wanted for wanted, _ in found] == list(WANTED)
    for wanted, plan in found:
        assert ratio_of(plan) == pytest.approx(wanted, rel=0.2), wanted
        assert plan.dense_width == start.dense_width
        assert [output.rows for output in plan.sparse] == [output.rows for output in start.sparse]


def test_what_cannot_be_met_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which nothing changes the ratio: the search gives up."""
    tried = []
    monkeypatch.setattr(ratio, "_ratio", lambda _, plan: tried.append(plan) or 0.5)
    config = Config(experiment="ratio", ratios=(0.01, 5.0))
    rank = SimpleNamespace(plan=builtin(0, scale=0.001), config=config)
    assert len(list(ratio.plans(rank))) == 2
    assert len(tried) < 20
