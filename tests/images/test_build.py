"""What buildx is told to do. Real builds: tests/real."""

from __future__ import annotations

import os
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from ae.errors import UsageError
from ae.images.build import build_argv, build_disk, commands, is_error, source_epoch
from ae.images.content import BuildOptions, image_ref
from ae.model import Flavour
from tests.toy import make_toy


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = make_toy(tmp_path / "root")
    (made / "images/base/Dockerfile").write_text("FROM scratch\n")
    return made


def built(root: Path, options: BuildOptions, name: str = "toy") -> list[str]:
    return list(build_argv("docker", image_ref(root, name, Flavour.CPU), options))


def values(argv: list[str], option: str) -> list[str]:
    return [value for word, value in pairwise(argv) if word == option]


def test_the_base_comes_first(root: Path) -> None:
    toy = image_ref(root, "toy", Flavour.CPU)
    options = BuildOptions(arguments={"BASE_IMAGE": "x:1"})
    (base, first), (made, second) = commands("docker", toy, options)
    assert (base.reference, made.reference) == ("ae/base:cpu", "ae/toy:cpu")
    assert values(list(first), "--tag") == ["ae/base:cpu"]
    assert "BASE_IMAGE=x:1" in second
    assert "BASE_IMAGE=x:1" not in first
    on_another = commands("docker", toy, BuildOptions(base_image="b:1"))
    assert [image.name for image, _ in on_another] == ["toy"]
    (alone,) = commands("docker", base, BuildOptions(base_image="b:1"))
    assert "BASE_IMAGE=b:1" not in alone[1]  # this base takes none


def test_what_a_person_may_say(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ca = tmp_path / "ca.pem"
    monkeypatch.setenv("AE_CACHE", "localhost:5000/ae")
    monkeypatch.setenv("AE_REVISION", "abc")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    for name in ("HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    said = BuildOptions(base_image="b:1", wheels=tmp_path, ca_bundle=ca)
    toy = built(root, said)
    assert values(toy, "--build-arg") == [
        "FLAVOUR=cpu", "BASE_IMAGE=b:1", "HTTPS_PROXY=http://proxy:3128", "SOURCE_DATE_EPOCH=0",
    ]  # fmt: skip
    assert values(toy, "--build-context") == [f"wheels={tmp_path}"]
    assert values(toy, "--secret") == [f"id=ca,src={ca}"]
    assert values(toy, "--cache-from") == ["type=registry,ref=localhost:5000/ae/toy:cpu"]
    assert values(toy, "--cache-to") == ["type=inline"]
    assert "org.opencontainers.image.revision=abc" in values(toy, "--label")
    monkeypatch.delenv("AE_CACHE")
    assert not {"--secret", "--cache-to", "--network"} & set(built(root, BuildOptions()))


def test_the_command_of_a_build(root: Path, tmp_path: Path) -> None:
    image = image_ref(root, "toy", Flavour.CPU)
    options = BuildOptions(network="host", contexts={"extra": tmp_path}, fresh=True)
    argv = built(root, options)
    text = " ".join(argv)
    for part in (
        "docker buildx build --builder default --load --progress plain",
        f"--file {root}/images/toy/Dockerfile",
        "--tag ae/toy:cpu",
        "--build-arg FLAVOUR=cpu",
        "--build-arg SOURCE_DATE_EPOCH=0",
        f"--build-context extra={tmp_path}",
        "--network host",
        "--no-cache",
        f"--label ae.content={image.content}",
        "--label ae.flavour=cpu",
        "--label org.opencontainers.image.title=ae/toy",
        "--provenance false",
    ):
        assert part in text, part
    assert argv[-1] == str(root / "images")


def test_wrong_options(root: Path) -> None:
    image = image_ref(root, "toy", Flavour.CPU)
    with pytest.raises(UsageError, match=r"--context x .*/nowhere: there is no such path"):
        commands("docker", image, BuildOptions(contexts={"x": root / "nowhere"}))
    with pytest.raises(UsageError, match="no argument 'BASE'; did you mean 'BASE_IMAGE'"):
        commands("docker", image, BuildOptions(arguments={"BASE": "x:1"}))


def test_the_disk_that_a_build_asks_for(root: Path) -> None:
    cpu, cuda = (image_ref(root, "toy", flavour) for flavour in (Flavour.CPU, Flavour.CUDA))
    assert build_disk(cpu) < build_disk(cuda)
    assert build_disk(cuda, network="none") == build_disk(cpu)  # downloads nothing
    dockerfile = root / "images/toy/Dockerfile"
    dockerfile.write_text("# disk: 60GB\n" + dockerfile.read_text())
    assert build_disk(cuda, network="host") == 60 * 10**9


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
    assert source_epoch(toy) == 1_000_002_000
    commit("base/Dockerfile", 1_000_004_000)
    assert source_epoch(toy) == 1_000_004_000
