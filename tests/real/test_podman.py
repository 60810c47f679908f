"""What only a real podman can show: grants, dropped requests, images, and nothing left behind."""

from __future__ import annotations

import json
import os
import resource
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ae.commands import clean
from ae.engines import choose as select
from ae.engines import podman as podman_module
from ae.engines.docker import DockerEngine
from ae.engines.podman import PodmanEngine
from ae.engines.podman_images import pull_locked
from ae.engines.spec import to_argv
from ae.errors import EnvironmentFault
from ae.host import owner
from ae.images import content as images
from ae.images import lockfile
from ae.images.content import BuildOptions
from ae.images.registry import push
from ae.model import Flavour, GpuRequest, ImageRef, Mount, RuntimeNeeds, Status, Ulimit
from tests.engines.acts import Lines, make_job
from tests.servers.registry import registry

pytestmark = pytest.mark.docker
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def engine(podman: dict[str, str]) -> PodmanEngine:
    return PodmanEngine(grace_s=1.0)


def sh(script: str) -> tuple[str, ...]:
    return ("sh", "-c", script)


def containers(engine: PodmanEngine, run: str) -> list[str]:
    return [one.id for one in engine.leftovers() if one.run == run]


def gone(engine: PodmanEngine, run: str) -> bool:
    end = time.monotonic() + 15
    while containers(engine, run) and time.monotonic() < end:
        time.sleep(0.1)
    return containers(engine, run) == []


def test_a_gpu_asked_for_is_a_gpu_inside(engine: PodmanEngine, gpu: str, tmp_path: Path) -> None:
    assert engine.supports(Flavour.CUDA).ok
    lines = Lines()
    needs = RuntimeNeeds(gpus=GpuRequest(count=1, devices=(gpu,)))
    job = make_job(tmp_path, argv=sh("echo gpu=$AE_FAKE_GPU"), needs=needs)
    outcome = engine.run(job, lines, 60)
    assert outcome.status is Status.DONE
    assert lines.of("stdout") == [f"gpu={gpu}"]
    assert outcome.honoured["DeviceRequests"] == [
        {"Driver": "cdi", "DeviceIDs": [f"nvidia.com/gpu={gpu}"]}
    ]
    argv, _ = engine.shell(job.point, tmp_path)
    assert f"nvidia.com/gpu={gpu}" in argv


def test_a_gpu_that_podman_does_not_know(engine: PodmanEngine, gpu: str, tmp_path: Path) -> None:
    needs = RuntimeNeeds(gpus=GpuRequest(count=1, devices=("no-such",)))
    job = make_job(tmp_path, "write:ran:1", needs=needs)
    with pytest.raises(EnvironmentFault, match=r"no CDI device nvidia\.com/gpu=no-such"):
        engine.run(job, Lines(), 60)
    # A spec that has gone since podman was asked: podman itself refuses, before anything runs.
    engine.podman.cdi_devices["nvidia.com/gpu=no-such"] = frozenset({"/dev/null"})
    with pytest.raises(EnvironmentFault, match="CDI specs do not know that GPU") as caught:
        engine.run(job, Lines(), 60)
    assert "nvidia-ctk" in caught.value.fix
    assert not (tmp_path / "ran").exists()


