"""A module and its loss as one module to be captured, and what of it no graph can hold."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from autotm.executor.errors import CaptureError

Loss = Callable[..., torch.Tensor]
_DATA_DEPENDENT = ("data-dependent", "datadependent", "dynamic shape", "dynamicoutputshape")


class Lossy(nn.Module):
    """A module and its loss as one module, in which a tensor with two names stands once.

    names: of the module's tensors, by their names here. fixed: the tensors of a loss that is a
    module itself (the weights of classes), by their names here. Raises CaptureError for a loss with
    parameters.
    """

    def __init__(self, module: nn.Module, loss: Loss | None) -> None:
        super().__init__()
        self._pair = (module, loss)  # not a child: its parameters have their names here
        self.names: dict[str, str] = {}
        mine: dict[int, str] = {}  # tensor -> its name here
        for kind, named in (("p", module.named_parameters()), ("b", module.named_buffers())):
            for position, (name, value) in enumerate(named):
                if kind == "p":
                    self.register_parameter(f"p{position}", value)
                else:
                    self.register_buffer(f"b{position}", value)
                self.names[f"{kind}{position}"] = name
                mine[id(value)] = f"{kind}{position}"
        self.fixed = {}
        if isinstance(loss, nn.Module):
            if any(True for _ in loss.parameters()):
                raise CaptureError(
                    "the loss has parameters: make it a part of the module, and pass no loss"
                )
            self.fixed = {f"l{n}": value for n, value in enumerate(loss.buffers())}
            for name, value in self.fixed.items():
                self.register_buffer(name, value)
        # Each place of a tensor once: two names of a module are one place.
        self._places = {
            f"{prefix}.{own}".lstrip("."): mine[id(value)]
            for prefix, part in module.named_modules()
            for own, value in (*part._parameters.items(), *part._buffers.items())
            if value is not None
        }

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        module, loss = self._pair
        state = {name: getattr(self, mine) for name, mine in self._places.items()}

        def written_in_place(*_: Any) -> None:
            for name, each in module.named_buffers():
                if each is not state.get(name):
                    raise CaptureError(
                        f"the module assigns its buffer '{name}', which is lost in a graph; write "
                        f"it in place (self.{name.rpartition('.')[2]}.copy_(...))"
                    )

        hook = module.register_forward_hook(written_in_place)
        try:
            found: torch.Tensor = functional_call(
                module, state, args if loss is None else args[:-1], tie_weights=False
            )
        finally:
            hook.remove()
        if loss is None:
            return found
        if not isinstance(loss, nn.Module):
            return loss(found, args[-1])
        names = (name for name, _ in loss.named_buffers())
        state = {name: getattr(self, mine) for name, mine in zip(names, self.fixed, strict=True)}
        return functional_call(loss, state, (found, args[-1]))


def whole(module: nn.Module, loss: Loss | None, args: Sequence[torch.Tensor]) -> torch.Tensor:
    """The plain loss, as a person writes it. Raises nothing of its own."""
    return module(*args) if loss is None else loss(module(*args[:-1]), args[-1])


def check_sample(module: nn.Module, sample: Sequence[torch.Tensor]) -> None:
    """Raises CaptureError for what can be seen before a graph is made."""
    if not isinstance(module, nn.Module):
        raise CaptureError(f"a torch.nn.Module is needed, and got {type(module).__name__}")
    if not sample or not all(isinstance(each, torch.Tensor) for each in sample):
        raise CaptureError(
            "the sample must be tensors alone: for other arguments wrap the module in one of your "
            "own, and the loss in a lambda"
        )
    if not torch.is_grad_enabled():
        raise CaptureError(
            "no gradient can be made here: fit outside of torch.no_grad() and inference_mode()"
        )
    if any(each.is_inference() for each in sample):
        raise CaptureError("the sample must be made outside of torch.inference_mode()")
    for part in module.modules():
        if isinstance(part, nn.parallel.DistributedDataParallel):
            raise CaptureError(
                "DistributedDataParallel goes around a fitted step: fit the module in it, and wrap "
                "the step"
            )
        if hasattr(part, "_orig_mod") or part._compiled_call_impl is not None:
            raise CaptureError("the module is compiled, in whole or in part: fit it as it was")
        if isinstance(part, nn.RNNBase) and part.training and part.dropout and part.num_layers > 1:
            raise CaptureError(
                f"PyTorch loses the dropout between the layers of {type(part).__name__} in a "
                "graph; put nn.Dropout between modules of one layer each"
            )
    devices = {each.device for each in (*module.parameters(), *module.buffers(), *sample)}
    if len(devices) != 1:
        names = ", ".join(sorted(map(str, devices)))
        raise CaptureError(f"module and sample must be on one device, and are on {names or 'none'}")
    if sample[0].is_meta:
        raise CaptureError("module and sample are on device meta, which has no numbers to train on")
    if not any(each.requires_grad for each in module.parameters()):
        raise CaptureError("no parameter of the module requires a gradient: nothing to train")


def why(error: Exception) -> str:
    """In a sentence why PyTorch made no graph."""
    first = (str(error).strip().splitlines() or [""])[0]
    text = f"{type(error).__name__} {error}".lower()
    if any(word in text for word in _DATA_DEPENDENT) or "guard on" in text:
        return (
            "the module's control flow or shapes depend on the values of tensors, so it has no "
            f"static graph; take that part out of the module ({type(error).__name__}"
            f"{_where(error)})"
        )
    if "convert all tensors to faketensors" in text or "unexpected fake buffer" in text:
        return (
            "the step reads a tensor that is neither the module's nor the sample's, as the weights "
            "in a loss that is no module, or one that is kept in an attribute: register it as a "
            "buffer of the module"
        )
    return f"the module could not be captured as one graph: {first} ({type(error).__name__})"


def _where(error: Exception) -> str:
    """The last line of a module's, or of what it calls, before PyTorch's own."""
    frames = [
        each
        for each in traceback.extract_tb(error.__traceback__)
        if "/torch/nn/" in each.filename
        or not any(part in each.filename for part in ("/torch/", "/autotm/executor/"))
    ]
    last = frames[-1:]  # none where PyTorch fails in a backward
    return "".join(f" in {each.name}, {Path(each.filename).name}:{each.lineno}" for each in last)
