"""What the tests of podman share."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

CDI = Path("/run/cdi")  # which podman reads, and which is empty again after a boot


@pytest.fixture(scope="session")
def gpu() -> Iterator[str]:
    """A GPU that is none: inside a container a variable shows whether it was granted."""
    if not os.access(CDI if CDI.exists() else CDI.parent, os.W_OK):
        pytest.skip(f"podman reads CDI specs from {CDI}, which only root may write")
    name = f"ae-test-{os.getpid()}"
    edits = {"env": [f"AE_FAKE_GPU={name}"], "deviceNodes": [{"path": "/dev/null"}]}
    spec = {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [{"name": name, "containerEdits": edits}],
    }
    CDI.mkdir(exist_ok=True)
    path = CDI / f"{name}.json"
    path.write_text(json.dumps(spec))
    yield name
    path.unlink()
