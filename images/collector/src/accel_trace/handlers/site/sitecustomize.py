"""Runs at the start of every Python of a recorded program, before the user's own sitecustomize.

`accel-trace run` puts this folder first on PYTHONPATH. It waits for `torch` to be imported and
never imports it; a program without it pays for one comparison per import. No failure in here may
reach the program.
"""

from __future__ import annotations

import os
import sys

TYPES = False  # what typing.TYPE_CHECKING is at run time; importing typing would cost every start
if TYPES:
    from importlib.machinery import ModuleSpec
    from typing import Any

# Under this file name Python leaves the frame out of the traceback of a torch that does not import.
_EXEC_MODULE = """
def wrapped(loader, original, after):
    def exec_module(module):
        del loader.exec_module
        original(module)
        after("after_torch")
    return exec_module
"""

_SITE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.dirname(os.path.dirname(_SITE))


def _note(text: str) -> None:
    """Say something without the package: by the injection library, else in a file."""
    try:
        import ctypes

        every = ctypes.CDLL(None)
        if hasattr(every, "accel_trace_note"):
            every.accel_trace_note(2, text.encode("utf-8", "replace"))
            return
        path = os.path.join(os.environ["ACCEL_TRACE_OUT"], f"notes-{os.getpid()}.txt")
        with open(path, "a", encoding="utf-8") as file:
            file.write(text + "\n")
    except Exception:  # noqa: BLE001  # there is nowhere left to say it
        pass


def _package_spec() -> ModuleSpec | None:
    from importlib.util import spec_from_file_location

    return spec_from_file_location(
        "accel_trace",
        os.path.join(_PACKAGE, "__init__.py"),
        submodule_search_locations=[_PACKAGE],
    )


def _guarded(moment: str) -> None:
    try:
        from accel_trace.handlers import install

        getattr(install, moment)()
    except Exception as error:  # noqa: BLE001
        _note(f"handlers in Python are off: {error!r}")


class _Watch:
    """Finds `accel_trace` for a program that cannot, and acts once `torch` has been imported."""

    def __init__(self) -> None:
        self.looking = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name == "accel_trace":
            return _package_spec()
        if name != "torch" or self.looking:
            return None
        self.looking = True
        try:
            from importlib.util import find_spec

            spec = find_spec(name)
        finally:
            self.looking = False
        if spec is not None and spec.loader is not None:
            self.follow(spec.loader)
        return spec

    def follow(self, loader: Any) -> None:
        made: dict[str, Any] = {}
        exec(compile(_EXEC_MODULE, "<frozen importlib._bootstrap>", "exec"), made)
        exec_module = made["wrapped"](loader, loader.exec_module, _guarded)
        try:
            loader.exec_module = exec_module
        except AttributeError:
            _note("this Python's loader of torch cannot be followed: handlers of PyTorch are off")


def _start() -> None:
    if not os.environ.get("ACCEL_TRACE_OUT") or not os.environ.get("ACCEL_TRACE_HANDLERS"):
        return
    if sys.version_info < (3, 11):  # noqa: UP036  # the target's Python may be any
        _note(f"handlers in Python need Python 3.11 or newer; this is {sys.version.split()[0]}")
        return
    sys.meta_path.insert(0, _Watch())
    wanted = os.environ["ACCEL_TRACE_HANDLERS"].replace(",", " ").split()
    if "cupti" in wanted or "stacks" in wanted:
        _guarded("at_start")
    if "torch" in sys.modules:
        _guarded("after_torch")


def _user() -> None:
    """Run the sitecustomize that this one hides; its errors are Python's to report, as ever."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.realpath(_SITE)
    paths = [entry for entry in sys.path if os.path.realpath(entry or ".") != here]
    spec = PathFinder.find_spec("sitecustomize", paths)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


try:
    _start()
except Exception as error:  # noqa: BLE001
    _note(f"handlers in Python are off: {error!r}")
_user()
