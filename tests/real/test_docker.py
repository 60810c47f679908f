"""What only a Docker Engine does: which GPU, builds, users, and what it borrows."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ae.commands import machine
from ae.engines import spec as container
from ae.engines.docker import DockerEngine
from ae.errors import EnvironmentFault
from ae.host import owner
from ae.images import content as images
from ae.images.content import BuildOptions
from ae.model import Flavour, GpuId, GpuRequest, ImageRef, RuntimeNeeds, Status
from tests.engines.acts import Lines, base_image, make_job

pytestmark = pytest.mark.docker
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def engine(docker_host: str) -> Iterator[DockerEngine]:
    made = DockerEngine()
    made.grace_s = 1.0
    yield made
    made.close()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that any user may enter; every pytest that starts closes its own to others."""
    with tempfile.TemporaryDirectory(prefix="ae-test-", dir="/tmp") as name:
        os.chmod(name, 0o755)
        yield Path(name)


def sh(script: str) -> tuple[str, ...]:
    return ("sh", "-c", script)


def containers(engine: DockerEngine, run: str) -> list[str]:
    return [one.id for one in engine.leftovers() if one.run == run]


def gpus(*numbers: int, uuid: str = "") -> GpuRequest:
    devices = tuple(GpuId(index=number, uuid=uuid) for number in numbers)
    return GpuRequest(count=len(numbers), devices=devices)


@pytest.mark.parametrize(
    ("request_", "name"),
    [(gpus(1), "nvidia.com/gpu=1"), (gpus(1, uuid="GPU-fake-1"), "nvidia.com/gpu=GPU-fake-1")],
)
def test_the_gpu_that_the_plan_chose(
    engine: DockerEngine, tmp_path: Path, request_: GpuRequest, name: str
) -> None:
    lines = Lines()
    argv = sh("echo gpu=$AE_FAKE_GPU; nvidia-smi -L")
    job = make_job(tmp_path, argv=argv, needs=RuntimeNeeds(gpus=request_))
    outcome = engine.run(job, lines, 60)
    assert lines.of("stdout") == ["gpu=1", "GPU 1: Fake (UUID: GPU-fake-1)"]
    requests = outcome.honoured["DeviceRequests"]
    assert [one["DeviceIDs"] for one in requests] == [[name]]  # type: ignore[attr-defined]


@pytest.mark.parametrize("request_", [gpus(2), gpus(0, 2), gpus(0, uuid="GPU-other")])
def test_a_gpu_that_is_granted_and_not_there_inside(
    engine: DockerEngine, tmp_path: Path, request_: GpuRequest
) -> None:
    """Number 2 of the test daemon brings nothing along, and number 0 has another UUID."""
    job = make_job(tmp_path, "write:ran:1", needs=RuntimeNeeds(gpus=request_), run=tmp_path.name)
    with pytest.raises(EnvironmentFault, match="inside there are") as caught:
        engine.run(job, Lines(), 60)
    assert "nvidia-ctk" in caught.value.fix
    assert not (tmp_path / "ran").exists()
    assert containers(engine, tmp_path.name) == []


