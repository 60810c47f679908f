"""Builds images with `docker buildx`: in order, with live output, a log each, and a check after."""

from __future__ import annotations

import os
import re
import shlex
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from ae.daemon.connection import Daemon, connect, endpoint_of
from ae.errors import EnvironmentFault, UsageError
from ae.host import processes
from ae.host.git import git, revision
from ae.host.machine import cache_dir, require_disk
from ae.images import bake
from ae.images.bake import Target
from ae.images.content import (
    BuildOptions,
    client_environment,
    find_client,
    image_ref,
    labels,
    labels_of,
    made_from,
)
from ae.model import Flavour, ImageRef, Sink
from ae.units import format_seconds, format_size

# Free disk that a build asks for where its bake file does not say (label ae.build.disk): PyTorch
# with its CUDA libraries unpacks to some 8 GB, and the builder holds layers twice.
BUILD_DISK = {Flavour.CPU: 2 * 10**9, Flavour.CUDA: 15 * 10**9}
_MADE_FROM = ("ae", "images", "recipes")
QUIET_S = 20.0  # how often a build is said to go on
_UNTRUSTED = re.compile(
    r"certificate.verify.failed|certificate signed by unknown authority|self.signed certificate"
    r"|certificate verification failed|unable to get local issuer certificate",
    re.IGNORECASE,
)


def build(
    root: Path, image: ImageRef, sink: Sink, options: BuildOptions, *, endpoint: str | None = None
) -> str:
    """Build an image at a daemon, after the images it is built on where those are out of date.

    Returns what to tell a person.
    Raises UsageError for options and bake files that do not fit, EnvironmentFault with the first
    error of the build and where its whole log is.
    """
    with closing(connect(endpoint or endpoint_of())) as daemon:
        for wanted, argv in commands(root, image, options, endpoint=daemon.endpoint):
            held = labels_of(daemon.image(wanted.reference)).get("ae.content")
            if wanted.reference == image.reference or held != wanted.content:
                home = Path(str(daemon.info.get("DockerRootDir", "/")))
                if home.is_dir():
                    needed = build_disk(root, wanted, options.network)
                    fix = "free some disk where Docker keeps images: docker system df"
                    require_disk(home, needed, f"building {wanted.reference}", fix)
                said = _run(daemon, wanted, argv, sink)
    return said


def commands(
    root: Path, image: ImageRef, options: BuildOptions, *, endpoint: str | None = None
) -> list[tuple[ImageRef, tuple[str, ...]]]:
    """Every build that an image needs, in order: what it makes, and its command line.

    Needs buildx, but no daemon. Raises UsageError.
    """
    given = [(options.wheels, "--wheels"), (options.ca_bundle, "--ca-bundle")]
    given += [(path, f"--context {name}") for name, path in options.contexts.items()]
    for path, what in given:
        if path is not None and not path.exists():
            raise UsageError(f"{what} {path}: there is no such path", fix="check the spelling")
    endpoint = endpoint or endpoint_of()
    client = find_client(endpoint)
    variables = {**client_environment(endpoint), **_bake_variables(root, options)}
    name = f"{image.name}-{image.flavour}"
    found = []
    for target in bake.resolve((client, "buildx"), root, image.name, name, variables):
        folder, _, flavour = target.name.rpartition("-")
        made = image_ref(root, folder, Flavour(flavour))
        found.append((made, build_argv(client, root, target, made, options)))
    return found


def build_disk(root: Path, image: ImageRef, network: str | None = None) -> int:
    """The free disk that a build of an image asks for, in bytes.

    A build without a network downloads nothing: what is large lies in its base image already.
    """
    needed = bake.stated_disk(root, image.name) or BUILD_DISK[image.flavour]
    return min(needed, BUILD_DISK[Flavour.CPU]) if network == "none" else needed


