"""Runs the authors' own programs for one point, and keeps their result file.

    python -m rap_driver --figure 9 --method stream --gpus 4 --plan 0 --batch 4096

Which program, with which arguments, is read out of the authors' scripts: the driver takes the one
line of the method's script for this number of GPUs, plan and batch, and the data preparation before
it. So a run can be resumed, and one cell can be had without the whole grid. MPS runs with pipe and
log folders of its own where the authors' script has it on, and nowhere else.
Exit codes: 0 done, 77 this machine or image cannot run it, 1 a program failed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

CANNOT = 77
LICENCE = Path("/run/secrets/gurobi.lic")  # Gurobi's; without it only cached plans can be used
# Figure and method -> the script, and whether it has MPS on.
SCRIPTS = {
    ("9", "cpu"): ("baseline_end_to_end/CPU_based_baseline/run_cpu_baseline.sh", False),
    ("9", "stream"): ("baseline_end_to_end/CUDA_stream/run_stream.sh", False),
    ("9", "mps"): ("baseline_end_to_end/MPS/run_MPS.sh", True),
    ("9", "rap"): ("baseline_end_to_end/RAP/run_RAP.sh", True),
    ("10", "sequential"): ("breakdown_study/MPS_and_sequential/get_sequential_result.sh", False),
    ("10", "mps"): ("breakdown_study/MPS_and_sequential/get_MPS_result.sh", True),
    ("10", "no_mapping"): ("breakdown_study/no_mapping/get_no_mapping_result.sh", True),
    ("10", "no_fusion"): ("breakdown_study/no_fusion/get_no_fusion_result.sh", True),
    ("10", "rap"): ("breakdown_study/RAP/run_RAP.sh", True),
    ("10", "ideal"): ("breakdown_study/ideal/get_ideal_result.sh", False),
}
GENERATOR = "RAP_end_to_end/RAP_code_gen.sh"
GENERATED_BATCH = "4096"  # the generated programs serve both batch sizes
GPUS, BATCH, PLAN = "--nDev", "--batch_size", ("--preprocessing_plan", "--plan")


class Failed(Exception):
    """A program of the authors failed, or left no result."""


class CannotRun(Exception):
    """This machine or image cannot run the point."""


def commands(script: str, gpus: str, plan: str, batch: str) -> list[list[str]]:
    """The data preparation (where there is one) and the program of one cell, as argv.

    `script` is the text of an authors' script. Raises Failed when it has not exactly one such cell.
    """
    found: list[list[list[str]]] = []
    preparations: list[list[str]] = []
    for words in _python_lines(script, batch):
        if words[1] == "data_prepare.py":
            if _option(words, BATCH) in (batch, ""):
                preparations.append(words)
            continue
        wanted = {GPUS: gpus, BATCH: batch}
        if all(_option(words, key) == value for key, value in wanted.items()) and plan == next(
            (value for key in PLAN if (value := _option(words, key))), ""
        ):
            found.append([*preparations[-1:], words])
    if len(found) != 1:
        raise Failed(
            f"the authors' script has {len(found)} runs with {gpus} GPUs, plan {plan} and batch "
            f"{batch}, expected 1"
        )
    return found[0]


def _python_lines(script: str, batch: str) -> Iterator[list[str]]:
    for line in script.splitlines():
        text = line.strip().replace("$BATCH_SIZE", batch)
        if text.startswith("python "):
            yield shlex.split(text)


def _option(words: Sequence[str], name: str) -> str:
    values = [word.partition("=")[2] for word in words if word.startswith(name + "=")]
    return values[-1] if values else ""


@contextmanager
def mps(wanted: bool) -> Iterator[dict[str, str]]:
    """The environment of the programs: with a private MPS daemon, or surely without one."""
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith("CUDA_MPS")
    }
    if not wanted:
        if Path("/tmp/nvidia-mps").exists():
            raise CannotRun("an MPS daemon of the host is seen here, and this method has none")
        yield environment
        return
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        raise CannotRun("the driver's nvidia-cuda-mps-control is not in the container")
    with tempfile.TemporaryDirectory(prefix="mps-") as folder:
        for name in ("pipe", "log"):
            Path(folder, name).mkdir(mode=0o700)
            environment[f"CUDA_MPS_{name.upper()}_DIRECTORY"] = f"{folder}/{name}"
        subprocess.run([control, "-d"], env=environment, check=True)
        try:
            yield environment
            servers = _ask(control, "get_server_list", environment)
            if not servers.strip():
                raise Failed("no program has used the MPS daemon: what ran was not MPS")
        finally:
            _ask(control, "quit", environment)


def _ask(control: str, words: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [control], input=words + "\n", env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout


def run(root: Path, figure: str, method: str, gpus: str, plan: str, batch: str, out: Path) -> None:
    """Run one cell and put the authors' result file into `out` as result.log."""
    name, with_mps = SCRIPTS[figure, method]
    if figure == "10" and gpus != "4":
        raise CannotRun("the authors' breakdown study is for 4 GPUs alone")
    if method == "cpu" and importlib.util.find_spec("torcharrow") is None:
        raise CannotRun("the image was built without TorchArrow: TORCHARROW=1 ae build rap")
    script = root / name
    folder = script.parent
    steps = [(folder, argv) for argv in commands(script.read_text(), gpus, plan, batch)]
    if method == "rap":
        generator = root / GENERATOR
        (made,) = commands(generator.read_text(), gpus, plan, GENERATED_BATCH)
        steps.insert(0, (generator.parent, made))
    before = set((folder / "result").glob("*"))
    with mps(with_mps) as environment:
        for place, argv in steps:
            print(f"+ {shlex.join(argv)}", flush=True)
            program = [sys.executable, *argv[1:]]
            done = subprocess.run(program, cwd=place, env=environment, check=False)
            if done.returncode != 0:
                raise Failed(f"{argv[1]} ended with {done.returncode}")
    new = sorted(set((folder / "result").glob("*")) - before)
    if len(new) != 1:
        raise Failed(f"{argv[1]} left {len(new)} result files, expected 1")
    shutil.copy(new[0], out / "result.log")


