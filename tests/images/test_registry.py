"""What is compared with the lock, and the fix for what a registry says. Real ones: tests/real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ae.images.lockfile import Entry
from ae.images.registry import _fault, mismatch
from ae.model import Flavour, ImageRef

IMAGE = ImageRef(name="toy", flavour=Flavour.CPU, content="c" * 64, source=Path("images/toy"))
ENTRY = Entry(
    content="c" * 64,
    digest="sha256:" + "1" * 64,
    image_id="sha256:" + "2" * 64,
)
LABELS = {"ae.image": "toy", "ae.flavour": "cpu", "ae.content": "c" * 64}


def found(**change: str | None) -> dict[str, Any]:
    labels = LABELS | {f"ae.{key}": value for key, value in change.items()}
    kept = {key: value for key, value in labels.items() if value is not None}
    return {"Id": ENTRY.image_id, "Config": {"Labels": kept}}


@pytest.mark.parametrize(
    ("image", "said"),
    [
        (found(), ""),
        (found(more="x"), ""),
        (None, "is not here"),
        (found() | {"Id": "sha256:" + "3" * 64}, "has the id sha256:333333333333, and sha256:2222"),
        (found(image="other"), "label ae.image=other, and toy is locked"),
        (found(image=None), "label ae.image=, and toy"),
        (found(flavour="cuda"), "label ae.flavour=cuda, and cpu"),
        (found(flavour=None), "label ae.flavour=, and cpu"),
        (found(content="d"), "label ae.content=d, and cccc"),
        (found(content=None), "label ae.content=, and cccc"),
        ({"Id": ENTRY.image_id, "Config": None}, "label ae.image="),
        ({"Id": ENTRY.image_id, "Config": {"Labels": None}}, "label ae.image="),
    ],
)
def test_in_what_an_image_differs_from_the_lock(image: dict[str, Any] | None, said: str) -> None:
    wrong = mismatch(image, IMAGE, ENTRY)
    assert said in wrong
    assert bool(wrong) is bool(said)


@pytest.mark.parametrize(
    ("why", "fix"),
    [
        ("unauthorized: authentication required", "docker login host:5000"),
        ("no basic auth credentials", "docker login host:5000"),
        ("denied: requested access to the resource is denied", "docker login host:5000"),
        ("write /x: no space left on device", "docker system df"),
        ("filesystem layer verification failed for digest sha256:1", "damaged layer"),
        ("manifest for host:5000/ae/toy not found: manifest unknown", "never pushed to host:5000"),
        ("error getting credentials - err: exec: not found", "credHelpers"),
        ("http: server gave HTTP response to HTTPS client", "add host:5000 to the daemon's"),
        ("dial tcp: connect: connection refused", "see whether host:5000 is up"),
        ("", "see whether host:5000 is up"),
    ],
)
def test_the_fix_for_what_a_registry_says(why: str, fix: str) -> None:
    fault = _fault("docker", "pull", "host:5000/x", ["more", why] if why else [])
    assert fix in fault.fix
    assert fault.message == f"pulling host:5000/x failed: {why or 'no reason given'}"


@pytest.mark.parametrize(
    ("reference", "host"),
    [("python:3.11", "docker.io"), ("ae/dlrm:cpu", "docker.io"), ("localhost/x", "localhost"),
     ("ghcr.io/you/x", "ghcr.io"), ("host:5000/x@sha256:1", "host:5000")],
)  # fmt: skip
def test_which_registry_a_name_means(reference: str, host: str) -> None:
    assert f"see whether {host} is up" in _fault("docker", "pull", reference, ["timeout"]).fix
