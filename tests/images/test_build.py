"""What buildx is told to do, read from the bake files. Real builds: tests/real."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from ae.errors import EnvironmentFault, UsageError
from ae.images import bake
from ae.images.build import build_argv, build_disk, commands, is_error, source_epoch
from ae.images.content import BuildOptions, client_environment, find_client, image_ref
from ae.model import Flavour
from tests.toy import make_toy

ROOT = Path(__file__).resolve().parents[2]
NOWHERE = "unix:///nowhere.sock"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = make_toy(tmp_path / "root")
    (made / "images/base/Dockerfile").write_text("FROM scratch\n")
    return made


@pytest.fixture
def buildx(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A client with buildx; it needs no daemon to read a bake file."""
    try:
        return find_client(NOWHERE), "buildx"
    except EnvironmentFault as fault:
        from tests.conftest import IN_CI

        if IN_CI:
            raise
        pytest.skip(fault.message)


def targets(
    buildx: tuple[str, str], root: Path, name: str = "toy", **variables: str
) -> list[bake.Target]:
    environment = client_environment(NOWHERE) | variables
    return bake.resolve(buildx, root, name, f"{name}-cpu", environment)


def test_the_base_comes_first(buildx: tuple[str, str], root: Path) -> None:
    base, toy = targets(buildx, root)
    assert (base.name, toy.name) == ("base-cpu", "toy-cpu")
    assert toy.needs == ("base-cpu",)
    assert toy.tags == ("ae/toy:cpu",)
    assert toy.args["FLAVOUR"] == "cpu"
    assert base.args["BASE_IMAGE"] == "debian:bookworm-slim"
    assert toy.secrets == toy.cache_from == ()


def test_the_variables_of_the_bake_file(
    buildx: tuple[str, str], root: Path, tmp_path: Path
) -> None:
    ca = tmp_path / "ca.pem"
    ca.touch()
    (toy,) = targets(
        buildx,
        root,
        AE_BASE_IMAGE="b:1",
        AE_WHEELS=str(tmp_path),
        AE_CA_BUNDLE=str(ca),
        AE_CACHE="localhost:5000/ae",
        AE_REVISION="abc",
        HTTPS_PROXY="http://proxy:3128",
    )
    assert toy.args["BASE_IMAGE"] == "b:1"
    assert toy.args["HTTPS_PROXY"] == "http://proxy:3128"
    assert "HTTP_PROXY" not in toy.args
    assert toy.contexts == {"wheels": str(tmp_path)}
    assert toy.secrets == (f"id=ca,src={ca}",)
    assert toy.cache_to == ("type=inline",)
    assert toy.labels["org.opencontainers.image.revision"] == "abc"


def test_the_command_of_a_build(buildx: tuple[str, str], root: Path, tmp_path: Path) -> None:
    image = image_ref(root, "toy", Flavour.CPU)
    options = BuildOptions(network="host", contexts={"extra": tmp_path}, fresh=True)
    argv = build_argv("docker", root, targets(buildx, root)[1], image, options)
    text = " ".join(argv)
    for part in (
        "docker buildx build --builder default --load --progress plain",
        f"--file {root}/images/toy/Dockerfile",
        "--tag ae/toy:cpu",
        "--build-arg FLAVOUR=cpu",
        "--build-arg SOURCE_DATE_EPOCH=0",
        "--build-context ae-base=docker-image://ae/base:cpu",
        f"--build-context extra={tmp_path}",
        "--network host",
        "--no-cache",
        f"--label ae.content={image.content}",
        "--label ae.flavour=cpu",
        "--provenance false",
    ):
        assert part in text, part
    assert argv[-1] == str(root / "images")


def test_newer_buildx_prints_objects(buildx: tuple[str, str], tmp_path: Path) -> None:
    plan = {"target": {"a-cpu": {"secret": [{"id": "ca", "src": "/x"}], "tags": ["ae/a:cpu"]}}}
    program = tmp_path / "docker"
    program.write_text(f"#!/bin/sh\ncat <<'E'\n{json.dumps(plan)}\nE\n")
    program.chmod(0o755)
    (target,) = bake.resolve((str(program),), ROOT, "base", "a-cpu", {})
    assert target.secrets == ("id=ca,src=/x",)
    program.write_text("#!/bin/sh\necho not json\n")
    with pytest.raises(EnvironmentFault, match="prints its plan in a form"):
        bake.resolve((str(program),), ROOT, "base", "a-cpu", {})


