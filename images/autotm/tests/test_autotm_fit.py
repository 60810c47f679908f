"""`autotm.fit` as a person uses it, and what it says to what it cannot do."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import autotm
import autotm_networks
import autotm_plans
import pytest
import torch
from autotm.budget import bytes_of
from autotm.executor import kernels, profiling
from autotm.executor.capture import capture
from autotm.executor.errors import BudgetError, CaptureError, PinnedError
from autotm.executor.kernels import Kernel, kernel
from autotm.executor.lanes import pinned
from autotm.executor.profiling import Cache, in_backward, profile
from autotm.executor.timeline import Lost, Span, lost
from autotm.fitting import Fitted
from autotm.graph import Graph, Machine, Plan
from autotm.networks.modules import module as small_module
from torch import nn

LOSS = nn.functional.cross_entropy


def both(graph: Graph, machine: Machine) -> Plan:
    return autotm_plans.mixed(graph)


def fitted(name: str = "residual", planner: object = both) -> tuple[Fitted, nn.Module, tuple]:
    module, sample = autotm_networks.network(name)
    return autotm.fit(module, sample, LOSS, budget="1GiB", planner=planner), module, sample


@pytest.mark.parametrize("name", sorted(autotm_networks.NETWORKS))
def test_training_is_the_plain_training(name: str) -> None:
    step, module, sample = fitted(name)
    torch.manual_seed(3)
    optimizer = torch.optim.SGD(step.parameters(), 0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        loss = step(*sample)
        loss.backward()
        optimizer.step()
    theirs, _ = autotm_networks.network(name)
    torch.manual_seed(3)
    optimizer = torch.optim.SGD(theirs.parameters(), 0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        want = LOSS(theirs(*sample[:-1]), sample[-1])
        want.backward()
        optimizer.step()
    assert torch.equal(loss, want)
    for got, other in zip(module.state_dict().values(), theirs.state_dict().values(), strict=True):
        assert torch.equal(got, other)
    step.close()


def test_gradients_accumulate_and_scale() -> None:
    step, module, sample = fitted("conv")
    (step(*sample) * 3).backward()
    step(*sample).backward()
    got = [each.grad.clone() for each in module.parameters()]
    module.zero_grad()
    (LOSS(module(sample[0]), sample[1]) * 3).backward()
    LOSS(module(sample[0]), sample[1]).backward()
    for mine, parameter in zip(got, module.parameters(), strict=True):
        torch.testing.assert_close(mine, parameter.grad)


def test_without_gradients_the_plain_module_runs() -> None:
    step, module, sample = fitted("conv")
    before = module.get_buffer("1.num_batches_tracked").clone()
    step.eval()
    assert step(*sample).grad_fn is not None
    assert torch.equal(module.get_buffer("1.num_batches_tracked"), before)
    step.train()
    with torch.no_grad():
        assert step(*sample).grad_fn is None


def test_measuring_reports_and_changes_nothing(tmp_path: Path) -> None:
    step, module, _ = fitted("transformer")
    before = {name: each.clone() for name, each in module.state_dict().items()}
    state = torch.get_rng_state()
    found = step.measure(3)
    assert found.differ == ()
    assert found.arena == step.fit.plan.peak_bytes
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(each, before[name]) for name, each in module.state_dict().items())
    text = step.report()
    assert "bit for bit" in text
    assert "made again" in text
    assert len(text.splitlines()) < 50
    step.timeline(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = [each for each in events if each["ph"] == "X"]
    for process in (1, 2):
        lanes = [each["tid"] for each in spans if each["pid"] == process]
        assert lanes.count(1) == len(step.fit.plan.steps)
        assert lanes.count(2) == sum(s.saved is not None for s in step.fit.plan.stays)
        assert lanes.count(3) == sum(s.source == "host" for s in step.fit.plan.stays)


def test_where_an_iteration_takes_longer_than_planned_adds_up() -> None:
    step, _, _ = fitted("transformer")
    times, waits = step.timelines(), step.iteration.session.program.waits
    found = lost(times, waits)
    took = {
        name: max(each.begin + each.seconds for each in spans if each.lane == "compute")
        - min(each.begin for each in spans if each.lane == "compute")
        for name, spans in times.items()
    }
    assert found.seconds == pytest.approx(took["measured"] - took["predicted"])
    late = {
        **times,
        "measured": [
            Span("compute", "a", 0.0, 2.0), Span("compute", "b", 2.5, 1.0),
            Span("compute", "c", 6.0, 3.0), Span("out", "x", 0.5, 1.2), Span("in", "y", 3.0, 3.0),
        ],
        "predicted": [
            Span("compute", "a", 0.0, 1.5), Span("compute", "b", 1.5, 1.0),
            Span("compute", "c", 3.0, 3.0), Span("out", "x", 0.0, 1.0), Span("in", "y", 2.0, 1.0),
        ],
    }  # fmt: skip
    # Copies run beside "a" and half of "b"; "c" waits 2.5 s where half a second was planned; and
    # nobody knows why nothing runs for half a second before "b".
    assert lost(late, [False, False, True]) == Lost(beside=0.5, alone=0.0, waits=2.0, gaps=0.5)


def test_a_backward_out_of_turn_is_refused() -> None:
    step, _, sample = fitted("mlp")
    first = step(*sample)
    step(*sample)
    with pytest.raises(RuntimeError, match="activations of this loss are gone"):
        first.backward()
    second = step(*sample)
    second.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="activations of this loss are gone"):
        second.backward()


def test_a_gradient_of_a_gradient_is_refused() -> None:
    step, module, sample = fitted("mlp")
    with pytest.raises(RuntimeError, match=r"leave create_graph=True to the plain module"):
        torch.autograd.grad(step(*sample), list(module.parameters()), create_graph=True)


def test_a_step_cannot_be_fitted() -> None:
    step, _, sample = fitted("mlp")
    with pytest.raises(CaptureError, match=r"fit the module in it \(step.module\)"):
        autotm.fit(step, sample, budget="1GB")


def test_a_parameter_changed_before_backward_is_refused() -> None:
    step, module, sample = fitted("mlp")
    loss = step(*sample)
    with torch.no_grad():
        module.get_parameter("0.weight").mul_(2)
    with pytest.raises(RuntimeError, match="changed in place"):
        loss.backward()


def test_other_shapes_and_a_changed_module_are_refused() -> None:
    step, module, sample = fitted("mlp")
    with pytest.raises(ValueError, match=r"\(6, 12\), \(6,\), and got \(3, 12\), \(3,\)"):
        step(sample[0][:3], sample[1][:3])
    with pytest.raises(ValueError, match=r"\(6, 12\) float32.*got \(6, 12\) float64, \(6,\) int64"):
        step(sample[0].double(), sample[1])
    with pytest.raises(ValueError, match="and got none; fit again"):
        step()
    module[0].eval()
    with pytest.raises(ValueError, match=r"has changed .*a training mode"):
        step(*sample)
    module[0].train()
    with pytest.raises(ValueError, match=r"\(6,\) on cpu, and got .*\(6,\) on meta; fit again"):
        step(sample[0], sample[1].to("meta"))
    with pytest.raises(ValueError, match=r"strides \(12, 1\).*got \(6, 12\) of strides \(1, 6\)"):
        step(sample[0].t().contiguous().t(), sample[1])
    weight = module.get_parameter("0.weight")
    weight.requires_grad_(False)
    for _ in range(2):
        with pytest.raises(ValueError, match="has changed"):
            step(*sample)
    weight.requires_grad_(True)
    step(*sample)
    kept, weight.data = weight.data, weight.data.t().contiguous().t()  # in other strides
    with pytest.raises(ValueError, match="has changed"):
        step(*sample)
    weight.data = kept.clone()
    step(*sample)


class Branches(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.linear, self.how = nn.Linear(4, 2), how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "item" and x.sum().item() > 0:
            x = x * 2
        if self.how == "shape":
            x = x[x[:, 0] > 0]
        if self.how == "inplace":
            x.add_(1)
        if self.how == "numpy":
            x = torch.from_numpy(x.numpy())
        return self.linear(x).sum() if self.how != "vector" else self.linear(x)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("item", "depend on the values"),
        ("shape", "depend on the values"),
        ("inplace", "clone it first"),
        ("numpy", "could not be captured"),
        ("vector", "one number, the loss"),
    ],
)
def test_what_has_no_static_graph_is_one_sentence(how: str, says: str) -> None:
    with pytest.raises(CaptureError, match=says) as error:
        autotm.fit(Branches(how), torch.randn(3, 4), budget="1GiB", planner=both)
    assert "\n" not in str(error.value)
    assert ("in forward, test_autotm_fit.py:" in str(error.value)) == (how in ("item", "shape"))


def test_an_encoder_that_compares_its_mask_is_told_by_the_line() -> None:
    """It can be fitted where one says whether the mask is causal."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    module = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    mask = nn.Transformer.generate_square_subsequent_mask(4)
    with pytest.raises(CaptureError, match=r"in _detect_is_causal_mask, transformer.py:\d"):
        autotm.fit(module, (torch.randn(2, 4, 8), mask, torch.ones(())), LOSS, budget="1GB")


