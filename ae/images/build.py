"""Builds images with `docker buildx`: in order, with live output, a log each, and a check after."""

from __future__ import annotations

import os
import re
import shlex
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ae.daemon.connection import Daemon
from ae.errors import EnvironmentFault, UsageError, nearest
from ae.host import processes
from ae.host.git import git, revision
from ae.host.machine import cache_dir, require_disk
from ae.images.content import (
    BuildOptions,
    find_client,
    image_ref,
    labels,
    labels_of,
    made_from,
    stated,
)
from ae.model import Flavour, ImageRef, Sink
from ae.units import format_seconds, format_size, parse_size

# Free disk that a build asks for where its Dockerfile does not say (`# disk: 60GB`): PyTorch with
# its CUDA libraries unpacks to some 8 GB, and the builder holds layers twice.
BUILD_DISK = {Flavour.CPU: 2 * 10**9, Flavour.CUDA: 15 * 10**9}
_OCI = "org.opencontainers.image"
QUIET_S = 20.0  # how often a build is said to go on
_UNTRUSTED = re.compile(
    r"certificate.verify.failed|certificate signed by unknown authority|self.signed certificate"
    r"|certificate verification failed|unable to get local issuer certificate",
    re.IGNORECASE,
)
_UNREACHED = re.compile(
    r"failed to do request|failed to resolve source|no such host|could not resolve host"
    r"|temporary failure (in name resolution|resolving)|name or service not known",
    re.IGNORECASE,
)


def build(daemon: Daemon, image: ImageRef, sink: Sink, options: BuildOptions) -> str:
    """Build an image, after the images it is built on where those are out of date.

    Returns what to tell a person.
    Raises UsageError for options that do not fit, EnvironmentFault with the first error of the
    build and where its whole log is.
    """
    for wanted, argv in commands(find_client(daemon.endpoint), image, options):
        held = labels_of(daemon.image(wanted.reference)).get("ae.content")
        if wanted.reference == image.reference or held != wanted.content:
            home = Path(str(daemon.info.get("DockerRootDir", "/")))
            if home.is_dir():
                needed = build_disk(wanted, options.network)
                fix = "free some disk where Docker keeps images: docker system df"
                require_disk(home, needed, f"building {wanted.reference}", fix)
            said = _run(daemon, wanted, argv, sink)
    return said


def commands(
    client: str, image: ImageRef, options: BuildOptions
) -> list[tuple[ImageRef, tuple[str, ...]]]:
    """Every build that an image needs, in order: what it makes, and its command line.

    Raises UsageError.
    """
    given = [(options.wheels, "--wheels"), (options.ca_bundle, "--ca-bundle")]
    given += [(path, f"--context {name}") for name, path in options.contexts.items()]
    for path, what in given:
        if path is not None and not path.exists():
            raise UsageError(f"{what} {path}: there is no such path", fix="check the spelling")
    found = [(image, build_argv(client, image, options))]
    if "base" in made_from(image.root, image.name)[1:] and not options.base_image:
        base = image_ref(image.root, "base", image.flavour)
        found.insert(0, (base, build_argv(client, base, replace(options, arguments={}))))
    return found


def build_disk(image: ImageRef, network: str | None = None) -> int:
    """The free disk that a build of an image asks for, in bytes.

    A build without a network downloads nothing: what is large lies in its base image already.
    """
    said = stated(image.root, image.name, "disk")
    needed = parse_size(said[0]) if said else BUILD_DISK[image.flavour]
    return min(needed, BUILD_DISK[Flavour.CPU]) if network == "none" else needed


