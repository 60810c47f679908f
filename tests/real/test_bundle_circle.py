"""The whole circle on a real Docker Engine, with no network: bundle, forget, load, run."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingUnixStreamServer
from typing import Any

import pytest

from ae.daemon.connection import Daemon, connect
from ae.errors import EnvironmentFault
from ae.images.bundle import check, load
from tests.toy import make_checkout

pytestmark = pytest.mark.docker
NO_REGISTRY = "127.0.0.1:1/nobody"  # nothing listens there: a pull could only fail


@dataclass
class Made:
    """A bundle of the toy, under a name that no other test uses."""

    name: str
    root: Path
    path: Path
    daemon: Daemon

    @property
    def reference(self) -> str:
        return f"ae/{self.name}:cpu"

    @property
    def image_id(self) -> str:
        return check(self.path).facts.images[0].image_id

    def inspect(self, name: str) -> dict[str, Any] | None:
        from docker.errors import NotFound

        try:
            found: dict[str, Any] = self.daemon.client.inspect_image(name)
        except NotFound:
            return None
        return found

    def forget(self) -> None:
        for name in (self.reference, self.image_id):
            if self.inspect(name):
                self.daemon.client.remove_image(name, force=True)
        assert self.inspect(self.image_id) is None

    def loads(self, since: float) -> list[str]:
        """Images that the engine was given by `load` since then."""
        # The engine's own filter knows whole seconds only: a load just before would count too.
        filters = {"type": "image", "event": "load"}
        events = self.daemon.client.events(
            since=int(since), until=int(time.time()) + 1, filters=filters, decode=True
        )
        return [event["Actor"]["ID"] for event in events if event["timeNano"] >= since * 1e9]


def ae(
    *words: str, cwd: Path, endpoint: str, network: bool = False, code: int = 0
) -> tuple[str, str]:
    """Run the `ae` of the folder `cwd`, or ours; without a network, even to this machine."""
    home = cwd if (cwd / "ae").is_dir() else Path(__file__).resolve().parents[2]
    environment = {k: v for k, v in os.environ.items() if k not in ("AE_ROOT", "AE_RESULTS")}
    environment |= {"DOCKER_HOST": endpoint, "PYTHONPATH": str(home), "AE_REGISTRY": NO_REGISTRY}
    cut_off = [] if network else ["unshare", "--net"]
    done = subprocess.run(
        [*cut_off, sys.executable, "-m", "ae", *words],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def made(docker_endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    folder = tmp_path_factory.mktemp("bundle")
    name = f"toy{secrets.token_hex(4)}"
    root = make_checkout(folder / "checkout", name)
    who = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    for words in (("init", "-q"), ("add", "-A"), (*who, "commit", "-q", "-m", "all")):
        subprocess.run(["git", "-C", str(root), *words], check=True)
    options = ("--flavour", "cpu", "--base-image", "ae/base:cpu")
    ae("build", name, *options, cwd=root, endpoint=docker_endpoint, network=True)
    path = folder / f"{name}.tar"
    said, _ = ae("bundle", name, "-o", str(path), cwd=root, endpoint=docker_endpoint)
    assert f"sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}" in said
    one = Made(name, root, path, connect(docker_endpoint))
    yield one
    one.forget()
    one.daemon.close()


def test_the_whole_circle_without_a_network(
    made: Made, docker_endpoint: str, tmp_path: Path
) -> None:
    made.forget()
    out, _ = ae("load", str(made.path), cwd=tmp_path, endpoint=docker_endpoint)
    assert f"{made.reference}: loaded" in out
    assert f"checkout: {made.name}-bundle (written)" in out  # not where this ae comes from
    found = made.inspect(made.reference)
    assert found is not None
    assert found["Id"] == made.image_id
    folder = tmp_path / f"{made.name}-bundle"
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    words = ("run", made.name, "--quick", "--engine", "docker", "--no-build", "--json")
    out, _ = ae(*words, cwd=folder, endpoint=docker_endpoint)
    assert set(json.loads(out)["points"].values()) == {"done"}
    (status,) = folder.glob(f"results/runs/{made.name}/*/points/together-ones/status.json")
    assert "done" in status.read_text()
    _, err = ae("load", str(made.path), cwd=tmp_path, endpoint=docker_endpoint, code=2)
    assert f"{made.name}-bundle cannot be written: it is there already" in err


def test_by_hand_as_the_readme_says(made: Made, docker_endpoint: str, tmp_path: Path) -> None:
    """With tar, sha256sum and docker alone; the lines are taken from the README."""
    made.forget()
    subprocess.run(["tar", "-xf", str(made.path), "-C", str(tmp_path)], check=True)
    text = (tmp_path / "README.md").read_text().partition("By hand")[2]
    lines = "\n".join(line for line in text.splitlines() if line.startswith("    "))
    assert "sha256sum --check" in lines
    assert "docker load" in lines
    subprocess.run(
        ["sh", "-eu", "-c", lines], cwd=tmp_path, check=True,
        env=os.environ | {"DOCKER_HOST": docker_endpoint},
    )  # fmt: skip
    assert (tmp_path / f"checkout/recipes/{made.name}/recipe.yaml").is_file()
    found = made.inspect(made.reference)
    assert found is not None
    assert found["Id"] == made.image_id


def test_a_flipped_byte_is_found_before_the_engine_sees_it(
    made: Made, docker_endpoint: str, tmp_path: Path
) -> None:
    made.forget()
    broken = tmp_path / "broken.tar"
    broken.write_bytes(made.path.read_bytes())
    with broken.open("r+b") as file:
        file.seek(made.path.stat().st_size // 2)  # in the middle of the base layer
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 4]))
    (tmp_path / "empty").mkdir()
    since = time.time()
    _, err = ae("load", str(broken), cwd=tmp_path / "empty", endpoint=docker_endpoint, code=3)
    assert "not those of its SHA256SUMS" in err
    assert "fix: " in err
    assert not list((tmp_path / "empty").iterdir())
    assert made.inspect(made.image_id) is None
    assert made.image_id not in made.loads(since)


def test_a_dry_run_needs_no_engine(made: Made, tmp_path: Path) -> None:
    nowhere = f"unix://{tmp_path}/no.sock"
    out, _ = ae("load", str(made.path), "--dry-run", cwd=tmp_path, endpoint=nowhere)
    assert "would be loaded" in out
    assert "would be written" in out
    ae("load", str(made.path), cwd=tmp_path, endpoint=nowhere, code=3)
    assert not list(tmp_path.iterdir())


def test_a_late_fault_leaves_the_tag(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image is in the engine by then, and an older one has the name still."""
    made.forget()
    control = made.daemon.client
    older = str(control.inspect_image("ae/base:cpu")["Id"])
    control.tag(older, f"ae/{made.name}", "cpu")
    since = time.time()

    def fail(self: Path, target: Path) -> None:
        found = made.inspect(made.reference)
        assert found is not None
        assert found["Id"] == older
        assert made.inspect(made.image_id) is not None
        raise EnvironmentFault("the folder is gone", fix="none")

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(EnvironmentFault, match="the folder is gone"):
        load(check(made.path), tmp_path / "new", made.daemon, lambda text: None)
    found = made.inspect(made.reference)
    assert found is not None
    assert found["Id"] == older
    assert made.inspect(made.image_id) is None
    assert made.image_id in made.loads(since)
    assert not list(tmp_path.iterdir())
    control.remove_image(made.reference, noprune=True)
    assert control.inspect_image("ae/base:cpu")["Id"] == older