def test_dropped_requests_stop_the_run(
    engine: PodmanEngine, gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """podman is asked for less than the point needs, as one that drops it would do."""
    pairs = {"--device", "--cap-add", "--shm-size", "--memory", "--memory-swap", "--user"}
    pairs.add("--init-path")
    lesser = {"nofile=2048:2048": "nofile=1024:1024"}

    def without(*given: object) -> Sequence[str]:
        whole = to_argv(*given)  # type: ignore[arg-type]
        kept = []
        for before, word in zip(("", *whole), whole, strict=False):
            if before not in pairs and word not in pairs and word != "--init":
                kept.append(lesser.get(word, word).removesuffix(",readonly"))
        return kept

    monkeypatch.setattr(podman_module, "to_argv", without)
    needs = RuntimeNeeds(
        gpus=GpuRequest(count=1, devices=(gpu,)),
        cap_add=("SYS_PTRACE",),
        ulimits=(Ulimit(name="nofile", soft=2048, hard=2048),),
        shm_bytes=128 * 2**20,
        memory_bytes=10**9,
        mounts=(Mount(source=tmp_path, target="/data"),),
    )
    job = make_job(tmp_path / "out", "write:ran:1", needs=needs, run="dropped")
    with pytest.raises(EnvironmentFault, match="dropped what the point needs") as caught:
        engine.run(job, Lines(), 60)
    assert caught.value.message.partition(": ")[2].split(", ") == [
        f"GPUs (nvidia.com/gpu={gpu})",
        "capability SYS_PTRACE",
        "ulimit nofile",
        "Init True",
        "ShmSize 134217728",
        "Memory 1000000000",
        f"user {os.getuid()}:{os.getgid()}",
        "mount /data (read-only)",
    ]
    assert caught.value.fix
    assert not (tmp_path / "out/ran").exists()
    assert containers(engine, "dropped") == []


def test_every_need_is_granted_and_nothing_else(
    engine: PodmanEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://user:word@proxy:1")
    needs = RuntimeNeeds(
        cap_add=("SYS_PTRACE",),
        ulimits=(Ulimit(name="nofile", soft=2048, hard=2048),),
        shm_bytes=128 * 2**20,
        memory_bytes=10**9,
    )
    script = (
        "ulimit -n; df -B1 --output=size /dev/shm | tail -1; grep CapEff /proc/self/status;"
        "ls /sys/class/net; env | grep -ci proxy"
    )
    lines = Lines()
    engine.run(make_job(tmp_path, argv=sh(script), needs=needs), lines, 60)
    files, shm, capabilities, network, proxies = lines.of("stdout")
    assert files == "2048"
    assert int(shm) == 128 * 2**20
    assert int(capabilities.split()[1], 16) & (1 << 19)  # CAP_SYS_PTRACE
    assert (network, proxies) == ("lo", "0")


def test_an_oom_kill_is_not_a_mere_137(
    engine: PodmanEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(podman_module, "oom_kills", lambda: 0)  # podman's own word must do
    needs = RuntimeNeeds(memory_bytes=100 * 2**20)
    outcome = engine.run(make_job(tmp_path, f"eat:{10**9}", needs=needs), Lines(), 60)
    assert (outcome.status, outcome.exit_code) == (Status.OOM, 137)
    assert not (tmp_path / "oom").exists()  # which podman's monitor leaves where it works
    outcome = engine.run(make_job(tmp_path, "signal:9"), Lines(), 60)
    assert (outcome.status, outcome.exit_code) == (Status.FAILED, 137)
    assert "SIGKILL" in outcome.reason


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
        with pytest.raises(EnvironmentFault, match="may not raise a limit"):
            engine.run(job, lines, 60)
        assert lines.got == []
    assert containers(engine, "limits") == []


def may_raise_limits() -> bool:
    status = Path("/proc/self/status").read_text()
    capabilities = next(line for line in status.splitlines() if line.startswith("CapEff"))
    return bool(int(capabilities.split()[1], 16) & (1 << 24))  # CAP_SYS_RESOURCE


def test_much_output_arrives_whole(engine: PodmanEngine, tmp_path: Path) -> None:
    lines = Lines()
    outcome = engine.run(make_job(tmp_path, argv=("seq", "200000")), lines, 60)
    assert outcome.status is Status.DONE
    assert lines.of("stdout") == [str(number) for number in range(1, 200001)]


def test_the_client_is_killed(engine: PodmanEngine, tmp_path: Path) -> None:
    class Killing(Lines):
        def line(self, stream: str, text: str) -> None:
            found = subprocess.run(
                ["pgrep", "--parent", str(os.getpid()), "--full", "start --attach"],
                capture_output=True,
                text=True,
                check=True,
            )
            os.kill(int(found.stdout), signal.SIGKILL)

    job = make_job(tmp_path, "print:up", "sleep:60", run="client")
    with pytest.raises(EnvironmentFault, match="client ended while the container"):
        engine.run(job, Killing(), 60)
    assert containers(engine, "client") == []


LAUNCHER = """
import os, sys
from pathlib import Path
from ae.host import signals
from ae.engines.podman import PodmanEngine
from ae.host.watchdog import Reaper
from ae.images.registry import push
from tests.engines.acts import Lines, make_job
from tests.servers.registry import registry
class Telling(Lines):
    def line(self, stream, text): print(text, flush=True)
with signals.handled(), Reaper.start() as reaper:
    job = make_job(Path(sys.argv[1]), "deaf", "print:up", "sleep:300", run=sys.argv[2])
    PodmanEngine(reaper, grace_s=0.5).run(job, Telling(), 300)
"""


def test_a_dead_launcher_leaves_nothing(engine: PodmanEngine, tmp_path: Path) -> None:
    run = f"dead-{os.getpid()}"
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(tmp_path), run],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert launcher.stdout is not None
    assert launcher.stdout.readline().strip() == "up"
    assert len(containers(engine, run)) == 1
    launcher.kill()
    launcher.wait(30)
    launcher.stdout.close()
    assert gone(engine, run)


def test_killed_during_creation_leaves_nothing(engine: PodmanEngine, tmp_path: Path) -> None:
    """The launcher dies when it has told podman to create, and podman goes on."""
    code = LAUNCHER.replace(
        "with signals",
        "from ae.host import processes; real = processes.subprocess.Popen\n"
        "def torn(words, **options):\n"
        "    child = real(words, **options)\n"
        "    if 'create' in words: os.kill(os.getpid(), 9)\n"
        "    return child\n"
        "processes.subprocess.Popen = torn\n"
        "with signals",
    )
    launcher = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), "torn"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    assert launcher.returncode == -signal.SIGKILL
    time.sleep(1.5)  # it comes up only now
    assert gone(engine, "torn")


def test_clean_removes_orphans_and_nothing_else(engine: PodmanEngine) -> None:
    living = owner.stamp({owner.RUN: "living", owner.RECIPE: "contract"})
    dead = living | {owner.RUN: "dead", owner.STARTED: "another-boot-1"}
    made = []
    for labels in (living, dead, {"not": "ours"}):
        words = [word for key, value in labels.items() for word in ("--label", f"{key}={value}")]
        made.append(engine.podman.do("create", *words, "ae/base:cpu", "true").strip())
        volume = engine.podman.do("volume", "create", *words)
        made.append(volume.strip())
    try:
        listed = clean.clean_engines([engine], dry_run=True)
        assert [one.id for one in listed] == [made[2], made[3]]
        clean.clean_engines([engine], dry_run=False)
        left = {one["Id"] for one in engine.podman.rows("ps", "--all")}
        left |= {one["Name"] for one in engine.podman.rows("volume", "ls")}
        assert left & set(made) == set(made) - {made[2], made[3]}
    finally:
        engine.podman.call("rm", "--force", *made[::2])
        engine.podman.call("volume", "rm", "--force", *made[1::2])


TINY = """
ARG BASE_IMAGE=ae-base
FROM ${BASE_IMAGE}
USER 0
ARG FLAVOUR
COPY tiny/file /file
RUN --mount=type=bind,from=wheels,target=/wheels --mount=type=secret,id=ca,target=/run/ca \\
    echo "$FLAVOUR $(ls /wheels) $(cat /run/ca)" >/said
"""
BAKE = """\
target "tiny-cpu" {
  inherits   = ["_native-cpu"]
  dockerfile = "tiny/Dockerfile"
  tags       = ["ae/tiny:cpu"]
}
"""


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ImageRef:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "root/images/tiny"
    folder.mkdir(parents=True)
    (folder / "Dockerfile").write_text(TINY)
    (folder / "bake.hcl").write_text(BAKE)
    (folder / "file").write_text(secrets.token_hex(8))  # no step comes from a cache
    shutil.copy(ROOT / "images/docker-bake.hcl", folder.parent)
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels/some.whl").touch()
    (tmp_path / "ca.pem").write_text("CERTIFICATE")
    return images.image_ref(tmp_path / "root", "tiny", Flavour.CPU)


def options(tmp_path: Path, base: str | None) -> BuildOptions:
    return BuildOptions(
        base_image=base, wheels=tmp_path / "wheels", ca_bundle=tmp_path / "ca.pem", network="host"
    )


def said(engine: PodmanEngine, tmp_path: Path, image: ImageRef) -> list[str]:
    lines = Lines()
    engine.run(make_job(tmp_path / "out", argv=("cat", "/said"), image=image), lines, 60)
    return lines.of("stdout")


def test_an_image_that_docker_has_is_copied(
    podman: dict[str, str], docker_host: str, tiny: ImageRef, tmp_path: Path
) -> None:
    (tiny.source / "Dockerfile").write_text("FROM scratch\nCOPY tiny/file /file\n")
    image = images.image_ref(tmp_path / "root", "tiny", Flavour.CPU)
    docker = DockerEngine(build=options(tmp_path, "ae/base:cpu"))
    engine = PodmanEngine()  # may not build
    with pytest.raises(EnvironmentFault, match="has no image ae/tiny:cpu") as caught:
        engine.prepare(image, Lines())
    assert caught.value.fix
    docker.prepare(image, Lines())
    try:
        assert not engine.has_image(image)
        engine.prepare(image, Lines())
        assert engine.has_image(image)
        found = engine.podman.inspect("image", f"localhost/{image.reference}")
        assert found is not None
        held = docker.daemon.control.inspect_image(image.reference)["Id"]
        assert found["Id"] == held
        assert found["RepoTags"] == [f"localhost/{image.reference}"]
        assert list((tmp_path / "cache/ae/copies").iterdir()) == []
    finally:
        engine.podman.call("rmi", "--force", f"localhost/{image.reference}")
        docker.daemon.control.remove_image(image.reference, force=True)
        docker.close()


def test_an_image_is_built_where_there_is_no_docker(
    podman: dict[str, str], tiny: ImageRef, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
    engine = PodmanEngine(build=options(tmp_path, "docker.io/ae/base:cpu"))
    lines = Lines()
    engine.prepare(tiny, lines)
    try:
        assert engine.has_image(tiny)
        assert said(engine, tmp_path, tiny) == ["cpu some.whl CERTIFICATE"]
        found = engine.podman.inspect("image", f"localhost/{tiny.reference}")
        assert found is not None
        assert found["Labels"]["org.opencontainers.image.vendor"] == "ae"
        assert "CERTIFICATE" not in json.dumps(found)
        (tiny.source / "file").write_text("two")
        assert not engine.has_image(images.image_ref(tmp_path / "root", "tiny", Flavour.CPU))
    finally:
        engine.podman.call("rmi", "--force", f"localhost/{tiny.reference}")


def test_a_build_that_fails_says_why_and_where(
    podman: dict[str, str], tiny: ImageRef, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
    (tiny.source / "Dockerfile").write_text("FROM docker.io/ae/base:cpu\nRUN echo because; exit 7")
    engine = PodmanEngine(build=options(tmp_path, "docker.io/ae/base:cpu"))
    with pytest.raises(EnvironmentFault, match="building ae/tiny:cpu with podman") as caught:
        engine.prepare(tiny, Lines())
    assert "because" in Path(caught.value.fix.rpartition(" ")[2]).read_text()


def test_the_locked_image_is_pulled_by_digest(
    engine: PodmanEngine,
    docker_host: str,
    tiny: ImageRef,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tiny.source / "Dockerfile").write_text("FROM scratch\nCOPY tiny/file /file\n")
    root = tmp_path / "root"
    image = images.image_ref(root, "tiny", Flavour.CPU)
    docker = DockerEngine(build=options(tmp_path, "ae/base:cpu"))
    docker.prepare(image, Lines())
    with registry(tmp_path / "registry") as store:
        try:
            entry = push(docker.daemon, image, store.name, Lines())
        finally:
            docker.daemon.control.remove_image(image.reference, force=True)
            docker.close()
        monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
        monkeypatch.setenv("AE_REGISTRY", store.name)
        lockfile.store(root, "tiny", Flavour.CPU, entry)
        assert not engine.has_image(image)
        engine.prepare(image, Lines())
        assert engine.has_image(image)
        found = engine.podman.inspect("image", f"localhost/{image.reference}")
        assert found is not None
        assert found["Id"] == entry.image_id
        engine.podman.do("rmi", "--force", entry.image_id.removeprefix("sha256:"))
        # The lock means other sources: what comes is not taken.
        other = entry.model_copy(update={"image_id": "sha256:" + "0" * 64, "content": "0" * 64})
        with pytest.raises(EnvironmentFault, match=r"not the image that images/lock\.yaml means"):
            pull_locked(engine.podman, replace(image, content="0" * 64), other, store.name, Lines())
        assert engine.podman.inspect("image", f"localhost/{image.reference}") is None
        missing = entry.model_copy(update={"digest": "sha256:" + "0" * 64})
        with pytest.raises(EnvironmentFault, match="the image is not there"):
            pull_locked(engine.podman, image, missing, store.name, Lines())


def test_the_lines_to_type_do_the_same(engine: PodmanEngine, tmp_path: Path) -> None:
    job = make_job(tmp_path, "print:same", "write:result:1")
    argv, environment = engine.shell(job.point, tmp_path)
    plain = [word for word in argv if word not in ("--interactive", "--tty")]
    plain[-2:] = ["sh", "-c", "echo home=$HOME; touch $AE_OUT/x"]
    done = subprocess.run(plain, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "home=/ae/home\n"
    assert (tmp_path / "x").exists()
    line = engine.equivalent(job)
    assert line[:2] == ("podman", "run")
    # What a plain `podman run` needs besides depends on the machine's limits.
    limited = [*line[:2], *argv[argv.index("--ulimit") : argv.index("--pids-limit")], *line[2:]]
    if "--init-path" in argv:
        limited[2:2] = ["--init-path", argv[argv.index("--init-path") + 1]]
    done = subprocess.run(limited, capture_output=True, text=True, check=True)
    assert done.stdout == "same\n"
    assert (tmp_path / "result").stat().st_uid == os.getuid()


def test_it_beats_local_only_where_it_starts(
    podman: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
    assert select.choose(None, Flavour.CPU, root=tmp_path).name == "podman"
    own = Path(podman["CONTAINERS_CONF"]).read_text()
    broken = tmp_path / "containers.conf"
    lines = [line for line in own.splitlines() if not line.startswith("runtime")]
    broken.write_text("\n".join(lines) + '\nruntime = "/bin/false"\n')
    monkeypatch.setenv("CONTAINERS_CONF", str(broken))
    assert PodmanEngine().available().ok
    assert select.choose(None, Flavour.CPU, root=tmp_path).name == "local"
