"""Runs one point of the artifact: one design on one dataset, with the authors' own scripts.

What quick.sh and l2_quick.sh do for four datasets in a row, for one: make the tables (save_emb.py),
run the inference (load_emb.py, its output kept in $AE_OUT/load_emb.log), then check the sums. What
the log does not say goes to $AE_OUT/upstream.json. recipes/dlrm/parse.py makes records of both.

Exit codes: 0 done, 1 wrong sums or a failed script, 2 bad arguments, 77 cannot run here.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reprokit.environment import gpu_clocks, machine_facts
from reprokit.progress import Progress
from reprokit.skip import cannot_run

from dlrm_upstream import traces
from dlrm_upstream.designs import PRINTS_PINNED, Design, design
from dlrm_upstream.sums import TOLERANCE

# quick.sh's sizes. save_emb.py holds tables, rows and columns fixed, so nothing here can vary.
SIZES = {
    "tables": 12,
    "rows": traces.ROWS,
    "dim": 128,
    "batch": 2048,
    "pooling": 150,
    "batches": 12,
}
SCRATCH_BYTES = 4_000_000_000  # tables 3.07 GB, sums 0.15 GB, the trace
# quick.sh's settings. MALLOC_CONF and the KMP_ ones reach nothing: their libraries are not loaded.
THREADS = {
    "MALLOC_CONF": "oversize_threshold:1,background_thread:true,metadata_thp:auto,"
    "dirty_decay_ms:-1,muzzy_decay_ms:-1",
    "KMP_AFFINITY": "granularity=fine,compact,1,0",
    "KMP_BLOCKTIME": "1",
    "OMP_NUM_THREADS": "1",
}


class PointError(Exception):
    """The point cannot give a result; one sentence."""


@dataclass(frozen=True, kw_only=True)
class Image:
    """Where things lie in the image."""

    root: Path

    @property
    def scripts(self) -> Path:
        """save_emb.py and load_emb.py, mended."""
        return self.root / "artifact/scripts"

    @property
    def lists(self) -> Path:
        """The artifact's lists of hot rows."""
        return self.root / "artifact/datasets/pinned_indices"

    @property
    def traces(self) -> Path:
        """given/ and authors/."""
        return self.root / "traces"

    def design(self, one: Design) -> Path:
        """The folder of a design."""
        return self.root / "designs" / one.name


