"""The tools: one module each. A module here with a subclass of `Tool` that has a name is a tool."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import sys
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType

from accel_trace.tools.base import Tool, ToolError


def names() -> dict[str, type[Tool]]:
    """Return the tools that come with accel-trace, by name in alphabetical order."""
    found: dict[str, type[Tool]] = {}
    for module in pkgutil.iter_modules(__path__):
        if module.name != "base":
            for tool in _of(importlib.import_module(f"{__name__}.{module.name}")):
                found[tool.name] = tool
    return dict(sorted(found.items()))


def find(name: str) -> type[Tool]:
    """Return the tool of that name, or the one that the Python file `name` defines.

    Raises ToolError, with the nearest name where there is one.
    """
    if name.endswith(".py"):
        return _load(Path(name))
    known = names()
    if name not in known:
        near = get_close_matches(name, known, 1)
        fix = f"did you mean '{near[0]}'?" if near else f"choose of {', '.join(known)}"
        raise ToolError(f"there is no tool '{name}'; {fix} A tool of your own is a path to a .py")
    return known[name]


def _load(path: Path) -> type[Tool]:
    if not path.is_file():
        raise ToolError(f"{path}: there is no such file")
    name = f"accel_trace_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ToolError(f"{path}: is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ToolError(f"{path}: {type(error).__name__}: {error}") from error
    tools = _of(module)
    if len(tools) != 1:
        raise ToolError(
            f"{path}: defines {len(tools)} tools (classes of Tool with a name), not one"
        )
    return tools[0]


def _of(module: ModuleType) -> list[type[Tool]]:
    """Return the tools that a module itself defines, not those that it imports."""
    return [
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and issubclass(value, Tool)
        and value.name
        and value.__module__ == module.__name__
    ]