def build_argv(client: str, image: ImageRef, options: BuildOptions) -> tuple[str, ...]:
    """The command line of one build; it means the same in any folder.

    Raises UsageError for a build argument that the Dockerfile does not take.
    """
    dockerfile = image.source / "Dockerfile"
    takes = set(re.findall(r"^ARG (\w+)", dockerfile.read_text(), re.MULTILINE))
    for name in options.arguments.keys() - takes:
        said = f"images/{image.name}/Dockerfile takes no argument '{name}'"
        raise UsageError(f"{said}; {nearest(name, sorted(takes))}", fix="see the file's head")
    arguments = {"FLAVOUR": str(image.flavour)} if "FLAVOUR" in takes else {}
    if options.base_image and "BASE_IMAGE" in takes:
        arguments["BASE_IMAGE"] = options.base_image
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):  # predefined: they stay in no layer
        if value := os.environ.get(name) or os.environ.get(name.lower()):
            arguments[name] = value
    arguments |= options.arguments
    arguments["SOURCE_DATE_EPOCH"] = str(source_epoch(image))
    contexts = {name: str(path.resolve()) for name, path in options.contexts.items()}
    if options.wheels:
        contexts["wheels"] = str(options.wheels.resolve())
    known = {f"{_OCI}.title": f"ae/{image.name}", f"{_OCI}.revision": _revision(image.root)}
    cache = os.environ.get("AE_CACHE")  # a registry: the pushed image is the next build's cache
    # The daemon's own builder: it sees local images as bases, and its result is local.
    words = [client, "buildx", "build", "--builder", "default", "--load", "--progress", "plain"]
    words += ["--file", str(dockerfile), "--provenance", "false", "--tag", image.reference]
    words += ["--no-cache"] if options.fresh else []
    words += ["--network", options.network] if options.network else []
    words += ["--secret", f"id=ca,src={options.ca_bundle.resolve()}"] if options.ca_bundle else []
    if cache:
        place = f"{cache}/{image.name}:{image.flavour}"
        words += ["--cache-from", f"type=registry,ref={place}", "--cache-to", "type=inline"]
    for option, pairs in (
        ("--build-arg", arguments),
        ("--label", known | labels(image)),
        ("--build-context", contexts),
    ):
        words += [word for key, value in pairs.items() for word in (option, f"{key}={value}")]
    return (*words, str(image.source.parent))


def _revision(root: Path) -> str:
    """The commit that is checked out, and whether the sources differ from it."""
    sha = revision(root) or os.environ.get("AE_REVISION", "")
    dirty = git(root, "status", "--porcelain", "--", "ae", "images", "recipes")
    return f"{sha}-dirty" if dirty else sha


def source_epoch(image: ImageRef) -> int:
    """When the image's sources last changed (s), so that the same sources give the same image."""
    folders = [f"images/{part}" for part in made_from(image.root, image.name)]
    said = (git(image.root, "log", "-1", "--format=%ct", "--", *folders) or "").strip()
    return int(said) if said.isdigit() else 0


def is_error(line: str) -> bool:
    """Whether a line of a build's log says that something failed."""
    # A step's head repeats its command, which may hold the words that it would print.
    return not re.match(r"#\d+ \[", line) and ("ERROR" in line or "error:" in line)


@contextmanager
def _moving(sink: Sink) -> Iterator[None]:
    """Say every QUIET_S that the build goes on: buildx says nothing while a step is silent."""
    started, ended = time.monotonic(), threading.Event()

    def beat() -> None:
        while not ended.wait(QUIET_S):
            words = format_seconds(time.monotonic() - started)
            sink.line("stdout", f"... still building after {words}")

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _run(daemon: Daemon, image: ImageRef, argv: tuple[str, ...], sink: Sink) -> str:
    """Build one target and check that the daemon holds it. Raises EnvironmentFault."""
    log = cache_dir() / "builds" / f"{image.name}-{image.flavour}-{image.content[:12]}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    errors: list[str] = []
    with log.open("w", encoding="utf-8") as kept, _moving(sink):
        kept.write(f"# {shlex.join(argv)}\n")

        def on_line(_: str, text: str) -> None:  # buildx's progress is on standard error
            print(text, file=kept, flush=True)
            if is_error(text) or _UNTRUSTED.search(text) or _UNREACHED.search(text):
                errors.append(text.strip())
            sink.line("stdout", text)

        ended = processes.stream(argv, on_line, env=daemon.environment, cwd=image.root)
    if ended.returncode != 0:
        # The first error is the cause; what follows says that the build failed.
        why, fix = (errors or ["it says not why"])[0], f"the whole log is {log}"
        if untrusted := next(filter(_UNTRUSTED.search, errors), None):
            why = f"it does not trust a server's certificate, as behind a proxy ({untrusted})"
            fix = f"--ca-bundle FILE, with the proxy's certificate in FILE; {fix}"
        elif any(map(_UNREACHED.search, errors)):
            local = "ae run --engine local needs no image; or build on one that is here: "
            fix = f"{local}ae build base --base-image REF; {fix}"
        raise EnvironmentFault(f"building {image.reference} failed: {why[:300]}", fix=fix)
    found = daemon.image(image.reference)
    if found is None or labels_of(found).get("ae.content") != image.content:
        raise EnvironmentFault(
            f"the build ended well, but the daemon does not hold {image.reference}",
            fix=f"see whether another build ran at the same time; the log is {log}",
        )
    took, size = format_seconds(ended.seconds), format_size(int(found["Size"]))
    return f"built {image.reference} in {took}, {size}; log: {log}"