@dataclass(frozen=True, kw_only=True)
class HotList:
    """The rows that a design is told to pin, as the environment variable names them."""

    value: str
    rows: int
    share: float  # per cent of the trace's accesses


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="dlrm_upstream")
    parser.add_argument("--variant", required=True)
    parser.add_argument("--cap", default="artifact", help="artifact, none, or registers per thread")
    parser.add_argument("--dataset", required=True, choices=traces.DATASETS)
    parser.add_argument("--hot-list", choices=["fixed", "as_is"], default="fixed")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line."""
    words = parse(argv)
    image = Image(root=Path(os.environ.get("AE_UPSTREAM", "/opt/ae")))
    out = Path(os.environ.get("AE_OUT", "."))
    try:
        one = design(words.variant, words.cap)
    except ValueError as error:
        print(f"dlrm_upstream: {error}", file=sys.stderr)
        return 2
    try:
        run_point(image, one, words.dataset, words.hot_list, out)
    except (PointError, ValueError) as error:
        print(f"dlrm_upstream: {error}", file=sys.stderr)
        return 1
    return 0


def run_point(image: Image, one: Design, dataset: str, hot_list: str, out: Path) -> None:
    """Measure one design on one dataset. Raises PointError; leaves with 77 when it cannot run."""
    facts = _design_facts(image, one)
    if one.pins and dataset not in traces.LISTS:
        cannot_run(f"the artifact has no list of hot rows for {dataset}")
    # quick.sh: taskset -c 0. A container may not own processor 0, so: the first that it has.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    progress = Progress(5)
    child = {**os.environ, **THREADS, "PYTHONPATH": _python_path(image, one)}
    seen = probe(child, image.design(one))
    environment = machine_facts() | {
        "torch": seen["torch"],
        "cuda": seen["cuda"],
        "torch_git": seen["git"],
    }
    start = gpu_clocks()
    with tempfile.TemporaryDirectory(prefix="dlrm-upstream-") as folder:
        scratch = Path(folder)
        _require_disk(scratch)
        trace = traces.find(dataset, image.traces, image.lists, scratch)
        progress.step(f"trace: {trace.source}, {trace.ids.size} ids")
        hot = hot_rows(image, one, dataset, hot_list, trace)
        if hot is not None:
            child["DATASET_FILE_PATH"] = hot.value
        _script([sys.executable, str(image.scripts / "save_emb.py")], scratch, child)
        progress.step("save_emb.py: tables")
        log = out / "load_emb.log"
        _script([sys.executable, *load_argv(image.scripts, trace.path)], scratch, child, log)
        progress.step("load_emb.py: inference")
        sums = _check_sums(scratch, trace.path, child)
        progress.step("sums checked")
    environment["clocks"] = {"start": start, "end": gpu_clocks()}
    environment["dataset"] = f"{dataset}: trace {trace.source}, {trace.ids.size} ids"
    _write(out / "environment.json", environment)
    _write(
        out / "upstream.json",
        {
            "schema": 1,
            "design": facts,
            "dataset": dataset,
            "sizes": SIZES,
            "trace": {"source": trace.source, "ids": trace.ids.size, "sha256": trace.sha256},
            "hot_list": hot and {"as": hot_list, "rows": hot.rows, "share_percent": hot.share},
            "prints_pinned": one.variant in PRINTS_PINNED,
            "sums": sums,
        },
    )
    progress.step("done")


def load_argv(scripts: Path, trace: Path) -> list[str]:
    """The command line that quick.sh makes."""
    return [
        str(scripts / "load_emb.py"), "--device", "gpu",
        "--num-batches", str(SIZES["batches"]), "--batch-size", str(SIZES["batch"]),
        "--lookups-per-sample", str(SIZES["pooling"]),
        "--arch-sparse-feature-size", str(SIZES["dim"]),
        "--arch-embedding-size", "-".join([str(SIZES["rows"])] * SIZES["tables"]),
        f"--data-generation={trace}", "--output-name", "0",
    ]  # fmt: skip


def hot_rows(
    image: Image, one: Design, dataset: str, hot_list: str, trace: traces.Trace
) -> HotList | None:
    """The list that a pinning design gets; None for the others.

    `as_is` keeps the blank that l2_quick.sh has before the path for low hotness: the library opens
    no such file, says nothing, and pins nothing.
    """
    if not one.pins:
        return None
    path = image.lists / traces.LISTS[dataset]
    rows = traces.read_list(path)
    if hot_list == "as_is" and dataset == "low_hot":
        return HotList(value=f" {path}", rows=0, share=0.0)
    return HotList(value=str(path), rows=rows.size, share=traces.share_of(trace.ids, rows))


def probe(child: Mapping[str, str], folder: Path) -> dict[str, Any]:
    """What the design's PyTorch sees. Leaves with 77 when it cannot use the GPU; PointError when
    the library that it loads is not the design's."""
    done = subprocess.run(
        [sys.executable, "-m", "dlrm_upstream.probe"], check=False, env=dict(child),
        capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise PointError(f"the design's PyTorch cannot be loaded: {last}")
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if seen["gpu"] is None:
        cannot_run("PyTorch sees no GPU, and the authors' code runs on nothing else")
    major, minor = seen["capability"]
    codes = [int(code.removeprefix("sm_")) for code in seen["archs"] if code.startswith("sm_")]
    if not any(code // 10 == major and code % 10 <= minor for code in codes):
        cannot_run(
            f"this image has code for {', '.join(seen['archs'])} and the GPU is sm_{major}{minor}; "
            "build it with another TORCH_CUDA_ARCH_LIST"
        )
    expected = (folder / "site/torch/lib/libtorch_cuda.so").resolve()
    if Path(seen["library"]).resolve() != expected:
        raise PointError(f"PyTorch loaded {seen['library']} where {expected} was expected")
    return seen


def _design_facts(image: Image, one: Design) -> dict[str, Any]:
    path = image.design(one) / "design.json"
    if not path.is_file():
        cannot_run(
            f"this image holds no design {one.name}; build it with DESIGNS={one.name} or all"
        )
    facts: dict[str, Any] = json.loads(path.read_text())
    return facts


def _python_path(image: Image, one: Design) -> str:
    ours = str(Path(__file__).resolve().parent.parent)
    return os.pathsep.join([str(image.design(one) / "site"), ours, *_kept_path()])


def _kept_path() -> list[str]:
    return [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]


def _require_disk(scratch: Path) -> None:
    free = shutil.disk_usage(scratch).free
    if free < SCRATCH_BYTES:
        raise PointError(
            f"{scratch} has {free / 1e9:.1f} GB free, "
            f"and the tables need {SCRATCH_BYTES / 1e9:.0f} GB"
        )


def _script(
    argv: list[str], folder: Path, child: Mapping[str, str], log: Path | None = None
) -> None:
    """Run one of the authors' scripts, its output shown and, if asked, kept. Raises PointError."""
    print("+", " ".join(argv), flush=True)
    with subprocess.Popen(
        argv, cwd=folder, env=dict(child), stdout=subprocess.PIPE, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    if log is not None:
        log.write_text("".join(lines), encoding="utf-8")
    if process.returncode != 0:
        raise PointError(f"{Path(argv[1]).name} ended with exit code {process.returncode}")


def _check_sums(scratch: Path, trace: Path, child: Mapping[str, str]) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "dlrm_upstream.sums", str(scratch / "0.pt"),
         str(scratch / "test_500K_12.pt"), str(trace), str(SIZES["pooling"])],
        check=False, env=dict(child), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    if done.returncode != 0:
        raise PointError("the sums that load_emb.py saved could not be checked")
    sums: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    if not sums["largest_error"] <= TOLERANCE:  # also when it is not a number
        raise PointError(
            f"the sums are wrong by up to {sums['largest_error']:g} (allowed: {TOLERANCE:g})"
        )
    return sums


def _write(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
