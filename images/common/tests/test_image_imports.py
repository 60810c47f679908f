"""No import circle among the images' packages: read top to bottom, each module stands on others."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

IMAGES = Path(__file__).parents[2]
PACKAGES = sorted(
    init.parent
    for source in [*IMAGES.glob("*/src"), *IMAGES.glob("*/driver")]
    for init in source.glob("*/__init__.py")
)


def modules(package: Path) -> dict[str, Path]:
    """The dotted names of a package's modules, `__init__` under the package's own name."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path, name: str) -> Iterator[tuple[str, ...]]:
    """What a module imports, anywhere in it: the names that the import could mean, longest first.

    `import_module("...")` with a written-out name counts; one that is put together does not.
    """
    inside = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (alias.name,)
        elif isinstance(node, ast.ImportFrom):
            above = inside[: len(inside) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:
                yield (f"{base}.{alias.name}", base)
        elif (
            isinstance(node, ast.Call)
            and getattr(node.func, "attr", getattr(node.func, "id", "")) == "import_module"
            and isinstance(node.args[0], ast.Constant)
        ):
            yield (str(node.args[0].value),)


def graph(package: Path) -> dict[str, set[str]]:
    """Who imports whom in one package. Importing `a.b.c` runs `a.b` too, unless one is in it."""
    known = modules(package)
    arrows: dict[str, set[str]] = {name: set() for name in known}
    for name, path in known.items():
        for meant in imports(path, name):
            target = next((word for word in meant if word in known), "")
            while target:
                if target != name and not name.startswith(f"{target}."):
                    arrows[name].add(target)
                target = target.rpartition(".")[0]
    return arrows


def circle(arrows: Mapping[str, set[str]]) -> list[str]:
    """One circle as a path back to its start, or nothing."""
    done: set[str] = set()

    def walk(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for target in sorted(arrows[name]):
            if found := walk(target, [*path, name]):
                return found
        done.add(name)
        return []

    return next((found for name in sorted(arrows) if (found := walk(name, []))), [])


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_no_import_circle(package: Path) -> None:
    assert not circle(graph(package))


def test_every_image_with_sources_is_looked_at() -> None:
    found = {package.parents[1].name for package in PACKAGES}
    assert {source.parent.name for source in IMAGES.glob("*/src")} <= found


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("import toy.two\n", "from toy import one\n"),
        ("def f():\n    from toy.two import g\n", "from toy.one import f\n"),
        ("from . import two\n", "from .one import f\n"),
        ("import importlib\nx = importlib.import_module('toy.two')\n", "import toy.one\n"),
    ],
)
def test_a_circle_is_found(tmp_path: Path, one: str, two: str) -> None:
    package = tmp_path / "toy"
    package.mkdir()
    for name, text in {"__init__": "", "one": one, "two": two}.items():
        (package / f"{name}.py").write_text(text)
    assert circle(graph(package)) == ["toy.one", "toy.two", "toy.one"]
    (package / "two.py").write_text("")
    assert circle(graph(package)) == []
