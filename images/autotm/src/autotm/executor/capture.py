"""One training iteration as a list of calls on storages: AOTAutograd's joint graph, flattened.

The joint graph is functional and has static shapes. A view is no call: it is another way to look
at the same storage (`View`), so that every operand of every call is a view of a storage.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import torch
from torch import fx, nn
from torch._functorch._aot_autograd import descriptors as aot
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors

from autotm.executor.calls import Call, Capture, Role, View, views_of
from autotm.executor.counters import gather
from autotm.executor.errors import CaptureError
from autotm.executor.joining import Joined, Pair, by_library, is_backward, join
from autotm.executor.kernels import ABSOLUTE
from autotm.executor.lossy import Loss, Lossy, check_sample, why
from autotm.executor.overwriting import overwrite
from autotm.graph import STAYS, Graph, Kind, Op, Tensor

# Views that are a flag on the same bytes: a View has none, so they are made.
_FLAGS = {
    torch.ops.aten._conj.default: torch.ops.aten._conj_physical.default,
    torch.ops.aten._neg_view.default: torch.ops.aten.neg.default,
}
# AOTAutograd has batch normalisation by ATen's own kernels. Its gradient is faster by the operator
# that takes cuDNN where eager PyTorch does.
_NORM_BACKWARD = torch.ops.aten.native_batch_norm_backward.default


def capture(
    module: nn.Module,
    sample: Sequence[torch.Tensor],
    loss: Loss | None = None,
) -> Capture:
    """The joint graph of `loss(module(*sample[:-1]), sample[-1])`, or of `module(*sample)`.

    Nothing is computed, and no buffer and no attribute of the module changes. Raises CaptureError
    where the graph is not static.
    """
    check_sample(module, sample)
    lossy = Lossy(module, loss)
    held: list[Any] = [vars(each) for each in module.modules()]
    held += [part for each in held for part in each.values() if isinstance(part, (dict, list, set))]
    before = [(each, each.copy()) for each in held]
    with contextlib.ExitStack() as stack, _without_onednn():
        try:
            exported = aot_export_joint_with_descriptors(stack, lossy, tuple(sample))
        except CaptureError:
            raise
        except Exception as error:
            raise CaptureError(why(error)) from error
        finally:
            for each, old in before:  # what forward kept there is traced, and no number
                each.clear()
                (each.extend if isinstance(each, list) else each.update)(old)
        graph_module = exported.graph_module
    for node in graph_module.graph.nodes:
        node.target = _FLAGS.get(node.target, node.target)
    graph_module.graph.eliminate_dead_code()
    join(graph_module.graph)
    overwrite(graph_module.graph)
    gather(graph_module.graph)
    try:
        return _Flattening(graph_module, tuple(sample), lossy).result(type(module).__name__)
    except CaptureError:
        raise
    except Exception as error:  # PyTorch cannot run its own graph
        raise CaptureError(why(error)) from error


@contextlib.contextmanager
def _without_onednn() -> Iterator[None]:
    """An LSTM on a CPU is taken apart: oneDNN's own keeps what no tensor is."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