def test_samples_that_cannot_be() -> None:
    linear = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))
    with pytest.raises(CaptureError, match="tensors alone"):
        autotm.fit(linear, (torch.randn(1, 4), 3), budget=1, planner=both)
    with pytest.raises(CaptureError, match="on cpu, meta"):
        autotm.fit(linear, torch.randn(1, 4, device="meta"), budget=1, planner=both)
    with pytest.raises(CaptureError, match="input requires a gradient"):
        autotm.fit(Branches(""), torch.randn(3, 4, requires_grad=True), budget=1, planner=both)
    with pytest.raises(CaptureError, match="wrap the module in one of your own"):
        autotm.fit(linear, {"x": torch.randn(1, 4)}, budget=1, planner=both)
    for off in (torch.no_grad, torch.inference_mode):
        with off(), pytest.raises(CaptureError, match=r"fit outside of torch.no_grad\(\)"):
            autotm.fit(linear, torch.ones(1, 4), budget=1, planner=both)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch's, as it is imported
def test_a_compiled_module_is_refused_in_a_sentence() -> None:
    in_place, part = nn.Linear(4, 1), nn.Sequential(nn.Linear(4, 1))
    in_place.compile()
    part[0] = torch.compile(part[0])
    for each in (torch.compile(nn.Linear(4, 1)), in_place, part):
        with pytest.raises(CaptureError, match="is compiled"):
            autotm.fit(each, torch.ones(1, 4), budget=1, planner=both)


