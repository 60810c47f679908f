"""Images to and from a registry: pushed once, locked by digest, pulled by digest, checked.

Who may do so is Docker's affair: its configuration and credential helpers, read by docker-py.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ae.daemon.connection import faults
from ae.errors import EnvironmentFault
from ae.images.lockfile import Entry

if TYPE_CHECKING:
    from ae.daemon.connection import Daemon
    from ae.engines.base import Sink
    from ae.model import ImageRef

BACK_OFF_S = (1.0, 3.0, 9.0)  # the daemon itself has tried each layer five times by then
_TAG_LENGTH = 12  # of the content hash, in a tag


class Transient(EnvironmentFault):
    """The registry could not be reached or broke off; trying again may help."""


@dataclass(frozen=True)
class Finding:
    """One thing that `ae pull --verify` has looked at."""

    what: str
    ok: bool
    sentence: str


def repository(registry: str, image: ImageRef) -> str:
    """Where an image lies, without tag."""
    return f"{registry}/{image.name}"


def tags(image: ImageRef) -> tuple[str, str]:
    """The tag that moves with every push of a flavour, and the one that names the sources."""
    return str(image.flavour), f"{image.flavour}-{image.content[:_TAG_LENGTH]}"


def push(daemon: Daemon, image: ImageRef, registry: str, sink: Sink) -> Entry:
    """Push an image under both tags and return what to lock.

    The digest is what the registry itself says it holds. Raises EnvironmentFault.
    """
    found = daemon.image(image.reference)
    fix = f"ae build {image.name} --flavour {image.flavour}"
    if found is None:
        raise EnvironmentFault(f"the image {image.reference} is not there", fix=fix)
    if _labels(found).get("ae.content") != image.content:
        raise EnvironmentFault(f"{image.reference} is not built from this tree", fix=fix)
    place = repository(registry, image)
    digests = set()
    for tag in tags(image):
        with _reported(daemon, registry, f"pushing {place}:{tag}"):
            daemon.control.tag(found["Id"], place, tag)
            try:
                stream = daemon.patient.push(place, tag=tag, stream=True, decode=True)
                _follow(stream, sink, f"pushing {place}:{tag}", registry)
            finally:
                daemon.control.remove_image(f"{place}:{tag}", noprune=True)
            digests.add(_digest_at(daemon, f"{place}:{tag}"))
    if len(digests) != 1:
        raise EnvironmentFault(
            f"{registry} holds different images under {' and '.join(tags(image))} right after "
            "the push",
            fix="see who else pushes there, then push again",
        )
    return Entry(
        content=image.content,
        digest=digests.pop(),
        image_id=found["Id"],
        size=int(found.get("Size") or 0),
        platform=f"{found['Os']}/{found['Architecture']}",
    )


def pull(
    daemon: Daemon,
    image: ImageRef,
    entry: Entry,
    registry: str,
    sink: Sink,
    *,
    back_off_s: Sequence[float] = BACK_OFF_S,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Fetch the locked image by digest, check it, and give it our tag.

    What breaks off is tried again after each of `back_off_s` seconds. Raises EnvironmentFault;
    then no tag was moved, and nothing of the image is left under its name.
    """
    reference = f"{repository(registry, image)}@{entry.digest}"
    for wait in (*back_off_s, None):
        try:
            with _reported(daemon, registry, f"pulling {reference}"):
                repository_, _, digest = reference.partition("@")
                stream = daemon.patient.pull(repository_, tag=digest, stream=True, decode=True)
                _follow(stream, sink, f"pulling {reference}", registry)
            break
        except Transient as fault:
            if wait is None:
                tries = len(back_off_s) + 1
                raise EnvironmentFault(f"{fault.message} ({tries} times)", fix=fault.fix) from fault
            sink.line("stdout", f"{fault.message}; trying again in {wait:g} s")
            sleep(wait)
    found = daemon.image(reference)
    wrong = "is not there after the pull" if found is None else _mismatch(found, image, entry)
    if found is None or wrong:
        with faults(daemon.endpoint):
            if found is not None:
                daemon.control.remove_image(reference)
        raise EnvironmentFault(
            f"{reference} {wrong}",
            fix="images/lock.yaml and the registry disagree: push again from these sources",
        )
    with faults(daemon.endpoint):
        name, _, tag = image.reference.rpartition(":")
        daemon.control.tag(found["Id"], name, tag)


