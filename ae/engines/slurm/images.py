"""Images as files that every node can read, made once each, named by their digest."""

from __future__ import annotations

import fcntl
import json
from contextlib import suppress
from functools import cache
from pathlib import Path

from ae.engines.containers import ContainerEngine
from ae.engines.docker import DockerEngine
from ae.engines.podman import PodmanEngine
from ae.errors import EnvironmentFault
from ae.host import processes
from ae.host.files import sha256_of, write_atomic
from ae.host.machine import cache_dir
from ae.images.content import BuildOptions
from ae.images.lockfile import locked
from ae.model import ImageRef, Sink

_SUFFIX = {"podman": "tar", "apptainer": "sif", "pyxis": "sqsh"}
_digest = cache(sha256_of)


class Images:
    """The cache of one runtime, $XDG_CACHE_HOME/ae/slurm."""

    def __init__(self, runtime: str, build: BuildOptions | None) -> None:
        self._runtime, self._build = runtime, build

    def has(self, image: ImageRef) -> bool:
        with suppress(EnvironmentFault):  # `make` will say it
            return self._path(image).is_file()
        return False

    def about(self, image: ImageRef) -> tuple[str, str, str]:
        """File, id in an engine and sha256 of the file. Raises EnvironmentFault without it."""
        path = self._path(image)
        if not path.is_file():
            raise EnvironmentFault(
                f"the image {image.reference} was not made into a file for {self._runtime} yet",
                fix="run without --no-build",
            )
        note = Path(f"{path}.json")
        about = json.loads(note.read_text()) if note.is_file() else {"sha256": _digest(path)}
        return str(path), about.get("id", ""), about["sha256"]

    def make(self, image: ImageRef, sink: Sink) -> None:
        """Make the file from the image of the container engine here. Raises EnvironmentFault."""
        path, engine = self._path(image), self._maker()
        if not engine.has_image(image):
            engine.prepare(image, sink)
        ident = engine.needed(image)["Id"]
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_name(f".{path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if path.is_file():
                return
            part, saved = path.with_name(f".{path.name}.part"), path.with_name(f".{path.name}.save")
            part.unlink(missing_ok=True)
            sink.line("stdout", f"making {path.name} of {image.reference}")
            if self._runtime == "pyxis":
                kind = {"docker": "dockerd", "podman": "podman"}[engine.name]
                self._convert("enroot", "import", "--output", str(part), f"{kind}://{ident}")
            else:
                engine.do("save", "--output", str(saved), ident, timeout_s=3600)
                if self._runtime == "apptainer":
                    self._convert("apptainer", "build", str(part), f"docker-archive:{saved}")
                else:
                    saved.rename(part)
                saved.unlink(missing_ok=True)
            about = {"id": ident, "sha256": _digest(part)}
            write_atomic(Path(f"{path}.json"), json.dumps(about) + "\n")
            part.rename(path)

    def _convert(self, *argv: str) -> None:
        done = processes.run(argv, timeout_s=3600)
        if done.returncode != 0:
            said = (done.stderr.strip().splitlines() or ["no reason"])[-1]
            raise EnvironmentFault(f"{argv[0]} cannot make the image's file: {said}",
                                   fix=f"by hand: {' '.join(argv)}")  # fmt: skip

    def _path(self, image: ImageRef) -> Path:
        if image.override and Path(image.override).is_file():
            return Path(image.override).resolve()
        entry = locked(image)
        if image.override:
            key = self._maker().needed(image)["Id"].removeprefix("sha256:")
        else:
            key = entry.image_id.removeprefix("sha256:") if entry else image.content
        return cache_dir() / "slurm" / f"{image.name}-{key}.{_SUFFIX[self._runtime]}"

    def _maker(self) -> ContainerEngine:
        """The container engine of this machine."""
        for kind in (DockerEngine, PodmanEngine):
            if (engine := kind(build=self._build)).available().ok:
                return engine
        raise EnvironmentFault(
            "there is no Docker Engine and no podman here to make the image's file with",
            fix="make it where there is one and name it: --image FILE; see docs/slurm.md",
        )
