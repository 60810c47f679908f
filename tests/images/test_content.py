"""Content hashes and the choice of a client. Builds: tests/test_build.py, tests/real."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ae.errors import EnvironmentFault, UsageError
from ae.images.content import (
    content_hash,
    find_client,
    flavours,
    image_ref,
    made_from,
    source_paths,
)
from ae.model import Flavour
from tests.toy import make_toy

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = make_toy(tmp_path / "root")
    (made / "images/base/Dockerfile").write_text("FROM scratch\n")
    (made / "images/common/src/tool.py").write_text("x = 1\n")
    with (made / "images/toy/Dockerfile").open("a") as dockerfile:
        dockerfile.write("COPY common/src /opt/ae/common\n")
    return made


@pytest.mark.parametrize(
    ("path", "counts"),
    [
        ("toy/src/toy/adding.py", True),
        ("toy/new.cu", True),
        ("common/src/tool.py", True),
        ("base/Dockerfile", True),  # toy builds on it
        ("sources/edit.py", False),  # toy's Dockerfile takes nothing from there
        ("toy/tests/test_it.py", False),
        ("toy/README.md", False),
        ("toy/src/toy/__pycache__/x.pyc", False),
        ("toy/.cache/x", False),
        ("other/Dockerfile", False),
    ],
)
def test_what_changes_an_image(root: Path, path: str, counts: bool) -> None:
    before = content_hash(root, "toy")
    file = root / "images" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text((file.read_text() if file.exists() else "") + "# changed\n")
    assert (content_hash(root, "toy") != before) is counts


def test_what_an_image_does_not_use_does_not_count(root: Path) -> None:
    folder = root / "images/alone"
    folder.mkdir()
    (folder / "Dockerfile").write_text("FROM scratch\n")
    before = content_hash(root, "alone")
    (root / "images/base/Dockerfile").write_text("FROM other\n")
    (root / "images/common/src/tool.py").write_text("x = 2\n")
    assert content_hash(root, "alone") == before


@pytest.fixture
def with_tool(root: Path) -> Path:
    """The toy, built with the sources of a folder beside it."""
    for name in ("shared/src/tool.py", "shared/native/inject.cc", "other/src/other.py"):
        file = root / "images" / name
        file.parent.mkdir(parents=True)
        file.write_text("1\n")
    with (root / "images/toy/Dockerfile").open("a") as dockerfile:
        dockerfile.write(
            "RUN --mount=type=bind,source=shared/src,target=/shared cp -R /shared /opt\n"
            "COPY shared/native /opt/native\n"
            "COPY --from=toy /opt/other/src missing/src /src/\n"
        )
    return root


@pytest.mark.parametrize(
    ("path", "counts"),
    [
        ("shared/src/tool.py", True),
        ("shared/native/inject.cc", True),  # the whole folder
        ("shared/tests/test_it.py", False),
        ("other/src/other.py", False),  # a path of the image, not of the build context
        ("common/src/tool.py", True),
    ],
)
def test_a_folder_whose_sources_are_taken_counts(with_tool: Path, path: str, counts: bool) -> None:
    assert made_from(with_tool, "toy") == ("toy", "common", "shared", "base")
    before = content_hash(with_tool, "toy")
    file = with_tool / "images" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("2\n")
    assert (content_hash(with_tool, "toy") != before) is counts


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        ("COPY shared/src /opt/shared", True),
        ("COPY --chmod=644 toy/x shared/src/tool.py /opt/", True),
        ("RUN --mount=type=bind,source=shared/src,target=/shared true", True),
        ("RUN --mount=type=bind,source=shared,target=/shared true", True),
        ("RUN --mount=type=bind,target=/shared,source=shared \\\n    true", True),
        ("COPY shared/native /opt/native", False),  # no sources of Python
        ("RUN --mount=type=bind,source=shared-other/src,target=/s true", False),
        ("RUN cp -R /shared/src /opt/shared/src", False),
        ("RUN --mount=type=bind,from=shared,target=/shared true", False),
    ],
)
def test_what_takes_sources(root: Path, line: str, counts: bool) -> None:
    (root / "images/shared/src").mkdir(parents=True)
    with (root / "images/toy/Dockerfile").open("a") as dockerfile:
        dockerfile.write(line + "\n")
    assert ("shared" in made_from(root, "toy")) is counts


def test_shared_sources_are_on_the_path_of_python(with_tool: Path) -> None:
    images = with_tool / "images"
    assert source_paths(with_tool, "toy") == tuple(
        images / name / "src" for name in ("common", "shared", "toy")
    )
    (images / "toy/Dockerfile").write_text("FROM scratch\n")
    assert source_paths(with_tool, "toy") == (images / "common/src", images / "toy/src")


def test_native_images_are_made_from_what_they_share() -> None:
    files = [
        path for path in CHECKOUT.glob("images/*/Dockerfile") if "ae/base:" in path.read_text()
    ]
    names = [path.parent.name for path in files if (path.parent / "src").is_dir()]
    assert names
    for name in names:
        parts = made_from(CHECKOUT, name)
        assert (parts[:2], parts[-1]) == ((name, "common"), "base")


def test_the_hash_itself_stays_what_it_was(tmp_path: Path) -> None:
    """Images that exist are known again: this tree's hash is pinned."""
    for name, text in (
        (
            "paper/Dockerfile",
            "ARG BASE_IMAGE=ae/base:cpu\nCOPY common/src /opt/ae/common\nCOPY paper/src /\n",
        ),
        ("paper/src/paper.py", "x = 1\n"),
        ("common/src/tool.py", "y = 2\n"),
        ("base/Dockerfile", "FROM scratch\n"),
        ("sources/fetch.py", "z = 3\n"),
    ):
        file = tmp_path / "images" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o644)
    pinned = "04eeb4dd9d7075973d4020f1d639c0b3dc4b925ceb581715cf7dd75835cdf434"
    assert content_hash(tmp_path, "paper") == pinned


def test_a_name_and_an_executable_bit_count_and_the_place_does_not(root: Path) -> None:
    before = content_hash(root, "toy")
    shutil.copytree(root, root.parent / "copy")
    assert content_hash(root.parent / "copy", "toy") == before
    file = root / "images/toy/src/toy/adding.py"
    file.chmod(0o755)
    executable = content_hash(root, "toy")
    assert executable != before
    file.rename(file.with_name("adding2.py"))
    assert content_hash(root, "toy") not in (before, executable)


def test_flavours_of_an_image(root: Path) -> None:
    assert flavours(root, "toy") == (Flavour.CPU, Flavour.CUDA)
    dockerfile = root / "images/toy/Dockerfile"
    dockerfile.write_text("# flavours: cuda\n" + dockerfile.read_text())
    assert flavours(root, "toy") == (Flavour.CUDA,)


def test_an_image_that_is_not_there_names_the_nearest(root: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'toy'"):
        image_ref(root, "tou", Flavour.CPU)


def put_client(folder: Path, script: str) -> str:
    folder.mkdir()
    program = folder / "docker"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(program)


def test_the_client_must_have_buildx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = put_client(tmp_path / "a", '[ "$1" = buildx ] && exit 1; echo "--secret"')
    buildx = put_client(tmp_path / "b", "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path / "b"))
    assert find_client("unix:///nowhere.sock") == buildx
    monkeypatch.setenv("PATH", str(tmp_path / "a"))
    with pytest.raises(EnvironmentFault, match=f"{bare} has no buildx"):
        find_client("unix:///nowhere.sock")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentFault, match="there is none on PATH"):
        find_client("unix:///nowhere.sock")
