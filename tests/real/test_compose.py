"""Every compose file is started and used, by a real client on a real daemon."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ae.daemon.connection import Daemon, connect
from ae.images.build import build
from ae.images.content import BuildOptions, find_client, image_ref
from ae.model import Flavour
from ae.recipe.load import list_recipes, load_recipe
from tests.engines.acts import Lines

pytestmark = pytest.mark.docker
ROOT = Path(__file__).resolve().parents[2]
Compose = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def compose(docker_host: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Compose]:
    """Runs a compose file under a project name of its own; everything is taken down at the end."""
    docker = find_client(docker_host)
    project = f"ae-test-{secrets.token_hex(3)}"
    used: set[str] = set()

    def call(
        file: str, *words: str, check: bool = True, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        used.add(file)
        argv = [docker, "compose", "--project-name", project, "--file", f"compose/{file}.yaml"]
        done = subprocess.run(
            [*argv, *words],
            cwd=ROOT,
            env=Daemon(docker_host).environment | ALL | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert not check or done.returncode == 0, done.stderr
        return done

    yield call
    for file in used:
        call(file, "down", "--volumes", "--timeout", "1", check=False)


ALL = {"AE_USER": f"{os.getuid()}:{os.getgid()}", "AE_MPS_DIR": "/nonexistent"}


def docker(host: str, *words: str) -> str:
    argv = [find_client(host), *words]
    done = subprocess.run(
        argv, env=Daemon(host).environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.mark.parametrize("file", sorted(path.stem for path in (ROOT / "compose").glob("*.yaml")))
def test_every_file_is_valid(compose: Compose, file: str) -> None:
    assert compose(file, "config", "--quiet").stderr == ""


def test_a_registry_keeps_what_it_is_given(
    compose: Compose, docker_host: str, tmp_path: Path
) -> None:
    image = image_ref(ROOT, "registry", Flavour.CPU)
    options = BuildOptions(network="host", base_image="ae/base:cpu")
    with closing(connect(docker_host)) as daemon:
        build(daemon, image, Lines(), options)
    port = str(free_port())
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY file /file\n")
    (tmp_path / "file").write_text(secrets.token_hex(8))
    tag = f"localhost:{port}/ae/tiny:cpu"
    docker(docker_host, "buildx", "build", "--load", "--quiet", "--tag", tag, str(tmp_path))
    compose("registry", "up", "--detach", "--wait", AE_REGISTRY_PORT=port)
    pushed = docker(docker_host, "push", tag)
    digest = pushed.split("digest: ")[1].split()[0]
    docker(docker_host, "image", "rm", tag)
    compose("registry", "down", "--timeout", "2", AE_REGISTRY_PORT=port)
    compose("registry", "up", "--detach", "--wait", AE_REGISTRY_PORT=port)
    reference = f"localhost:{port}/ae/tiny@{digest}"
    docker(docker_host, "pull", "--quiet", reference)
    found = docker(docker_host, "image", "inspect", "--format", "{{.RepoDigests}}", reference)
    assert digest in found
    docker(docker_host, "image", "rm", reference)
    (container,) = compose("registry", "ps", "--quiet").stdout.split()
    state = docker(
        docker_host, "inspect", "--format",
        "{{.Config.User}} {{.HostConfig.ReadonlyRootfs}} {{.HostConfig.PortBindings}}", container,
    )  # fmt: skip
    assert "10001:10001 true" in state
    assert "127.0.0.1" in state


def test_the_workbench_is_where_points_run(compose: Compose, tmp_path: Path) -> None:
    script = (
        "touch /ae/out/made; echo $AE_OUT $HOME gpu=$AE_FAKE_GPU; ls /ae/source/recipes;"
        " touch /ae/source/x 2>&1; python -m dlrm_inference --help | head -n 1"
    )
    words = ("run", "--rm", "--no-TTY", "workbench", "sh", "-c", script)
    done = compose("workbench", *words, AE_WORKBENCH_OUT=str(tmp_path))
    lines = done.stdout.splitlines()
    assert lines[0] == "/ae/out /ae/home gpu="
    assert "dlrm" in lines
    assert "usage:" in lines[-1]
    assert "Read-only file system" in done.stdout
    assert (tmp_path / "made").stat().st_uid == os.getuid()
    gpu = ("run", "--rm", "--no-TTY", "workbench-gpu", "sh", "-c", "echo gpu=$AE_FAKE_GPU")
    done = compose("workbench", *gpu, AE_WORKBENCH_OUT=str(tmp_path))
    assert done.stdout == "gpu=all\n"


def test_the_workbench_asks_whose_it_is(compose: Compose) -> None:
    done = compose("workbench", "config", AE_USER="", check=False)
    assert done.returncode != 0
    assert "export AE_USER=$(id -u):$(id -g)" in done.stderr


@pytest.mark.parametrize(
    "name", [one for one in list_recipes(ROOT) if "native" in load_recipe(ROOT, one).lanes]
)
def test_the_workbench_gives_the_shared_memory_that_a_recipe_needs(
    compose: Compose, name: str
) -> None:
    needs = load_recipe(ROOT, name).needs
    said = json.loads(compose("workbench", "config", "--format", "json", RECIPE=name).stdout)
    service = said["services"]["workbench"]
    assert service["image"] == f"ae/{name}:cpu"
    assert service["network_mode"] == "none"
    assert int(service["shm_size"]) >= (needs.shm_size.value if needs.shm_size else 0)


def test_mps_says_what_is_missing(compose: Compose, tmp_path: Path) -> None:
    """There is no driver here: the daemon cannot run, and says so in one sentence."""
    settings = {"AE_MPS_DIR": str(tmp_path), "AE_MPS_IMAGE": "ae/base:cpu"}
    done = compose("mps", "run", "--rm", "--no-TTY", "mps", check=False, **settings)
    assert done.returncode == 3
    assert "there is no nvidia-cuda-mps-control: start it with a GPU" in done.stdout + done.stderr


CONTROL = """\
#!/bin/sh
# Answers as the real one does, as far as mps.sh asks.
if [ "$1" = -f ]; then
    touch "$CUDA_MPS_PIPE_DIRECTORY/control"
    while [ ! -e "$CUDA_MPS_PIPE_DIRECTORY/quit" ]; do sleep 0.1; done
    echo ended >"$CUDA_MPS_LOG_DIRECTORY/said"
