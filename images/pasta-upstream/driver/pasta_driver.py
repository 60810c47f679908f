"""Runs the authors' own commands for one point, and keeps their logs.

    python3 -m pasta_driver working-sets --model bert
    python3 -m pasta_driver overhead --model bert --variant cs_cpu --sampling readme

The commands are those of the artifact's bin/run_figure_*.sh, one model at a time, so that a run can
be resumed. Differences: a benchmark runs in a copy of its folder, because the image is read-only;
the training run that writes the checkpoint comes first in every point; a run that measured nothing
is an error. Logs go to $AE_OUT under the artifact's names; the launcher's recipe turns them into
records. Exit codes: 0 done, 77 this machine or image cannot run it, 1 a command failed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pasta_steps import MODELS, SAMPLING, TOOLS, Step, steps_of

# What PyTorch took on the paper's GPUs; on Hopper it would take 32 MiB.
WORKSPACE = ":4096:2:16:8"
TIMER = "Trace collection time"
CANNOT = 77
_MEASURED = re.compile(r"Time taken: \d+\.\d+ seconds")


class Failed(Exception):
    """A command of the authors failed, or measured nothing."""


class CannotRun(Exception):
    """This machine or image cannot run the point."""


@dataclass(frozen=True)
class Place:
    """Where things are: AccelProf, Megatron-LM, the fixes, and the folder for results."""

    accelprof: Path
    megatron: Path
    fixes: Path
    out: Path
    work: Path

    @property
    def artifact(self) -> Path:
        """The authors' artifact package."""
        return self.accelprof / "cgo26-ae"


def run_step(step: Step, folder: Path, place: Place, base: Mapping[str, str]) -> None:
    """Run one command in `folder` and move its logs. Raises Failed."""
    environment = dict(base) | dict(step.environment or {})
    environment.pop("ACCEL_PROF_ENV_SAMPLE_RATE", None)
    if step.sampling > 1:
        environment["ACCEL_PROF_ENV_SAMPLE_RATE"] = str(step.sampling)
    print("+", *step.argv, flush=True)
    done = subprocess.run(step.argv, cwd=folder, env=environment, check=False)
    lost = []
    for name, kept in step.keep.items():
        if (folder / name).is_file():
            shutil.move(folder / name, place.out / kept)
        else:
            lost.append(name)
    if done.returncode != 0:
        raise Failed(f"'{step.title}' ended with exit code {done.returncode}")
    if lost:
        raise Failed(f"'{step.title}' left no {', '.join(lost)}")
    if step.log and not _says(place.out / step.keep[step.log], _MEASURED):
        # The ResNet programs print an error and end with 0 when their checkpoint is missing.
        raise Failed(f"'{step.title}' measured nothing: {step.keep[step.log]} has no 'Time taken'")


def prepare(model: str, place: Place, cudnn: str) -> Path:
    """Copy a benchmark to where it can write, with cuDNN switched off unless asked otherwise."""
    source = place.artifact / "benchmarks" / model
    if not source.is_dir():
        raise Failed(f"the image has no benchmark {model} ({source})")
    folder = Path(shutil.copytree(source, place.work / model))
    if cudnn == "off":
        fix = [sys.executable, str(place.fixes / "10-cudnn.py"), str(folder)]
        if subprocess.run(fix, check=False).returncode != 0:
            raise Failed("cuDNN could not be switched off in the benchmark")
    return folder


def prepare_megatron(place: Place) -> Path:
    """A copy of Megatron-LM with the artifact's training script in it."""
    folder = Path(shutil.copytree(place.megatron, place.work / "Megatron-LM"))
    script = folder / "run_dist_training.sh"
    shutil.copy(place.artifact / "bin" / "run_dist_training.sh", script)
    script.chmod(0o755)
    return folder


def gpus() -> list[dict[str, str]]:
    """Name, driver and compute capability of the GPUs that this process sees."""
    words = ["nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"]
    try:
        found = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    except FileNotFoundError:
        return []
    if found.returncode != 0:
        return []
    rows = [line.split(", ") for line in found.stdout.splitlines()]
    keys = ("name", "driver", "capability")
    return [dict(zip(keys, row, strict=True)) for row in rows if len(row) == len(keys)]


def nvbit_version(place: Place) -> str | None:
    """The version of the NVBit that the image was built with, as its header says."""
    for header in sorted((place.accelprof / "nv-nvbit" / "core").glob("*.h")):
        text = header.read_text(encoding="utf-8", errors="replace")
        if found := re.search(r'define\s+NVBIT_VERSION\s+"([\d.]+)"', text):
            return found[1]
    return None


def require(found: Sequence[Mapping[str, str]], variant: str, place: Place) -> None:
    """Raise CannotRun where the authors' software is known not to run."""
    for gpu in found:
        if _numbers(gpu["capability"]) >= (10, 0):
            raise CannotRun(
                f"{gpu['name']} has compute capability {gpu['capability']}; the CUDA 12.1 build of "
                "PyTorch 2.1 that the authors used has no code for it (7.5 to 9.0)"
            )
        bundled = nvbit_version(place)
        if (
            variant == "nvbit_cpu"
            and bundled is not None
            and _numbers(gpu["driver"]) >= (580,)
            and _numbers(bundled) < (1, 8)
        ):
            raise CannotRun(
                f"NVBit {bundled}, which the authors bundle, aborts on driver {gpu['driver']}; "
                "build the image with NVBIT_URL and NVBIT_SHA256 of version 1.8"
            )


