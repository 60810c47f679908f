"""The engine `local`: a point is a child process in a cached environment; needs no container."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ae.engines.base import OUT_DIR, Availability, Engine, Job, Leftover, Outcome, Shell, Sink
from ae.engines.output import LastWords, classify
from ae.engines.spec import refused_by
from ae.errors import EnvironmentFault
from ae.host import owner, processes
from ae.host.machine import oom_kills, require_disk
from ae.images import environments
from ae.images.content import BuildOptions, source_paths
from ae.model import ImageRef, Point, Status

_PYTHONS = ("python", "python3")
_NO_MEMORY = ("MemoryError", "numpy._core._exceptions._ArrayMemory")  # above their limit
# What a workload may see of the caller's environment: nothing that changes what it computes.
_KEPT = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "TERM", "CUDA_HOME")
_KEPT_PREFIXES = ("NCCL_", "NVSHMEM_", "TORCH_SYMM_MEM_", "SSL_", "REQUESTS_CA")


class LocalEngine(Engine):
    """Runs points as child processes. Grants no capability, limit or namespace, and says so."""

    name = "local"
    no_gpus = (
        "nvidia-smi lists no GPU on this machine",
        "install the NVIDIA driver, or run on the CPU with --gpus none",
    )

    def _answer(self) -> Availability:
        """Always: the Python that runs `ae` can make environments."""
        own = os.environ.get("AE_LOCAL_PYTHON")
        where = f"interpreter {own}" if own else "cached environments"
        route = "host" if self.machine.gpus else ""
        facts = {"endpoint": "local", "version": "", "gpu_route": route}
        return Availability(ok=True, detail=f"local processes, {where}", facts=facts)

    def has_image(self, image: ImageRef) -> bool:
        """Whether the environment is there, whole, and made from what the tree holds now."""
        return environments.is_ready(image)

    def named(self, image: ImageRef) -> str:
        return f"the environment of {environments.interpreter(image)}"

    def prepare(self, image: ImageRef, sink: Sink) -> None:
        """Make the environment. Raises EnvironmentFault when that fails."""
        if image.override is not None:
            raise EnvironmentFault(
                f"--image {image.override} needs a container engine", fix="use --engine docker"
            )
        if self._build is None and not os.environ.get("AE_LOCAL_PYTHON"):
            said = f"the environment of {image.name} is not there or out of date"
            raise EnvironmentFault(said, fix="run without --no-build once")
        environments.make(image, sink, self._build or BuildOptions())

    def run(self, job: Job, sink: Sink, timeout_s: float) -> Outcome:
        """Run a job as a process group of its own, which ends with it."""
        point = job.point
        require_disk(job.out, point.disk_bytes, f"point {point.id}")
        if needed := [secret.name for secret in point.needs.secrets if not secret.optional]:
            said = f"{point.id} needs the secret '{needed[0]}', which only a container can be given"
            raise EnvironmentFault(said, fix="use --engine docker")
        python = environments.interpreter(point.image)
        if not os.access(python, os.X_OK):
            raise EnvironmentFault(
                f"the environment of {point.image.name} is not there", fix="run without --no-build"
            )
        words, kills = LastWords(sink), oom_kills()
        home = tempfile.mkdtemp(prefix=".home-", dir=job.out)
        try:
            ended = processes.stream(
                self._argv(job),
                words.line,
                timeout_s=timeout_s,
                env=self._environment(job, home),
                cwd=job.out,
                memory_bytes=point.needs.memory_bytes,
                grace_s=self.grace_s,
            )
        except processes.ProcessFault as fault:
            return Outcome(status=Status.FAILED, exit_code=127, seconds=0.0, reason=fault.message)
        finally:
            shutil.rmtree(home, ignore_errors=True)
        code = ended.returncode if ended.returncode >= 0 else 128 - ended.returncode
        refused = point.needs.memory_bytes is not None and words.last.startswith(_NO_MEMORY)
        oom = oom_kills() > kills if code == 128 + 9 else refused
        status, reason = classify(
            code, oom=oom, timed_out=ended.timed_out, timeout_s=timeout_s, last_words=words.last
        )
        return Outcome(
            status=status, exit_code=code, seconds=ended.seconds, reason=reason,
            image_id=f"environment {environments.folder(point.image).name}",
            honoured=self._honoured(job, python),
        )  # fmt: skip

    def leftovers(self) -> list[Leftover]:
        """Groups of processes that a launcher started, of living launchers too."""
        groups = {}
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                words = path.read_bytes().decode("utf-8", "replace").split("\0")
                own = {name: value for name, _, value in (word.partition("=") for word in words)}
                labels = owner.from_environment(own.get(owner.ENVIRONMENT, ""))
                if labels:  # the leader of the group may have gone
                    groups[os.getpgid(int(path.parent.name))] = labels
        return [Leftover.of(self.name, "process", str(pgid), of) for pgid, of in groups.items()]

    def remove(self, leftover: Leftover) -> None:
        """Stop the process group."""
        processes.stop_group(int(leftover.id), grace_s=self.grace_s)

    def equivalent(self, job: Job) -> tuple[str, ...]:
        env = self._own_environment(job)
        return ("env", *(f"{key}={value}" for key, value in env.items()), *self._argv(job))

    def shell(self, point: Point, out: Path, files: Mapping[str, Path] | None = None) -> Shell:
        """Command and environment of a shell with the environment's programs on PATH."""
        job = Job(point=point, out=out.resolve(), labels={})
        programs = str(environments.interpreter(point.image).parent)
        env = dict(os.environ) | self._own_environment(job)
        env["PATH"] = f"{programs}{os.pathsep}{env.get('PATH', os.defpath)}"
        return (os.environ.get("SHELL") or "/bin/sh",), env

    def _argv(self, job: Job) -> tuple[str, ...]:
        argv = tuple(_outside(word, job.out) for word in job.point.argv)
        if argv[0] in _PYTHONS:
            return (str(environments.interpreter(job.point.image)), *argv[1:])
        inside = environments.interpreter(job.point.image).parent / argv[0]
        return (str(inside), *argv[1:]) if os.access(inside, os.X_OK) else argv

    def _own_environment(self, job: Job) -> dict[str, str]:
        point = job.point
        sources = source_paths(point.image.root, point.image.name)
        env = {
            "AE_OUT": str(job.out),
            "AE_POINT": point.id,
            "PYTHONPATH": os.pathsep.join(str(path) for path in sources),
        }
        gpus = point.needs.gpus.devices if point.needs.gpus else ()
        env["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.name for gpu in gpus)
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # as the driver numbers them
        return env | dict(point.env)

    def _environment(self, job: Job, home: str) -> dict[str, str]:
        about = os.environ.items()
        kept = {key: v for key, v in about if key in _KEPT or key.startswith(_KEPT_PREFIXES)}
        stamp = owner.to_environment(owner.stamp(job.labels))
        own = self._own_environment(job)
        # Kernels compiled in one point serve the next: caches are kept per environment.
        cache = str(environments.folder(job.point.image)) + ".cache"
        defaults = {"HOME": home, "XDG_CACHE_HOME": cache, "NUMBA_CACHE_DIR": f"{cache}/numba"}
        return kept | defaults | {owner.ENVIRONMENT: stamp} | own

    def _honoured(self, job: Job, python: Path) -> dict[str, object]:
        needs = job.point.needs
        refused = refused_by("none", job.point)
        facts: dict[str, object] = {"engine": "local", "python": str(python), "refused": refused}
        if needs.gpus is not None:
            facts["gpus"] = [gpu.name for gpu in needs.gpus.devices]
        if needs.memory_bytes is not None:
            facts["Memory"] = needs.memory_bytes
        return facts


def _outside(word: str, out: Path) -> str:
    """A word of a command as it must be outside a container: the out folder is elsewhere."""
    inside = word == OUT_DIR or word.startswith(OUT_DIR + "/")
    return str(out) + word[len(OUT_DIR) :] if inside else word