else
    read word; [ "$word" != quit ] || touch "$CUDA_MPS_PIPE_DIRECTORY/quit"
fi
"""


def test_mps_has_private_folders_and_is_told_to_quit(tmp_path: Path) -> None:
    """The script itself, with a stand-in for the driver's program (the real one needs a GPU)."""
    control = tmp_path / "control"
    control.write_text(CONTROL)
    control.chmod(0o755)
    script = (ROOT / "compose/mps.sh").read_text().replace("/dev/nvidia[0-9]*", "/dev/null")
    (tmp_path / "mps.sh").write_text(script)
    pipe, log = tmp_path / "mps/pipe", tmp_path / "mps/log"
    environment = os.environ | {
        "AE_MPS_CONTROL": str(control),
        "CUDA_MPS_PIPE_DIRECTORY": str(pipe),
        "CUDA_MPS_LOG_DIRECTORY": str(log),
    }
    argv = ["sh", str(tmp_path / "mps.sh")]
    with subprocess.Popen(argv, env=environment) as daemon:
        while not (pipe / "control").exists():
            assert daemon.poll() is None
        assert subprocess.run([*argv, "status"], env=environment, check=False).returncode == 0
        again = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
        assert (again.returncode, again.stderr) == (3, f"mps: a daemon answers at {pipe} already\n")
        daemon.terminate()
    assert daemon.returncode == 0
    assert (log / "said").read_text() == "ended\n"
    assert pipe.stat().st_mode & 0o777 == log.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("pipe", "sentence"),
    [
        ("", "set CUDA_MPS_PIPE_DIRECTORY and CUDA_MPS_LOG_DIRECTORY"),
        ("/tmp/nvidia-mps", "/tmp/nvidia-mps is everybody's: name a folder of your own"),
    ],
)
def test_mps_refuses_folders_of_others(pipe: str, sentence: str) -> None:
    environment = os.environ | {"CUDA_MPS_PIPE_DIRECTORY": pipe, "CUDA_MPS_LOG_DIRECTORY": pipe}
    done = subprocess.run(
        ["sh", "compose/mps.sh"], cwd=ROOT, env=environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (3, f"mps: {sentence}\n")


@pytest.mark.gpu
def test_mps_serves_a_real_client(tmp_path: Path) -> None:
    """The driver's own daemon: a CUDA program connects through the private pipe folder."""
    pipe, log = tmp_path / "mps/pipe", tmp_path / "mps/log"
    folders = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_LOG_DIRECTORY": str(log)}
    environment = os.environ | folders
    argv = ["sh", str(ROOT / "compose/mps.sh")]

    def status() -> int:
        return subprocess.run([*argv, "status"], env=environment, check=False).returncode

    with subprocess.Popen(argv, env=environment) as daemon:
        try:
            while status() != 0:
                assert daemon.poll() is None
            client = "import torch; print(float(torch.ones(5, device='cuda').sum()))"
            said = subprocess.run(
                [sys.executable, "-c", client], env=environment,
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            assert said.stdout == "5.0\n"
            servers = subprocess.run(
                ["nvidia-cuda-mps-control"], input="get_server_list\n", env=environment,
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            assert servers.stdout.strip().isdigit()  # the client's server
        finally:
            daemon.terminate()
    assert daemon.returncode == 0
    assert status() != 0
    assert not Path(f"/proc/{servers.stdout.strip()}").exists()
