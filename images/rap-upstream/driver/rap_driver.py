"""Runs the authors' own programs for one point, and keeps their result file.

    python -m rap_driver --figure 9 --method stream --gpus 4 --plan 0 --batch 4096

Which program, with which arguments, is read out of the authors' scripts: the driver takes the one
line of the method's script for this number of GPUs, plan and batch, and the data preparation before
it. So a run can be resumed, and one cell can be had without the whole grid. MPS runs with pipe and
log folders of its own where the authors' script has it on, and nowhere else.
Exit codes: 0 done, 77 this machine or image cannot run it, 1 a program failed. The image brings its
own Python, which may be 3.8: nothing newer is used here.
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
# Gurobi's licence, a secret of the run. Without it only cached plans can be used: the licence that
# comes with gurobipy has expired and is too small for plan 0.
LICENCE = Path("/run/secrets/gurobi.lic")
PLANS = "RAP_end_to_end/searched_fused_kernels/plan-{plan}_nGPU-{gpus}.pkl"
# GiB of embedding tables on the fullest GPU, by plan and GPUs: calculated from the authors' table
# maps at 512 bytes a row (128 floats). The rest of the model and the batches take more.
TABLES = {
    ("0", "2"): 11.5, ("0", "4"): 11.5, ("0", "8"): 7.5,
    ("1", "2"): 46.6, ("1", "4"): 28.8, ("1", "8"): 23.4,
}  # fmt: skip
# Figure and method -> the script, and whether it has MPS on.
SCRIPTS = {
    ("9", "cpu"): ("baseline_end_to_end/CPU_based_baseline/run_cpu_baseline.sh", False),
    ("9", "stream"): ("baseline_end_to_end/CUDA_stream/run_stream.sh", False),
    ("9", "mps"): ("baseline_end_to_end/MPS/run_MPS.sh", True),
    ("9", "rap"): ("baseline_end_to_end/RAP/run_RAP.sh", True),
    ("10", "sequential"): ("breakdown_study/MPS_and_sequential/get_sequential_result.sh", False),
    ("10", "mps"): ("breakdown_study/MPS_and_sequential/get_MPS_result.sh", True),
    ("10", "rap_no_mapping"): ("breakdown_study/no_mapping/get_no_mapping_result.sh", True),
    ("10", "rap_no_fusion"): ("breakdown_study/no_fusion/get_no_fusion_result.sh", True),
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
    # `quit` waits for the programs; they have ended, so a minute is long.
    try:
        done = subprocess.run(
            [control], input=words + "\n", env=environment, capture_output=True, text=True,
            check=False, timeout=60,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise Failed(f"the MPS daemon does not answer `{words}`") from error
    return done.stdout


def check(
    root: Path, figure: str, method: str, gpus: str, plan: str, cards: Sequence[dict[str, str]]
) -> None:
    """Raise CannotRun when it can be known beforehand that a cell cannot run."""
    if figure == "10" and gpus != "4":
        raise CannotRun("the authors' breakdown study is for 4 GPUs alone")
    if method == "cpu" and importlib.util.find_spec("torcharrow") is None:
        raise CannotRun("the image was built without TorchArrow (--build-arg TORCHARROW=1)")
    smallest = min((float(card["memory_mib"]) / 1024 for card in cards), default=None)
    tables = TABLES[plan, gpus]
    if smallest is not None and smallest <= tables:
        raise CannotRun(
            f"plan {plan} on {gpus} GPUs puts {tables} GiB of tables on one GPU, and one here has "
            f"{smallest:.1f} GiB"
        )
    cached = root / PLANS.format(plan=plan, gpus=gpus)
    if method == "rap" and not cached.is_file() and not LICENCE.is_file():
        raise CannotRun(
            f"the authors' repository has no cached fusion for plan {plan} on {gpus} GPUs, so that "
            "Gurobi must solve it: --secret gurobi=/path/to/gurobi.lic"
        )


def run(root: Path, figure: str, method: str, gpus: str, plan: str, batch: str, out: Path) -> None:
    """Run one cell and put the authors' result file into `out` as result.log."""
    name, with_mps = SCRIPTS[figure, method]
    script = root / name
    folder = script.parent
    steps = [(folder, argv) for argv in commands(script.read_text(), gpus, plan, batch)]
    if method == "rap":
        generator = root / GENERATOR
        (made,) = commands(generator.read_text(), gpus, plan, GENERATED_BATCH)
        steps.insert(0, (generator.parent, made))
    before = set((folder / "result").glob("*"))
    with mps(with_mps) as environment:
        if LICENCE.is_file():
            environment["GRB_LICENSE_FILE"] = str(LICENCE)
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


def gpus_here() -> list[dict[str, str]]:
    """Name, driver and memory (MiB) of every GPU; none where nvidia-smi is missing."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, "--query-gpu=name,driver_version,memory.total"]
    query.append("--format=csv,noheader,nounits")
    said = subprocess.run(query, capture_output=True, text=True, check=False).stdout
    lines = [line.split(", ") for line in said.splitlines()]
    return [
        {"gpu": words[0], "driver": words[1], "memory_mib": words[2]}
        for words in lines
        if len(words) == 3 and words[2].isdigit()
    ]


def write_environment(root: Path, cards: Sequence[dict[str, str]], out: Path) -> None:
    """Facts for the record: GPU, driver, and the commit that the sources are of."""
    facts: dict[str, object] = {}
    if cards:
        facts.update(gpu=cards[0]["gpu"], driver=cards[0]["driver"], gpus=len(cards))
    sources = root.parent / "sources.txt"
    if sources.is_file():
        facts["RAP-artifacts"] = sources.read_text().strip()
    (out / "environment.json").write_text(json.dumps(facts))


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="rap_driver", description=__doc__.split("\n\n")[0])
    parser.add_argument("--figure", choices=["9", "10"], required=True)
    parser.add_argument("--method", choices=sorted({m for _, m in SCRIPTS}), required=True)
    parser.add_argument("--gpus", choices=["2", "4", "8"], required=True)
    parser.add_argument("--plan", choices=["0", "1"], required=True)
    parser.add_argument("--batch", choices=["4096", "8192"], required=True)
    parser.add_argument("--root", type=Path, default=Path("/workspace/RAP"))
    words = parser.parse_args(argv)
    if (words.figure, words.method) not in SCRIPTS:
        parser.error(f"figure {words.figure} has no method {words.method}")
    return words


def main() -> int:
    """Run one point."""
    words = parse()
    try:
        out = Path(os.environ["AE_OUT"])
        cards = gpus_here()
        write_environment(words.root, cards, out)
        check(words.root, words.figure, words.method, words.gpus, words.plan, cards)
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
