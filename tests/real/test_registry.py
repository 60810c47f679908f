"""Push and pull against a real registry, and every way in which that goes wrong."""

from __future__ import annotations

import io
import json
import os
import signal
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from ae.__main__ import guarded
from ae.daemon.connection import Daemon, connect
from ae.engines.docker import DockerEngine
from ae.errors import EnvironmentFault
from ae.images import lockfile, registry
from ae.images.content import image_ref
from ae.images.lockfile import Entry
from ae.model import Flavour, ImageRef, Status
from tests.engines.acts import Lines, command, make_job
from tests.servers.daemon import daemon as private_daemon
from tests.servers.registry import PASSWORD, Cable, Registry, answering
from tests.servers.registry import registry as real_registry
from tests.toy import make_toy

pytestmark = pytest.mark.docker
MB = 2**20


@pytest.fixture(scope="module")
def small_daemon() -> Iterator[Daemon]:
    """A daemon that tries a layer once, on a disk of 64 MB."""
    config = {"max-download-attempts": 1, "max-concurrent-downloads": 1}
    with private_daemon(config, disk_mb=64) as endpoint:
        made = connect(endpoint)
        yield made
        made.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Registry]:
    with real_registry(tmp_path / "registry") as made:
        yield made


@pytest.fixture
def daemon(small_daemon: Daemon) -> Iterator[Daemon]:
    """The small daemon, emptied afterwards."""
    yield small_daemon
    for one in small_daemon.client.images():
        small_daemon.client.remove_image(one["Id"], force=True)
    assert small_daemon.client.images() == []


def make_image(
    daemon: Daemon, root: Path, content: str = "c", size: int = MB, tag: str = "cpu"
) -> ImageRef:
    """Import ae/tiny:<tag> with `size` random bytes, labelled as one that we have built."""
    image = ImageRef(
        name="tiny", flavour=Flavour.CPU, content=content * 64, source=root / "images/tiny"
    )
    image.source.mkdir(parents=True, exist_ok=True)
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        entry = tarfile.TarInfo("data")
        entry.size = size
        tar.addfile(entry, io.BytesIO(os.urandom(size)))
    labels = ("image=tiny", "flavour=cpu", f"content={image.content}")
    daemon.client.import_image_from_data(
        data.getvalue(), repository="ae/tiny", tag=tag, changes=[f"LABEL ae.{x}" for x in labels]
    )
    return image


def forget(daemon: Daemon, image: ImageRef) -> None:
    found = daemon.image(image.reference)
    assert found is not None
    daemon.client.remove_image(found["Id"], force=True)


def published(daemon: Daemon, root: Path, place: str, **about: int) -> tuple[ImageRef, Entry]:
    """An image that was pushed, locked, and removed from the engine."""
    image = make_image(daemon, root, **about)  # type: ignore[arg-type]
    entry = registry.push(daemon, image, place, Lines())
    lockfile.store(root, image.name, image.flavour, entry)
    forget(daemon, image)
    return image, entry


def is_locked(daemon: Daemon, image: ImageRef, entry: Entry) -> bool:
    return registry.mismatch(registry.find(daemon, entry), image, entry) == ""


def nothing_is_here(daemon: Daemon) -> bool:
    return daemon.client.images(all=True) == []


def test_push_then_pull_by_digest(daemon: Daemon, place: Registry, tmp_path: Path) -> None:
    image = make_image(daemon, tmp_path)
    before = daemon.image(image.reference)
    assert before is not None
    lines = Lines()
    entry = registry.push(daemon, image, place.name, lines)
    assert entry.image_id == before["Id"]
    assert entry.content == image.content
    assert any("digest: sha256:" in line for line in lines.of("stdout"))
    tags = place.folder / "docker/registry/v2/repositories/ae/tiny/_manifests/tags"
    assert sorted(path.name for path in tags.iterdir()) == ["cpu", "cpu-cccccccccccc"]
    (held,) = daemon.client.images()
    assert held["RepoTags"] == ["ae/tiny:cpu"]  # no tag of the registry stays
    forget(daemon, image)
    registry.pull(daemon, image, entry, place.name, Lines())
    after = daemon.image(image.reference)
    assert after is not None
    assert after["Id"] == before["Id"]
    assert is_locked(daemon, image, entry)