def test_a_budget_that_cannot_be_met_names_the_least() -> None:
    module, sample = autotm_networks.network("unet")
    before = threading.active_count()
    with pytest.raises(BudgetError, match="at least") as error:
        autotm.fit(module, sample, LOSS, budget="1kB", planner=both)
    assert 1000 < error.value.least < 1e6
    named = str(error.value).partition("at least ")[2].partition(" (")[0]
    assert error.value.least <= bytes_of(named) < 1.01 * error.value.least
    autotm.fit(module, sample, LOSS, budget=named).close()
    assert threading.active_count() <= before  # those of earlier steps may end meanwhile


@pytest.mark.parametrize(
    ("text", "want"),
    [("12GiB", 12 << 30), ("10.2 GB", 10_200_000_000), ("7", 7), (5, 5), ("2.01kB", 2010)],
)
def test_sizes(text: str | int, want: int) -> None:
    assert bytes_of(text) == want


def test_no_size() -> None:
    with pytest.raises(ValueError, match="write it as 12GiB"):
        bytes_of("much")


def test_a_closed_step_leaves_no_thread() -> None:
    before = set(threading.enumerate())  # some of other steps, which may end meanwhile
    step, _, sample = fitted("mlp")
    step(*sample).backward()
    mine = [each for each in threading.enumerate() if each not in before]
    assert len([each for each in mine if "autotm" in each.name]) == 2
    step.close()
    assert not any(each.is_alive() for each in mine if "autotm" in each.name)


def test_autocast_is_that_of_the_fit() -> None:
    module, sample = autotm_networks.network("residual")
    with torch.autocast("cpu", torch.bfloat16):
        step = autotm.fit(module, sample, LOSS, budget="1GiB", planner=both)
        loss = step(*sample)
    loss.backward()
    theirs, _ = autotm_networks.network("residual")
    with torch.autocast("cpu", torch.bfloat16):
        want = LOSS(theirs(sample[0]), sample[1])
    want.backward()
    assert torch.equal(loss, want)
    for mine, other in zip(module.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine.grad, other.grad)


