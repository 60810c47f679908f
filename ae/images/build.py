"""Builds images with `docker buildx`: in order, with live output, a log each, and a check after."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ae.errors import EnvironmentFault, UsageError
from ae.host import processes
from ae.host.machine import cache_dir, require_disk
from ae.images import bake, settings
from ae.images.bake import Target
from ae.images.content import (
    BuildOptions,
    client_environment,
    find_client,
    image_ref,
    labels,
    made_from,
)
from ae.model import Flavour, ImageRef
from ae.units import format_seconds, format_size

if TYPE_CHECKING:
    from ae.engines.base import Sink

# Free disk that a build asks for where its bake file does not say (label ae.build.disk): PyTorch
# with its CUDA libraries unpacks to some 8 GB, and the builder holds layers twice.
BUILD_DISK = {Flavour.CPU: 2 * 10**9, Flavour.CUDA: 15 * 10**9}


def is_error(line: str) -> bool:
    """Whether a line of a build's log says that something failed."""
    # A step's head repeats its command, which may hold the words that it would print.
    head = re.match(r"#\d+ \[", line)
    return head is None and ("ERROR" in line or "error:" in line)


@dataclass(frozen=True, kw_only=True)
class Built:
    """An image that has been built."""

    reference: str
    image_id: str
    seconds: float
    size_bytes: int  # unpacked
    log: Path

    @property
    def sentence(self) -> str:
        """What to tell a person."""
        return (
            f"built {self.reference} in {format_seconds(self.seconds)}, "
            f"{format_size(self.size_bytes)}; log: {self.log}"
        )


def build(
    root: Path, image: ImageRef, sink: Sink, options: BuildOptions, *, endpoint: str | None = None
) -> Built:
    """Build an image at a daemon, after the images it is built on where those are out of date.

    Raises UsageError for options and bake files that do not fit, EnvironmentFault with the first
    error of the build and where its whole log is.
    """
    from ae.daemon.connection import endpoint_of, probe

    check_options(options)
    endpoint = endpoint or endpoint_of()
    probe(endpoint)
    builder = _Builder(root, endpoint, options, sink)
    targets = builder.targets(image)
    for below in targets[:-1]:
        wanted = builder.image(below)
        if builder.held(wanted).get("Labels", {}).get("ae.content") != wanted.content:
            builder.build(below, wanted)
    return builder.build(targets[-1], image)


def build_disk(root: Path, image: ImageRef, network: str | None = None) -> int:
    """The free disk that a build of an image asks for, in bytes.

    A build without a network downloads nothing: what is large lies in its base image already.
    """
    needed = bake.stated_disk(root, image.name) or BUILD_DISK[image.flavour]
    return min(needed, BUILD_DISK[Flavour.CPU]) if network == "none" else needed


def describe(
    root: Path, image: ImageRef, options: BuildOptions, *, endpoint: str | None = None
) -> list[tuple[str, ...]]:
    """The command of every build that an image needs, in order; needs buildx, but no daemon."""
    from ae.daemon.connection import endpoint_of

    check_options(options)
    builder = _Builder(root, endpoint or endpoint_of(), options, sink=None)
    return [
        builder.argv(target, builder.image(target), Path("metadata.json"))
        for target in builder.targets(image)
    ]


def build_argv(
    client: str,
    root: Path,
    target: Target,
    image: ImageRef,
    options: BuildOptions,
    *,
    epoch: int,
    attest: bool,
    metadata: Path,
) -> tuple[str, ...]:
    """The command line of one build. Pure. `epoch` is the time (s) that the image will state."""
    # The daemon's own builder: it sees local images as bases, and its result is local.
    words = [client, "buildx", "build", "--builder", "default", "--load", "--progress", "plain"]
    words += ["--file", str(root / target.context / target.dockerfile)]
    words += ["--metadata-file", str(metadata)]
    if target.stage:
        words += ["--target", target.stage]
    for tag in target.tags:
        words += ["--tag", tag]
    for key, value in ({**target.args, "SOURCE_DATE_EPOCH": str(epoch)}).items():
        words += ["--build-arg", f"{key}={value}"]
    for key, value in ({**target.labels, **labels(image)}).items():
        words += ["--label", f"{key}={value}"]
    linked = {  # another target's result is an image of the daemon by now
        name: f"docker-image://ae/{image_tag(value.removeprefix('target:'))}"
        if value.startswith("target:")
        else value
        for name, value in target.contexts.items()
    }
    for name, value in (linked | {k: str(v) for k, v in options.contexts.items()}).items():
        words += ["--build-context", f"{name}={value}"]
    for secret in target.secrets:
        words += ["--secret", secret]
    for source in target.cache_from:
        words += ["--cache-from", source]
    for place in target.cache_to:
        words += ["--cache-to", place]
    if options.network is not None:
        words += ["--network", options.network]
    if options.fresh:
        words += ["--no-cache"]
    words += ["--provenance", "mode=max" if attest else "false"]
    return (*words, str(root / target.context))


