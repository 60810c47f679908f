"""Names of kernels as places: short, and with what an element-wise kernel of PyTorch computes."""

from __future__ import annotations

import re

from accel_trace.tools.kernel_frequency import short_name

_ANONYMOUS = "(anonymous namespace)::"
_INNER = re.compile(r"\bat::native::(?:\w+::)*(\w+)")
_WRAPPERS = ("gpu_kernel_impl", "legacy", "unrolled")  # around what is computed


def kernel_name(name: str) -> str:
    """A kernel's short name; of PyTorch's templates with the functor, by which they differ.

    `void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, ...>(...)` is
    `vectorized_elementwise_kernel<FillFunctor>`.
    """
    plain = name.replace(_ANONYMOUS, "")
    short = short_name(plain).split("(")[0]
    if not short.startswith("at::native::"):
        return short or name
    rest = plain.partition("<")[2]
    inner = (found for found in _INNER.findall(rest) if not _is_wrapper(found))
    functor = next(inner, "")
    last = short.rpartition("::")[2]
    return f"{last}<{functor}>" if functor else last


def _is_wrapper(word: str) -> bool:
    return word.startswith(_WRAPPERS) or word.endswith("Metadata")