def test_distributed_training_goes_around_a_fitted_step(tmp_path: Path) -> None:
    module, sample = autotm_networks.network("mlp")
    around = nn.parallel.DistributedDataParallel
    alone = {"init_method": f"file://{tmp_path}/store", "rank": 0, "world_size": 1}
    torch.distributed.init_process_group("gloo", **alone)
    try:
        with pytest.raises(CaptureError, match="wrap the step"):
            autotm.fit(around(module), sample, LOSS, budget="1GiB", planner=both)
        step = autotm.fit(module, sample, LOSS, budget="1GiB", planner=both)
        torch.manual_seed(3)
        around(step)(*sample).backward()
    finally:
        torch.distributed.destroy_process_group()
    got = [each.grad for each in module.parameters()]
    module.zero_grad()
    torch.manual_seed(3)
    LOSS(module(sample[0]), sample[1]).backward()
    assert all(map(torch.equal, got, [each.grad for each in module.parameters()]))
    step.close()


class Convolution(nn.Module):
    def __init__(self, stride: int, padding: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3, 3, 3))
        self.how = stride, padding

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.conv2d(x, self.weight, None, *self.how)[:, :, :2, :2].sum()


def test_a_file_of_times_is_used_again_and_survives_a_torn_line(tmp_path: Path) -> None:
    module, sample = autotm_networks.network("conv")
    file = tmp_path / "times" / "cpu.jsonl"
    first = autotm.fit(module, sample, LOSS, budget="1GB", cache=file, planner=both)
    lines = file.read_text().splitlines()
    file.write_text("\n".join(lines) + '\n{"key": "torn')
    again = autotm.fit(module, sample, LOSS, budget="1GB", cache=file, planner=both)
    assert len(file.read_text().splitlines()) == len(lines) + 1
    assert [op.seconds for op in again.fit.graph.ops] == [op.seconds for op in first.fit.graph.ops]
    assert list(file.parent.iterdir()) == [file]


def test_every_kind_of_call_runs_in_a_fit_though_its_time_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What libraries keep from a first call on, and what is tried once, must be over by then."""
    found, cache, runs = capture(*autotm_networks.network("residual"), LOSS), Cache(), []
    profile(found, cache, 1)
    true = Kernel.run
    monkeypatch.setattr(Kernel, "run", lambda self, *args: runs.append(self) or true(self, *args))
    times = profile(found, cache, 1)
    assert len(runs) == len(cache) < len(times) == len(found.calls)
    assert {str(each.call.target) for each in runs} == {str(each.target) for each in found.calls}


def test_work_in_a_backward_gives_its_result_and_its_error() -> None:
    cpu = torch.device("cpu")
    with torch.no_grad():
        assert in_backward(cpu, torch._C._current_graph_task_id) >= 0
    with pytest.raises(BudgetError, match="too much"):
        in_backward(cpu, lambda: (_ for _ in ()).throw(BudgetError("too much", 1)))


def test_convolutions_that_differ_in_stride_or_padding_have_times_of_their_own() -> None:
    cache, counts = Cache(), []
    for stride, padding in ((1, 1), (2, 1), (1, 0), (1, 1)):
        call = Convolution(stride, padding)
        profile(capture(call, (torch.randn(1, 3, 8, 8),)), cache, 1)
        counts.append(len(cache))
    assert counts[0] < counts[1] < counts[2] == counts[3]


def test_a_convolution_that_is_done_in_another_way_has_a_time_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a GPU: gradients in parts of the batch are tried, here for real, and cuDNN in vain."""
    found, cache = capture(*small_module("small-vgg_7", "cpu"), LOSS), Cache()
    monkeypatch.setattr(profiling, "kernel", lambda call, lie, _: kernel(call, lie, "cuda"))
    monkeypatch.setattr(kernels, "PART", 5_000)
    calls = [each for each in found.calls if "convolution_backward" in str(each.target)]
    monkeypatch.setattr(kernels, "_PARTS", {kernels._trial(each): 5_000 for each in calls})

    def kept(same: dict[str, bool]) -> int:
        monkeypatch.setattr(kernels, "_SAME", same)
        torch.manual_seed(0)
        profile(found, cache, 1)
        return len(cache)

    first = kept(outcome := {})
    assert kept({}) == first  # another process finds out the same
    parts = outcome.keys() & {kernels._trial(each) for each in calls}
    assert parts
    other = {name: came_out ^ (name in parts) for name, came_out in outcome.items()}
    assert kept(other) == first + len(parts)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # PyTorch's, which it hides
