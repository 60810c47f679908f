"""How launches run: numpy on a CPU (the reference itself), Triton's kernels on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from rap_training.launches import Backend, Call, Launch
from rap_training.memory import Buffers
from rap_training.reference import Value, apply


class NumpyBackend:
    """Runs the reference semantics in place, member by member."""

    def bind(self, launch: Launch, buffers: Buffers, slot: int) -> Call:
        """See Backend. Members are computed one after the other, on the calling thread."""
        steps = []
        for instance in launch.members:
            source, in_lengths = buffers.value(slot, instance.input)
            target, out_lengths = buffers.value(slot, instance.key)
            raw = instance.takes.nullable
            given = Value(
                values=source.numpy(),
                lengths=None if in_lengths is None else in_lengths.numpy(),
                valid=buffers.valid(slot, instance.input).numpy() if raw else None,
            )
            lengths = None if out_lengths is None else out_lengths.numpy()
            steps.append((instance.node, given, target.numpy(), lengths))

        def call() -> None:
            for node, given, values, lengths in steps:
                result = apply(node, given)
                values[:, : result.values.shape[1]] = result.values
                if lengths is not None and result.lengths is not None:
                    lengths[:] = result.lengths

        return call

    def bind_chains(self, outputs: Sequence[str], buffers: Buffers, slot: int) -> Sequence[Call]:
        """See Backend. Chain by chain, so that a chain's values stay in the cache."""
        work = buffers.work
        calls: list[Call] = []
        seen: set[str] = set()
        for key in outputs:
            name, batch = key.rsplit("@", 1)
            chain = [work.instance[f"{node.name}@{batch}"] for node in work.plan.chain(name)]
            for instance in chain:
                if instance.key not in seen:
                    seen.add(instance.key)
                    calls.append(self.bind(Launch(members=(instance,)), buffers, slot))
        return calls


def backend(device: torch.device, generated: Path | None = None) -> Backend:
    """The backend of a device. `generated`: where sources that it writes are kept."""
    if device.type == "cpu":
        return NumpyBackend()
    from rap_training.kernels.backend import TritonBackend

    return TritonBackend(device, generated)
