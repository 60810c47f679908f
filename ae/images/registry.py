"""Images to and from a registry: pushed once, locked and pulled by digest.

The daemon checks every layer against its digest and tries again what breaks off. Who may push and
pull is the docker client's affair: its configuration and credential helpers.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ae.daemon.connection import Daemon, probe
from ae.daemon.faults import faults
from ae.errors import EnvironmentFault, UsageError
from ae.host import processes
from ae.images.content import labels, labels_of
from ae.images.lockfile import Entry, load
from ae.model import ImageRef, Sink

_REGISTRY = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:\d{1,5})?(/[a-z0-9]+([._-][a-z0-9]+)*)*")
_FORM = "HOST[:PORT]/PATH, as ghcr.io/you/ae"
# What engines and registries say, and what to do about it; the first that fits.
_FIXES = (
    ("getting credentials", "see `credsStore` and `credHelpers` in Docker's config.json"),
    (
        "unauthorized|authentication required|no basic auth|denied|forbidden",
        "{program} login {host}",
    ),
    ("no space left", "free some disk where images are kept: {program} system df"),
    (
        "verification failed|digest|checksum|invalid",
        "the registry holds a damaged layer: delete it there and push again",
    ),
    (
        "unknown|not found|does not exist",
        "it was never pushed to {host}, or deleted there: push it, or name another",
    ),
    (
        "HTTP response to HTTPS",
        "add {host} to the daemon's insecure-registries (podman: registries.conf, insecure = true)",
    ),
)


def place(root: Path) -> str | None:
    """The registry of AE_REGISTRY, else the lock's; None: none is named. Raises UsageError."""
    named = os.environ.get("AE_REGISTRY", load(root).registry)
    if named and not _REGISTRY.fullmatch(named):
        raise UsageError(f"'{named}' (AE_REGISTRY) is no registry", fix=f"write {_FORM}")
    return named or None


def require_place(root: Path) -> str:
    """The registry. Raises UsageError when none is named."""
    if found := place(root):
        return found
    raise UsageError("no registry is named", fix=f"set AE_REGISTRY={_FORM}")


def push(daemon: Daemon, image: ImageRef, registry: str, sink: Sink) -> Entry:
    """Push an image under a tag that moves and one that names its sources; return what to lock.

    The digest is what the registry itself says it holds. Raises EnvironmentFault.
    """
    found = built(daemon, image)
    name = f"{registry}/{image.name}"
    for tag in (str(image.flavour), f"{image.flavour}-{image.content[:12]}"):
        with faults(daemon.endpoint):
            daemon.client.tag(found["Id"], name, tag)
            try:
                transfer("docker", "push", f"{name}:{tag}", sink, daemon.environment)
            finally:
                daemon.client.remove_image(f"{name}:{tag}", noprune=True)
            held: Any = daemon.client.inspect_distribution(f"{name}:{tag}")  # type: ignore[no-untyped-call]
    digest = str(held["Descriptor"]["digest"])
    return Entry(content=image.content, digest=digest, image_id=found["Id"])


def pull(daemon: Daemon, image: ImageRef, entry: Entry, registry: str, sink: Sink) -> None:
    """Fetch the locked image by digest, check it, and give it our tag.

    Raises EnvironmentFault; then no tag was moved, and nothing of the image is left.
    """
    reference = f"{registry}/{image.name}@{entry.digest}"
    transfer("docker", "pull", reference, sink, daemon.environment)
    found = daemon.image(reference)
    wrong = mismatch(found, image, entry)
    with faults(daemon.endpoint):
        if found is not None and not wrong:
            daemon.client.tag(found["Id"], f"ae/{image.name}", str(image.flavour))
            return
        if found is not None:
            daemon.client.remove_image(reference)
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


def find(daemon: Daemon, entry: Entry) -> dict[str, Any] | None:
    """The locked image, if the engine holds it under whatever name; None otherwise."""
    wanted = json.dumps({"label": [f"ae.content={entry.content}"]})
    held = daemon.ask(f"/images/json?filters={quote(wanted)}")
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


def transfer(
    program: str,
    verb: str,
    reference: str,
    sink: Sink,
    environment: Mapping[str, str],
    *options: str,
) -> None:
    """Have docker or podman push or pull. Raises EnvironmentFault: why it failed, what to do."""
    errors: list[str] = []

    def on_line(stream: processes.Stream, text: str) -> None:
        if stream == "stderr" and text.strip():
            errors.append(text.strip())
        sink.line("stdout", text)  # podman writes its progress to standard error

    argv = (program, verb, *options, reference)
    if processes.stream(argv, on_line, env=environment).returncode != 0:
        if program == "docker":
            with suppress(EnvironmentFault):  # one that dies answers no more, and then is gone
                Daemon(environment["DOCKER_HOST"]).ask("/version")
            probe(environment["DOCKER_HOST"]).close()
        raise _fault(program, verb, reference, errors)


def _fault(program: str, verb: str, reference: str, errors: list[str]) -> EnvironmentFault:
    host, slash, _ = reference.partition("/")
    if not slash or not re.search(r"[.:]|^localhost$", host):  # as Docker reads a name
        host = "docker.io"
    said = "\n".join(errors)
    fixes = [fix for words, fix in _FIXES if re.search(words, said, re.IGNORECASE)]
    fix = fixes[0] if fixes else "see whether {host} is up and can be reached, then try again"
    line = (errors or ["no reason given"])[-1]
    for layer in ("Error: ", "Error response from daemon: "):
        line = line.removeprefix(layer)
    return EnvironmentFault(
        f"{verb}ing {reference} failed: {line[:300]}", fix=fix.format(program=program, host=host)
    )