def find(daemon: Daemon, image: ImageRef, entry: Entry) -> dict[str, Any] | None:
    """The locked image, if the engine holds it under whatever name; None otherwise."""
    with faults(daemon.endpoint):
        held = daemon.control.images(filters={"label": [f"ae.content={entry.content}"]})
    ids = [one["Id"] for one in held if entry.names(one)]
    return daemon.image(ids[0]) if ids else None


def verify(daemon: Daemon, image: ImageRef, entry: Entry, registry: str | None) -> list[Finding]:
    """Compare with the lock what the engine holds, layer by layer, and what the registry offers."""
    from ae.images.layout import Layout, save

    found = find(daemon, image, entry)
    if found is None:
        sentence = f"the engine does not hold the locked image {entry.digest[:19]}"
        findings = [Finding("image", False, f"{sentence}; ae pull {image.name}")]
    else:
        wrong = _mismatch(found, image, entry)
        said = wrong or f"is the locked one, {entry.digest[:19]}"
        findings = [Finding("image", not wrong, f"{image.reference} {said}")]
        tagged = daemon.image(image.reference)
        same = tagged is not None and tagged["Id"] == found["Id"]
        said = "names the locked image" if same else "names another image (ae run uses the locked)"
        findings.append(Finding("tag", same, f"{image.reference} {said}"))
        layout = Layout(lambda why: EnvironmentFault(f"{image.reference} {why}", fix="pull again"))
        try:
            for name, size, chunks in save(daemon, found["Id"]):
                for _ in layout.passing(name, size, chunks):
                    pass
            whole = found["Id"] in layout.ids()
            said = "are what their digests say" if whole else "are of another image"
            findings.append(Finding("layers", whole, f"the layers of {image.reference} {said}"))
        except EnvironmentFault as fault:
            again = f"docker rmi --force {found['Id'][7:19]}, then ae pull {image.name}"
            findings.append(Finding("layers", False, f"{fault.message}; to mend it: {again}"))
    if registry is not None:
        findings.append(_verify_registry(daemon, image, entry, registry))
    return findings


def _verify_registry(daemon: Daemon, image: ImageRef, entry: Entry, registry: str) -> Finding:
    place = f"{repository(registry, image)}:{image.flavour}"
    try:
        with _reported(daemon, registry, f"asking for {place}"):
            offered = _digest_at(daemon, place)
    except EnvironmentFault as fault:
        return Finding("registry", False, fault.message)
    if offered == entry.digest:
        return Finding("registry", True, f"{place} is the locked image")
    return Finding(
        "registry",
        False,
        f"{place} was moved: it is {offered[:19]} and not {entry.digest[:19]}; ae pulls by digest",
    )


def _follow(events: Iterator[dict[str, Any]], sink: Sink, what: str, registry: str) -> None:
    """Pass on what the daemon says of a transfer. An error comes as an event of a good stream,
    which is read to its end even so: that ends the connection."""
    last = error = ""
    for event in events:
        error = error or str(event.get("error", ""))
        said = event.get("status", "")
        if said and not event.get("progressDetail"):
            line = f"{event['id']}: {said}" if event.get("id") else said
            if line != last:
                sink.line("stdout", line)
            last = line
    if error:
        raise _fault(what, error, registry)


