"""Content hashes, build commands and the choice of a client. Real builds: tests/containers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ae.errors import EnvironmentFault, UsageError
from ae.images import BuildOptions, Client, build_argv, content_hash, find_client, image_ref, labels
from ae.model import Flavour
from tests.toy import make_toy


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = make_toy(tmp_path / "root")
    (made / "images/base/Dockerfile").write_text("FROM scratch\n")
    (made / "images/common/src/tool.py").write_text("x = 1\n")
    return made


@pytest.mark.parametrize(
    ("path", "counts"),
    [
        ("toy/src/toy/adding.py", True),
        ("toy/new.cu", True),
        ("common/src/tool.py", True),
        ("base/Dockerfile", True),
        ("toy/tests/test_it.py", False),
        ("toy/README.md", False),
        ("toy/src/toy/__pycache__/x.pyc", False),
        ("toy/.cache/x", False),
        ("base/airgap.py", False),
        ("other/Dockerfile", False),
    ],
)
def test_what_changes_an_image(root: Path, path: str, counts: bool) -> None:
    before = content_hash(root, "toy")
    file = root / "images" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("changed\n")
    assert (content_hash(root, "toy") != before) is counts


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


def test_an_image_that_is_not_there_names_the_nearest(root: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'toy'"):
        image_ref(root, "tou", Flavour.CPU)


def test_the_command_of_a_build(root: Path, tmp_path: Path) -> None:
    image = image_ref(root, "toy", Flavour.CUDA)
    options = BuildOptions(ca_bundle=tmp_path / "ca.pem", network="host")
    argv = build_argv(Client("/usr/bin/docker", True), root, image, "b:1", options, tmp_path)
    text = " ".join(argv)
    assert argv[:3] == ("/usr/bin/docker", "buildx", "build")
    for part in (
        "--builder default --load",
        f"--file {root}/images/toy/Dockerfile",
        "--tag ae/toy:cuda",
        "--build-arg FLAVOUR=cuda",
        "--build-arg BASE_IMAGE=b:1",
        f"--build-context wheels={tmp_path}",
        f"--secret id=ca,src={tmp_path}/ca.pem",
        "--network host",
        f"--label ae.content={image.content}",
    ):
        assert part in text
    assert argv[-1] == str(root / "images")
    old = build_argv(Client("docker", False), root, image, None, BuildOptions(), tmp_path)
    assert old[:2] == ("docker", "build")
    assert "BASE_IMAGE" not in " ".join(old)
    assert labels(image) == {
        "ae.image": "toy",
        "ae.flavour": "cuda",
        "ae.content": content_hash(root, "toy"),
    }


def put_client(folder: Path, script: str) -> str:
    folder.mkdir()
    program = folder / "docker"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(program)


BARE = '[ "$1" = buildx ] && exit 1; echo "--secret"'
WITH_BUILDX = "exit 0"
WITH_CONTEXTS = '[ "$1" = buildx ] && exit 1; echo "--build-context --secret"'


def test_the_client_with_buildx_is_found_behind_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = put_client(tmp_path / "a", BARE)
    context = put_client(tmp_path / "b", WITH_CONTEXTS)
    buildx = put_client(tmp_path / "c", WITH_BUILDX)

    def among(*paths: str) -> Client:
        monkeypatch.setattr("ae.images._clients", lambda: iter(paths))
        return find_client("unix:///nowhere.sock")

    assert among(bare, context, buildx) == Client(buildx, True)
    assert among(bare, context) == Client(context, False)
    with pytest.raises(EnvironmentFault, match="no docker client here has buildx"):
        among(bare)
    with pytest.raises(EnvironmentFault, match="there is none on PATH"):
        among()


def test_clients_on_path_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ae.images import _clients

    mine = put_client(tmp_path / "a", BARE)
    monkeypatch.setenv("PATH", str(tmp_path / "a"))
    assert next(_clients()) == mine
