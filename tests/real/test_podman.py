"""What podman does otherwise than Docker: its images, limits and lines to type."""

from __future__ import annotations

import os
import resource
import secrets
import subprocess
from pathlib import Path

import pytest

from ae.engines.docker import DockerEngine
from ae.engines.podman import PodmanEngine
from ae.errors import EnvironmentFault
from ae.images import content as images
from ae.images import lockfile
from ae.images.content import BuildOptions
from ae.images.registry import push
from ae.model import Flavour, GpuId, GpuRequest, ImageRef, RuntimeNeeds, Ulimit
from tests.engines.acts import Lines, make_job
from tests.servers.registry import registry

pytestmark = pytest.mark.docker
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def engine(podman: dict[str, str]) -> PodmanEngine:
    made = PodmanEngine()
    made.grace_s = 1.0
    return made


def sh(script: str) -> tuple[str, ...]:
    return ("sh", "-c", script)


def containers(engine: PodmanEngine, run: str) -> list[str]:
    return [one.id for one in engine.leftovers() if one.run == run]


def test_a_gpu_whose_spec_has_gone_since_podman_was_asked(
    engine: PodmanEngine, gpu: str, tmp_path: Path
) -> None:
    """podman itself refuses, before anything runs."""
    engine.cdi_devices["nvidia.com/gpu=no-such"] = frozenset({"/dev/null"})
    request = GpuRequest(count=1, devices=(GpuId(index=-1, uuid="no-such"),))
    job = make_job(tmp_path, "write:ran:1", needs=RuntimeNeeds(gpus=request))
    with pytest.raises(EnvironmentFault, match="podman refused") as caught:
        engine.run(job, Lines(), 60)
    assert "nvidia-ctk" in caught.value.fix
    assert not (tmp_path / "ran").exists()


def test_a_limit_above_what_may_be_given(engine: PodmanEngine, tmp_path: Path) -> None:
    """A fault where the caller may not raise limits; where he may, the limit is there."""
    needs = RuntimeNeeds(ulimits=(Ulimit(name="memlock", soft=2**50, hard=2**50),))
    lines = Lines()
    job = make_job(tmp_path, argv=sh("ulimit -l"), needs=needs, run="limits")
    hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    if hard == resource.RLIM_INFINITY or may_raise_limits():
        engine.run(job, lines, 60)
        assert lines.of("stdout") == [str(2**40)]
    else:
        with pytest.raises(EnvironmentFault, match="rlimit"):
            engine.run(job, lines, 60)
        assert lines.got == []
    assert containers(engine, "limits") == []


def may_raise_limits() -> bool:
    status = Path("/proc/self/status").read_text()
    capabilities = next(line for line in status.splitlines() if line.startswith("CapEff"))
    return bool(int(capabilities.split()[1], 16) & (1 << 24))  # CAP_SYS_RESOURCE


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ImageRef:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "root/images/tiny"
    folder.mkdir(parents=True)
    (folder / "Dockerfile").write_text("FROM scratch\nCOPY tiny/file /file\n")
    (folder / "file").write_text(secrets.token_hex(8))  # no step comes from a cache
    return images.image_ref(tmp_path / "root", "tiny", Flavour.CPU)


def options() -> BuildOptions:
    return BuildOptions(base_image="ae/base:cpu", network="host")


def test_an_image_that_docker_saved_is_loaded_by_hand(
    engine: PodmanEngine, docker_host: str, tiny: ImageRef, tmp_path: Path
) -> None:
    with pytest.raises(EnvironmentFault) as caught:
        engine.prepare(tiny, Lines())
    assert "docker save IMAGE | podman load" in caught.value.fix
    with pytest.raises(EnvironmentFault, match="podman has no image"):  # so `ae doctor` says it
        engine.named(tiny)
    docker = DockerEngine(build=options())
    docker.prepare(tiny, Lines())
    archive = str(tmp_path / "image.tar")
    try:
        saved = [images.find_client(docker_host), "save", "--output", archive, tiny.reference]
        subprocess.run(saved, check=True, capture_output=True)
        engine.do("load", "--input", archive)
        assert engine.has_image(tiny)
        (tiny.source / "file").write_text("two")
        assert not engine.has_image(images.image_ref(tmp_path / "root", "tiny", Flavour.CPU))
    finally:
        docker.daemon.client.remove_image(tiny.reference, force=True)
        docker.close()
        engine.call("rmi", "--force", f"localhost/{tiny.reference}", f"docker.io/{tiny.reference}")


def test_the_locked_image_is_pulled_by_digest(
    engine: PodmanEngine,
    docker_host: str,
    tiny: ImageRef,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root, image = tmp_path / "root", tiny
    docker = DockerEngine(build=options())
    docker.prepare(image, Lines())
    with registry(tmp_path / "registry") as store:
        try:
            entry = push(docker.daemon, image, store.name, Lines())
        finally:
            docker.daemon.client.remove_image(image.reference, force=True)
            docker.close()
        monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
        monkeypatch.setenv("AE_REGISTRY", store.name)
        lockfile.store(root, "tiny", Flavour.CPU, entry)
        assert not engine.has_image(image)
        engine.prepare(image, Lines())
        assert engine.has_image(image)
        found = engine.inspect("image", f"localhost/{image.reference}")
        assert found is not None
        assert found["Id"] == entry.image_id
        engine.do("rmi", "--force", entry.image_id.removeprefix("sha256:"))
        missing = entry.model_copy(update={"digest": "sha256:" + "0" * 64})
        lockfile.store(root, "tiny", Flavour.CPU, missing)
        with pytest.raises(EnvironmentFault, match="pulling "):
            engine.prepare(image, Lines())


def test_the_line_to_type_does_the_same(engine: PodmanEngine, tmp_path: Path) -> None:
    job = make_job(tmp_path, "print:same", "write:result:1")
    argv, _ = engine.shell(job.point, tmp_path)
    line = engine.equivalent(job)
    assert line[:2] == ("podman", "run")
    # What a plain `podman run` needs besides depends on the machine's limits.
    limited = [*line[:2], *argv[argv.index("--ulimit") : argv.index("--http-proxy=false")]]
    limited += line[2:]
    done = subprocess.run(limited, capture_output=True, text=True, check=True)
    assert done.stdout == "same\n"
    assert (tmp_path / "result").stat().st_uid == os.getuid()