def test_wrong_bake_files_and_options(buildx: tuple[str, str], root: Path) -> None:
    image = image_ref(root, "toy", Flavour.CPU)
    with pytest.raises(UsageError, match=r"--context x .*/nowhere: there is no such path"):
        commands(root, image, BuildOptions(contexts={"x": root / "nowhere"}), endpoint=NOWHERE)
    with pytest.raises(UsageError, match="toy give no toy-gpu: failed to find target toy-gpu"):
        bake.resolve(buildx, root, "toy", "toy-gpu", client_environment(NOWHERE))
    (root / "images/toy/bake.hcl").write_text('target "toy-cpu" {\n')
    with pytest.raises(UsageError, match="the bake files of toy give no toy-cpu"):
        targets(buildx, root)
    (root / "images/toy/bake.hcl").unlink()
    with pytest.raises(UsageError, match=r"there is no images/toy/bake\.hcl"):
        targets(buildx, root)


def test_the_disk_that_a_build_asks_for(root: Path) -> None:
    cpu, cuda = (image_ref(root, "toy", flavour) for flavour in (Flavour.CPU, Flavour.CUDA))
    assert build_disk(root, cpu) < build_disk(root, cuda)
    assert build_disk(root, cuda, network="none") == build_disk(root, cpu)  # downloads nothing
    with (root / "images/toy/bake.hcl").open("a") as file:
        file.write('target "more" { labels = { "ae.build.disk" = "60GB" } }\n')
    assert build_disk(root, cuda, network="host") == 60 * 10**9


def test_flavours_of_an_image(root: Path) -> None:
    assert bake.flavours(root, "toy") == (Flavour.CPU, Flavour.CUDA)
    (root / "images/toy/bake.hcl").write_text('target "toy-cuda" {}\n')
    assert bake.flavours(root, "toy") == (Flavour.CUDA,)
    (root / "images/toy/bake.hcl").write_text("# nothing\n")
    with pytest.raises(UsageError, match="names no flavour"):
        bake.flavours(root, "toy")


@pytest.mark.parametrize(
    "image", sorted(path.parent.name for path in (ROOT / "images").glob("*/bake.hcl"))
)
def test_every_image_of_this_repository(buildx: tuple[str, str], image: str) -> None:
    """Bake can plan it, it is tagged as its folder says, and its Dockerfile is there."""
    for flavour in bake.flavours(ROOT, image):
        environment = client_environment(NOWHERE)
        target = bake.resolve(buildx, ROOT, image, f"{image}-{flavour}", environment)[-1]
        assert target.tags == (f"ae/{image}:{flavour}",)
        assert (ROOT / target.context / target.dockerfile).is_file()
        assert target.labels["org.opencontainers.image.title"] == f"ae/{image}"
        assert target.labels["org.opencontainers.image.licenses"]
        assert target.labels["org.opencontainers.image.description"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("#11 3.897 ERROR: no wheel was found", True),
        ("ERROR: failed to solve: process ... did not complete", True),
        ("#7 1.2 main.c:3: error: expected ';'", True),
        ('#11 [packages 3/6] RUN pip install x || echo "ERROR: no wheel was found"', False),
        ("#11 3.1 Collecting numpy", False),
    ],
)
def test_what_counts_as_the_error_of_a_build(line: str, expected: bool) -> None:
    assert is_error(line) is expected


def test_a_build_states_when_its_sources_last_changed(root: Path) -> None:
    def commit(name: str, seconds: int) -> None:
        file = root / "images" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{seconds}\n")
        date = {"GIT_AUTHOR_DATE": f"{seconds} +0000", "GIT_COMMITTER_DATE": f"{seconds} +0000"}
        who = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
        for words in (("add", "-A"), ("commit", "-q", "-m", name)):
            subprocess.run(
                ["git", "-C", str(root), *who, *words], check=True, env=os.environ | date
            )

    dockerfile = root / "images/toy/Dockerfile"
    dockerfile.write_text(dockerfile.read_text() + "COPY shared/src /opt/shared\n")
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    for seconds, name in ((1000, "toy/x"), (2000, "shared/src/x"), (3000, "other/src/x")):
        commit(name, 1_000_000_000 + seconds)
    toy = image_ref(root, "toy", Flavour.CPU)
    assert source_epoch(root, toy) == 1_000_002_000
    commit("base/Dockerfile", 1_000_004_000)
    assert source_epoch(root, toy) == 1_000_004_000