def torch_versions() -> tuple[str | None, str | None]:
    """PyTorch's version and its CUDA's, read from its files: importing it takes seconds."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return None, None
    text = (Path(found.origin).parent / "version.py").read_text(encoding="utf-8")
    torch = re.search(r"^__version__ = '([^']+)'", text, flags=re.M)
    cuda = re.search(r"^cuda(?:: [^=]+)? = '([^']+)'", text, flags=re.M)
    return torch and torch[1], cuda and cuda[1]


def facts(
    place: Place, found: Sequence[Mapping[str, str]], args: argparse.Namespace
) -> dict[str, object]:
    """What environment.json holds."""
    manifest = place.fixes.parent / "sources.txt"
    sources = manifest.read_text().split("\n") if manifest.is_file() else []
    torch, cuda = torch_versions()
    names = [gpu["name"] for gpu in found]
    return {
        "gpu": names if len(names) > 1 else next(iter(names), None),
        "driver": found[0]["driver"] if found else None,
        "cuda": cuda,
        "torch": torch,
        "cudnn": args.cudnn,
        "cublas_workspace": args.workspace,
        "nvbit": nvbit_version(place),
        "hotness_blocks": os.environ.get("PASTA_HOTNESS_BLOCKS", "as-is"),
        "sources": dict(line.rsplit(" ", 1) for line in sources if " " in line),
    }


def run(args: argparse.Namespace, place: Place) -> None:
    """Run an experiment. Raises Failed or CannotRun."""
    place.out.mkdir(parents=True, exist_ok=True)
    found = gpus()
    written = place.out / "environment.json"
    written.write_text(json.dumps(facts(place, found, args), indent=1) + "\n", encoding="utf-8")
    variant = getattr(args, "variant", "")
    require(found, variant, place)
    if args.experiment == "breakdown" and not _has_timers(place, variant):
        raise CannotRun(
            "this image was built without the timers of Figure 10: build it with NV_COMPUTE_COMMIT "
            "and NV_NVBIT_COMMIT of the branches oh-breakdown (docs/upstream/pasta.md)"
        )
    steps = steps_of(args)
    about = vars(args) | {
        "sampling_rate": steps[-1].sampling,
        "blocks": os.environ.get("PASTA_HOTNESS_BLOCKS", "as-is"),
    }
    (place.out / "point.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    environment = dict(os.environ)
    if args.workspace == "paper":
        environment["CUBLAS_WORKSPACE_CONFIG"] = WORKSPACE
    if args.experiment == "parallel":
        folder = prepare_megatron(place)
    else:
        folder = prepare(getattr(args, "model", ""), place, args.cudnn)
    for number, step in enumerate(steps, start=1):
        print(f"::progress {number - 1}/{len(steps)} {step.title}", flush=True)
        run_step(step, folder, place, environment)
    print(f"::progress {len(steps)}/{len(steps)} done", flush=True)


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="pasta_driver", description=(__doc__ or "").split("\n")[0]
    )
    about = parser.add_subparsers(dest="experiment", required=True)
    model = argparse.ArgumentParser(add_help=False)
    model.add_argument("--model", choices=MODELS, required=True)
    profiler = argparse.ArgumentParser(add_help=False)
    profiler.add_argument("--variant", choices=tuple(TOOLS), required=True)
    profiler.add_argument("--sampling", choices=tuple(SAMPLING), default="readme")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--cudnn", choices=("off", "as-is"), default="off")
    common.add_argument("--workspace", choices=("paper", "as-is"), default="paper")
    about.add_parser("working-sets", parents=[common, model])
    about.add_parser("overhead", parents=[common, model, profiler])
    about.add_parser("breakdown", parents=[common, model, profiler])
    about.add_parser("hotness", parents=[common]).set_defaults(model="bert")
    about.add_parser("memory", parents=[common]).set_defaults(model="gpt2")
    megatron = about.add_parser("parallel", parents=[common])
    megatron.add_argument("--mode", choices=("dp", "tp", "pp"), required=True)
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit code."""
    args = parse(sys.argv[1:] if words is None else words)
    with tempfile.TemporaryDirectory(prefix="pasta-") as work:
        place = Place(
            accelprof=Path(os.environ.get("ACCEL_PROF_HOME", "/opt/AccelProf")),
            megatron=Path(os.environ.get("PASTA_MEGATRON", "/opt/Megatron-LM")),
            fixes=Path(os.environ.get("PASTA_FIXES", "/opt/pasta/fixes")),
            out=Path(os.environ.get("AE_OUT", "ae-out")).resolve(),
            work=Path(work),
        )
        try:
            run(args, place)
        except CannotRun as error:
            print(error, file=sys.stderr)
            return CANNOT
        except Failed as error:
            print(f"pasta_driver: {error}", file=sys.stderr)
            return 1
    return 0


def _has_timers(place: Place, variant: str) -> bool:
    name = "libnv-nvbit.so" if variant == "nvbit_cpu" else "libcompute_sanitizer.so"
    library = place.accelprof / "lib" / name
    return library.is_file() and TIMER.encode() in library.read_bytes()


def _says(path: Path, words: re.Pattern[str]) -> bool:
    with path.open(encoding="utf-8", errors="replace") as lines:
        return any(words.search(line) for line in lines)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


if __name__ == "__main__":
    sys.exit(main())