class _Storages(fx.Interpreter):
    """Runs a graph on fake tensors; keeps what each node gave."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        self.values[n] = value
        return value

    @property
    def values(self) -> dict[fx.Node, Any]:
        return self.__dict__.setdefault("_values", {})


class _Flattening:
    """A joint graph on its way to calls on storages."""

    def __init__(
        self, module: fx.GraphModule, sample: tuple[torch.Tensor, ...], lossy: Lossy
    ) -> None:
        self._module = module
        self._names, self._fixed = lossy.names, lossy.fixed
        self._sample = sample
        self._device = sample[0].device
        self._tensors: list[Tensor] = []
        self._origin: list[int] = []
        self._views: dict[fx.Node, Any] = {}
        self._roles: dict[int, Role] = {}
        self._constants: dict[int, torch.Tensor] = {}
        nodes = list(module.graph.nodes)
        self._holders = [node for node in nodes if node.op == "placeholder"]
        fake = [node.meta["val"] for node in self._holders]
        interpreter = _Storages(module)
        with _mode(fake):
            interpreter.run(*fake)
        self._values = interpreter.values
        self._body = [node for node in nodes if node.op not in ("placeholder", "output")]
        # A stable order with everything before the loss first; nothing there needs a tangent.
        self._body.sort(key=is_backward)
        self._end = next(node for node in nodes if node.op == "output")

    def result(self, name: str) -> Capture:
        for node in self._holders:
            self._hold(node)
        calls = [call for node in self._body if (call := self._visit(node)) is not None]
        loss, gradients, updates = self._ends()
        ends = {view.tensor for view in (loss, *gradients.values(), *updates.values())}
        for tensor in ends - set(self._roles):
            self._become(tensor, "output")
        ops = tuple(_op(index, call) for index, call in enumerate(calls))
        graph = Graph(tuple(self._tensors), ops, name)
        return Capture(graph, tuple(calls), self._roles, self._constants, loss, gradients, updates,
                       self._sample, self._device)  # fmt: skip

    def _become(self, tensor: int, kind: Kind) -> None:
        old = self._tensors[tensor]
        self._tensors[tensor] = Tensor(tensor, old.bytes, kind, old.name)

    def _new(self, value: torch.Tensor, kind: Kind, name: str) -> View:
        tensor = len(self._tensors)
        held = kind in STAYS
        size = value.numel() * value.itemsize if held else value.untyped_storage().nbytes()
        self._tensors.append(Tensor(tensor, size, kind, name))
        self._origin.append(value.storage_offset() * value.itemsize if held else 0)
        return self._view(tensor, value)

    def _view(self, tensor: int, value: torch.Tensor) -> View:
        skipped = value.storage_offset() * value.itemsize - self._origin[tensor]
        return View(
            tensor, value.dtype, tuple(value.shape), value.stride(), skipped // value.itemsize
        )

    def _hold(self, node: fx.Node) -> None:
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            raise CaptureError("the module takes numbers that change: only tensors can be inputs")
        desc = node.meta["desc"]
        kind: Kind = "input"
        role: Role
        if isinstance(desc, aot.ParamAOTInput):
            kind, role = "parameter", ("parameter", self._names[desc.target])
        elif isinstance(desc, aot.BufferAOTInput) and desc.target in self._fixed:
            kind, role = "parameter", ("constant", desc.target)
        elif isinstance(desc, aot.BufferAOTInput):
            kind, role = "parameter", ("buffer", self._names[desc.target])
        elif isinstance(desc, aot.PlainAOTInput):
            role = ("input", desc.idx)
        elif isinstance(desc, aot.TangentAOTInput):
            role = ("tangent", 0)
        else:
            raise CaptureError(
                "the module has an operator that does more than to give a result (as "
                f"torch.linalg.inv, which looks at its input): {type(desc).__name__}"
            )
        view = self._new(value, kind, str(role[1]) if role[0] != "tangent" else "tangent")
        self._views[node] = view
        self._roles[view.tensor] = role
        if role[0] == "constant":
            self._constants[view.tensor] = self._fixed[str(role[1])]

    def _visit(self, node: fx.Node) -> Call | None:
        if node.op == "get_attr":
            value = getattr(self._module, str(node.target))
            self._views[node] = view = self._new(value, "parameter", str(node.target))
            self._roles[view.tensor] = ("constant", view.tensor)
            self._constants[view.tensor] = value.to(self._device)
            return None
        if node.target.__name__ == "getitem":
            self._views[node] = self._views[node.args[0]][node.args[1]]
            return None
        if not isinstance(node.target, (torch._ops.OpOverload, Pair)):
            raise CaptureError(f"the graph has {node.target}, which is no operator of PyTorch")
        value = self._values[node]
        many = isinstance(value, (tuple, list))
        for each in value if many else (value,):
            if isinstance(each, torch.Tensor) and each.layout != torch.strided:
                raise CaptureError(f"{node.target} gives a sparse tensor, which no arena can hold")
        base = self._base(node, value if many else (value,))
        if base is not None:
            parts = tuple(self._view(base, each) for each in (value if many else (value,)))
            self._views[node] = parts if many else parts[0]
            return None
        read = {user.args[1] for user in node.users} if many else {0}
        shared: dict[Any, int] = {}  # storage -> tensor: results may be parts of one
        outputs = tuple(
            self._output(node, each, place, shared) if place in read else None
            for place, each in enumerate(value if many else (value,))
        )
        self._views[node] = outputs if many else outputs[0]
        args = fx.node.map_arg(node.args, self._views.__getitem__)
        kwargs = fx.node.map_arg(node.kwargs, self._views.__getitem__)
        target, args = node.target, tuple(args)
        if target == ABSOLUTE and not self._is_whole(args[0]):
            raise CaptureError(f"the graph has {target} of a part of a tensor")
        seeded = torch.Tag.nondeterministic_seeded in target.tags
        if target == _NORM_BACKWARD and args[7]:  # in training, no running statistics are needed
            args = (*args[:3], None, None, *args[5:])
            if by_library(self._values[node.args[1]], args[2], args[7]):
                target = torch.ops.aten.batch_norm_backward.default
                args = (*args, torch.empty(0, dtype=torch.uint8, device=self._device))
        return Call(target, args, dict(kwargs), outputs, not is_backward(node), seeded)

    def _is_whole(self, view: View) -> bool:
        return self._tensors[view.tensor].bytes == prod(view.size) * view.dtype.itemsize

    def _output(self, node: fx.Node, value: Any, place: int, shared: dict[Any, int]) -> View | None:
        if not isinstance(value, torch.Tensor):
            return None
        storage = value.untyped_storage()._cdata
        if storage in shared:
            return self._view(shared[storage], value)
        # A few numbers are not worth a place in the arena: on another device (a random state), or
        # where no operator writes them into a place (a batch's statistics).
        few = value.device != self._device or (isinstance(node.target, Joined) and place > 0)
        kind: Kind = "output" if few else "gradient" if is_backward(node) else "activation"
        view = self._new(value, kind, node.name)
        shared[storage] = view.tensor
        return view

    def _base(self, node: fx.Node, values: Sequence[Any]) -> int | None:
        """The storage that a node only looks at, in one part or several, if it is no new one."""
        if not values or not all(isinstance(each, torch.Tensor) for each in values):
            return None
        storages = {each.untyped_storage()._cdata for each in values}
        for operand in node.all_input_nodes:
            old = self._values.get(operand)
            if isinstance(old, torch.Tensor) and {old.untyped_storage()._cdata} == storages:
                return self._views[operand].tensor
        return None

    def _ends(self) -> tuple[View, dict[str, View], dict[str, View]]:
        losses: list[View] = []
        gradients: dict[str, View] = {}
        updates: dict[str, View] = {}
        for node, desc in zip(self._end.args[0], self._end.meta["desc"], strict=True):
            if not isinstance(node, fx.Node):
                continue
            view = self._views[node]
            if isinstance(desc, aot.PlainAOTOutput):
                losses.append(view)
            elif isinstance(desc, aot.GradAOTOutput) and isinstance(
                desc.grad_of, aot.ParamAOTInput
            ):
                gradients[self._names[desc.grad_of.target]] = view
            elif (
                isinstance(desc, aot.InputMutationAOTOutput)
                and isinstance(desc.mutated_input, aot.BufferAOTInput)
                and desc.mutated_input.target in self._names
            ):
                updates[self._names[desc.mutated_input.target]] = view
            elif isinstance(desc, aot.InputMutationAOTOutput):
                raise CaptureError(
                    "the module writes an input or a parameter in place (or its loss a buffer); "
                    "clone it first (x.clone())"
                )
            elif isinstance(desc, aot.GradAOTOutput):
                raise CaptureError(
                    "an input requires a gradient, and only parameters get one; pass x.detach()"
                )
            else:
                raise CaptureError(f"the module gives back what is not supported: {desc}")
        if not gradients:
            raise CaptureError(
                "no parameter has a part in the loss; look for a detach(), or a plain number"
            )
        if len(losses) != 1 or losses[0].size != ():
            raise CaptureError("the module (with its loss) must give back one number, the loss")
        return losses[0], gradients, updates


def _mode(fake: list[Any]) -> Any:
    modes = [each.fake_mode for each in fake if hasattr(each, "fake_mode")]
    return modes[0] if modes else contextlib.nullcontext()


def _op(index: int, call: Call) -> Op:
    inputs = dict.fromkeys(view.tensor for view in views_of((call.args, call.kwargs)))
    outputs = dict.fromkeys(view.tensor for view in call.outputs if view is not None)
    again = torch.Tag.nondeterministic_bitwise not in call.target.tags
    name = str(call.target).removeprefix("aten.").removesuffix(".default")
    return Op(index, name, tuple(inputs), tuple(outputs), 0.0, recomputable=again)