def test_a_silent_container_outlives_the_control_timeout(
    docker_host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ae.daemon.connection.CONTROL_TIMEOUT_S", 2)
    engine = DockerEngine()
    lines = Lines()
    outcome = engine.run(make_job(tmp_path, "sleep:5", "print:awake"), lines, 60)
    engine.close()
    assert outcome.status is Status.DONE
    assert lines.of("stdout") == ["awake"]
    assert outcome.seconds > 5


def test_outputs_of_another_user_are_that_users(docker_host: str, open_folder: Path) -> None:
    """Also when a capability makes the point run as root inside."""
    engine = DockerEngine()
    engine.caller = "12345:12346"
    for number, caps in enumerate([(), ("SYS_PTRACE",)]):
        out = open_folder / str(number)
        job = make_job(out, "write:result:1", needs=RuntimeNeeds(cap_add=caps))
        out.chmod(0o777)
        assert engine.run(job, Lines(), 60).status is Status.DONE
        found = (out / "result").stat()
        assert (found.st_uid, found.st_gid) == (12345, 12346)
    engine.close()


def test_two_runs_at_once_do_not_disturb_each_other(docker_host: str, tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from ae.engines.docker import DockerEngine\n"
        "from tests.engines.acts import Lines, make_job\n"
        "name = sys.argv[1]; lines = Lines(); out = Path(sys.argv[2]) / name\n"
        "job = make_job(out, 'sleep:2', 'print:' + name, 'write:result:' + name, run=name)\n"
        "print(DockerEngine().run(job, lines, 60).status, lines.got)"
    )
    both = [
        subprocess.Popen(
            [sys.executable, "-c", script, name, str(tmp_path)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("one", "two")
    ]
    said = [process.communicate(timeout=60)[0].strip() for process in both]
    assert said == [f"done [('stdout', '{name}')]" for name in ("one", "two")]
    assert [(tmp_path / name / "result").read_text() for name in ("one", "two")] == ["one", "two"]


def test_the_image_is_missing_and_may_not_be_built(engine: DockerEngine, tmp_path: Path) -> None:
    image = ImageRef(
        name="nowhere", flavour=Flavour.CPU, content="c", source=tmp_path / "x/nowhere"
    )
    assert not engine.has_image(image)
    with pytest.raises(EnvironmentFault, match="not there") as caught:
        engine.prepare(image, Lines())
    assert "ae build nowhere" in caught.value.fix
    with pytest.raises(EnvironmentFault, match="has no image ae/nowhere:cpu"):
        engine.run(make_job(tmp_path / "out", "print:x", image=image), Lines(), 60)


TINY = """
FROM scratch AS wheels
FROM ae/base:cpu
USER 0:0
ARG FLAVOUR
COPY tiny/file /file
RUN --mount=type=bind,from=wheels,target=/wheels --mount=type=secret,id=ca,target=/run/ca \\
    echo "$FLAVOUR $(ls /wheels) $(cat /run/ca)" >/said && cat /said
"""


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "root/images/tiny"
    folder.mkdir(parents=True)
    (folder / "Dockerfile").write_text(TINY)
    (folder / "file").write_text(secrets.token_hex(8))  # no step comes from the builder's cache
    return tmp_path / "root"


def test_an_image_is_built_once_and_again_when_the_tree_changes(
    docker_host: str, tiny: Path, tmp_path: Path
) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels/some.whl").touch()
    (tmp_path / "ca.pem").write_text("CERTIFICATE")
    options = BuildOptions(wheels=tmp_path / "wheels", ca_bundle=tmp_path / "ca.pem")
    engine = DockerEngine(build=options)
    image = images.image_ref(tiny, "tiny", Flavour.CPU)
    lines = Lines()
    engine.prepare(image, lines)
    try:
        assert engine.has_image(image)
        assert any("cpu some.whl CERTIFICATE" in line for line in lines.of("stdout"))
        (log,) = (tmp_path / "cache/ae/builds").glob("tiny-cpu-*.log")
        assert "some.whl CERTIFICATE" in log.read_text()
        inside = Lines()
        job = make_job(tmp_path / "out", argv=("cat", "/file", "/said"), image=image)
        engine.run(job, inside, 60)
        word = (tiny / "images/tiny/file").read_text()
        assert inside.of("stdout") == [f"{word}cpu some.whl CERTIFICATE"]
        history = engine.daemon.client.history(image.reference)
        assert "CERTIFICATE" not in json.dumps(history)
        (tiny / "images/tiny/file").write_text("two")
        assert not engine.has_image(images.image_ref(tiny, "tiny", Flavour.CPU))
    finally:
        engine.daemon.client.remove_image(image.reference, force=True)
        engine.close()


def test_a_build_that_fails_says_why_and_where(docker_host: str, tiny: Path) -> None:
    (tiny / "images/tiny/Dockerfile").write_text("FROM ae/base:cpu\nRUN echo because >&2; exit 7\n")
    engine = DockerEngine(build=BuildOptions())
    with pytest.raises(EnvironmentFault, match="building ae/tiny:cpu failed") as caught:
        engine.prepare(images.image_ref(tiny, "tiny", Flavour.CPU), Lines())
    log = Path(caught.value.fix.rpartition(" ")[2])
    assert "because" in log.read_text()
    engine.close()


def test_ctrl_c_during_a_build(docker_host: str, tiny: Path) -> None:
    (tiny / "images/tiny/Dockerfile").write_text("FROM ae/base:cpu\nRUN echo up && sleep 120\n")
    code = (
        "import sys; from pathlib import Path\n"
        "from ae.images import content as images; from ae.host import signals\n"
        "from ae.daemon.connection import connect, endpoint_of\n"
        "from ae.images.build import build; from ae.model import Flavour\n"
        "class Telling:\n"
        "    def line(self, stream, text): print(text, flush=True)\n"
        "root = Path(sys.argv[1])\n"
        "with signals.handled():\n"
        "    build(connect(endpoint_of()), images.image_ref(root, 'tiny', Flavour.CPU), Telling(),"
        " images.BuildOptions())"
    )
    started = time.monotonic()
    builder = subprocess.Popen(
        [sys.executable, "-c", code, str(tiny)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert builder.stdout is not None
    while "sleep 120" not in (line := builder.stdout.readline()):
        assert line, "the build has ended before it began"
    builder.send_signal(signal.SIGINT)
    _, errors = builder.communicate(timeout=60)
    assert builder.returncode != 0
    assert "KeyboardInterrupt" in errors
    assert time.monotonic() - started < 60


def test_an_image_borrows_host_folders_read_only(engine: DockerEngine, tmp_path: Path) -> None:
    borrowed = tmp_path / "borrowed"
    borrowed.mkdir()
    (borrowed / "word").write_text("hello")
    control = engine.daemon.client
    build = tmp_path / "Dockerfile"
    build.write_text("FROM ae/base:cpu\n")
    label = json.dumps([str(borrowed)])
    subprocess.run(
        [images.find_client(engine.daemon.endpoint), "buildx", "build", "--builder", "default",
         "--load", "--quiet", "--tag", "ae/borrows:cpu", "--label", f"ae.binds={label}",
         "--file", str(build), str(tmp_path)],
        check=True,
        capture_output=True,
    )  # fmt: skip
    image = replace(base_image(tmp_path), override="ae/borrows:cpu")
    lines = Lines()
    script = f"cat {borrowed}/word; touch {borrowed}/new"
    try:
        outcome = engine.run(make_job(tmp_path / "out", argv=sh(script), image=image), lines, 60)
        assert lines.of("stdout") == ["hello"]
        assert outcome.status is Status.FAILED
        assert "Read-only file system" in outcome.reason
        assert not (borrowed / "new").exists()
        (borrowed / "word").unlink()
        borrowed.rmdir()
        with pytest.raises(EnvironmentFault, match="bind source path"):
            engine.run(make_job(tmp_path / "out", argv=sh(script), image=image), Lines(), 60)
    finally:
        control.remove_image("ae/borrows:cpu", force=True)


def test_a_pull_that_fails_is_an_environment_fault(engine: DockerEngine) -> None:
    image = replace(base_image(Path("/x")), override="127.0.0.1:9/no/such@sha256:" + "0" * 64)
    assert not engine.has_image(image)
    with pytest.raises(EnvironmentFault) as caught:
        engine.prepare(image, Lines())
    assert caught.value.fix


def test_clean_finds_the_container_of_a_killed_shell(
    engine: DockerEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ae shell` becomes the client, whose death leaves the container running."""
    code = (
        "import os, sys; from pathlib import Path; from ae.engines.docker import DockerEngine\n"
        "from tests.engines.acts import make_job\n"
        "out = Path(sys.argv[1])\n"
        "argv, env = DockerEngine().shell(make_job(out).point, out)\n"
        "os.execvpe(argv[0], argv, env)"
    )
    shell = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert shell.stdin is not None
    assert shell.stdout is not None
    shell.stdin.write("trap '' HUP TERM PIPE; echo up; sleep 300\n")
    shell.stdin.flush()
    assert shell.stdout.readline() == "up\n"
    pid = str(shell.pid)

    def mine() -> list[str]:
        filters = {"label": [f"{owner.PID}={pid}", f"{owner.RUN}=shell"]}
        every = engine.daemon.client.containers(all=True, filters=filters)  # lists it at once
        return [one["Id"] for one in every]

    (container_id,) = mine()
    listed = machine.clean_engines([engine], dry_run=True)
    assert container_id not in [one.id for one in listed]
    shell.kill()
    shell.communicate()
    every = engine.leftovers
    monkeypatch.setattr(
        engine, "leftovers", lambda: [one for one in every() if one.id == container_id]
    )
    assert [one.id for one in machine.clean_engines([engine], dry_run=False)] == [container_id]
    assert mine() == []


def test_a_container_gets_what_it_needs_and_no_more(engine: DockerEngine, tmp_path: Path) -> None:
    lines = Lines()
    script = (
        "grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status; id -u; "
        "touch /etc/x /opt/x 2>&1 | grep -c 'Read-only file system'; "
        "touch /tmp/x ~/x $AE_OUT/x && echo writes; "
        "printf '#!/bin/sh\necho runs\n' >/tmp/p; chmod +x /tmp/p; /tmp/p"
    )
    outcome = engine.run(make_job(tmp_path / "out", argv=sh(script)), lines, 60)
    assert outcome.status is Status.DONE
    none = "0" * 16
    user = "10001" if os.getuid() == 0 else str(os.getuid())
    said = [line.replace("\t", " ") for line in lines.of("stdout")]
    assert sorted(said[:3]) == [f"CapBnd: {none}", f"CapEff: {none}", "NoNewPrivs: 1"]
    assert said[3:] == [user, "2", "writes", "runs"]


def test_processes_are_limited(
    engine: DockerEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = container.spec_of
    monkeypatch.setattr(container, "spec_of", lambda *a, **k: replace(whole(*a, **k), pids=20))
    script = "for i in $(seq 40); do sleep 5 & done; wait"
    outcome = engine.run(make_job(tmp_path / "out", argv=sh(script)), Lines(), 60)
    assert outcome.status is Status.FAILED
    assert "fork" in outcome.reason.lower()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_outputs_of_root_are_given_back_whole(engine: DockerEngine, tmp_path: Path) -> None:
    """Folders that only their maker may enter too, links as links, and after a failure."""
    outside = tmp_path / "outside"
    outside.touch()
    os.chown(outside, 7, 7)
    script = (
        "mkdir -m 700 -p $AE_OUT/a/b; touch $AE_OUT/a/b/c; ln -s ../../outside $AE_OUT/a/l; exit 3"
    )
    engine.run(make_job(tmp_path / "out", argv=sh(script)), Lines(), 60)
    found = [tmp_path / "out", *(tmp_path / "out").rglob("*")]
    assert len(found) == 5
    assert {(path.lstat().st_uid, path.lstat().st_gid) for path in found} == {(0, 0)}
    assert outside.stat().st_uid == 7


def test_the_line_to_type_does_the_same(engine: DockerEngine, tmp_path: Path) -> None:
    job = make_job(tmp_path, "print:same", "write:result:1")
    done = subprocess.run(engine.equivalent(job), capture_output=True, text=True, check=True)
    assert done.stdout == "same\n"
    assert (tmp_path / "result").exists()
    assert (tmp_path / "result").stat().st_uid == os.getuid()


ORDINARY = """
import sys
from pathlib import Path
from ae.engines.docker import DockerEngine
from ae.model import RuntimeNeeds
from tests.engines.acts import Lines, make_job
lines = Lines()
script = "id -u; grep CapEff /proc/self/status; mkdir -m 700 $AE_OUT/d; touch $AE_OUT/d/f"
needs = RuntimeNeeds(cap_add=("SYS_PTRACE",))
job = make_job(Path(sys.argv[1]), argv=("sh", "-c", script), needs=needs)
print(DockerEngine().run(job, lines, 60).status, *lines.of("stdout"), sep="|")
"""


def test_a_capability_for_an_ordinary_caller(docker_host: str, open_folder: Path) -> None:
    """The point is root inside with that capability alone; what it wrote is the caller's."""
    user = ["setpriv", "--reuid=12345", "--regid=12346"]
    group = os.stat(docker_host.removeprefix("unix://")).st_gid
    python = "/usr/bin/python3"  # ours may lie in a home that is closed to others
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    paths = f"{ROOT}{os.pathsep}{packages}"
    argv = [*user, f"--groups={group}", "env", "PYTHONDONTWRITEBYTECODE=1", f"PYTHONPATH={paths}"]
    probe = [*argv, python, "-c", "import ae.engines.docker, docker.api"]
    if os.geteuid() != 0 or subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("only root can become another user, and he must be able to import ae")
    out = open_folder / "out"
    out.mkdir(mode=0o755)
    os.chown(out, 12345, 12346)
    argv += [f"HOME={open_folder}", python, "-c", ORDINARY, str(out)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=open_folder)
    assert done.stdout == f"done|0|CapEff:\t{1 << 19:016x}\n"
    found = [path.stat() for path in (out, *out.rglob("*"))]
    assert {(one.st_uid, one.st_gid) for one in found} == {(12345, 12346)}
    assert len(found) == 3
