"""Images to and from a registry: pushed once, locked by digest, pulled by digest.

The daemon checks every layer against its digest and tries again what breaks off. Who may push and
pull is Docker's affair: its configuration and credential helpers, read by docker-py.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ae.daemon.connection import Daemon
from ae.daemon.faults import faults
from ae.errors import EnvironmentFault
from ae.images.content import labels, labels_of
from ae.images.lockfile import Entry
from ae.model import ImageRef, Sink

# What the daemon and registries say, and what to do about it; the first that fits.
_FIXES = (
    (r"unauthorized|authentication required|no basic auth|denied|forbidden", "docker login {host}"),
    (r"no space left", "free some disk where Docker keeps images: docker system df"),
    (
        r"verification failed|digest|checksum|invalid",
        "the registry holds a damaged layer: delete it there and push again",
    ),
    (
        r"unknown|not found|does not exist",
        "it was never pushed to {host}, or deleted there: ae push, or another AE_REGISTRY",
    ),
    (r"credential", "see `credsStore` and `credHelpers` in Docker's config.json"),
    (r"HTTP response to HTTPS", "add {host} to the daemon's insecure-registries"),
)


def repository(registry: str, image: ImageRef) -> str:
    """Where an image lies, without tag."""
    return f"{registry}/{image.name}"


def push(daemon: Daemon, image: ImageRef, registry: str, sink: Sink) -> Entry:
    """Push an image under a tag that moves and one that names its sources; return what to lock.

    The digest is what the registry itself says it holds. Raises EnvironmentFault.
    """
    found = built(daemon, image)
    place = repository(registry, image)
    for tag in (str(image.flavour), f"{image.flavour}-{image.content[:12]}"):
        with _transfer(daemon, place, f"pushing {place}:{tag}"):
            daemon.control.tag(found["Id"], place, tag)
            try:
                _follow(daemon.patient.push(place, tag=tag, stream=True, decode=True), sink)
            finally:
                daemon.control.remove_image(f"{place}:{tag}", noprune=True)
            held: Any = daemon.control.inspect_distribution(f"{place}:{tag}")  # type: ignore[no-untyped-call]
    digest = str(held["Descriptor"]["digest"])
    return Entry(content=image.content, digest=digest, image_id=found["Id"])


def fetch(daemon: Daemon, place: str, tag: str, sink: Sink) -> str:
    """Fetch an image by tag or digest; returns its name. Raises EnvironmentFault."""
    reference = f"{place}@{tag}" if ":" in tag else f"{place}:{tag}"
    with _transfer(daemon, place, f"pulling {reference}"):
        _follow(daemon.patient.pull(place, tag=tag, stream=True, decode=True), sink)
    return reference


def pull(daemon: Daemon, image: ImageRef, entry: Entry, registry: str, sink: Sink) -> None:
    """Fetch the locked image by digest, check it, and give it our tag.

    Raises EnvironmentFault; then no tag was moved, and nothing of the image is left.
    """
    reference = fetch(daemon, repository(registry, image), entry.digest, sink)
    found = daemon.image(reference)
    wrong = mismatch(found, image, entry)
    with faults(daemon.endpoint):
        if found is not None and not wrong:
            daemon.control.tag(found["Id"], f"ae/{image.name}", str(image.flavour))
            return
        if found is not None:
            daemon.control.remove_image(reference)
    raise EnvironmentFault(
        f"{reference} {wrong}",
        fix="images/lock.yaml and the registry disagree: push again from these sources",
    )


def built(daemon: Daemon, image: ImageRef) -> dict[str, Any]:
    """What the engine says of an image that is built from this tree. Raises EnvironmentFault."""
    found = daemon.image(image.reference)
    fix = f"ae build {image.name} --flavour {image.flavour}"
    if found is None:
        raise EnvironmentFault(f"the image {image.reference} is not there", fix=fix)
    if labels(image).items() - labels_of(found).items():
        raise EnvironmentFault(f"the image {image.reference} is not built from this tree", fix=fix)
    return found


def find(daemon: Daemon, image: ImageRef, entry: Entry) -> dict[str, Any] | None:
    """The locked image, if the engine holds it under whatever name; None otherwise."""
    with faults(daemon.endpoint):
        held = daemon.control.images(filters={"label": [f"ae.content={entry.content}"]})
    ids = [one["Id"] for one in held if entry.names(one)]
    return daemon.image(ids[0]) if ids else None


def mismatch(found: dict[str, Any] | None, image: ImageRef, entry: Entry) -> str:
    """In what an image differs from the lock and the tree; empty: in nothing."""
    if found is None:
        return "is not here"
    if not entry.names(found):
        return f"has the id {found['Id'][:19]}, and {entry.image_id[:19]} is locked"
    have = labels_of(found)
    for key, word in {**labels(image), "ae.content": entry.content}.items():
        if have.get(key) != word:
            return f"has the label {key}={have.get(key, '')}, and {word} is locked"
    return ""


def _follow(events: Iterator[dict[str, Any]], sink: Sink) -> None:
    """Pass on what the daemon says of a transfer. Raises DockerException: an error comes as an
    event of a good stream, which is read to its end even so: that ends the connection."""
    from docker.errors import DockerException

    error = ""
    for event in events:
        error = error or str(event.get("error", ""))
        if event.get("status") and not event.get("progressDetail"):
            layer = f"{event['id']}: " if event.get("id") else ""
            sink.line("stdout", f"{layer}{event['status']}")
    if error:
        raise DockerException(error)


@contextmanager
def _transfer(daemon: Daemon, place: str, what: str) -> Iterator[None]:
    """Say of any error what was done, why it failed and what to do."""
    from docker.errors import DockerException
    from requests.exceptions import Timeout
    from urllib3.exceptions import ReadTimeoutError

    with faults(daemon.endpoint), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "docker-credential-")  # an error says it as well
        try:
            yield
        except (DockerException, Timeout, ReadTimeoutError) as error:
            raise _fault(what, str(getattr(error, "explanation", "") or error), place) from error


def _fault(what: str, why: str, place: str) -> EnvironmentFault:
    from docker.auth import resolve_repository_name

    host = resolve_repository_name(place)[0]
    fixes = [fix for words, fix in _FIXES if re.search(words, why, re.IGNORECASE)]
    fix = fixes[0] if fixes else "see whether {host} is up and can be reached, then try again"
    line = (why.strip().splitlines() or ["no reason given"])[0][:300]
    return EnvironmentFault(f"{what} failed: {line}", fix=fix.format(host=host))
