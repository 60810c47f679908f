"""Images for podman: pulled, copied from a Docker Engine, or built as the bake file says."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ae.engines.podman_client import Podman, fault_of, limit_words
from ae.errors import EnvironmentFault
from ae.host import processes
from ae.host.machine import cache_dir, require_disk
from ae.images import settings
from ae.images.lockfile import Entry, locked
from ae.model import ImageRef

if TYPE_CHECKING:
    from ae.engines.base import Sink
    from ae.engines.docker import DockerEngine
    from ae.images.bake import Target
    from ae.images.content import BuildOptions

_LOCAL = "localhost/"  # where podman puts names without a registry; Docker's own mean docker.io
_LOOPBACK = re.compile(r"(localhost|127\.\d+\.\d+\.\d+)(:\d+)?/")


def names_of(image: ImageRef) -> tuple[str, ...]:
    """The names under which an image may be in podman's storage, ours first."""
    if image.override is not None:
        return (image.override,)
    return (_LOCAL + image.reference, image.reference)


def find(podman: Podman, image: ImageRef) -> dict[str, Any] | None:
    """What podman says of the image that is to run: the locked one if it has it, else the tag's."""
    entry = locked(image)
    names = (entry.image_id.removeprefix("sha256:"),) if entry else ()
    found = (podman.inspect("image", name) for name in (*names, *names_of(image)))
    return next((one for one in found if one is not None), None)


def is_ready(podman: Podman, image: ImageRef) -> bool:
    """Whether podman has the image that is to run: the locked one where it can be had, else one
    that is built from what the tree holds now."""
    found = find(podman, image)
    if found is None or image.override is not None:
        return found is not None
    entry = locked(image)
    could_be_had = entry is not None and settings.registry() is not None
    return _content(found) == image.content and (
        entry is None or entry.names(found) or not could_be_had
    )


def facts(podman: Podman, image: ImageRef, image_id: str) -> dict[str, object]:
    """What ran, for the record: repository digests, and whether it is the locked image."""
    found = podman.inspect("image", image_id) or {"Id": f"sha256:{image_id}"}
    entry = locked(image)
    said: dict[str, object] = {"digests": sorted(found.get("RepoDigests") or [])}
    return said if entry is None else said | {"locked": entry.names(found)}


def pull(podman: Podman, reference: str, sink: Sink) -> None:
    """Fetch an image from its registry. Raises EnvironmentFault with podman's own reason."""
    said: list[str] = []

    def on_line(stream: Literal["stdout", "stderr"], text: str) -> None:
        said.append(text)
        sink.line("stdout", text)  # podman writes its progress to standard error

    # As Docker does it: a registry on this machine needs no TLS.
    words = ["--tls-verify=false"] if _LOOPBACK.match(reference) else []
    ended = processes.stream([podman.path, "pull", *words, reference], on_line)
    if ended.returncode != 0:
        fault = fault_of("\n".join(said))
        raise EnvironmentFault(f"pulling {reference} failed: {fault.message}", fix=fault.fix)


def pull_locked(podman: Podman, image: ImageRef, entry: Entry, registry: str, sink: Sink) -> None:
    """Fetch the locked image by digest, check it, and give it our tag. Raises EnvironmentFault."""
    reference = f"{registry}/{image.name}@{entry.digest}"
    pull(podman, reference, sink)
    found = podman.inspect("image", reference)
    if found is None or not entry.names(found) or _content(found) != image.content:
        if found is not None:
            podman.call("rmi", reference)
        raise EnvironmentFault(
            f"{reference} is not the image that images/lock.yaml means",
            fix="the lock file and the registry disagree: push again from these sources",
        )
    podman.do("tag", reference, _LOCAL + image.reference)


def copy_from_docker(podman: Podman, docker: DockerEngine, image: ImageRef, sink: Sink) -> None:
    """Copy an image that a Docker Engine has: same content, same id. Raises EnvironmentFault.

    It goes through an archive in the cache folder, which is removed again.
    """
    from ae.images.content import client_environment, find_client

    reference = image.reference
    size = docker.daemon.control.inspect_image(reference)["Size"]  # type: ignore[no-untyped-call]
    archive = cache_dir() / "copies" / f"{image.name}-{image.flavour}-{image.content[:12]}.tar"
    archive.parent.mkdir(parents=True, exist_ok=True)
    require_disk(archive.parent, size, f"copying {reference} from Docker")
    require_disk(podman.graph_root, size, f"copying {reference} from Docker")
    sink.line("stdout", f"copying {reference} from {docker.endpoint}")
    try:
        saved = processes.run(
            [find_client(docker.endpoint), "save", "--output", str(archive), reference],
            env=client_environment(docker.endpoint),
        )
        if saved.returncode != 0:
            raise EnvironmentFault(
                f"Docker did not hand out {reference}: {saved.stderr.strip()[-300:]}",
                fix="see the daemon's log, or build for podman alone with DOCKER_HOST unset",
            )
        said = podman.do("load", "--input", str(archive), timeout_s=3600)
    finally:
        archive.unlink(missing_ok=True)
    loaded = said.strip().rpartition(" ")[2]
    if loaded != _LOCAL + reference:
        podman.do("tag", loaded, _LOCAL + reference)
        podman.do("untag", loaded, loaded)