@contextmanager
def _reported(daemon: Daemon, registry: str, what: str) -> Iterator[None]:
    """Errors of the daemon's answer and of a credential helper, as those of the stream."""
    from docker.credentials.errors import StoreError
    from docker.errors import APIError, DockerException
    from requests.exceptions import ReadTimeout
    from urllib3.exceptions import ReadTimeoutError

    with faults(daemon.endpoint), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "docker-credential-")  # an error says it as well
        try:
            yield
        except APIError as error:
            raise _fault(what, str(error.explanation or error), registry) from error
        except (ReadTimeout, ReadTimeoutError) as error:
            raise _fault(what, "timed out: nothing was heard of it any more", registry) from error
        except DockerException as error:
            cause = error if isinstance(error, StoreError) else error.__cause__
            if not isinstance(cause, StoreError):
                raise
            raise EnvironmentFault(
                f"{what} failed: Docker's credential helper: {cause}",
                fix="see `credsStore` and `credHelpers` in Docker's config.json",
            ) from error


def _digest_at(daemon: Daemon, reference: str) -> str:
    """The digest that the registry names for a tag."""
    answer: Mapping[str, Any] = daemon.control.inspect_distribution(reference)  # type: ignore[no-untyped-call]
    return str(answer["Descriptor"]["digest"])


def _mismatch(found: Mapping[str, Any], image: ImageRef, entry: Entry) -> str:
    """In what an image differs from the lock; empty: in nothing."""
    if not entry.names(found):
        return f"has the id {found['Id'][:19]}, and {entry.image_id[:19]} is locked"
    labels = _labels(found)
    wanted = {"ae.image": image.name, "ae.flavour": str(image.flavour)}
    for key, word in (wanted | {"ae.content": entry.content}).items():
        if labels.get(key) != word:
            return f"has the label {key}={labels.get(key, '')}, and {word} is locked"
    return ""


def _labels(found: Mapping[str, Any]) -> dict[str, str]:
    return dict((found.get("Config") or {}).get("Labels") or {})


def _fault(what: str, why: str, registry: str) -> EnvironmentFault:
    """The error of a transfer: what cannot be mended by trying again has a fix of its own."""
    host = registry.partition("/")[0]
    lower = why.lower()
    for words, fix in _KNOWN:
        if any(word in lower for word in words):
            return EnvironmentFault(f"{what} failed: {_short(why)}", fix=fix.format(host=host))
    if any(word in lower for word in _PASSING):
        return Transient(
            f"{what} failed: {_short(why)}", fix=f"see whether {host} is up and can be reached"
        )
    return EnvironmentFault(f"{what} failed: {_short(why)}", fix="see the daemon's log")


_KNOWN = (
    (
        ("unauthorized", "authentication required", "no basic auth", "access denied", "forbidden",
         "insufficient_scope", "denied:"),
        "docker login {host}, as somebody who may",
    ),
    (
        ("no space left on device",),
        "free some disk where the Docker daemon keeps images: docker system df",
    ),
    (
        ("verification failed", "digest did not match", "unexpected commit digest",
         "wrong digest", "invalid checksum", "digest mismatch", "does not match expected"),
        "the registry holds a damaged layer: delete it there and push again",
    ),
    (
        ("manifest unknown", "not found", "name unknown", "repository does not exist"),
        "it was never pushed to {host}, or was deleted there: ae push, or another AE_REGISTRY",
    ),
    (
        ("http: server gave http response", "server gave http response to https client"),
        "add {host} to the daemon's insecure-registries, or give the registry a certificate",
    ),
)  # fmt: skip
_PASSING = (
    "connection refused", "connection reset", "broken pipe", "eof", "timeout", "timed out",
    "temporary failure", "no route to host", "network is unreachable", "try again",
    "received unexpected http status: 5", "500 internal", "502 bad", "503 service", "504 gateway",
    "too many requests", "toomanyrequests", "context canceled", "unexpected http status: 5",
    "use of closed network connection", "no such host", "server misbehaving",
)  # fmt: skip


def _short(text: str) -> str:
    return (text.strip().splitlines() or ["no reason given"])[0][:300]
