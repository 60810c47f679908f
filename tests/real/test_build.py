"""`ae build` as a person types it: shared bases, pasted dry runs, progress, and how it fails."""

from __future__ import annotations

import os
import secrets
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path

import pytest

from ae.daemon.connection import connect, endpoint_of
from ae.errors import EnvironmentFault
from ae.images import build as building
from ae.images.content import BuildOptions, image_ref, labels, labels_of
from ae.model import Flavour, ImageRef
from tests.engines.acts import Lines
from tests.servers.daemon import daemon as private_daemon

pytestmark = pytest.mark.docker
ROOT = Path(__file__).resolve().parents[2]
FROM = "ARG BASE_IMAGE=ae/base:cpu\nFROM ${BASE_IMAGE}\n"
ON_BASE = f"{FROM}COPY NAME/data /NAME\n"


def checkout(root: Path, dockerfiles: dict[str, str]) -> Path:
    """Images of their own, and a base that is made of one file."""
    (root / "recipes").mkdir(parents=True)
    for name, text in ({"base": "FROM scratch\nCOPY base/data /base\n"} | dockerfiles).items():
        folder = root / "images" / name
        folder.mkdir(parents=True)
        (folder / "Dockerfile").write_text(text.replace("NAME", name))
        (folder / "data").write_bytes(os.urandom(1000))
    return root


def ae(*words: str, root: Path, endpoint: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"DOCKER_HOST": endpoint, "AE_ROOT": str(root)}
    environment |= {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(cwd / "cache")}
    return subprocess.run(
        [sys.executable, "-m", "ae", *words, "--flavour", "cpu"],
        cwd=cwd, env=environment, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip


def refs(root: Path, *names: str) -> list[ImageRef]:
    return [image_ref(root, name, Flavour.CPU) for name in names]


def test_three_images_share_one_base_and_a_dry_run_can_be_pasted(tmp_path: Path) -> None:
    names = ("one", "two", "three")
    root = checkout(tmp_path / "a folder", dict.fromkeys(names, ON_BASE))
    with private_daemon() as endpoint:
        dry = ae("build", *names, "--dry-run", root=root, endpoint=endpoint, cwd=tmp_path)
        assert dry.returncode == 0, dry.stderr
        daemon = connect(endpoint)
        assert daemon.client.images() == []
        done = ae("build", *names, root=root, endpoint=endpoint, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert (done.stderr.count("COPY base/data /base"), done.stdout.count("built ae/")) == (1, 3)
        built = {one.name: daemon.image(one.reference) for one in refs(root, "base", *names)}
        layers = {name: (found or {})["RootFS"]["Layers"] for name, found in built.items()}
        assert {layers[name][0] for name in names} == set(layers["base"])
        assert len({layers[name][-1] for name in names}) == 3

        for one in daemon.client.images():
            daemon.client.remove_image(one["Id"], force=True)
        pasted = subprocess.run(
            ["sh", "-eu"], input=dry.stdout, cwd="/", capture_output=True, text=True, check=False,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "DOCKER_HOST": endpoint},
        )  # fmt: skip
        assert pasted.returncode == 0, pasted.stderr
        for one in refs(root, "base", *names):
            assert labels(one).items() <= labels_of(daemon.image(one.reference)).items()
        again = {name: daemon.image(f"ae/{name}:cpu") for name in names}
        assert {name: (found or {})["RootFS"]["Layers"] for name, found in again.items()} == {
            name: layers[name] for name in names
        }
        daemon.close()


@pytest.fixture
def one(docker_host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ImageRef]:
    """An image of our own on the real base; its Dockerfile is written by the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    name = f"build-{secrets.token_hex(4)}"
    root = checkout(tmp_path / "root", {name: f"{FROM}USER 0:0\n"})
    yield image_ref(root, name, Flavour.CPU)
    daemon = connect(docker_host)
    if daemon.image(f"ae/{name}:cpu"):
        daemon.client.remove_image(f"ae/{name}:cpu")
    daemon.close()


def build(image: ImageRef, run: str, sink: Lines, **options: str) -> str:
    with (image.source / "Dockerfile").open("a") as file:
        file.write(f"RUN {run}\n")
    made = BuildOptions(
        base_image="ae/base:cpu", fresh=True, network=options.get("network", "none")
    )
    with closing(connect(endpoint_of())) as daemon:
        image = image_ref(image.root, image.name, image.flavour)
        return building.build(daemon, image, sink, made)


class Timed(Lines):
    """Lines, and when they came."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[tuple[float, str]] = []

    def line(self, stream: str, text: str) -> None:  # type: ignore[override]
        self.times.append((time.monotonic(), text))


def test_a_build_shows_that_it_moves(one: ImageRef, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines come while it works, and when a step is silent, a line says that it goes on."""
    monkeypatch.setattr(building, "QUIET_S", 0.5)
    said = Timed()
    build(one, "echo be''gun; sleep 3; echo en''ded", said)
    times = {word: when for word in ("begun", "ended") for when, text in said.times if word in text}
    assert 2 < times["ended"] - times["begun"] < 10
    between = [text for when, text in said.times if times["begun"] < when < times["ended"]]
    assert sum("still building after" in text for text in between) >= 2


def test_a_build_that_fails_is_one_sentence_and_its_log(one: ImageRef) -> None:
    with pytest.raises(EnvironmentFault) as caught:
        build(one, "echo 'ERROR: no space for me' >&2; exit 3", Lines())
    assert "no space for me" in caught.value.message
    assert "\n" not in caught.value.message
    log = Path(caught.value.fix.rpartition(" ")[2])
    assert "no space for me" in log.read_text()


ASKS = "python3 -c 'import socket; socket.getaddrinfo(\"image.invalid\", 80)'"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("FROM image.invalid/nothing:1\n", "image.invalid"),
        (f"{FROM}RUN {ASKS}\n", "failure in name resolution"),
    ],
)
def test_a_server_that_cannot_be_found(one: ImageRef, text: str, said: str) -> None:
    """A registry's name, or one that a step asks for: what works without is said."""
    (one.source / "Dockerfile").write_text(text)
    with pytest.raises(EnvironmentFault, match=f"building .* failed: .*{said}") as caught:
        build(one, "true", Lines())
    assert caught.value.fix.startswith("ae run --engine local needs no image; or build on one")
    assert "the whole log is" in caught.value.fix


@contextmanager
def untrusted(folder: Path) -> Iterator[int]:
    """A server with a certificate that nobody knows; yields its port."""
    folder.mkdir()
    key, certificate = folder / "key.pem", folder / "server.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-subj", "/CN=nobody", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2",
         "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with HTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_port
        finally:
            server.shutdown()


@pytest.mark.parametrize("program", ["python", "pip"])
def test_behind_a_proxy_that_inspects_tls(one: ImageRef, tmp_path: Path, program: str) -> None:
    """The error names the certificate and the option, in the words of two real programs."""
    with untrusted(tmp_path / "certs") as port:
        url = f"https://127.0.0.1:{port}/"
        run = {
            "python": f"python3 -c 'import urllib.request as u; u.urlopen(\"{url}\")'",
            "pip": f"pip install --break-system-packages --retries 0 --index-url {url} nothing",
        }[program]
        with pytest.raises(
            EnvironmentFault, match="does not trust a server's certificate"
        ) as caught:
            build(one, run, Lines(), network="host")
    assert "--ca-bundle FILE" in caught.value.fix
    assert "log is" in caught.value.fix
