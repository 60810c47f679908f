"""Lanes keep order, wait for each other's events, and hand on what went wrong."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from rap_training.sharing.lanes import CallerLane, Lane, StreamLane, ThreadLane, lanes

pytestmark = [pytest.mark.torch, pytest.mark.timeout(60)]

CPU = torch.device("cpu")


def test_work_runs_in_order_and_beside_the_caller() -> None:
    lane, seen, free = ThreadLane(), [], threading.Event()
    lane.submit(free.wait)
    for number in range(100):
        lane.submit(lambda n=number: seen.append((n, threading.get_ident())))  # type: ignore[misc]
    assert not seen  # the caller is already here
    free.set()
    lane.finish()
    assert [number for number, _ in seen] == list(range(100))
    assert threading.get_ident() not in {thread for _, thread in seen}
    lane.close()


def test_the_caller_s_lane_runs_at_once() -> None:
    lane, seen = CallerLane(), []
    lane.submit(lambda: seen.append(threading.get_ident()))
    assert seen == [threading.get_ident()]
    assert lane.record().is_set()


def test_an_event_covers_what_was_queued_before_it() -> None:
    lane, free, then, seen = ThreadLane(), threading.Event(), threading.Event(), []
    lane.submit(free.wait)
    lane.submit(lambda: seen.append("before"))
    event = lane.record()
    lane.submit(then.wait)
    lane.submit(lambda: seen.append("behind"))
    assert not event.is_set()
    free.set()
    assert event.wait(30)
    assert seen == ["before"]
    then.set()
    lane.finish()
    assert seen == ["before", "behind"]
    lane.close()


@pytest.mark.parametrize("other", [CallerLane, ThreadLane])
def test_a_lane_waits_for_another_s_event(other: type[CallerLane] | type[ThreadLane]) -> None:
    first, second, seen = ThreadLane(), other(), []
    first.submit(lambda: (time.sleep(0.1), seen.append("first")))
    second.wait(first.record())
    second.submit(lambda: seen.append("second"))
    second.wait(None)  # nothing to wait for
    second.finish()
    assert seen == ["first", "second"]
    for lane in (first, second):
        lane.close()


def fails() -> None:
    raise LookupError("in the lane")


def test_an_error_reaches_who_waits_and_nobody_hangs() -> None:
    lane, seen = ThreadLane(), []
    lane.submit(fails)
    assert lane.record().wait(30)  # another lane's wait ends
    lane.wait(threading.Event())  # one that never comes is not waited for any more
    with pytest.raises(LookupError, match="in the lane"):
        lane.finish()
    lane.submit(lambda: seen.append("again"))  # told once, it goes on
    lane.finish()
    assert seen == ["again"]
    lane.close()


def test_an_error_stops_who_queues_more() -> None:
    lane = ThreadLane()
    lane.submit(fails)
    assert lane.record().wait(30)
    with pytest.raises(LookupError, match="in the lane"):
        lane.submit(lambda: None)
    lane.close()


def test_what_follows_an_error_is_left_out() -> None:
    lane, free, seen = ThreadLane(), threading.Event(), []
    lane.submit(free.wait)
    lane.submit(fails)
    lane.submit(lambda: seen.append("on what was not made"))
    free.set()
    with pytest.raises(LookupError):
        lane.finish()
    assert not seen
    lane.close()


def test_a_closed_lane_has_no_thread() -> None:
    lane = ThreadLane("to be closed")
    lane.close()
    assert "to be closed" not in {thread.name for thread in threading.enumerate()}


def test_training_is_the_caller_s_on_a_cpu() -> None:
    train, side = lanes(CPU)
    assert isinstance(train, CallerLane)
    assert isinstance(side, ThreadLane)
    side.close()


@pytest.mark.gpu
@pytest.mark.timed
@pytest.mark.parametrize("priority", [0, 1])
def test_streams_wait_on_the_device_and_not_on_the_host(priority: int) -> None:
    device = torch.device("cuda", 0)
    train, side = lanes(device, priority=priority)
    assert isinstance(train, StreamLane)
    assert isinstance(side, StreamLane)
    assert (train.stream.priority < side.stream.priority) == bool(priority)
    value = torch.zeros(1, device=device)
    value.fill_(1).mul_(2)  # or their first use, which loads them, would wait for the device
    torch.cuda.synchronize()

    def slowly() -> None:
        torch.cuda._sleep(200_000_000)  # a tenth of a second
        value.fill_(3)

    pair: tuple[Lane, Lane] = (train, side)
    began = time.perf_counter()
    pair[0].submit(slowly)
    pair[1].wait(pair[0].record())
    pair[1].submit(lambda: value.mul_(2))
    assert time.perf_counter() - began < 0.05
    pair[1].finish()
    assert value.item() == 6
