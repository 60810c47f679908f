"""Full DLRM inference, measured: every variant inside the same model, eager and as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from reprokit.progress import Progress
from reprokit.records import RecordWriter

from dlrm_inference.config import Config, WrongResult
from dlrm_inference.cuda import pin
from dlrm_inference.cuda.bench import Bench, why_not_together
from dlrm_inference.cuda.best import Best
from dlrm_inference.cuda.fbgemm import Fbgemm, join_offsets
from dlrm_inference.cuda.model import DENSE_FEATURES, DLRM, Stage, switched_stage
from dlrm_inference.cuda.timing import Captured, Target, interleave
from dlrm_inference.cuda.tuning import choose

MODES = ("eager", "graph")
_TOLERANCE = 1e-3  # of a click probability
_IN_MODEL = ("hint", "setaside")  # L2 modes that need no host call between tables


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """One variant as the embedding stage of the model. `stages[b]` serves batch b."""

    name: str
    launch: str
    l2_mode: str
    stages: Sequence[Callable[[], Sequence[torch.Tensor]]]


def endtoend(config: Config, out: RecordWriter) -> None:
    """Write `endtoend_time` (us, one batch through the model) and `embedding_share` (%).

    Same model, MLPs, data and loop for all; outputs are compared first. best and fbgemm serve all
    tables in one launch. Pinning is part of the time, as it would be in use.
    """
    bench = Bench(config, out)
    variants = choose(bench, out)
    with torch.no_grad():
        model = DLRM(bench.weights, config.seed, config.mode).eval()
        generator = torch.Generator(bench.device).manual_seed(config.seed)
        shape = (config.batch, DENSE_FEATURES)
        dense = torch.randn(shape, device=bench.device, generator=generator)
        groups = _groups(bench, model, variants, out)
        rounds = len(MODES) * len(groups) * (config.samples + config.warmup)
        progress = Progress(rounds)
        want: torch.Tensor | None = None
        for aside, entries in groups:
            with pin.set_aside(aside) if aside else ExitStack():
                for entry in entries:
                    want = _prove(model, dense, bench, entry, want)
                for mode in MODES:
                    _measure(bench, out, model, dense, entries, mode, progress)
    bench.finish()


def _groups(
    bench: Bench, model: DLRM, variants: Mapping[str, Any], out: RecordWriter
) -> list[tuple[int, list[_Entry]]]:
    """Return (bytes of L2 set aside, variants measured together): a set-aside takes cache away
    from everybody, so those that want one are not measured among the others."""
    plain: list[_Entry] = []
    aside: list[_Entry] = []
    for name, variant in variants.items():
        if not getattr(variant, "pins", False):
            plain.append(_entry(bench, model, name, variant))
            continue
        for mode in bench.config.l2_modes:
            labels = {"variant": name, "dataset": bench.config.dataset, "l2_mode": mode}
            if mode not in _IN_MODEL:
                out.skip(labels, "this mode needs the host between tables; see pin_cost")
                continue
            entry = _pinning_entry(bench, model, name, variant, mode)
            (plain if mode == "hint" else aside).append(entry)
    most = min(bench.l2.most_set_aside, bench.hot_count * bench.config.row_bytes)
    return [(size, group) for size, group in ((0, plain), (most, aside)) if group]


def _entry(bench: Bench, model: DLRM, name: str, variant: Any) -> _Entry:
    if isinstance(variant, Best | Fbgemm) and not why_not_together(variant, bench):
        stages = [_together(bench, variant, ids) for ids in bench.indices]
        return _Entry(name=name, launch="all_tables", l2_mode="", stages=stages)
    forward = None if name == "stock" else _forward(variant)
    stage = switched_stage(model, name, forward)
    stages = [_bound(stage, ids, bench.offsets) for ids in bench.indices]
    return _Entry(name=name, launch="one_table", l2_mode="", stages=stages)


def _together(
    bench: Bench, variant: Best | Fbgemm, ids: Sequence[torch.Tensor]
) -> Callable[[], Sequence[torch.Tensor]]:
    """One launch for all tables of one batch, whose ids are joined for both."""
    mode, joined, offsets = bench.config.mode, torch.cat(list(ids)), join_offsets(bench.offsets)
    shape, layout = (bench.config.batch, bench.config.tables, -1), bench.layout
    if isinstance(variant, Best):
        tables = variant.tables(bench.weights)
        prepare = partial(variant.prepare_joined, tables, joined, offsets, mode=mode)
        return lambda: [prepare().checked(False).view(shape)]
    call = partial(variant.forward_tables, bench.storage, joined, offsets, mode=mode, layout=layout)
    return lambda: [call().view(shape)]


def _pinning_entry(bench: Bench, model: DLRM, name: str, variant: Any, mode: str) -> _Entry:
    """The model's own stage, every table's hot rows pinned right before its gather."""
    pins = {
        weight.data_ptr(): pin.make_pin(weight, hot)
        for weight, hot in zip(bench.weights, bench.hot_rows, strict=True)
    }
    gather = _forward(bench.in_mode(variant, mode))

    def forward(
        weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, how: str
    ) -> torch.Tensor:
        pins[weight.data_ptr()]()
        return gather(weight, indices, offsets, how)

    stage = switched_stage(model, name, forward)
    stages = [_bound(stage, ids, bench.offsets) for ids in bench.indices]
    return _Entry(name=name, launch="one_table", l2_mode=mode, stages=stages)


def _prove(
    model: DLRM, dense: torch.Tensor, bench: Bench, entry: _Entry, want: torch.Tensor | None
) -> torch.Tensor:
    """Compare the model's output with the first variant's. Raises WrongResult."""
    got: torch.Tensor = model(dense, bench.indices[0], bench.offsets, _fixed(entry.stages[0]))
    if want is None:
        return got
    worst = float((got - want).abs().max())
    if not worst <= _TOLERANCE:
        raise WrongResult(f"the model with {entry.name} differs by {worst:.1e} in its output")
    return want


def _measure(
    bench: Bench,
    out: RecordWriter,
    model: DLRM,
    dense: torch.Tensor,
    entries: Sequence[_Entry],
    mode: str,
    progress: Progress,
) -> None:
    config = bench.config
    targets: dict[str, Target] = {}
    for entry in entries:
        whole = [
            _bound(model, dense, ids, bench.offsets, _fixed(stage))
            for ids, stage in zip(bench.indices, entry.stages, strict=True)
        ]
        key = f"{entry.name}/{entry.l2_mode}"
        for part, calls in (("whole", whole), ("stage", list(entry.stages))):
            made = [Captured([call]) for call in calls] if mode == "graph" else calls
            targets[f"{key}/{part}"] = Target(calls=made)
    times = interleave(
        targets,
        config.samples,
        config.warmup,
        bench.device,
        on_round=lambda _: progress.step(f"endtoend rounds, {mode}"),
        # An eager model's time is the host's as much as the device's: no launch is queued ahead.
        gated=mode == "graph",
    )
    for entry in entries:
        key = f"{entry.name}/{entry.l2_mode}"
        whole_us, stage_us = times[f"{key}/whole"], times[f"{key}/stage"]
        labels = {"variant": entry.name, "dataset": config.dataset, "mode": mode}
        labels["launch"] = entry.launch
        if entry.l2_mode:
            labels["l2_mode"] = entry.l2_mode
        note = "pinning counted in" if entry.l2_mode else None
        out.write("endtoend_time", "us", whole_us, labels, warmup=config.warmup, note=note)
        share = [100 * part / total for part, total in zip(stage_us, whole_us, strict=True)]
        note = "the stage alone over the whole model, measured in the same round"
        out.write("embedding_share", "%", share, labels, warmup=config.warmup, note=note)


def _forward(variant: Any) -> Callable[..., torch.Tensor]:
    def forward(
        weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, mode: str
    ) -> torch.Tensor:
        result: torch.Tensor = variant.forward(weight, indices, offsets, mode=mode)
        return result

    return forward


def _fixed(stage: Callable[[], Sequence[torch.Tensor]]) -> Stage:
    return lambda _indices, _offsets: stage()


def _bound(call: Callable[..., Any], *arguments: object) -> Callable[[], Any]:
    return lambda: call(*arguments)
