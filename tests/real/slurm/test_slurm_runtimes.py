"""Points in containers of a compute node: podman (as root, with runc), and pyxis' words by a plugin
that stands in for it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ae.engines.base import Job
from ae.engines.slurm.engine import SlurmEngine
from ae.errors import EnvironmentFault
from ae.model import GpuRequest, ImageRef, Mount, RuntimeNeeds, Status
from tests.conftest import BASE_IMAGE
from tests.engines import podman_home
from tests.engines.acts import Lines, base_image
from tests.real.slurm import cluster
from tests.real.slurm.cluster import Running, job_of, until

pytestmark = [pytest.mark.slurm, pytest.mark.docker]  # the images come from there


@pytest.fixture(scope="module")
def memory(slurm_cluster: Path) -> Iterator[Path]:
    """A folder in memory: an image has 10,000 files, which take a disk half a minute to delete."""
    folder = Path(tempfile.mkdtemp(prefix="aes", dir="/tmp"))  # short: sockets
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2G,mode=755", "ae", folder], check=True)
    yield folder
    for mounted in (folder / "podman/graph/overlay", folder / "podman/graph", folder):
        subprocess.run(["umount", "--lazy", mounted], capture_output=True, check=False)
    folder.rmdir()


@pytest.fixture(scope="module")
def program(memory: Path, podman_runtime: str) -> Iterator[Path]:
    """A podman that jobs find, with a storage of its own in which there is no image yet."""
    folder = memory / "podman"
    folder.mkdir()
    own = podman_home.write(folder, runtime=podman_runtime)
    words = "".join(f"export {key}={value}\n" for key, value in own.items())
    program = cluster.folder() / "bin/podman"
    program.write_text(f'#!/bin/sh\n{words}exec /usr/bin/podman "$@"\n')
    program.chmod(0o755)
    yield program
    program.unlink()
    Path(f"/tmp/.ae-podman-{os.getuid()}").unlink(missing_ok=True)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the first test makes the image's file for all."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def podman_of_the_nodes(
    slurm: Path, program: Path, cache: Path, docker_host: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Points run with it, and leave no container."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setenv("AE_SLURM_RUNTIME", "podman")
    monkeypatch.setenv("AE_SLURM_SHARED", "1")
    yield
    until(lambda: not cluster.living(), 10)
    assert subprocess.check_output([program, "ps", "--all", "--quiet"]) == b""


@pytest.fixture
def cdi() -> Iterator[None]:
    """The fake GPUs as CDI devices; inside, a program lists those that were given."""
    folder = Path("/run/cdi")
    program, spec = folder / "ae-slurm.sh", folder / "ae-slurm.json"
    names = [f"GPU-n{node}-{number}" for node in (1, 2, 3) for number in (0, 1)]
    mount = {"hostPath": str(program), "containerPath": "/nvidia/nvidia-smi"}
    shared = {
        "mounts": [mount | {"options": ["ro", "bind"]}],
        "env": ["PATH=/nvidia:/usr/local/bin:/usr/bin:/bin"],
    }
    devices = [
        {"name": name, "containerEdits": {"env": [f"FAKE_{name.replace('-', '_')}=1"]}}
        for name in names
    ]
    folder.mkdir(exist_ok=True)
    listing = "s/^FAKE_GPU_(n.)_(.)=1/GPU \\2: Fake (UUID: GPU-\\1-\\2)/p"
    program.write_text(f"#!/bin/sh\nenv | sed -nE '{listing}'\n")
    program.chmod(0o755)
    about = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices}
    spec.write_text(json.dumps(about | {"containerEdits": shared}))
    yield
    spec.unlink()
    program.unlink()


def prepared(job: Job) -> SlurmEngine:
    engine = SlurmEngine()
    if not engine.has_image(job.point.image):
        engine.prepare(job.point.image, Lines())
    assert engine.has_image(job.point.image)
    return engine


def test_a_point_in_podman(podman_of_the_nodes: None, tmp_path: Path) -> None:
    acts = ("print:hi", "error:no such unit", "home", "env:AE_OUT", "env:SLURM_JOB_ID")
    job = job_of(tmp_path, *acts, "write:result:1", "exit:77")
    one = Running(job, prepared(job))
    outcome = one.end(90)
    assert (outcome.status, outcome.exit_code) == (Status.SKIPPED, 77), (outcome, one.lines.got)
    assert outcome.reason == "no such unit"
    assert one.lines.of("stdout") == ["hi", "home ok", "/ae/out", "unset"]
    assert (tmp_path / "out/result").read_text() == "1"
    assert outcome.image_id.startswith("sha256:")
    assert len(str(outcome.honoured["file_sha256"])) == 64


def test_a_cancelled_job_leaves_no_container(podman_of_the_nodes: None, tmp_path: Path) -> None:
    job = job_of(tmp_path, "listen", "print:up", "sleep:60")
    one = Running(job, prepared(job))
    one.says("up")
    cluster.cancel(one.name)
    assert one.end().status is Status.FAILED
    assert (tmp_path / "out/cleaned").exists()


@pytest.mark.parametrize("count", [1, 2])
def test_a_container_has_the_jobs_gpus(
    podman_of_the_nodes: None, cdi: None, tmp_path: Path, count: int
) -> None:
    needs = RuntimeNeeds(gpus=GpuRequest(count=count))
    job = job_of(tmp_path, argv=("nvidia-smi",), needs=needs)
    one = Running(job, prepared(job))
    outcome = one.end()
    assert outcome.status is Status.DONE, (outcome, one.lines.got)
    inside = {line.split("UUID: ")[1].rstrip(")") for line in one.lines.of("stdout")}
    assert inside == set(outcome.honoured["gpus"])  # type: ignore[call-overload]
    assert len(inside) == count


def test_gpus_that_do_not_arrive_stop_the_run(podman_of_the_nodes: None, tmp_path: Path) -> None:
    needs = RuntimeNeeds(gpus=GpuRequest(count=1))
    job = job_of(tmp_path, "print:x", needs=needs)
    with pytest.raises(EnvironmentFault, match="inside the container nvidia-smi lists , not GPU"):
        Running(job, prepared(job)).end()


@pytest.fixture(scope="module")
def rootfs(docker_endpoint: str, memory: Path) -> Path:
    """The base image as a folder, and the file that names it to the stand-in for pyxis."""
    folder = memory / "rootfs"
    folder.mkdir()
    docker = ["docker", "--host", docker_endpoint]
    name = f"ae-slurm-{os.getpid()}"
    subprocess.run([*docker, "create", "--name", name, BASE_IMAGE], check=True, capture_output=True)
    archive = folder / "root.tar"
    subprocess.run([*docker, "export", "--output", archive, name], check=True)
    (folder / "root").mkdir()
    subprocess.run(["tar", "xf", archive, "-C", folder / "root"], check=True)
    archive.unlink()
    subprocess.run([*docker, "rm", name], check=True, capture_output=True)
    shutil.copy(cluster.folder() / "bin/nvidia-smi", folder / "root/usr/bin/nvidia-smi")
    (folder / "image.sqsh").write_text(f"{folder}/root\n")
    return folder / "image.sqsh"


@pytest.fixture
def pyxis(slurm: Path, rootfs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ImageRef:
    monkeypatch.setenv("AE_SLURM_RUNTIME", "pyxis")
    return replace(base_image(tmp_path), override=str(rootfs))


def cluster_of(slurm: Path) -> Mount:
    """What a task needs of the cluster inside: its prolog, and the nodes of the GPUs."""
    return Mount(source=slurm, target=str(slurm))


def test_a_point_in_pyxis(pyxis: ImageRef, slurm: Path, tmp_path: Path) -> None:
    """Alone on its node: the step has one GPU of the job's two."""
    needs = RuntimeNeeds(gpus=GpuRequest(count=1), mounts=(cluster_of(slurm),))
    acts = ("print:hi", "error:no such unit", "env:AE_OUT", "home", "env:AE_TEST_SECRET")
    job = job_of(tmp_path, *acts, "write:result:1", "exit:77", needs=needs, image=pyxis)
    os.environ["AE_TEST_SECRET"] = "7"
    one = Running(job, prepared(job))
    outcome = one.end()
    del os.environ["AE_TEST_SECRET"]
    assert (outcome.status, outcome.exit_code) == (Status.SKIPPED, 77), (outcome, one.lines.got)
    assert one.lines.of("stdout") == ["hi", "/ae/out", "home ok", "unset"]
    assert (tmp_path / "out/result").read_text() == "1"
    assert len(outcome.honoured["gpus"]) == 1  # type: ignore[arg-type]


def test_a_cancelled_step_of_pyxis_may_clean_up(
    pyxis: ImageRef, slurm: Path, tmp_path: Path
) -> None:
    needs, acts = RuntimeNeeds(mounts=(cluster_of(slurm),)), ("listen", "print:up", "sleep:60")
    job = job_of(tmp_path, *acts, image=pyxis, needs=needs)
    one = Running(job, prepared(job))
    one.says("up")
    cluster.cancel(one.name)
    assert one.end().status is Status.FAILED
    assert (tmp_path / "out/cleaned").exists()


def test_an_image_that_pyxis_cannot_open(pyxis: ImageRef, tmp_path: Path) -> None:
    broken = tmp_path / "broken.sqsh"
    broken.touch()
    job = job_of(tmp_path, "print:x", image=replace(pyxis, override=str(broken)))
    outcome = Running(job, prepared(job)).end()
    assert outcome.status is Status.FAILED