@pytest.mark.parametrize("whole", [True, False])
def test_within_a_compiled_function_a_step_is_as_it_is(whole: bool) -> None:
    step, module, sample = fitted("conv")
    step(*sample).backward()
    want = [each.grad.clone() for each in module.parameters()]

    def trained(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        module.zero_grad()
        loss = step(x * 1, y) * 2
        loss.backward()
        return loss

    if whole:
        torch.compile(trained, backend="aot_eager")(*sample)
    else:
        module.zero_grad()
        (torch.compile(step, backend="aot_eager")(*sample) * 2).backward()
    got = [each.grad for each in module.parameters()]
    assert all(torch.equal(mine, 2 * plain) for mine, plain in zip(got, want, strict=True))
    step.close()


def children(process: int) -> list[int]:
    """Those that plan. One that has ended has no command line."""
    words = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [int(each) for each in words if planning(int(each))]


def planning(process: int) -> bool:
    with contextlib.suppress(OSError):
        return b"autotm.planner" in Path(f"/proc/{process}/cmdline").read_bytes()
    return False


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_what_ends_a_fit_ends_its_planner(how: signal.Signals) -> None:
    """With times by which a plan takes half a minute: copies take as long as operators."""
    code = (
        "import random, signal, torch, autotm\n"
        "from dataclasses import replace\n"
        "from autotm import fitting\n"
        "from autotm.executor import profiling\n"
        "from autotm.networks.modules import module\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "real, draw = profiling._measure, random.Random(0)\n"
        "def slow(*args): return replace(real(*args), seconds=1e-3 * draw.random())\n"
        "profiling._measure = slow\n"
        "fitting.link = lambda device: profiling.Link(1e7, 1e7, False)\n"
        "autotm.fit(*module('small-unet_8', 'cpu'), torch.nn.functional.cross_entropy,\n"
        "           budget=715_000)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as run:  # fmt: skip
        while not (planners := children(run.pid)):
            assert run.poll() is None
            time.sleep(0.01)
        time.sleep(2.0)  # it is imported by then, and solves
        began = time.perf_counter()
        run.send_signal(how)
        said = run.communicate()[1]
        assert time.perf_counter() - began < 5.0
    assert run.returncode == -how
    assert (b"KeyboardInterrupt" in said) == (how == signal.SIGINT)
    for _ in range(100):
        if not any(map(planning, planners)):
            break
        time.sleep(0.01)
    assert not any(map(planning, planners))


def ownerless(shared: set[Path]) -> list[Path]:
    """Shared memory that no living process uses: others make some at any time."""
    maps = []
    for each in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            maps.append(each.read_text())
    used = "".join(maps)
    return [each for each in shared if each.exists() and str(each) not in used]


def test_a_killed_process_leaves_nothing_but_whole_times(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys, torch, autotm, autotm_networks\n"
        "from autotm.executor import profiling\n"
        "real, count = profiling._measure, [0]\n"
        "def dying(*args):\n"
        "    count[0] += 1\n"
        "    if count[0] == 6: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return real(*args)\n"
        "profiling._measure = dying\n"
        "module, sample = autotm_networks.network('conv')\n"
        "autotm.fit(module, sample, torch.nn.functional.cross_entropy, budget='1GB',\n"
        "           cache=sys.argv[1])\n"
    )
    before = set(Path("/dev/shm").iterdir())
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "times.jsonl")], check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    assert len(Cache(tmp_path / "times.jsonl")) == 5
    assert list(tmp_path.iterdir()) == [tmp_path / "times.jsonl"]
    assert ownerless(set(Path("/dev/shm").iterdir()) - before) == []


def test_host_memory_that_cannot_be_had_is_one_sentence() -> None:
    with pytest.raises(PinnedError, match="raise the budget") as error:
        pinned(1 << 60)
    assert "\n" not in str(error.value)
