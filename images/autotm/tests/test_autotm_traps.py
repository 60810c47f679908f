"""What a captured graph could lose without a word: kept, or refused in one sentence."""

from __future__ import annotations

import copy
import math
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import autotm
import autotm_plans
import pytest
import torch
from autotm.budget import bytes_of
from autotm.executor import kernels
from autotm.executor.capture import capture
from autotm.executor.errors import CaptureError
from autotm.executor.kernels import kernel
from autotm.executor.lanes import CpuLanes
from autotm.executor.overwriting import Over
from autotm.executor.profiling import Cache, Measured, paced
from autotm.executor.trying import operands, tried
from autotm.fitting import Fitted
from autotm.graph import OUTSIDE
from torch import nn
from torch.nn import functional as F

LOSS = F.cross_entropy


class Made(nn.Module):
    """A module of tensors by name and a function of them."""

    def __init__(self, forward: Callable[..., torch.Tensor], **tensors: torch.Tensor) -> None:
        super().__init__()
        self._forward = forward
        self.weight = nn.Parameter(torch.randn(6, 8))
        for name, value in tensors.items():
            self.register_buffer(name, value)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self._forward(self, *inputs)


def fitted(
    module: nn.Module, *sample: torch.Tensor, loss: Any = None, plan: str = "keep"
) -> Fitted:
    planner = autotm_plans.KINDS[plan]
    return autotm.fit(module, sample, loss, budget="1GB", planner=lambda g, m: planner(g))


def trains_as_plain(module: nn.Module, *sample: torch.Tensor) -> None:
    step = fitted(module, *sample)
    plain = module(*sample)
    plain.backward()
    want = {name: each.grad.clone() for name, each in module.named_parameters()}
    module.zero_grad()
    loss = step(*sample)
    loss.backward()
    assert torch.equal(loss, plain)
    for name, each in module.named_parameters():
        assert torch.equal(each.grad, want[name]), name
    assert step.measure(1).differ == ()
    step.close()


