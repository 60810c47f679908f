"""A build with AE_CACHE: what one machine has pushed, another does not build again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ae.daemon.connection import connect
from ae.images import registry
from ae.images.build import build
from ae.images.content import BuildOptions, image_ref
from ae.model import Flavour
from tests.engines.acts import Lines
from tests.servers.daemon import daemon as private_daemon
from tests.servers.registry import registry as real_registry

pytestmark = pytest.mark.docker


def test_another_machine_takes_the_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "root/images/tiny"
    folder.mkdir(parents=True)
    (folder / "Dockerfile").write_text("FROM scratch\nCOPY tiny/data /data\n")
    (folder / "data").write_bytes(os.urandom(10_000))
    image = image_ref(tmp_path / "root", "tiny", Flavour.CPU)
    options = BuildOptions()
    ids, said = [], []
    with real_registry(tmp_path / "registry") as place:
        monkeypatch.setenv("AE_CACHE", place.name)
        for _ in range(2):
            with private_daemon() as endpoint:  # each a machine that has built nothing yet
                lines = Lines()
                daemon = connect(endpoint)
                build(daemon, image, lines, options)
                found = daemon.image(image.reference)
                assert found is not None
                ids.append(found["RootFS"]["Layers"])
                said.append("\n".join(lines.of("stdout")))
                registry.push(daemon, image, place.name, Lines())
                daemon.close()
    assert ids[0] == ids[1]
    assert "CACHED" not in said[0]
    assert "importing cache manifest" in said[1]
    assert "COPY tiny/data /data" in said[1]
    assert "CACHED" in said[1]
