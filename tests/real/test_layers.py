"""What lies in the layers of built images, and that two builds give the same ones."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import time
import zipfile
from contextlib import closing
from pathlib import Path

import pytest

from ae.daemon.connection import connect
from ae.images.build import build
from ae.images.content import BuildOptions, find_client, image_ref
from ae.model import Flavour
from tests.conftest import BASE_IMAGE, IN_CI
from tests.engines.acts import Lines
from tests.images.layers import File, Saved, read_image

pytestmark = [pytest.mark.docker, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]
CA = Path(os.environ.get("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt"))
NATIVE = sorted(path.parent.name for path in ROOT.glob("images/*/src") if
                (path.parent / "Dockerfile").is_file())  # fmt: skip
# Everybody may write there: temporary folders, and the cache of compiled CPU kernels.
OPEN = re.compile(r"tmp|var/tmp|run/lock|opt/ae/kernels(/.*)?")
PRIVATE_KEY = b"PRIVATE KEY-----\n"  # the end of the first line of a key of any kind
LEFT_BEHIND = re.compile(
    r"run/secrets(/.*)?"
    # What the steps bind at the root.
    r"|(wheels|requirements|settle|base|extra|fbgemm|stock21|common|collector|"
    + "|".join(NATIVE)
    + r")(/.*)?"
    r"|root/\.(cache|netrc|docker|config|pip|ssh)(/.*)?"
    r"|tmp/.+|var/tmp/.+"
    r"|var/lib/apt/lists/.+|var/cache/apt/(archives/[^/]+\.deb|.*\.bin)"
    r"|etc/apt/apt\.conf\.d/99ca"
)


def builders_certificates(base: Saved) -> list[bytes]:
    """A line of every certificate that the builder trusts and Debian's own bundle does not have."""
    if not CA.is_file():
        return []
    debians = b"".join(file.content for layer in base.layers for file in layer)
    begun = CA.read_bytes().split(b"-----BEGIN CERTIFICATE-----\n")[1:]
    # The third line: the first ones hold names and numbers that many certificates share.
    lines = [pem.splitlines()[2] for pem in begun if len(pem.splitlines()) > 4]
    return [line for line in lines if line not in debians]


def leftovers(layers: list[list[File]]) -> list[str]:
    return [
        file.path
        for layer in layers
        for file in layer
        if LEFT_BEHIND.fullmatch(file.path) or file.path.endswith((".whl", ".pth.tar"))
    ]


def writable(layers: list[list[File]]) -> list[str]:
    return [
        f"{file.path} {file.mode:o}"
        for layer in layers
        for file in layer
        if file.kind in ("file", "folder") and file.mode & 0o002 and not OPEN.fullmatch(file.path)
    ]


def privileged(layers: list[list[File]]) -> set[str]:
    """Files that run as somebody else: setuid, and setgid where it is no folder."""
    return {
        file.path
        for layer in layers
        for file in layer
        if file.mode & 0o4000 or (file.mode & 0o2000 and file.kind == "file")
    }


def require(docker_host: str, reference: str) -> None:
    argv = [find_client(docker_host), "--host", docker_host, "image", "inspect", reference]
    if subprocess.run(argv, capture_output=True, check=False).returncode != 0:
        why = f"{docker_host} has no image {reference}: ae build"
        if IN_CI:
            pytest.fail(why, pytrace=False)
        pytest.skip(why)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", NATIVE[:1])  # what the steps share is in base/install.sh
def test_the_layers_of_an_image(docker_host: str, name: str) -> None:
    require(docker_host, f"ae/{name}:cpu")
    base = read_image(docker_host, BASE_IMAGE, keep="etc/ssl/certs/ca-certificates.crt")
    words = [PRIVATE_KEY, *builders_certificates(base)]
    saved = read_image(docker_host, f"ae/{name}:cpu", words)
    assert saved.diff_ids[: len(base.layers)] == base.diff_ids, f"{name} is not built on this base"
    added = saved.layers[len(base.layers) :]
    assert any(file.path.startswith(f"opt/ae/{name}/") for layer in added for file in layer)
    assert leftovers(added) == []
    assert writable(saved.layers) == []
    assert privileged(added) - privileged(base.layers) == set()
    secret = [(file.path, file.found) for layer in added for file in layer if file.found]
    assert secret == []
    said = json.dumps(saved.config)
    for place in (str(ROOT), str(Path.home()) + "/", str(CA)):
        if place not in ("/", "/root/"):
            assert place not in said
    assert saved.config["config"]["User"] == "10001:10001"
    assert not [one for one in saved.config["config"]["Env"] if re.search("proxy|CERT|TOKEN", one)]