def rotated(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    pairs = torch.view_as_complex((x * module.weight).reshape(6, 4, 2))
    return torch.view_as_real(pairs * module.turn).pow(3).mean()


def conjugate(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    z = torch.complex(x * module.weight, x + module.weight)
    return (z * z.conj() + z.conj().imag).real.pow(2).mean()


def spectrum(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return torch.fft.rfft(x * module.weight).abs().mean()


def bits(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return (module.weight * (x.view(torch.int32) % 7).float()).mean()


@pytest.mark.parametrize("forward", [rotated, conjugate, spectrum, bits])
def test_views_with_a_flag_or_another_type_are_what_they_are(forward: Any) -> None:
    torch.manual_seed(0)
    turn = torch.polar(torch.ones(6, 4), torch.arange(24.0).view(6, 4))
    trains_as_plain(Made(forward, turn=turn), torch.randn(6, 8))


def test_a_part_of_an_input_is_read_from_where_it_begins() -> None:
    torch.manual_seed(0)
    trains_as_plain(Made(bits), torch.randn(9, 8)[3:])


REDUCED = {
    "huber_loss": F.huber_loss,
    "smooth_l1_loss": F.smooth_l1_loss,
    "mse_loss": F.mse_loss,
    "binary_cross_entropy": lambda a, b: F.binary_cross_entropy(a.sigmoid(), b.sigmoid()),
    "with_logits": lambda a, b: F.binary_cross_entropy_with_logits(a, b.sigmoid()),
    "soft_margin_loss": lambda a, b: F.soft_margin_loss(a, b.sign()),
    "nll_loss": lambda a, b: F.cross_entropy(a, torch.arange(6)),
    "std": lambda a, b: a.std(0).sum() + a.var(),
    "norm": lambda a, b: a.norm() + torch.linalg.vector_norm(b - a, 3) + a.logsumexp(1).sum(),
    "scans": lambda a, b: a.cumsum(0).amax() + a.prod(1).sum() + a.sort(1)[0][:, 0].sum(),
}


@pytest.mark.parametrize("name", REDUCED)
def test_an_operator_writes_its_own_result_and_nothing_beside_it(name: str) -> None:
    """Some out variants use the room of their result for one element of each input."""
    module = Made(lambda m, x: 0.5 * REDUCED[name](x * m.weight, x))
    found = capture(module, (torch.randn(6, 8),))
    inside = {each.id for each in found.graph.tensors if each.kind not in OUTSIDE}
    directly = 0
    for call in found.calls:
        one = kernel(call, lambda view: view.tensor in inside, "cpu")
        guarded = [
            torch.full((4096,), 7, dtype=torch.uint8)
            if v is not None and v.tensor in inside
            else None
            for v in call.outputs
        ]
        outs = [
            None if g is None else torch.as_strided(g[512:].view(v.dtype), v.size, v.stride)
            for g, v in zip(guarded, call.outputs, strict=True)
        ]

        def run(args: Any, kwargs: Any, _: Any, one: Any = one, outs: Any = outs) -> None:
            one.run(outs, args, kwargs)
            want = one.call.target(*args, **kwargs)
            many = want if isinstance(want, (tuple, list)) else [want]
            assert all(o is None or torch.equal(o, w) for o, w in zip(outs, many, strict=True))

        tried(run, call, found.device, found.hosted)
        for guard, out in zip(guarded, outs, strict=True):
            if guard is not None and out is not None:
                used = 512 + out.nbytes
                assert guard.untyped_storage().nbytes() == 4096
                assert (guard[:512] == 7).all()
                assert (guard[used:] == 7).all()
        directly += one.direct
    assert directly


def assigned(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    module.seen = 0.9 * module.seen + 0.1 * x.detach().mean(0)
    return (module.weight * x * module.seen).mean()


def remembered(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    module.last = y = module.weight * x
    module.every.append(y)
    module.named["last"] = y
    return y.mean()


def kept(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    if "scale" not in module.named:
        module.named["scale"] = torch.arange(8.0)
    return (module.weight * x * module.named["scale"]).mean()


def test_what_forward_leaves_in_the_module() -> None:
    with pytest.raises(CaptureError, match=r"assigns its buffer 'seen'.*in place"):
        fitted(Made(assigned, seen=torch.zeros(8)), torch.randn(6, 8))
    module = Made(remembered)
    module.every, module.named = every, named = ["first"], {}
    fitted(module, torch.randn(6, 8)).close()
    assert not hasattr(module, "last")
    assert (module.every, module.named) == (["first"], {})
    assert module.every is every
    assert module.named is named
    copy.deepcopy(module)
    module = Made(kept)
    module.named = {}
    with pytest.raises(CaptureError, match="kept in an attribute: register it as a buffer"):
        fitted(module, torch.randn(6, 8))
    assert module(torch.randn(6, 8)).isfinite()


def onednn(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """An LSTM, as PyTorch has it on a CPU, by the operator itself."""
    matrix, bias, state = torch.ones(32, 8), module.weight.mean().expand(32), x.new_zeros(1, 6, 8)
    how = False, [], 2, 8, 1, True, False, False, True
    operands = x, matrix, matrix, bias, bias, state, state
    return torch.ops.aten.mkldnn_rnn_layer(*operands, *how)[0].mean()


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "dropout between layers": (
        lambda: capture(Sequence(nn.GRU(8, 8, 2, dropout=0.5)), (torch.randn(3, 6, 8),)),
        "loses the dropout between the layers of GRU",
    ),
    "a result that is none": (
        lambda: fitted(Made(onednn), torch.randn(3, 6, 8)), "mkldnn_rnn_layer.*no tensor",
    ),
    "weights of a loss": (
        lambda: capture(
            nn.Linear(8, 3), (torch.randn(6, 8), torch.zeros(6, dtype=torch.long)),
            partial(F.cross_entropy, weight=torch.ones(3)),
        ),
        "register it as a buffer",
    ),
    "a loss that is trained": (
        lambda: capture(nn.Linear(8, 3), (torch.randn(6, 8), torch.ones(6, 3)), Learnt()),
        "the loss has parameters: make it a part",
    ),
    "a loss that remembers": (
        lambda: capture(nn.Linear(8, 3), (torch.randn(6, 8), torch.ones(6, 3)), Counting()),
        "or its loss a buffer",
    ),
    "a check": (
        lambda: capture(
            Made(lambda m, x: torch.linalg.inv(m.weight[:, :6]).mean() * x.mean()),
            (torch.randn(6, 8),),
        ),
        "does more than to give a result",
    ),
    "two types": (
        lambda: fitted(Made(lambda m, x: (x @ m.weight.t()).mean()), torch.ones(6, 8).double()),
        "same dtype.*: mend their types",
    ),
    "a sparse gradient": (
        lambda: capture(Bag(), (torch.zeros(4, dtype=torch.long),)), "sparse tensor",
    ),
    "no module": (lambda: capture(torch.relu, (torch.ones(1),)), "a torch.nn.Module is needed"),  # type: ignore[arg-type]
    "of no numbers": (
        lambda: capture(nn.Linear(8, 3, device="meta"), (torch.ones(2, 8, device="meta"),)),
        "device meta",
    ),
    "no versions": (lambda: capture(nn.Linear(8, 3), (inference(),)), "outside of torch.inference"),
    "no sample": (lambda: capture(nn.Linear(8, 3), ()), "must be tensors"),
    "a loss that is cut off": (
        lambda: capture(Made(lambda m, x: (m.weight * x).detach().mean()), (torch.ones(6, 8),)),
        "no parameter has a part in the loss; look for a detach",
    ),
    "no loss": (
        lambda: capture(nn.Linear(8, 3), (torch.ones(2, 8), torch.ones(1)), lambda y, t: 3.0),
        "no parameter has a part in",
    ),
}  # fmt: skip


class Learnt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.scale * (y - target).pow(2).mean()


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        self.seen.add_(1)
        return (y - target).pow(2).mean()


def inference() -> torch.Tensor:
    with torch.inference_mode():
        return torch.ones(2, 8)


class Sequence(nn.Module):
    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)[0].mean()


@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "num_layers": 2}])
def test_an_lstm_is_eager_pytorchs_but_for_the_last_bits(options: dict[str, Any]) -> None:
    """Also where oneDNN has an operator for it, which is as before after a fit."""
    torch.manual_seed(0)
    module, x = Sequence(nn.LSTM(8, 8, **options)), torch.randn(3, 6, 8)
    step = fitted(module, x, plan="both")
    assert torch.backends.mkldnn.enabled
    want = [each.detach() for each in torch.autograd.grad(module(x), list(module.parameters()))]
    step(x).backward()
    got = [each.grad for each in module.parameters()]
    torch.testing.assert_close(got, want)
    assert step.measure(1).differ == ()
    step.close()


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4, sparse=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.table(x).mean()


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_place_in_a_plan_is_refused_in_a_sentence(name: str) -> None:
    make, words = REFUSED[name]
    with pytest.raises(CaptureError, match=words) as error:
        make()
    assert "\n" not in str(error.value)


def drawn(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    kept = torch.bernoulli((x * module.weight).sigmoid())
    return F.binary_cross_entropy((x * module.weight).sigmoid(), kept) + (kept.long() // 3).sum()


def test_operators_that_look_at_their_operands_are_tried_on_what_they_take() -> None:
    torch.manual_seed(0)
    step = fitted(Made(drawn), torch.randn(6, 8))
    assert step.measure(1).differ == ()
    divided = Made(lambda m, x: (m.weight * (7 // (x.abs().long() + 1))).mean())
    trains_as_plain(divided, torch.randn(6, 8))


def linear() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3))
    module.register_buffer("scale", torch.ones(8))
    return module, torch.randn(6, 8), torch.arange(6) % 3


def test_random_numbers_go_on_as_if_nothing_had_been_fitted() -> None:
    module, *sample = linear()
    torch.manual_seed(5)
    want = torch.rand(4)
    torch.manual_seed(5)
    fitted(module, *sample, loss=LOSS).close()
    assert torch.equal(torch.rand(4), want)


def test_what_is_not_as_it_was_when_the_step_was_fitted_is_refused() -> None:
    module = Made(lambda m, x: (x * m.weight * m.scale).pow(2).mean(), scale=torch.ones(8))
    x = torch.randn(6, 8)
    step = fitted(module, x)
    for other in (torch.ones(1), torch.ones(8).double(), torch.ones(8, 8).t()[0]):
        module.scale = other
        with pytest.raises(ValueError, match="the module has changed"):
            step(x)
    module.scale = torch.full((8,), 2.0)
    loss = step(x)
    assert torch.equal(loss, module(x))
    module.scale.mul_(3)
    with pytest.raises(RuntimeError, match="changed in place between"):
        loss.backward()
    with pytest.raises(ValueError, match=r"an input requires a gradient.*detach"):
        step(x.clone().requires_grad_())
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ValueError, match="autocast"):
        step(x)
    for wrong in (3, None):
        with pytest.raises(ValueError, match="was fitted for inputs"):
            step(wrong)
    with pytest.raises(TypeError, match=r"cannot be copied or saved.*state_dict"):
        copy.deepcopy(step)
    assert "measured nothing yet" in step.report()
    step.close()
    with pytest.raises(RuntimeError, match="this step is closed"):
        step(x)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("track", [True, False])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_batch_normalisation_of_each_kind(
    affine: bool, track: bool, layout: torch.memory_format
) -> None:
    norm = nn.BatchNorm2d(8, affine=affine, track_running_stats=track)
    module = nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.ReLU(), nn.AdaptiveAvgPool2d(1),
                           nn.Flatten(), nn.Linear(8, 5))  # fmt: skip
    x, y = torch.randn(4, 3, 9, 9).contiguous(memory_format=layout), torch.arange(4)
    step = fitted(module, x, y, loss=LOSS)
    step(x, y).backward()
    got = [each.grad.clone() for each in module.parameters()]
    module.zero_grad()
    LOSS(module(x), y).backward()
    for mine, parameter in zip(got, module.parameters(), strict=True):
        torch.testing.assert_close(mine, parameter.grad)


def test_the_counters_of_all_normalisations_are_one_call() -> None:
    """But not those that something else reads, here by what is called twice."""
    often = nn.BatchNorm2d(8)
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), often, often,
                           nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1), nn.Flatten())  # fmt: skip
    x, y = torch.randn(4, 3, 9, 9), torch.arange(4)
    step = fitted(module, x, y, loss=LOSS)
    calls = step.iteration.capture.calls
    wholes = [[v for v in call.outputs if v and v.dtype == torch.int64] for call in calls]
    assert [len(each) for each in wholes if each] == [2, 1, 1]
    for _ in range(3):
        step(x, y).backward()
    assert [int(module[n].num_batches_tracked) for n in (1, 3, 5)] == [3, 6, 3]


def flat(norm: nn.BatchNorm2d) -> nn.BatchNorm2d:
    """With both running statistics in one storage, as some libraries lay them."""
    both = torch.cat([norm.running_mean, norm.running_var])
    norm.running_mean, norm.running_var = both[:8], both[8:]
    return norm


def by_two(y: torch.Tensor) -> torch.Tensor:
    return y.relu() + y.sin()


def frozen(norm: nn.BatchNorm2d, x: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, False)


def channels(statistics: torch.Tensor) -> torch.Tensor:
    return statistics.view(1, -1, 1, 1)


# What reads the result and the running statistics, and how many of these are updated in place.
NORMED = {
    "once": (lambda norm, x: norm(x).relu(), 2),
    "twice": (lambda norm, x: norm(norm(x).relu() * 2).relu(), 0),
    "summed": (lambda norm, x: x + norm(x), 2),
    "with itself": (lambda norm, x: norm(x) * norm(x), 0),
    "by two": (lambda norm, x: by_two(norm(x)), 2),
    "scaled": (lambda norm, x: torch.add(norm(x), x, alpha=3), 2),
    "mean read before": (lambda norm, x: channels(norm.running_mean) + norm(x).relu(), 1),
    "variance read after": (lambda norm, x: norm(x).relu() + channels(norm.running_var), 1),
    "frozen": (lambda norm, x: frozen(norm, x).relu(), 0),
}


@pytest.mark.parametrize("laid", [nn.Sequential, flat])
@pytest.mark.parametrize("plan", autotm_plans.KINDS)
@pytest.mark.parametrize("read", NORMED)
def test_running_statistics_are_eager_pytorchs_after_each_step(
    read: str, plan: str, laid: Any
) -> None:
    """And gradients; neither a measurement nor what is made again counts as a step."""

    reading, in_place = NORMED[read]

    def forward(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return reading(module.norm, module.conv(x)).pow(2).mean()

    torch.manual_seed(1)
    module = Made(forward)
    module.conv, module.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
    if laid is flat:
        flat(module.norm)
    other = copy.deepcopy(module)
    x = torch.randn(4, 3, 9, 9)
    kind = autotm_plans.KINDS[plan]
    step = autotm.fit(module, x, budget="1GB", planner=lambda graph, _: kind(graph))
    assert len(step.iteration.session.updated) == in_place
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (module, other)]
    for _ in range(3):
        for each, optimizer in zip((step, other), optimizers, strict=True):
            optimizer.zero_grad()
            each(x).backward()
            optimizer.step()
        assert step.measure(1).differ == ()
        for mine, theirs in zip(module.state_dict().values(), other.state_dict().values(),
                                strict=True):  # fmt: skip
            torch.testing.assert_close(mine, theirs)
    step.close()


@pytest.mark.parametrize("plan", autotm_plans.KINDS)
@pytest.mark.parametrize(
    ("make", "target"),
    [
        (lambda w: nn.CrossEntropyLoss(weight=w, label_smoothing=0.1), torch.tensor([0, 2, 1, 2])),
        (lambda w: nn.BCEWithLogitsLoss(pos_weight=w), torch.ones(4, 3)),
    ],
)
def test_a_loss_that_is_a_module_has_its_own_weights(
    plan: str, make: Callable[[torch.Tensor], nn.Module], target: torch.Tensor
) -> None:
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(4, 8)
    weights = torch.rand(3)
    loss = make(weights)
    step = fitted(module, x, target, loss=loss, plan=plan)
    for _ in range(2):
        module.zero_grad()
        found = step(x, target)
        found.backward()
        mine = [found, *(each.grad.clone() for each in module.parameters())]
        module.zero_grad()
        plain = loss(module(x), target)
        plain.backward()
        assert all(map(torch.equal, mine, [plain, *(p.grad for p in module.parameters())]))
        weights.mul_(2)  # what is written in place is seen
    found = step(x, target)
    weights.mul_(2)
    with pytest.raises(RuntimeError, match="changed in place"):
        found.backward()
    setattr(loss, next(name for name, _ in loss.named_buffers()), torch.rand(3))
    with pytest.raises(ValueError, match="has changed since it was fitted, or its loss"):
        step(x, target)
    step.close()


def test_a_weight_that_is_no_longer_shared_is_noticed() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    module[1].weight = module[0].weight
    sample = torch.randn(6, 8), torch.arange(6)
    step = fitted(module, *sample, loss=LOSS)
    module[1].weight = nn.Parameter(module[0].weight.detach().clone())
    with pytest.raises(ValueError, match="the module has changed"):
        step(*sample)


def test_a_forked_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a word it would wait for threads that it does not have."""
    module, *sample = linear()
    step = fitted(module, *sample, loss=LOSS)
    child = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: child)
    with pytest.raises(RuntimeError, match="fit one in this one"):
        step(*sample)


def test_a_second_thread_is_refused() -> None:
    module, *sample = linear()
    step = fitted(module, *sample, loss=LOSS)
    inside, go = threading.Event(), threading.Event()
    true = step.iteration.session.forward

    def slow(outside: dict[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        inside.set()
        go.wait(60)
        return true(outside)

    step.iteration.session.forward = slow  # type: ignore[method-assign]
    first = threading.Thread(target=step, args=sample)
    first.start()
    assert inside.wait(60)
    with pytest.raises(RuntimeError, match="another thread"):
        step(*sample)
    go.set()
    first.join()
    assert step(*sample).isfinite()


def test_no_copy_of_an_interrupted_backward_is_left_for_the_next_iteration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late = {"in": 0.05, "out": 0.0}
    true, copy_ = CpuLanes.__init__, CpuLanes.copy
    monkeypatch.setattr(CpuLanes, "__init__", lambda s, a, h, _=None: true(s, a, h, late.get))
    module, *sample = linear()
    step = fitted(module, *sample, loss=LOSS, plan="offload")
    compute, steps, marks = step.iteration.session._compute, [0], []

    def interrupted(outside: Any, prepared: Any) -> None:
        steps[0] -= 1
        if not steps[0]:
            raise KeyboardInterrupt
        compute(outside, prepared)

    def noted(*args: Any) -> Any:
        marks.append(copy_(*args))
        return marks[-1]

    step.iteration.session._compute = interrupted  # type: ignore[method-assign]
    monkeypatch.setattr(CpuLanes, "copy", noted)
    pending = 0
    for count in range(1, sum(not each.forward for each in step.iteration.capture.calls) + 1):
        loss, marks[:] = step(*sample), []
        steps[0] = count
        with pytest.raises(KeyboardInterrupt):
            loss.backward()
        assert all(each._event.is_set() for each in marks)
        pending += len(marks)
    assert pending


def test_gradients_that_are_no_numbers_are_the_plain_runs_where_they_are_the_same() -> None:
    module = Made(lambda m, x: (m.weight - m.weight).sqrt().mean() * x.mean())
    step = fitted(module, torch.randn(6, 8))
    step(torch.randn(6, 8)).backward()
    assert module.weight.grad.isnan().any()
    assert step.measure(1).differ == ()


@pytest.mark.parametrize(
    ("budget", "size"), [(1e9, 10**9), ("12TiB", 12 * 2**40), ("1.5 GB", 1_500_000_000)]
)
def test_a_budget_is_a_size(budget: Any, size: int) -> None:
    assert bytes_of(budget) == size
    for wrong in (None, "12 GiBB", "", "GB", math.inf, math.nan):
        with pytest.raises(ValueError, match="is no size: write it as 12GiB"):
            bytes_of(wrong)  # type: ignore[arg-type]


def test_lines_of_a_cache_that_are_no_times_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "times.jsonl"
    whole = '{"key": "a", "seconds": 0.5, "outside": 3, "host": 0.1, "room": 4}'
    wrong = [
        '{"key": "b", "seconds": %s, "outside": %s, "host": 0, "room": 0}' % each  # noqa: UP031
        for each in (("NaN", 0), ("-1", 0), ('"abc"', 0), ("null", 0), ("1", -1))
    ]
    path.write_bytes("\n".join([whole, *wrong]).encode() + b"\n\xff\xfe\x00\n[1]\n")
    found = Cache(path)
    assert len(found) == 1
    assert found.get("a") == Measured(0.5, 3, 0.1, 4)


def test_an_operator_takes_what_it_lets_a_gpu_wait_as_well() -> None:
    quick, slow = Measured(1.0, 0, host=0.1), Measured(0.1, 0, host=1.0)
    assert paced([quick] * 3) == pytest.approx(
        [1.1, 1.0, 1.0]
    )  # only the first launch is waited for
    assert paced([slow] * 3) == pytest.approx([1.1, 1.0, 1.0])
    # What a long one takes hides the launches behind it, until the host is behind.
    assert paced([quick, slow, slow]) == pytest.approx([1.1, 0.1, 1.0])


def test_made_up_operands_may_be_probabilities() -> None:
    made = operands(capture(*linear_pair()).calls[0].args, torch.device("cpu"), {}, frozenset())
    assert all(0 <= each.min() <= each.max() < 1 for each in made if isinstance(each, torch.Tensor))


def linear_pair() -> tuple[nn.Module, tuple[torch.Tensor, ...], Any]:
    module, *sample = linear()
    return module, tuple(sample), LOSS


def of_pixels(x: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x.view(2, 6, 2, 2), torch.arange(8).view(2, 2, 2) % 6)


# What has a softmax, and how many of its gradients lie over those that they read.
SOFT = {
    "classes": (lambda x: F.cross_entropy(x, torch.arange(6), ignore_index=2, reduction="sum"), 1),
    "of pixels": (of_pixels, 1),
    "smooth": (lambda x: F.cross_entropy(x, torch.arange(6), label_smoothing=0.1), 1),
    "weights": (lambda x: F.softmax(x @ x.t(), 1).matmul(x).pow(2).mean(), 1),
    "by columns": (lambda x: (F.softmax(x, 0) * x).sum(), 1),
    "read twice": (lambda x: (x.softmax(1) + x).pow(2).mean(), 0),  # and added to the other part
}


@pytest.mark.parametrize("plan", autotm_plans.KINDS)
@pytest.mark.parametrize("soft", SOFT)
def test_a_softmaxs_gradient_lies_over_the_one_that_it_reads(soft: str, plan: str) -> None:
    compute, count = SOFT[soft]
    torch.manual_seed(0)
    module = Made(lambda module, x: compute(x * module.weight))
    x = torch.randn(6, 8)
    found = capture(module, [x])
    over = [each for each in found.calls if isinstance(each.target, Over)]
    assert len(over) == count
    for call in over:
        assert kernel(call, lambda view: True, "cpu").direct
    trains_as_plain(module, x)
    step = fitted(module, x, plan=plan)
    assert step.measure(1).differ == ()


def test_a_softmaxs_gradient_that_cannot_lie_there_is_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever writes an element before another one has read it gives other bits."""
    monkeypatch.setattr(kernels, "_SAME", {})
    monkeypatch.setattr(kernels, "over", lambda call, device: lambda outs, *rest: outs[0].fill_(0))
    found = capture(Made(lambda module, x: of_pixels(x * module.weight)), [torch.randn(6, 8)])
    [call] = [each for each in found.calls if isinstance(each.target, Over)]
    args = operands(call.args, torch.device("cpu"), {}, frozenset())
    want = call.target(*args)
    for _ in range(2):
        out = torch.full_like(want, float("nan"))
        kernel(call, lambda view: True, "cpu").run([out], args, {})
        assert torch.equal(out, want)
    assert list(kernels._SAME.values()) == [False]
