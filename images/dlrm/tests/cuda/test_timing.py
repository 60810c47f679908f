"""The timing loop and pinning on a real GPU: what is timed is the device, limits are given back."""

from __future__ import annotations

import time
from functools import partial
from statistics import median

import pytest

torch = pytest.importorskip("torch")

from dlrm_inference.cuda import launch, pin  # noqa: E402
from dlrm_inference.cuda.rounds import in_graphs  # noqa: E402
from dlrm_inference.cuda.timing import (  # noqa: E402
    Captured,
    Target,
    copy_bandwidth,
    empty_launch,
    interleave,
)

pytestmark = pytest.mark.gpu


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


@pytest.mark.timed
def test_slowness_of_the_host_is_not_in_a_sample(device: torch.device) -> None:
    quick = empty_launch(device).calls[0]

    def slow_host() -> None:
        time.sleep(0.002)
        quick()

    times = interleave(
        {"quick": Target(calls=[quick]), "slow host": Target(calls=[slow_host])}, 20, 3, device
    )
    assert len(times["quick"]) == 20
    assert median(times["slow host"]) < 50  # us; ungated it would be over 2,000
    ungated = interleave({"slow host": Target(calls=[slow_host])}, 5, 1, device, gated=False)
    assert median(ungated["slow host"]) > 1500


@pytest.mark.timed
def test_a_long_kernel_takes_longer(device: torch.device) -> None:
    data = torch.randn(2**26, device=device)
    calls = {
        "one": Target(calls=[lambda: data.mul_(1.0)]),
        "two": Target(calls=[lambda: (data.mul_(1.0), data.mul_(1.0))]),
    }
    times = {name: median(samples) for name, samples in interleave(calls, 20, 3, device).items()}
    assert 1.6 < times["two"] / times["one"] < 2.4


@pytest.mark.timed
def test_a_sample_of_a_graph_is_the_time_of_its_launches(device: torch.device) -> None:
    parts = [torch.randn(2**26, device=device) for _ in range(4)]
    calls = [partial(part.mul_, 1.0) for part in parts]
    graphs = in_graphs(calls, 2, turns=3)
    assert len(graphs.calls) == 2
    kept = interleave({"alone": Target(calls=calls), "graph": graphs}, 20, 3, device)
    times = {name: median(samples) for name, samples in kept.items()}
    assert times["graph"] == pytest.approx(6 * times["alone"], rel=0.1)


@pytest.mark.timed
def test_what_the_events_take_is_spread_over_the_launches_of_a_graph(device: torch.device) -> None:
    empty = empty_launch(device)
    graph = in_graphs(empty.calls, 1, turns=12)
    times = interleave({"alone": empty, "graph": graph}, 40, 4, device)
    assert median(times["graph"]) / 12 < median(times["alone"])


def test_a_graph_writes_each_result_to_a_place_of_its_own_and_anew(device: torch.device) -> None:
    source = torch.zeros(1000, device=device)
    graph = Captured([partial(torch.add, source, 1), partial(torch.add, source, 2)], turns=3)
    for value in (10.0, 20.0):
        source.fill_(value)
        graph()
        torch.cuda.synchronize()
        assert [float(one[0]) for one in graph.results] == [value + 1, value + 2]


@pytest.mark.timed
def test_the_copy_rate_is_that_of_this_gpu(device: torch.device) -> None:
    for rates in copy_bandwidth(device, samples=5, gib=1.0).values():
        assert 100 < median(rates) < 20_000  # GB/s: any GPU of sm_80 and later


def test_a_set_aside_is_given_back(device: torch.device) -> None:
    most = pin.read_l2(device).most_set_aside
    if not most:
        pytest.skip("this GPU sets nothing aside (MIG?)")
    driver = launch.import_driver()
    limit = driver.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE
    torch.zeros(1, device=device)
    before = driver.cuCtxGetLimit(limit)[1]
    with pin.set_aside(most) as granted:
        assert granted > 0
        assert driver.cuCtxGetLimit(limit)[1] == granted
    assert driver.cuCtxGetLimit(limit)[1] == before
    with pytest.raises(ZeroDivisionError), pin.set_aside(most):
        1 / 0  # noqa: B018
    assert driver.cuCtxGetLimit(limit)[1] == before


def test_hot_rows_come_first(device: torch.device) -> None:
    order = pin.hot_first(6, torch.tensor([4, 1], device=device))
    assert order.tolist() == [4, 1, 0, 2, 3, 5]


def test_a_pin_of_ragged_rows_touches_nothing_else(device: torch.device) -> None:
    weight = torch.randn(1000, 100, device=device)  # rows start inside lines
    before = weight.clone()
    pin.make_pin(weight, torch.arange(1000, device=device))()
    torch.cuda.synchronize()
    assert torch.equal(weight, before)