def build(podman: Podman, root: Path, image: ImageRef, sink: Sink, options: BuildOptions) -> None:
    """Build an image with podman, after those it is built on where they are out of date.

    The docker client's buildx reads the bake file; no daemon is asked. Raises UsageError for
    options and bake files that do not fit, EnvironmentFault when a build fails.
    """
    from ae.images import bake
    from ae.images.build import bake_variables, check_options
    from ae.images.content import client_environment, find_client, image_ref
    from ae.model import Flavour

    check_options(options)
    try:
        client = find_client("unix:///var/run/docker.sock")
    except EnvironmentFault as fault:
        raise EnvironmentFault(
            f"podman cannot read images/docker-bake.hcl by itself: {fault.message}",
            fix="install docker-buildx and docker-cli (the programs alone, no daemon), or copy "
            "the image from another machine: docker save, podman load",
        ) from fault
    variables = client_environment("") | bake_variables(root, options)
    name = f"{image.name}-{image.flavour}"
    targets = bake.resolve((client, "buildx"), root, image.name, name, variables)
    for target in targets:
        folder, _, flavour = target.name.rpartition("-")
        wanted = image_ref(root, folder, Flavour(flavour))
        if target is targets[-1] or _content(find(podman, wanted) or {}) != wanted.content:
            _build_one(podman, root, target, wanted, sink, options)


def build_argv(
    program: str, root: Path, target: Target, image: ImageRef, options: BuildOptions, epoch: int
) -> tuple[str, ...]:
    """The `podman build` of one target of the bake file. `epoch`: time (s) of its sources."""
    from ae.images.build import image_tag
    from ae.images.content import labels

    # Docker's format: that of OCI has no SHELL, which our Dockerfiles use.
    words = [program, "build", "--format", "docker", *limit_words()]
    words += ["--file", str(root / target.context / target.dockerfile)]
    if target.stage:
        words += ["--target", target.stage]
    for tag in target.tags:
        words += ["--tag", _LOCAL + tag]
    for key, value in {**target.args, "SOURCE_DATE_EPOCH": str(epoch)}.items():
        words += ["--build-arg", f"{key}={value}"]
    for key, value in {**target.labels, **labels(image)}.items():
        words += ["--label", f"{key}={value}"]
    linked = {  # another target's result is in podman's storage by now
        name: f"docker-image://{_LOCAL}ae/{image_tag(value.removeprefix('target:'))}"
        if value.startswith("target:")
        else value
        for name, value in target.contexts.items()
    }
    for name, value in (linked | {k: str(v) for k, v in options.contexts.items()}).items():
        words += ["--build-context", f"{name}={value}"]
    for secret in target.secrets:
        words += ["--secret", secret]
    if options.network is not None:
        words += ["--network", options.network]
    if options.fresh:
        words += ["--no-cache"]
    return (*words, str(root / target.context))


def _build_one(
    podman: Podman, root: Path, target: Target, image: ImageRef, sink: Sink, options: BuildOptions
) -> None:
    from ae.images.build import build_disk, source_epoch

    fix = "free some disk where podman keeps images: podman system df"
    needed = build_disk(root, image, options.network)
    require_disk(podman.graph_root, needed, f"building {image.reference}", fix)
    argv = build_argv(podman.path, root, target, image, options, source_epoch(root, image))
    log = cache_dir() / "builds" / f"podman-{target.name}-{image.content[:12]}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as kept:
        kept.write(f"# {json.dumps(argv)}\n")

        def on_line(stream: Literal["stdout", "stderr"], text: str) -> None:
            kept.write(text + "\n")
            kept.flush()
            sink.line("stdout", text)

        ended = processes.stream(argv, on_line, cwd=root)
    if ended.returncode != 0:
        lines = log.read_text(errors="replace").splitlines()
        errors = [line for line in lines if line.startswith("Error")]
        why = f": {errors[-1][:300]}" if errors else ""
        raise EnvironmentFault(
            f"building {image.reference} with podman failed (exit code {ended.returncode}){why}",
            fix=f"the whole log is {log}",
        )


def _content(found: Mapping[str, Any]) -> str:
    """The content hash in an image's label; empty: it is not one of ours."""
    return str((found.get("Labels") or {}).get("ae.content", ""))