def test_an_image_of_another_tree_is_not_pushed(
    daemon: Daemon, place: Registry, tmp_path: Path
) -> None:
    image = make_image(daemon, tmp_path)
    with pytest.raises(EnvironmentFault, match="is not built from this tree"):
        registry.push(daemon, replace(image, content="d" * 64), place.name, Lines())
    with pytest.raises(EnvironmentFault, match="is not there"):
        registry.push(daemon, replace(image, flavour=Flavour.CUDA), place.name, Lines())
    assert place.blobs() == []


def test_a_tag_that_was_moved(daemon: Daemon, place: Registry, tmp_path: Path) -> None:
    image, entry = published(daemon, tmp_path, place.name)
    registry.push(daemon, make_image(daemon, tmp_path, "d"), place.name, Lines())
    registry.pull(daemon, image, entry, place.name, Lines())
    found = daemon.image(image.reference)
    assert found is not None
    assert found["Id"] == entry.image_id
    assert is_locked(daemon, image, entry)
    make_image(daemon, tmp_path, "e")  # and now here, too
    assert is_locked(daemon, image, entry)  # under whatever name


def test_a_damaged_layer(daemon: Daemon, place: Registry, tmp_path: Path) -> None:
    image, entry = published(daemon, tmp_path, place.name)
    layer = place.blobs()[0]
    damaged = bytearray(layer.read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    layer.write_bytes(damaged)
    with pytest.raises(EnvironmentFault, match="failed") as caught:
        registry.pull(daemon, image, entry, place.name, Lines())
    assert "damaged layer" in caught.value.fix
    assert nothing_is_here(daemon)
    assert not is_locked(daemon, image, entry)


def test_a_registry_that_breaks_off(daemon: Daemon, place: Registry, tmp_path: Path) -> None:
    image, entry = published(daemon, tmp_path, place.name, size=3 * MB)
    cable = Cable(place.port, limit=MB)
    far = f"127.0.0.1:{cable.port}/ae"
    with pytest.raises(EnvironmentFault, match="failed") as caught:
        registry.pull(daemon, image, entry, far, Lines())
    assert f"see whether 127.0.0.1:{cable.port} is up" in caught.value.fix
    assert cable.broken >= 1
    assert nothing_is_here(daemon)
    cable.limit = None
    registry.pull(daemon, image, entry, far, Lines())
    assert is_locked(daemon, image, entry)
    cable.close()


def test_a_registry_that_is_not_there(daemon: Daemon, place: Registry, tmp_path: Path) -> None:
    image, entry = published(daemon, tmp_path, place.name)
    with pytest.raises(EnvironmentFault, match="connection refused") as caught:
        registry.pull(daemon, image, entry, "127.0.0.1:9/ae", Lines())
    assert "see whether 127.0.0.1:9 is up" in caught.value.fix
    unknown = entry.model_copy(update={"digest": "sha256:" + "0" * 64})
    with pytest.raises(EnvironmentFault, match="failed") as caught:
        registry.pull(daemon, image, unknown, place.name, Lines())
    assert "was never pushed" in caught.value.fix
    assert nothing_is_here(daemon)


def test_an_image_that_is_not_what_the_lock_says(
    daemon: Daemon, place: Registry, tmp_path: Path
) -> None:
    image, entry = published(daemon, tmp_path, place.name)
    other = entry.model_copy(update={"content": "f" * 64})
    with pytest.raises(EnvironmentFault, match=r"label ae\.content"):
        registry.pull(daemon, image, other, place.name, Lines())
    with pytest.raises(EnvironmentFault, match=r"label ae\.flavour=cpu, and cuda is locked"):
        registry.pull(daemon, replace(image, flavour=Flavour.CUDA), entry, place.name, Lines())
    other = entry.model_copy(update={"image_id": "sha256:" + "0" * 64})
    with pytest.raises(EnvironmentFault, match=r"has the id sha256:[0-9a-f]{12}, and sha256:0000"):
        registry.pull(daemon, image, other, place.name, Lines())
    assert nothing_is_here(daemon)


@pytest.mark.parametrize(
    ("status", "error", "fix"),
    [
        (500, "", "is up and can be reached"),
        (503, "UNAVAILABLE", "is up and can be reached"),
        (429, "TOOMANYREQUESTS", "is up and can be reached"),
        (401, "UNAUTHORIZED", "docker login"),
        (403, "DENIED", "docker login"),
        (404, "MANIFEST_UNKNOWN", "was never pushed"),
        (404, "NAME_UNKNOWN", "was never pushed"),
    ],
)
def test_what_a_registry_may_answer(
    daemon: Daemon, tmp_path: Path, status: int, error: str, fix: str
) -> None:
    """In the words that a real daemon makes of it."""
    image = ImageRef(name="tiny", flavour=Flavour.CPU, content="c" * 64, source=tmp_path)
    entry = Entry(
        content=image.content,
        digest="sha256:" + "1" * 64,
        image_id="sha256:" + "2" * 64,
    )
    with answering(status, error) as far, pytest.raises(EnvironmentFault) as caught:
        registry.pull(daemon, image, entry, far, Lines())
    assert fix in caught.value.fix, caught.value.message
    assert nothing_is_here(daemon)


def test_a_daemon_that_dies_in_a_pull(place: Registry, tmp_path: Path) -> None:
    with private_daemon(disk_mb=64) as endpoint:
        daemon = connect(endpoint)
        image, entry = published(daemon, tmp_path, place.name, size=3 * MB)
        cable = Cable(place.port, limit=MB, silent=True)
        pid = int((Path(endpoint.removeprefix("unix://")).parent / "pid").read_text())

        class Killing(Lines):
            def line(self, stream: Literal["stdout", "stderr"], text: str) -> None:
                if "Pulling fs layer" in text:
                    os.kill(pid, signal.SIGKILL)

        with pytest.raises(EnvironmentFault, match="no Docker daemon runs at"):
            registry.pull(daemon, image, entry, f"127.0.0.1:{cable.port}/ae", Killing())
        cable.close()
        daemon.close()


def test_a_full_disk(daemon: Daemon, place: Registry, docker_host: str, tmp_path: Path) -> None:
    large = connect(docker_host)
    image, entry = published(large, tmp_path, place.name, size=80 * MB)
    large.close()
    lines = Lines()
    with pytest.raises(EnvironmentFault, match="no space left on device") as caught:
        registry.pull(daemon, image, entry, place.name, lines)
    assert "free some disk" in caught.value.fix
    assert nothing_is_here(daemon)
    small, locked = published(daemon, tmp_path, place.name)  # and it works again
    registry.pull(daemon, small, locked, place.name, Lines())


def put_credentials(folder: Path, host: str, password: str) -> None:
    """A docker configuration whose password comes from a credential helper."""
    helper = folder / "docker-credential-tests"
    answer = json.dumps({"ServerURL": host, "Username": "ae", "Secret": password})
    helper.write_text(f"#!/bin/sh\ncat >/dev/null\necho '{answer}'\n")
    helper.chmod(helper.stat().st_mode | stat.S_IXUSR)
    (folder / "config.json").write_text(json.dumps({"credHelpers": {host: "tests"}}))


def test_credentials_come_from_dockers_helpers(
    small_daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "docker"
    folder.mkdir()
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    said = Lines()
    with real_registry(tmp_path / "registry", password=True) as place:
        host = place.name.partition("/")[0]
        for password, good in ((None, False), ("wrong", False), (PASSWORD, True)):
            if password is not None:
                put_credentials(folder, host, password)
            daemon = connect(small_daemon.endpoint)  # reads the configuration anew
            image = make_image(daemon, tmp_path)
            if not good:
                with pytest.raises(EnvironmentFault) as caught:
                    registry.push(daemon, image, place.name, said)
                assert caught.value.fix == f"docker login {host}"
            else:
                entry = registry.push(daemon, image, place.name, said)
                lockfile.store(tmp_path, image.name, image.flavour, entry)
                forget(daemon, image)
                registry.pull(daemon, image, entry, place.name, said)
            forget(daemon, image)
            daemon.close()
        (folder / "docker-credential-tests").unlink()
        daemon = connect(small_daemon.endpoint)
        image = make_image(daemon, tmp_path)
        with pytest.raises(EnvironmentFault, match="no basic auth credentials"):
            registry.push(daemon, image, place.name, said)
        forget(daemon, image)
        daemon.close()
    assert PASSWORD not in (tmp_path / lockfile.PATH).read_text()
    assert not any(PASSWORD in line for line in said.of("stdout"))


def test_a_run_takes_the_locked_image(
    docker_host: str, place: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two images of the same sources: the locked one runs, whatever the tag says."""
    monkeypatch.setenv("AE_REGISTRY", place.name)
    engine = DockerEngine()
    control = engine.daemon.client
    image = ImageRef(
        name="tiny", flavour=Flavour.CPU, content="a" * 64, source=tmp_path / "images/tiny"
    )
    image.source.mkdir(parents=True)

    def make(word: str) -> None:
        labels = {"ae.image": "tiny", "ae.content": image.content, "word": word}
        made = control.create_container("ae/base:cpu", ["true"])
        changes = [f"LABEL {key}={value}" for key, value in labels.items()]
        changes.append(f"ENV AE_WORD={word}")
        control.commit(made["Id"], "ae/tiny", "cpu", changes=changes)
        control.remove_container(made["Id"])

    def word_of_a_run() -> tuple[str, object]:
        lines = Lines()
        job = make_job(tmp_path / "out", argv=command("env:AE_WORD"), image=image)
        outcome = engine.run(job, lines, 60)
        assert outcome.status is Status.DONE
        about = outcome.honoured["image"]
        assert isinstance(about, dict)
        return lines.of("stdout")[0], about.get("locked")

    try:
        make("published")
        assert engine.has_image(image)
        assert word_of_a_run() == ("published", None)
        entry = registry.push(engine.daemon, image, place.name, Lines())
        lockfile.store(tmp_path, image.name, image.flavour, entry)
        assert word_of_a_run() == ("published", True)
        make("moved")
        assert word_of_a_run() == ("published", True)
        control.remove_image(entry.image_id, force=True)
        assert not engine.has_image(image)  # a registry has the locked one
        monkeypatch.delenv("AE_REGISTRY")
        assert engine.has_image(image)  # nobody has: what was built here serves, and says so
        assert word_of_a_run() == ("moved", False)
        monkeypatch.setenv("AE_REGISTRY", place.name)
        engine.prepare(image, Lines())
        assert word_of_a_run() == ("published", True)
    finally:
        for one in control.images(filters={"label": [f"ae.content={image.content}"]}):
            control.remove_image(one["Id"], force=True)
        engine.close()


def test_push_and_pull_as_a_person_types_them(
    docker_host: str,
    place: Registry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = make_toy(tmp_path / "root")
    monkeypatch.setenv("AE_ROOT", str(root))
    monkeypatch.delenv("AE_REGISTRY", raising=False)

    def ae(*words: str) -> tuple[int, str]:
        code = guarded([*words, "--flavour", "cpu"])
        out, err = capsys.readouterr()
        return code, out + err

    daemon = connect(docker_host)
    image = image_ref(root, "toy", Flavour.CPU)
    data = io.BytesIO()
    tarfile.open(fileobj=data, mode="w").close()
    labels = [f"LABEL ae.image=toy ae.flavour=cpu ae.content={image.content}"]
    daemon.client.import_image_from_data(
        data.getvalue(), repository="ae/toy", tag="cpu", changes=labels
    )
    try:
        code, said = ae("push", "toy")
        assert (code, "no registry is named" in said) == (2, True)
        monkeypatch.setenv("AE_REGISTRY", place.name)
        code, said = ae("pull", "toy")
        assert (code, "images/lock.yaml has no ae/toy:cpu" in said) == (3, True)
        code, said = ae("push", "toy")
        assert code == 0, said
        assert "locked in images/lock.yaml" in said
        entry = lockfile.locked(image)
        assert entry is not None
        forget(daemon, image)
        code, said = ae("pull", "toy")
        assert (code, f"ae/toy:cpu pulled, {entry.digest}" in said) == (0, True)
        (root / "images/toy/src/toy/adding.py").write_text("# changed\n")
        code, said = ae("pull", "toy")
        assert (code, "is of other sources than this tree" in said) == (3, True)
    finally:
        for one in daemon.client.images(filters={"label": [f"ae.content={image.content}"]}):
            daemon.client.remove_image(one["Id"], force=True)
        daemon.close()
