"""Images: what they are built from, and building them with `docker buildx`, output streamed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ae.errors import EnvironmentFault, UsageError, nearest
from ae.model import Flavour, ImageRef

if TYPE_CHECKING:
    from ae.engines.base import Sink

# Free disk that a build asks for: PyTorch with its CUDA libraries unpacks to some 8 GB, and the
# builder holds layers twice.
BUILD_DISK = {Flavour.CPU: 2 * 10**9, Flavour.CUDA: 15 * 10**9}
# What does not change an image. airgap.py runs on a host and is in no image.
_IGNORED = {
    "tests",
    "docs",
    "build",
    "dist",
    "__pycache__",
    "node_modules",
    "airgap.py",
    "reference_run.sh",
}
_IGNORED_ENDINGS = (".pyc", ".md", ".egg-info", ".rst", ".swp", "~")
_SHARED = ("common", "base")


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """What a person may say about a build. `wheels` is a folder of wheels, `ca_bundle` a file."""

    base_image: str | None = None
    wheels: Path | None = None
    ca_bundle: Path | None = None
    network: str | None = None


@dataclass(frozen=True)
class Built:
    """An image that has been built."""

    reference: str
    log: Path

    @property
    def sentence(self) -> str:
        """What to tell a person."""
        return f"built {self.reference}; log: {self.log}"


def image_ref(root: Path, name: str, flavour: Flavour) -> ImageRef:
    """Return the image of the folder images/<name>. Raises UsageError when there is none."""
    folder = root / "images" / name
    if not (folder / "Dockerfile").is_file():
        known = [path.parent.name for path in (root / "images").glob("*/Dockerfile")]
        raise UsageError(
            f"there is no image '{name}' (no images/{name}/Dockerfile); {nearest(name, known)}",
            fix="see the folders under images/",
        )
    return ImageRef(name=name, flavour=flavour, content=content_hash(root, name), source=folder)


def content_hash(root: Path, name: str) -> str:
    """Return a hash over all that images/<name> is built from: itself, `common` and `base`.

    Names, contents and executable bits count; tests, documentation and caches do not.
    """
    digest = hashlib.sha256()
    for part in dict.fromkeys((name, *_SHARED)):
        folder = root / "images" / part
        for path in sorted(_sources(folder), key=lambda p: p.relative_to(folder).as_posix()):
            executable = "x" if os.access(path, os.X_OK) else "-"
            data = path.read_bytes()
            label = f"{part}/{path.relative_to(folder).as_posix()}\0{executable}\0{len(data)}\0"
            digest.update(label.encode() + data)
    return digest.hexdigest()


def build(
    root: Path, image: ImageRef, sink: Sink, options: BuildOptions, *, endpoint: str | None = None
) -> Built:
    """Build an image at a daemon, its base first when that is missing or out of date.

    Raises EnvironmentFault with the first error of the build and where its whole log is.
    """
    from ae.engines.daemon import endpoint_of, probe

    endpoint = endpoint or endpoint_of()
    probe(endpoint)
    client = find_client(endpoint)
    _require_disk(client, endpoint, image)
    base = options.base_image
    if base is None and image.name != "base" and (root / "images/base/Dockerfile").is_file():
        base = _ready_base(root, image.flavour, client, endpoint, sink, options)
    return _build_one(root, image, base, client, endpoint, sink, options)


def build_argv(
    client: Client,
    root: Path,
    image: ImageRef,
    base: str | None,
    options: BuildOptions,
    wheels: Path,
) -> tuple[str, ...]:
    """The command line of one build. Pure. `wheels` is a folder that exists, perhaps empty."""
    words = [client.path, *(("buildx", "build") if client.buildx else ("build",))]
    if client.buildx:
        # The daemon's own builder: it sees local images as bases, and its result is local.
        words += ["--builder", "default", "--load"]
    words += ["--progress", "plain", "--file", str(image.source / "Dockerfile")]
    words += ["--tag", image.reference, "--build-arg", f"FLAVOUR={image.flavour}"]
    if base is not None:
        words += ["--build-arg", f"BASE_IMAGE={base}"]
    for key, value in labels(image).items():
        words += ["--label", f"{key}={value}"]
    words += ["--build-context", f"wheels={wheels}"]
    if options.ca_bundle is not None:
        words += ["--secret", f"id=ca,src={options.ca_bundle.resolve()}"]
    if options.network is not None:
        words += ["--network", options.network]
    return (*words, str(root / "images"))


def labels(image: ImageRef) -> dict[str, str]:
    """The labels by which a built image is known again."""
    return {
        "ae.image": image.name,
        "ae.flavour": str(image.flavour),
        "ae.content": image.content,
    }


@dataclass(frozen=True)
class Client:
    """A docker client that can do our builds: with buildx, or with a `build` that has BuildKit."""

    path: str
    buildx: bool


def find_client(endpoint: str) -> Client:
    """Return the first docker client that has buildx, else one whose `build` has what is needed.

    The first on PATH may be a bare client. Raises EnvironmentFault when there is none.
    """
    from ae import processes

    environment = client_environment(endpoint)
    candidates = list(_clients())
    for path in candidates:
        if (
            processes.run([path, "buildx", "version"], timeout_s=20, env=environment).returncode
            == 0
        ):
            return Client(path, buildx=True)
    for path in candidates:
        usage = processes.run([path, "build", "--help"], timeout_s=20, env=environment).stdout
        if "--build-context" in usage and "--secret" in usage:
            return Client(path, buildx=False)
    if not candidates:
        raise EnvironmentFault(
            "images are built with the docker client, and there is none on PATH",
            fix="install docker-cli and docker-buildx, or use --engine local",
        )
    raise EnvironmentFault(
        f"no docker client here has buildx (looked at {', '.join(candidates)})",
        fix="install the package docker-buildx (or docker-buildx-plugin)",
    )


def _build_one(
    root: Path,
    image: ImageRef,
    base: str | None,
    client: Client,
    endpoint: str,
    sink: Sink,
    options: BuildOptions,
) -> Built:
    from ae import processes
    from ae.machine import cache_dir

    for given, what in ((options.wheels, "--wheels"), (options.ca_bundle, "--ca-bundle")):
        if given is not None and not given.exists():
            raise UsageError(f"{what} {given}: there is no such path", fix="check the spelling")
    log = cache_dir() / "builds" / f"{image.name}-{image.flavour}-{image.content[:12]}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    errors: list[str] = []
    with (
        tempfile.TemporaryDirectory(prefix="ae-no-wheels-") as empty,
        log.open("w", encoding="utf-8") as kept,
    ):
        argv = build_argv(client, root, image, base, options, options.wheels or Path(empty))
        kept.write(f"# {json.dumps(argv)}\n")

        def on_line(stream: Literal["stdout", "stderr"], text: str) -> None:
            kept.write(text + "\n")
            kept.flush()
            if "ERROR" in text or "error:" in text:
                errors.append(text.strip())
            sink.line("stdout", text)  # buildx writes its progress to standard error

        ended = processes.stream(argv, on_line, env=client_environment(endpoint))
    if ended.returncode != 0:
        # The first error is the cause; what follows says that the build failed.
        why = f": {errors[0][:300]}" if errors else ""
        raise EnvironmentFault(
            f"building {image.reference} failed (exit code {ended.returncode}){why}",
            fix=f"the whole log is {log}",
        )
    return Built(image.reference, log)


def _ready_base(
    root: Path, flavour: Flavour, client: Client, endpoint: str, sink: Sink, options: BuildOptions
) -> str:
    """The base image, built when missing or out of date. One that a person imported is kept."""
    from ae import processes

    image = image_ref(root, "base", flavour)
    found = processes.run(
        [client.path, "image", "inspect", "--format", '{{index .Config.Labels "ae.content"}}',
         image.reference],
        timeout_s=60,
        env=client_environment(endpoint),
    )  # fmt: skip
    if found.returncode != 0 or found.stdout.strip() not in ("", "<no value>", image.content):
        _build_one(root, image, None, client, endpoint, sink, options)
    return image.reference


def _sources(folder: Path) -> Iterator[Path]:
    if not folder.is_dir():
        return
    for entry in folder.iterdir():
        name = entry.name
        if name.startswith(".") or name in _IGNORED or name.endswith(_IGNORED_ENDINGS):
            continue
        if entry.is_dir():
            yield from _sources(entry)
        elif entry.is_file():
            yield entry


def _clients() -> Iterator[str]:
    seen: set[str] = set()
    folders = [*os.environ.get("PATH", "").split(os.pathsep), "/usr/bin", "/usr/local/bin"]
    for folder in folders:
        path = shutil.which("docker", path=folder) if folder else None
        if path and path not in seen:
            seen.add(path)
            yield path


def client_environment(endpoint: str) -> dict[str, str]:
    """The environment in which a docker client talks to `endpoint` and no other."""
    environment = {key: value for key, value in os.environ.items() if key != "DOCKER_CONTEXT"}
    return environment | {"DOCKER_HOST": endpoint, "DOCKER_BUILDKIT": "1"}


def _require_disk(client: Client, endpoint: str, image: ImageRef) -> None:
    """Check the disk of a daemon on this machine; that of another cannot be seen."""
    from ae import processes
    from ae.machine import require_disk

    found = processes.run(
        [client.path, "info", "--format", "{{.DockerRootDir}}"],
        timeout_s=60,
        env=client_environment(endpoint),
    )
    folder = found.stdout.strip()
    if found.returncode == 0 and folder and endpoint.startswith("unix://"):
        require_disk(Path(folder), BUILD_DISK[image.flavour], f"building {image.reference}")