def write_environment(root: Path, out: Path) -> None:
    """Facts for the record: GPU, driver, and the commit that the sources are of."""
    facts: dict[str, object] = {}
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    if shutil.which(query[0]):
        said = subprocess.run(query, capture_output=True, text=True, check=False).stdout
        lines = [line.split(", ") for line in said.splitlines() if ", " in line]
        if lines:
            facts |= {"gpu": lines[0][0], "driver": lines[0][1], "gpus": len(lines)}
    sources = root.parent / "sources.txt"
    if sources.is_file():
        facts["RAP-artifacts"] = sources.read_text().strip()
    (out / "environment.json").write_text(json.dumps(facts))


def main() -> int:
    """Run one point."""
    parser = argparse.ArgumentParser(prog="rap_driver", description=__doc__.split("\n\n")[0])
    parser.add_argument("--figure", choices=["9", "10"], required=True)
    parser.add_argument("--method", choices=sorted({m for _, m in SCRIPTS}), required=True)
    parser.add_argument("--gpus", choices=["2", "4", "8"], required=True)
    parser.add_argument("--plan", choices=["0", "1"], required=True)
    parser.add_argument("--batch", choices=["4096", "8192"], required=True)
    parser.add_argument("--root", type=Path, default=Path("/workspace/RAP"))
    words = parser.parse_args()
    if (words.figure, words.method) not in SCRIPTS:
        parser.error(f"figure {words.figure} has no method {words.method}")
    try:
        out = Path(os.environ["AE_OUT"])
        write_environment(words.root, out)
        run(words.root, words.figure, words.method, words.gpus, words.plan, words.batch, out)
    except CannotRun as reason:
        print(reason, file=sys.stderr)
        return CANNOT
    except (Failed, OSError, subprocess.CalledProcessError) as error:
        print(f"rap_driver: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