@contextmanager
def holding_back(endpoint: str, path: Path) -> Iterator[threading.Event]:
    """Another socket of the engine, at `path`. What is loaded there does not arrive before the end;
    the event says that it has begun."""
    begun, over = threading.Event(), threading.Event()

    def copy(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while said := source.recv(1 << 16):
                target.sendall(said)
            target.shutdown(socket.SHUT_WR)

    class Relay(BaseRequestHandler):
        def handle(self) -> None:
            with socket.socket(socket.AF_UNIX) as engine:
                engine.connect(endpoint.removeprefix("unix://"))
                threading.Thread(target=copy, args=(engine, self.request), daemon=True).start()
                while said := self.request.recv(1 << 16):
                    if said.startswith(b"POST") and b"/images/load" in said.splitlines()[0]:
                        begun.set()
                        over.wait()
                        return
                    engine.sendall(said)

    with ThreadingUnixStreamServer(str(path), Relay) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield begun
        finally:
            over.set()
            server.shutdown()


def test_ctrl_c_while_the_engine_loads(made: Made, docker_endpoint: str, tmp_path: Path) -> None:
    made.forget()
    (tmp_path / "empty").mkdir()
    root = Path(__file__).resolve().parents[2]
    slow = tmp_path / "slow.sock"
    with holding_back(docker_endpoint, slow) as begun:
        child = subprocess.Popen(
            [sys.executable, "-m", "ae", "load", str(made.path)],
            cwd=tmp_path / "empty",
            env=os.environ | {"DOCKER_HOST": f"unix://{slow}", "PYTHONPATH": str(root)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert begun.wait(120), "it has not loaded anything"
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=60)
    assert child.returncode == 130
    assert f"loading {made.reference}" in said
    assert not list((tmp_path / "empty").iterdir())
    assert made.inspect(made.image_id) is None
    assert made.inspect(made.reference) is None


def test_an_image_changed_after_the_bundle_is_not_bundled(
    made: Made, docker_endpoint: str, tmp_path: Path
) -> None:
    control = made.daemon.client
    base = str(control.inspect_image("ae/base:cpu")["Id"])
    made.forget()
    out = tmp_path / "toy.tar"
    words = ("bundle", made.name, "-o", str(out))
    _, err = ae(*words, cwd=made.root, endpoint=docker_endpoint, code=3)
    assert f"the image {made.reference} is not there" in err
    assert f"fix: ae build {made.name} --flavour cpu" in err
    control.tag(base, f"ae/{made.name}", "cpu")
    _, err = ae(*words, cwd=made.root, endpoint=docker_endpoint, code=3)
    assert "not built from this tree" in err
    control.remove_image(made.reference, noprune=True)
    assert not list(tmp_path.iterdir())


def test_what_the_bundle_says_of_itself(made: Made) -> None:
    facts = check(made.path).facts
    assert facts.recipe == made.name
    (image,) = facts.images
    assert (image.reference, image.flavour) == (made.reference, "cpu")