class _Builder:
    """One `ae build`: a client, a daemon, the options, and the variables of the bake file."""

    def __init__(self, root: Path, endpoint: str, options: BuildOptions, sink: Sink | None) -> None:
        self._root = root
        self._options = options
        self._sink = sink
        self._environment = client_environment(endpoint)
        self._client = find_client(endpoint)
        self._local = endpoint.startswith("unix://")

    @cached_property
    def _info(self) -> dict[str, Any]:
        return self._ask("info", "--format", "{{json .}}")

    def image(self, target: Target) -> ImageRef:
        """The image that a target builds."""
        name, _, flavour = target.name.rpartition("-")
        return image_ref(self._root, name, Flavour(flavour))

    def argv(self, target: Target, image: ImageRef, metadata: Path) -> tuple[str, ...]:
        """The command line of one build."""
        return build_argv(
            self._client,
            self._root,
            target,
            image,
            self._options,
            epoch=source_epoch(self._root, image),
            attest=self._attests,
            metadata=metadata,
        )

    def targets(self, image: ImageRef) -> list[Target]:
        """The target of an image and those below it, in order."""
        name = f"{image.name}-{image.flavour}"
        buildx = (self._client, "buildx")
        variables = self._environment | bake_variables(self._root, self._options)
        return bake.resolve(buildx, self._root, image.name, name, variables)

    def held(self, image: ImageRef) -> dict[str, Any]:
        """Id, Size and Labels of the image that the daemon holds under the tag; empty: none."""
        form = '{"Id":{{json .Id}},"Size":{{json .Size}},"Labels":{{json .Config.Labels}}}'
        found = self._ask("image", "inspect", "--format", form, image.reference)
        return found | {"Labels": found.get("Labels") or {}}

    def build(self, target: Target, image: ImageRef) -> Built:
        """Build one target. Raises EnvironmentFault."""
        self._require_disk(image)
        log = cache_dir() / "builds" / f"{target.name}-{image.content[:12]}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        argv = self.argv(target, image, log.with_suffix(".json"))
        errors: list[str] = []
        started = time.monotonic()
        with log.open("w", encoding="utf-8") as kept:
            kept.write(f"# {json.dumps(argv)}\n")

            def on_line(stream: Literal["stdout", "stderr"], text: str) -> None:
                kept.write(text + "\n")
                kept.flush()
                if is_error(text):
                    errors.append(text.strip())
                if self._sink:
                    self._sink.line("stdout", text)  # buildx writes its progress to standard error

            ended = processes.stream(argv, on_line, env=self._environment, cwd=self._root)
        if ended.returncode != 0:
            # The first error is the cause; what follows says that the build failed.
            why = f": {errors[0][:300]}" if errors else ""
            raise EnvironmentFault(
                f"building {image.reference} failed (exit code {ended.returncode}){why}",
                fix=f"the whole log is {log}",
            )
        held = self.held(image)
        if held["Labels"].get("ae.content") != image.content:
            raise EnvironmentFault(
                f"the build ended well, but the daemon does not hold {image.reference}",
                fix=f"see whether another build ran at the same time; the log is {log}",
            )
        return Built(
            reference=image.reference,
            image_id=held["Id"],
            seconds=time.monotonic() - started,
            size_bytes=int(held["Size"]),
            log=log,
        )

    @property
    def _attests(self) -> bool:
        """Whether the daemon can keep attestations: with the image store of containerd it can."""
        return any(
            "containerd.snapshotter" in str(row) for row in self._info.get("DriverStatus") or ()
        )

    def _require_disk(self, image: ImageRef) -> None:
        """Check the disk of a daemon on this machine; that of another cannot be seen."""
        needed = build_disk(self._root, image, self._options.network)
        folder = self._info.get("DockerRootDir")
        if folder and self._local:
            fix = "free some disk where Docker keeps images: docker system df, docker builder prune"
            require_disk(Path(folder), needed, f"building {image.reference}", fix)

    def _ask(self, *words: str) -> dict[str, Any]:
        """Ask the daemon through the client; an empty answer when it has none."""
        done = processes.run((self._client, *words), timeout_s=60, env=self._environment)
        found = json.loads(done.stdout) if done.returncode == 0 and done.stdout.strip() else {}
        assert isinstance(found, dict)
        return found


def check_options(options: BuildOptions) -> None:
    given = [(options.wheels, "--wheels"), (options.ca_bundle, "--ca-bundle")]
    given += [(path, f"--context {name}") for name, path in options.contexts.items()]
    for path, what in given:
        if path is not None and not path.exists():
            raise UsageError(f"{what} {path}: there is no such path", fix="check the spelling")


def bake_variables(root: Path, options: BuildOptions) -> dict[str, str]:
    """The variables of docker-bake.hcl that we set; those of an image come from the shell."""
    from ae.records.provenance import source_facts

    facts = source_facts(root)
    revision = (facts.revision or "") + ("-dirty" if facts.dirty else "")
    found = {"AE_REVISION": revision, "AE_BASE_IMAGE": options.base_image or ""}
    found["AE_WHEELS"] = str(options.wheels.resolve()) if options.wheels else ""
    found["AE_CA_BUNDLE"] = str(options.ca_bundle.resolve()) if options.ca_bundle else ""
    found["AE_CACHE"] = settings.require_registry() if options.cache else ""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):  # both spellings are in use
        value = os.environ.get(name) or os.environ.get(name.lower())
        if value:
            found[name] = value
    return found


def source_epoch(root: Path, image: ImageRef) -> int:
    """When the image's sources last changed (s), so that the same sources give the same image."""
    folders = [f"images/{part}" for part in made_from(root, image.name)]
    argv = ["git", "-C", str(root), "log", "-1", "--format=%ct", "--", *folders]
    try:
        found = processes.run(argv, timeout_s=20)
    except processes.ProcessFault:
        return 0
    return int(found.stdout) if found.stdout.strip().isdigit() else 0


def image_tag(target: str) -> str:
    name, _, flavour = target.rpartition("-")
    return f"{name}:{flavour}"