def build_argv(
    client: str, root: Path, target: Target, image: ImageRef, options: BuildOptions
) -> tuple[str, ...]:
    """The command line of one build; it means the same in any folder."""
    contexts = {name: _context(root, value) for name, value in target.contexts.items()}
    contexts |= {name: str(path.resolve()) for name, path in options.contexts.items()}
    arguments = {**target.args, "SOURCE_DATE_EPOCH": str(source_epoch(root, image))}
    # The daemon's own builder: it sees local images as bases, and its result is local.
    words = [client, "buildx", "build", "--builder", "default", "--load", "--progress", "plain"]
    words += ["--file", str(root / target.context / target.dockerfile), "--provenance", "false"]
    words += ["--no-cache"] if options.fresh else []
    for option, values in (
        ("--target", [target.stage] if target.stage else []),
        ("--network", [options.network] if options.network else []),
        ("--build-arg", _pairs(arguments)),
        ("--label", _pairs({**target.labels, **labels(image)})),
        ("--build-context", _pairs(contexts)),
        ("--tag", target.tags),
        ("--secret", target.secrets),
        ("--cache-from", target.cache_from),
        ("--cache-to", target.cache_to),
    ):
        words += [word for value in values for word in (option, value)]
    return (*words, str(root / target.context))


def _pairs(found: Mapping[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in found.items()]


def _bake_variables(root: Path, options: BuildOptions) -> dict[str, str]:
    """The variables of docker-bake.hcl that we set; those of an image come from the shell."""
    sha = revision(root) or os.environ.get("AE_REVISION", "")
    dirty = "-dirty" if git(root, "status", "--porcelain", "--", *_MADE_FROM) else ""
    found = {"AE_REVISION": f"{sha}{dirty}", "AE_BASE_IMAGE": options.base_image or ""}
    found["AE_WHEELS"] = str(options.wheels.resolve()) if options.wheels else ""
    found["AE_CA_BUNDLE"] = str(options.ca_bundle.resolve()) if options.ca_bundle else ""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):  # both spellings are in use
        if value := os.environ.get(name) or os.environ.get(name.lower()):
            found[name] = value
    return found


def source_epoch(root: Path, image: ImageRef) -> int:
    """When the image's sources last changed (s), so that the same sources give the same image."""
    folders = [f"images/{part}" for part in made_from(root, image.name)]
    said = (git(root, "log", "-1", "--format=%ct", "--", *folders) or "").strip()
    return int(said) if said.isdigit() else 0


def is_error(line: str) -> bool:
    """Whether a line of a build's log says that something failed."""
    # A step's head repeats its command, which may hold the words that it would print.
    head = re.match(r"#\d+ \[", line)
    return head is None and ("ERROR" in line or "error:" in line)


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
            if is_error(text) or _UNTRUSTED.search(text):
                errors.append(text.strip())
            sink.line("stdout", text)

        environment = client_environment(daemon.endpoint)
        ended = processes.stream(argv, on_line, env=environment, cwd=image.root)
    if ended.returncode != 0:
        # The first error is the cause; what follows says that the build failed.
        why, fix = (errors or ["it says not why"])[0], f"the whole log is {log}"
        if untrusted := next(filter(_UNTRUSTED.search, errors), None):
            why = f"it does not trust a server's certificate, as behind a proxy ({untrusted})"
            fix = f"--ca-bundle FILE, with the proxy's certificate in FILE; {fix}"
        raise EnvironmentFault(f"building {image.reference} failed: {why[:300]}", fix=fix)
    found = daemon.image(image.reference)
    if found is None or labels_of(found).get("ae.content") != image.content:
        raise EnvironmentFault(
            f"the build ended well, but the daemon does not hold {image.reference}",
            fix=f"see whether another build ran at the same time; the log is {log}",
        )
    took, size = format_seconds(ended.seconds), format_size(int(found["Size"]))
    return f"built {image.reference} in {took}, {size}; log: {log}"


def _context(root: Path, value: str) -> str:
    """A named build context: another target's image, which the daemon has by now, or a folder."""
    if value.startswith(bake.LINK):
        name, _, flavour = value.removeprefix(bake.LINK).rpartition("-")
        return f"docker-image://ae/{name}:{flavour}"
    return value if "://" in value else str(root / value)
