"""Kernel times over two tiers, from shapes and rates: nothing is measured here."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autotm.graph import Graph, Machine, Op

PAGE = 4096  # the alignment of the paper's pools


@dataclass(frozen=True)
class Host:
    """A socket with DRAM and persistent memory. Rates are bytes (or operations) per second.

    The kernels' two slow rates, read and write, were fitted with the paper's headline losses in
    view: agreement with those is consistency, not evidence.
    """

    flops: float = 2.0e12
    dram: float = 90e9
    slow_read: float = 20e9
    slow_write: float = 4e9
    launch: float = 5e-6
    copy_out: float = 12e9
    copy_in: float = 29e9

    def machine(self, capacity: int) -> Machine:
        """The same for a planner: copies of both ways share one link, and kernels wait for them."""
        return Machine(capacity, self.copy_out, self.copy_in, duplex=False, align=PAGE)


@dataclass(frozen=True)
class Gpu:
    """A GPU by its rates; kernels reach device memory alone. The defaults are like a 2080 Ti."""

    flops: float = 9e12
    memory: float = 500e9
    launch: float = 5e-6
    link: float = 12e9


def timed_on_host(graph: Graph, host: Host) -> Graph:
    """`graph` with a time of every kernel for every placement of its operands."""
    return replace(graph, ops=tuple(_placed(graph, op, host) for op in graph.ops))


def _placed(graph: Graph, op: Op, host: Host) -> Op:
    sizes = [graph.tensors[tensor].bytes for tensor in op.operands]
    reads = len(op.inputs)
    times = []
    for mask in range(2 ** len(sizes)):
        fast = sum(size for bit, size in enumerate(sizes) if not mask >> bit & 1)
        read = sum(size for bit, size in enumerate(sizes[:reads]) if mask >> bit & 1)
        write = sum(sizes) - fast - read
        slow = read / host.slow_read + write / host.slow_write
        times.append(max(op.flops / host.flops, fast / host.dram, slow) + host.launch)
    return replace(op, seconds=times[0], placed=tuple(times))


def timed_on_gpu(graph: Graph, gpu: Gpu) -> Graph:
    """`graph` with a time of every kernel, all operands in device memory."""
    ops = []
    for op in graph.ops:
        moved = sum(graph.tensors[tensor].bytes for tensor in op.operands)
        seconds = max(op.flops / gpu.flops, moved / gpu.memory) + gpu.launch
        ops.append(replace(op, seconds=seconds))
    return replace(graph, ops=tuple(ops))


def all_slow(graph: Graph) -> float:
    """Seconds of an iteration with every activation and gradient in slow memory, without a copy."""
    return sum(op.placed[_free_mask(graph, op)] for op in graph.ops)


def _free_mask(graph: Graph, op: Op) -> int:
    kinds = (graph.tensors[tensor].kind for tensor in op.operands)
    return sum(1 << bit for bit, kind in enumerate(kinds) if kind in ("activation", "gradient"))