DOCKERFILE = """
FROM scratch AS wheels
FROM ae/base:cpu
USER 0:0
SHELL ["/bin/sh", "-eu", "-c"]
RUN --mount=type=bind,from=wheels,target=/wheels \\
    --mount=type=bind,source=NAME/src,target=/common \\
    --mount=type=bind,source=base/settle.sh,target=/settle \\
    --mount=type=secret,id=ca,target=/run/secrets/ca \\
    test -s /run/secrets/ca; ls /wheels | grep -q small; \\
    pip install --quiet --no-compile --no-index --find-links /wheels --target /opt/small small; \\
    cp -R /common /opt/; \\
    chmod -R u=rwX,go=rX /opt/common; \\
    useradd --uid 10002 --no-log-init --no-create-home other; \\
    date >/var/log/step.log; date >/tmp/now; mkdir -p /root/.cache/x; \\
    SETTLE
USER 10001:10001
CMD ["python3"]
"""


class Small:
    """A repository with one small image that is built as ours are, with a wheel and a secret."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.marker = secrets.token_hex(16)
        self.name = f"small-{self.marker[:8]}"
        self.ca = folder / "builders-ca.pem"
        self.ca.write_text(f"-----BEGIN PRIVATE KEY-----\n{self.marker}\n")
        self.wheels = folder / "builders-wheels"
        self.wheels.mkdir()
        info = "small-1.0.dist-info"
        with zipfile.ZipFile(self.wheels / "small-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr("small/__init__.py", "NAMES = {'a', 'b', 'c'}\n")
            wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: small\nVersion: 1.0\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n"
                           "Tag: py3-none-any\n")  # fmt: skip
            wheel.writestr(f"{info}/RECORD", f"small/__init__.py,,\n{info}/METADATA,,\n"
                           f"{info}/WHEEL,,\n{info}/RECORD,,\n")  # fmt: skip

    def tree(self, name: str, *, settle: bool, umask: int) -> Path:
        """A checkout of its own, with its own times and modes."""
        images = self.folder / name / "images"
        old = os.umask(umask)
        try:
            (images / self.name / "src").mkdir(parents=True)
            (images / "base").mkdir()
            shutil.copyfile(ROOT / "images/base/settle.sh", images / "base/settle.sh")
            end = "sh /settle /opt/small /opt/common" if settle else "true"
            own = images / self.name
            text = DOCKERFILE.replace("SETTLE", end).replace("NAME", self.name)
            (own / "Dockerfile").write_text(text)
            (own / "src/own.py").write_text("import sys\nX = frozenset({'p', 'q'})\n")
            os.utime(own / "src/own.py", (time.time(), 10**9 + umask))
        finally:
            os.umask(old)
        return self.folder / name

    def build(self, root: Path, endpoint: str) -> None:
        options = BuildOptions(wheels=self.wheels, ca_bundle=self.ca, fresh=True)
        image = image_ref(root, self.name, Flavour.CPU)
        with closing(connect(endpoint)) as daemon:
            build(daemon, image, Lines(), options)

    def layers(self, root: Path, endpoint: str) -> Saved:
        """Build, look into the result and remove it."""
        self.build(root, endpoint)
        name = f"ae/{self.name}:cpu"
        argv = [find_client(endpoint), "--host", endpoint]
        try:
            return read_image(endpoint, name, [self.marker.encode(), PRIVATE_KEY])
        finally:
            subprocess.run([*argv, "image", "rm", name], capture_output=True, check=False)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Small:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Small(tmp_path)


def test_a_secret_and_wheels_stay_outside_and_two_builds_agree(
    docker_host: str, small: Small
) -> None:
    one = small.layers(small.tree("one", settle=True, umask=0o022), docker_host)
    own = one.layers[-1]
    paths = {file.path for file in own}
    assert {"opt/small/small/__init__.py", "opt/common/own.py"} <= paths
    assert "opt/small/small/__pycache__/__init__.cpython-311.pyc" in paths
    assert leftovers([own]) == []
    assert writable([own]) == []
    assert privileged([own]) == set()
    assert [file.path for file in own if file.found] == []
    said = json.dumps(one.config)
    for word in (small.marker, str(small.ca), str(small.wheels), str(small.folder)):
        assert word not in said

    time.sleep(1.1)  # a layer's times are whole seconds
    two = small.layers(small.tree("two", settle=True, umask=0o077), docker_host)
    assert two.diff_ids == one.diff_ids, different(one, two)
    assert two.config == one.config


def test_what_it_is_that_settling_takes_away(docker_host: str, small: Small) -> None:
    """Without it the tests above would fail: left-over files, and the time of the build."""
    started = int(time.time())
    one = small.layers(small.tree("one", settle=False, umask=0o022), docker_host)
    assert set(leftovers([one.layers[-1]])) == {"tmp/now", "root/.cache", "root/.cache/x"}
    assert max(file.modified for file in one.layers[-1]) >= started


def different(one: Saved, two: Saved) -> str:
    """The entries of the last layer that are not the same."""
    return "\n".join(str(pair) for pair in zip(one.layers[-1], two.layers[-1], strict=False)
                     if pair[0] != pair[1])  # fmt: skip
