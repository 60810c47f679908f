"""The replay's counting and choices, with stand-ins for the card; calls for CUDA 12 and 13."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from accel_trace.events import ManagedCounter
from accel_trace.uvm import microbench, runtime
from accel_trace.uvm.advice import Advice, Group
from accel_trace.uvm.replay import Replay, ReplayError
from accel_trace.uvm.runtime import HOST, Runtime, RuntimeMissing, driver_prefetch

MIB = 1 << 20


class _Memory:
    """Managed pieces; the second is small and has no number of its own in advice."""

    inside_address = 77

    def __init__(self) -> None:
        self.all = [(0, 20 * MIB, True), (30 * MIB, MIB, True), (40 * MIB, 2 * MIB, True)]

    def pieces(self) -> int:
        return len(self.all)

    def any_piece(self, number: int) -> tuple[int, int, bool] | None:
        return self.all[number] if number < len(self.all) else None


class _Hooks:
    def __init__(self) -> None:
        self.tensors: dict[int, tuple[int, int] | None] = {0: (0, 2 * MIB), 1: (2 * MIB, 3 * MIB)}
        self.call: Any = None
        self.inside: int | None = None
        self.started = True

    def operators(self, *, backward: bool = True) -> None:
        pass

    def allocator(self) -> bool:
        return self.started

    def listen(self, call: Any) -> None:
        self.call = call

    def number(self, inside: int | None) -> None:
        self.inside = inside

    def piece(self, number: int) -> tuple[int, int] | None:
        return self.tensors.get(number)


class _Runtime:
    def __init__(self) -> None:
        self.calls: list[tuple[int, int, int, int]] = []
        self.streams: list[int] = []
        self.error: Exception | None = None

    def stream(self) -> int:
        self.streams.append(len(self.streams))
        return self.streams[-1]

    def destroy(self, stream: int) -> None:
        self.streams.remove(stream)

    def prefetch(self, address: int, size: int, device: int, stream: int) -> None:
        if self.error is not None:
            raise self.error
        self.calls.append((address, size, device, stream))


ADVICE = Advice(
    objects=(20 * MIB, 2 * MIB),
    tensors=(2 * MIB, 3 * MIB),
    groups=(Group("a", (0, 1), (0, 1)), Group("b"), Group("c", (1,), (1,))),
)


def run(policy: str, names: str, hooks: _Hooks | None = None, **options: Any) -> tuple[Any, Any]:
    hooks = hooks or _Hooks()
    card = options.pop("card", None) or _Runtime()
    memory = options.pop("memory", None) or _Memory()
    with Replay(memory, ADVICE, policy, hooks=hooks, runtime=card, device=2, **options) as replay:
        assert hooks.inside == 77
        with replay.active() as report:
            for index, name in enumerate(names):
                hooks.call(1, name.encode(), index)
                hooks.call(0, name.encode(), index)
        assert hooks.call is None
    assert hooks.inside is None
    assert not card.streams
    return report, card


def test_objects_are_prefetched_whole_round_robin_on_three_streams() -> None:
    report, card = run("object", "abc")
    assert card.calls == [
        (0, 20 * MIB, 2, 0), (40 * MIB, 2 * MIB, 2, 1), (40 * MIB, 2 * MIB, 2, 2),
    ]  # fmt: skip
    assert (report.groups, report.prefetches, report.asked_bytes) == (3, 3, 24 * MIB)
    assert report.asked_bytes == ADVICE.asked("object")
    assert (report.mismatches, report.gone, report.strangers) == (0, 0, 0)


def test_tensors_are_prefetched_where_they_are_now() -> None:
    report, card = run("tensor", "abca")
    assert [call[:2] for call in card.calls] == [
        (0, 2 * MIB), (2 * MIB, 3 * MIB), (2 * MIB, 3 * MIB),
    ]  # fmt: skip
    assert report.asked_bytes == ADVICE.asked("tensor") == 8 * MIB
    assert report.mismatches == 1  # a fourth operator, which the profile has not


def test_nothing_is_asked_for_without_a_policy() -> None:
    report, card = run("none", "abc")
    assert not card.calls
    assert (report.groups, report.asked_bytes) == (3, 0)


def test_an_operator_of_another_name_gets_nothing() -> None:
    report, card = run("tensor", "xbc")
    assert report.mismatches == 1
    assert len(card.calls) == 1


def test_pieces_that_are_gone_or_of_another_size_are_counted() -> None:
    hooks = _Hooks()
    hooks.tensors = {0: None, 1: (0, 5 * MIB)}
    report, card = run("tensor", "a", hooks)
    assert not card.calls
    assert (report.gone, report.strangers) == (1, 1)
    memory = _Memory()
    memory.all[0] = (0, 20 * MIB, False)
    report, card = run("object", "a", memory=memory)
    assert (report.gone, len(card.calls)) == (1, 1)


def test_an_error_of_the_card_is_raised_at_the_end_not_in_an_operator() -> None:
    card = _Runtime()
    card.error = RuntimeMissing("cudaMemPrefetchAsync failed: cudaErrorInvalidValue")
    with pytest.raises(ReplayError, match=r"prefetching stopped: .*cudaErrorInvalidValue"):
        run("object", "abc", card=card)


def test_bad_calls_say_what_helps() -> None:
    with pytest.raises(ReplayError, match="choose of none, object, tensor"):
        Replay(_Memory(), ADVICE, "all")
    with pytest.raises(ReplayError, match="needs advice; record with the tool uvm_advisor"):
        Replay(_Memory(), None, "object")
    hooks = _Hooks()
    hooks.started = False
    with pytest.raises(ReplayError, match="enter managed_pool"), Replay(_Memory(), hooks=hooks):
        pass


def test_a_profiling_run_needs_no_card() -> None:
    hooks = _Hooks()
    with Replay(_Memory(), hooks=hooks) as replay, replay.active() as report:
        hooks.call(1, b"a", 0)
    assert (report.groups, report.prefetches) == (1, 0)


class _Error(int):
    name = "cudaErrorInvalidValue"


def _bindings(newer: bool, code: int = 0) -> tuple[Any, list[tuple[str, tuple[Any, ...]]]]:
    calls: list[tuple[str, tuple[Any, ...]]] = []

    def call(name: str, *result: Any) -> Any:
        def function(*arguments: Any) -> tuple[Any, ...]:
            calls.append((name, arguments))
            return (_Error(code), *result)

        return function

    api = SimpleNamespace(
        cudaMemLocation=SimpleNamespace,
        cudaMemLocationType=SimpleNamespace(
            cudaMemLocationTypeDevice="device", cudaMemLocationTypeHost="host"
        ),
        cudaMemRangeAttribute=SimpleNamespace(cudaMemRangeAttributeLastPrefetchLocation=4),
        cudaStreamNonBlocking=1,
        cudaCpuDeviceId=-1,
        cudaMemPrefetchAsync=call("prefetch"),
        cudaStreamCreateWithFlags=call("create", "stream"),
        cudaStreamSynchronize=call("wait"),
        cudaStreamDestroy=call("destroy"),
        cudaMemRangeGetAttribute=call("attribute", -2),
    )
    if not newer:
        api.cudaMemPrefetchAsync_v2 = call("prefetch_v2")
    return api, calls


def test_the_call_of_cuda_13_takes_a_location() -> None:
    api, calls = _bindings(newer=True)
    card = Runtime(api)
    card.prefetch(4096, 512, 3, "s")
    card.prefetch(4096, 512, HOST, "s")
    places = [arguments[2] for _, arguments in calls]
    assert [(place.type, place.id) for place in places] == [("device", 3), ("host", 0)]
    assert calls[0][1][:2] + calls[0][1][3:] == (4096, 512, 0, "s")


def test_the_call_of_cuda_12_takes_a_device() -> None:
    api, calls = _bindings(newer=False)
    card = Runtime(api)
    card.prefetch(4096, 512, 3, "s")
    card.prefetch(4096, 512, HOST, "s")
    assert calls == [
        ("prefetch", (4096, 512, 3, "s")), ("prefetch", (4096, 512, -1, "s")),
    ]  # fmt: skip


def test_results_and_errors_of_the_runtime() -> None:
    api, calls = _bindings(newer=True)
    card = Runtime(api)
    assert card.stream() == "stream"
    assert calls == [("create", (1,))]
    assert card.last_prefetch(4096, 512) == -2
    card.destroy("stream")
    assert [name for name, _ in calls[-2:]] == ["wait", "destroy"]
    with pytest.raises(RuntimeMissing, match="cudaMemPrefetchAsync failed: cudaErrorInvalid"):
        Runtime(_bindings(newer=True, code=1)[0]).prefetch(0, 1, 0, None)


def test_the_real_bindings_have_the_names_that_are_used() -> None:
    api = pytest.importorskip("cuda.bindings.runtime", reason="cuda-bindings is not installed")
    card = Runtime(api)
    for name in (
        "cudaStreamCreateWithFlags", "cudaStreamSynchronize", "cudaStreamDestroy",
        "cudaMemPrefetchAsync", "cudaMemRangeGetAttribute", "cudaDeviceSynchronize",
        "cudaStreamNonBlocking",
    ):  # fmt: skip
        assert hasattr(api, name), name
    assert api.cudaMemRangeAttribute.cudaMemRangeAttributeLastPrefetchLocation
    if card._by_location:
        assert card._location(1).id == 1
        assert card._location(HOST).type == api.cudaMemLocationType.cudaMemLocationTypeHost


def test_without_bindings_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(runtime.importlib, "import_module", missing)
    with pytest.raises(RuntimeMissing, match="pip install cuda-bindings"):
        Runtime()


@pytest.mark.parametrize(("text", "value"), [("1\n", 1), ("0\n", 0), ("?", None), (None, None)])
def test_the_drivers_own_prefetching_is_read(
    text: str | None, value: int | None, tmp_path: Path
) -> None:
    path = tmp_path / "uvm_perf_prefetch_enable"
    if text is not None:
        path.write_text(text)
    assert driver_prefetch(path) == value


def test_counters_of_the_microbenchmark_are_summed() -> None:
    def counter(what: str, value: int) -> ManagedCounter:
        return ManagedCounter(what=what, value=value, start_ns=0, end_ns=0, address=0, device=0)

    events = [
        counter("BYTES_TRANSFER_HTOD", 4096), counter("BYTES_TRANSFER_HTOD", 65536),
        counter("BYTES_TRANSFER_DTOH", 10), counter("GPU_PAGE_FAULT", 3), counter("THRASHING", 99),
    ]  # fmt: skip
    assert microbench.counters(events) == (69632, 10, 3)


@pytest.mark.parametrize(("size", "stride"), [(0, 1), (10, 0), (10, 11)])
def test_the_microbenchmark_refuses_strides_that_make_no_sense(size: int, stride: int) -> None:
    with pytest.raises(ValueError, match="give 0 < stride <= size"):
        microbench.touch(size, stride)


@pytest.mark.torch
def test_the_microbenchmark_says_that_it_needs_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if torch.cuda.is_available():
        pytest.skip("is about machines without a GPU")
    assert microbench.main(["--mib", "1"]) == 77
    said = capsys.readouterr()
    assert "needs" in said.err
    assert said.out == ""
    with pytest.raises(SystemExit):
        microbench.main(["--mib", "1", "--stride", "0"])
