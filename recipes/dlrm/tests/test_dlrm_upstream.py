"""The upstream lane of DLRM: parser, plan, figure and claims, and what builds and runs the image.

The logs under logs/ are made up by us, in the format of the artifact's load_emb.py. Nothing of
the artifact is here; where its files are edited or run, small files of ours stand in.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[3]
IMAGE = ROOT / "images" / "dlrm-upstream"
LOGS = Path(__file__).parent / "logs"
sys.path.insert(0, str(IMAGE / "driver"))

from dlrm_upstream import __main__ as driver  # noqa: E402
from dlrm_upstream import build, designs, install, sums, traces  # noqa: E402

from ae.claims.tables import load_claims  # noqa: E402
from ae.model import Gpu, Machine, Plan  # noqa: E402
from ae.plan.planner import make_plan  # noqa: E402
from ae.plan.selection import Selection  # noqa: E402
from ae.recipe.code import load_code  # noqa: E402
from ae.recipe.load import load_recipe  # noqa: E402
from ae.recipe.models import Recipe  # noqa: E402
from ae.records.files import Environment, Row, frame  # noqa: E402
from ae.report.chapter import draw  # noqa: E402
from tests.judged import judge  # noqa: E402

A100 = Gpu(
    index=0, uuid="GPU-0", name="NVIDIA A100-SXM4-40GB", memory_gib=39.5, memory_free_gib=39.0,
    compute_capability=(8, 0), driver="550.54.15",
)  # fmt: skip
MACHINE = Machine(gpus=(A100,), cpus=16, memory_gib=128)
FACTS = {"gpu": "NVIDIA A100-SXM4-40GB", "driver": "550.54.15", "cuda": "12.1", "torch": "2.1.0a0"}
Edit = Callable[[str], str]


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return load_recipe(ROOT, "dlrm")


@pytest.fixture(scope="module")
def load_emb() -> Callable[..., list[dict[str, Any]]]:
    module = load_code(ROOT / "recipes" / "dlrm", "parse", fix="write it")
    return module.load_emb  # type: ignore[no-any-return]


@pytest.fixture
def log(tmp_path: Path) -> Callable[..., Path]:
    """Copies a sample; edits change its log, facts are merged into upstream.json."""

    def copy(name: str, edit: Edit | None = None, **facts: Any) -> Path:
        folder = tmp_path / name
        shutil.copytree(LOGS / name, folder)
        if edit is not None:
            text = (folder / "load_emb.log").read_text()
            assert edit(text) != text, "the edit changes nothing"
            (folder / "load_emb.log").write_text(edit(text))
        if facts:
            known = json.loads((folder / "upstream.json").read_text())
            (folder / "upstream.json").write_text(json.dumps(known | facts))
        return folder

    return copy


def plan(recipe: Recipe, **selection: Any) -> Plan:
    names = {"dlrm": "0" * 64, "dlrm-upstream": "1" * 64}
    return make_plan(recipe, Selection(**selection), MACHINE, ROOT, names)


# The parser.


def test_a_whole_log_gives_kernel_times_in_microseconds(load_emb: Any) -> None:
    records = load_emb(LOGS / "base", {"dataset": "random", "variant": "base"})
    times = records[0]
    assert times["metric"] == "kernel_time"
    assert times["unit"] == "us"
    assert times["warmup"] == 1
    assert len(times["samples"]) == 17  # 2 tables, 9 batches, the first launch dropped
    assert times["samples"][:3] == pytest.approx([446.0, 447.0, 445.0])
    assert times["labels"] == {
        "dataset": "random", "variant": "base", "launch": "one_table", "cap": "none",
        "trace": "generated",
    }  # fmt: skip
    assert "whole microseconds" in times["note"]
    batch = records[1]
    assert (batch["metric"], batch["unit"], batch["warmup"]) == ("batch_time", "ms", 8)
    assert batch["samples"] == pytest.approx([5.58])
    static = {
        (r["metric"], r["labels"]["arch"]): r["samples"]
        for r in records
        if r["evidence"] == "static"
    }
    assert static["registers", "sm_80"] == [74]
    assert static["occupancy", "sm_80"] == [37.5]


def _without(start: str) -> Edit:
    return lambda text: re.sub(rf"(?m)^{re.escape(start)}.*\n", "", text, count=1)


def _swap(old: str, new: str) -> Edit:
    return lambda text: text.replace(old, new, 1)


BROKEN: list[tuple[str, Edit, str]] = [
    ("base", _without("Latency of Embedding"), "has 17 kernel times where 18 are due"),
    ("base", _swap("0.446 ms", "nan ms"), "is none of load_emb.py's"),
    ("base", _swap("Device: gpu", "Device: gpu\nDevice: gpu"), "a second time"),
    ("base", _swap("Batch Size: 2048", "Batch Size: 1024"), "says batch 1024, the driver 2048"),
    ("base", _swap("0.00558]", "0.00758]"), "average batch latency is 0.005580 s"),
    ("rpf_l2p", _swap("Pinned size: 60000", "Pinned size: 0"), "rows were pinned"),
    ("l2p", _swap("Device", "Pinned size: 1\nDevice"), "says 1 times how many rows"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "edit", "sentence"), BROKEN)
def test_a_broken_log_is_one_sentence(
    load_emb: Any, log: Callable[..., Path], name: str, edit: Edit, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        load_emb(log(name, edit), {})
    assert "\n" not in str(caught.value)


def test_occupancy_follows_the_rule(load_emb: Any) -> None:
    occupancy = load_emb.__globals__["occupancy"]
    rule = {80: 37.5, 65: 37.5, 64: 50, 48: 62.5, 42: 62.5, 40: 75, 33: 75, 32: 100}
    assert {registers: occupancy(registers) for registers in rule} == rule
    with pytest.raises(ValueError, match="cannot take 0 registers"):
        occupancy(0)


# The recipe.


def test_the_lane_plans_the_artifacts_five_runs(recipe: Recipe) -> None:
    points = plan(recipe, lane="upstream").points
    assert len(points) == 5 * 5
    assert {point.experiment for point in points} == {"upstream"}
    assert {point.image.name for point in points} == {"dlrm-upstream"}
    assert {str(point.image.flavour) for point in points} == {"cuda"}
    assert {point.parser for point in points} == {"load_emb"}
    assert {point.needs.network for point in points} == {"none"}
    assert recipe.lanes["upstream"].built is False


def test_every_command_line_means_a_design_of_the_image(recipe: Recipe) -> None:
    names = tuple(name for name, e in recipe.experiments.items() if e.lane == "upstream")
    found = set()
    for point in plan(recipe, lane="upstream", experiments=names).points:
        assert point.argv[:3] == ("python", "-m", "dlrm_upstream")
        words = driver._arguments(point.argv[3:])
        found.add(designs.design(words.variant, words.cap))
        assert words.dataset == point.labels["dataset"]
    assert found == set(designs.EVERY)


def rows(factor: dict[str, float], gpu: str = FACTS["gpu"]) -> list[Row]:
    generator = np.random.default_rng(1)
    base = {"one_item": 140, "high_hot": 250, "med_hot": 330, "low_hot": 400, "random": 445}
    made = []

    def add(metric: str, unit: str, samples: list[float], evidence: str, **labels: str) -> None:
        made.append(
            Row(metric=metric, unit=unit, samples=tuple(samples), evidence=evidence, labels=labels,
                experiment="upstream", point=f"upstream-{labels['dataset']}-{labels['variant']}",
                environment=Environment(gpu=gpu))
        )  # fmt: skip

    for dataset, us in base.items():
        for variant, share in factor.items():
            hot = {"hot_list": "fixed"} if variant in designs.PINNING else {}
            if hot and dataset == "one_item":
                continue
            cap = "none" if variant == "base" else "42"
            labels = {
                "dataset": dataset,
                "variant": variant,
                "cap": cap,
                "trace": "generated",
            } | hot
            times = us * share * (1 + 0.01 * generator.standard_normal(143))
            add("kernel_time", "us", [float(t) for t in times], "measured", **labels)
            add("sums_crc32", "crc32", [7.0], "measured", **labels)
            registers, share_of_warps = (74.0, 37.5) if cap == "none" else (42.0, 62.5)
            add("registers", "registers", [registers], "static", **labels, arch="sm_80")
            add("occupancy", "%", [share_of_warps], "static", **labels, arch="sm_80")
    return made


GOOD = {"base": 1.0, "optmt": 0.66, "rpf": 0.6, "l2p": 0.62, "rpf_l2p": 0.5}


def verdicts(made: list[Row], gpu: str = FACTS["gpu"]) -> dict[str, str]:
    claims = tuple(c for c in load_claims(ROOT, "dlrm") if "upstream" in c.id)
    return {v.id: str(v.verdict) for v in judge(claims, made, {"gpu": gpu})}


def test_the_claims_by_the_authors_code_are_judged() -> None:
    assert set(verdicts(rows(GOOD)).values()) == {"reproduced"}
    elsewhere = verdicts(rows(GOOD, "NVIDIA H200"), "NVIDIA H200")
    magnitudes = {"D1-upstream", "D2-upstream", "D3-upstream"}
    assert {elsewhere[name] for name in magnitudes} == {"direction holds"}
    assert {v for name, v in elsewhere.items() if name not in magnitudes} == {"reproduced"}


def test_the_claims_can_fail() -> None:
    bad = rows(GOOD | {"optmt": 1.1, "rpf_l2p": 0.9})
    for number, row in enumerate(bad):
        if row.metric == "sums_crc32" and row.labels["variant"] == "rpf":
            bad[number] = Row(**{**vars(row), "samples": (8.0,)})
        if row.metric == "registers" and row.labels["variant"] == "base":
            bad[number] = Row(**{**vars(row), "samples": (54.0,)})
    found = verdicts(bad)
    for name in ("D2", "D3", "D3-monotone", "D6"):
        assert found[f"{name}-upstream"] == "not reproduced", name
    assert found["upstream-sums"] == "not reproduced"
    assert found["D1-upstream"] == "reproduced"


def test_the_figure_draws_the_designs_over_their_baseline() -> None:
    (drawn,) = draw(ROOT / "recipes" / "dlrm", ["upstream"], frame(rows(GOOD)), FACTS, None)
    assert drawn.table is not None, drawn.reason
    table = drawn.table.set_index(["dataset", "variant"])
    assert len(table) == 5 * 5 - 2  # one_item has no list of hot rows
    assert table.loc[("random", "rpf_l2p"), "speedup"] == pytest.approx(2.0, rel=0.02)
    assert table.loc[("random", "optmt"), "row"] == "OptMT, cap 42"


# Designs and their build.


def test_designs_have_names_of_their_own_and_base_comes_first() -> None:
    assert len({one.name for one in designs.EVERY}) == len(designs.EVERY) == 17
    assert [one.name for one in designs.chosen("rpf-cap42,base,rpf-cap42")] == ["base", "rpf-cap42"]
    assert designs.chosen("all") == designs.EVERY
    assert designs.chosen("") == designs.ARTIFACT[:1]
    with pytest.raises(ValueError, match="there is no design rfp"):
        designs.chosen("rfp")


USAGE = """
Fatbin elf code:
================
arch = sm_80
code version = [1,7]

Resource usage:
 Common:
  GLOBAL:0
 Function _ZN2at6native12_GLOBAL__N_140EmbeddingBag_updateOutputKernel_sum_meanIdlEEvPKT0_:
  REG:82 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:488 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function _ZN2at6native12_GLOBAL__N_140EmbeddingBag_updateOutputKernel_sum_meanIflEEvPKT0_:
  REG:%d STACK:8 SHARED:10240 LOCAL:0 CONSTANT[0]:488 TEXTURE:0 SURFACE:0 SAMPLER:0
"""


def test_registers_are_read_for_float_rows_and_long_ids() -> None:
    usage = build.read_usage(USAGE % 74 + (USAGE % 72).replace("sm_80", "sm_90"))
    assert usage["sm_80"] == {
        "registers": 74, "stack_bytes": 8, "shared_bytes": 10240, "local_bytes": 0,
    }  # fmt: skip
    assert usage["sm_90"]["registers"] == 72
    with pytest.raises(build.BuildError, match="does not show the sum kernel"):
        build.read_usage((USAGE % 74).replace("IflE", "IfiE"))
    capped = designs.design("optmt", "42")
    build.check_cap(capped, build.read_usage(USAGE % 42))
    with pytest.raises(build.BuildError, match="cap of 42 did not reach the compiler"):
        build.check_cap(capped, usage)


def _library(folder: Path, name: str, source: str, *links: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.c").write_text(source)
    subprocess.run(
        ["gcc", "-shared", "-fPIC", f"-Wl,-soname,lib{name}.so", "-Wl,-rpath,$ORIGIN", "-o",
         str(folder / f"lib{name}.so"), str(folder / f"{name}.c"), f"-L{folder}", *links],
        check=True,
    )  # fmt: skip


# The fixes.


AUTHORS = "/scratch1/rzj5233/problem2/reproduce_MICRO24_GPU_DLRM_inference/scripts/"


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """Files of ours with the few words that the fixes look for."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/save_emb.py").write_text(f"keep(1, '{AUTHORS}test_500K_12.pt')\n")
    (tmp_path / "scripts/load_emb.py").write_text(
        f"a = take('{AUTHORS}test_500K_12.pt')\nkeep(a, '{AUTHORS}' + str(0) + '.pt')\n"
    )
    return tmp_path


def apply(artifact: Path) -> subprocess.CompletedProcess[str]:
    argv = [str(IMAGE / "fixes/apply.sh"), str(artifact)]
    return subprocess.run(argv, check=False, capture_output=True, text=True)


def test_the_fixes_mend_the_paths_and_nothing_else(artifact: Path) -> None:
    done = apply(artifact)
    assert done.returncode == 0, done.stderr
    assert (artifact / "scripts/save_emb.py").read_text() == "keep(1, 'test_500K_12.pt')\n"
    assert (artifact / "scripts/load_emb.py").read_text() == (
        "a = take('test_500K_12.pt')\nkeep(a, '' + str(0) + '.pt')\n"
    )
    for fix in sorted((IMAGE / "fixes").glob("[0-9]*.py")):
        assert fix.name in done.stdout
        head = fix.read_text()[:900]
        assert all(word in head for word in ("What is wrong", "Where", "no measurement")), fix.name


@pytest.mark.parametrize("name", ["save_emb.py", "load_emb.py"])
def test_a_fix_that_does_not_fit_fails_loudly(artifact: Path, name: str) -> None:
    path = artifact / "scripts" / name
    path.write_text(path.read_text().replace("scratch1", "scratch2"))
    done = apply(artifact)
    assert done.returncode != 0
    assert "stands there 0 times and not 1" in done.stderr


def test_only_whole_commit_names_are_fetched(tmp_path: Path) -> None:
    """fetch-commit.sh against a real repository of ours."""
    origin, here = tmp_path / "origin", tmp_path / "here"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-C", str(origin)]
    subprocess.run(["git", "init", "-q", str(origin)], check=True)
    for text in ("one", "two"):
        (origin / "file").write_text(text)
        subprocess.run([*git, "add", "file"], check=True)
        subprocess.run([*git, "commit", "-q", "-m", text], check=True)
    first = subprocess.run(
        [*git, "rev-parse", "HEAD~1"], check=True, capture_output=True, text=True
    ).stdout.strip()
    fetch = [str(IMAGE / "fetch-commit.sh"), f"file://{origin}"]
    subprocess.run([*fetch, first, str(here)], check=True)
    assert (here / "file").read_text() == "one"
    done = subprocess.run(
        [*fetch, "master", str(tmp_path / "no")], check=False, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "is not a whole commit name" in done.stderr


# Traces and sums.


def test_generated_traces_have_the_lists_rows_as_their_hot_rows() -> None:
    hot = np.random.default_rng(0).permutation(20_000)[:2_400]
    shares = {}
    for dataset in ("high_hot", "med_hot", "low_hot"):
        ids = traces.generate(dataset, hot, rows=20_000, ids=60_000)
        assert ids.min() >= 0
        assert ids.max() < 20_000
        shares[dataset] = traces.share_of(ids, hot)
        top = np.bincount(ids, minlength=20_000).argsort()[-20:]
        assert np.isin(top, hot).all()
        again = traces.generate(dataset, hot, rows=20_000, ids=60_000)
        assert (ids == again).all()
    assert shares["high_hot"] > shares["med_hot"] > shares["low_hot"] > 12
    assert set(traces.generate("one_item", hot, rows=20_000, ids=50)) == {0}
    unique = np.unique(traces.generate("random", hot, rows=20_000, ids=20_000)).size
    assert unique / 20_000 == pytest.approx(1 - np.exp(-1), abs=0.02)


def test_a_trace_that_a_person_brings_wins_and_is_checked(tmp_path: Path) -> None:
    given = tmp_path / "traces/given" / traces.FILES["med_hot"]
    authors = tmp_path / "traces/authors" / traces.FILES["med_hot"]
    for path, text in ((authors, "1\n2\n900000\n"), (given, "3\n")):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    found = traces.find("med_hot", tmp_path / "traces", tmp_path, tmp_path)
    assert (found.source, found.ids.tolist()) == ("given", [3])
    given.unlink()
    found = traces.find("med_hot", tmp_path / "traces", tmp_path, tmp_path)
    assert (found.source, found.ids.tolist()) == ("authors", [1, 2])
    for text, sentence in (("", "has no id"), ("x\n", "no row id"), ("-1\n", "negative")):
        authors.write_text(text)
        with pytest.raises(ValueError, match=sentence):
            traces.find("med_hot", tmp_path / "traces", tmp_path, tmp_path)


def test_sums_are_checked_against_a_circle_of_ids() -> None:
    generator = np.random.default_rng(2)
    tables = [generator.random((50, 8), dtype=np.float32) for _ in range(2)]
    ids = generator.integers(0, 50, 37)
    bags, pooling = 20, 3
    stream = ids[np.arange(2 * bags * pooling) % 37].reshape(2, bags, pooling)
    outputs = [tables[t][stream[t]].sum(axis=1) for t in range(2)]
    assert sums.largest_error(outputs, tables, ids, pooling) < sums.TOLERANCE
    wrong = [outputs[0], outputs[1].copy()]
    wrong[1][3, 2] += 0.01
    assert sums.largest_error(wrong, tables, ids, pooling) == pytest.approx(0.01, rel=1e-3)
    wrong[1][3, 2] = np.nan
    assert not sums.largest_error(wrong, tables, ids, pooling) <= sums.TOLERANCE
    assert sums.checksum([outputs]) == sums.checksum([[o.copy() for o in outputs]])
    assert sums.checksum([outputs]) != sums.checksum([outputs[::-1]])


# The driver, with a tiny torch and tiny scripts of ours in the place of the real ones.

TORCH = """
import os, pickle
from types import SimpleNamespace
import numpy as np
__version__ = "2.1.0a0"
version = SimpleNamespace(cuda="12.1", git_version="7bcf7da")
_gpu = os.environ.get("TEST_GPU", "8.0")
cuda = SimpleNamespace(
    is_available=lambda: bool(_gpu), get_arch_list=lambda: ["sm_80", "sm_90"],
    get_device_name=lambda n: "Test GPU",
    get_device_capability=lambda n: tuple(map(int, _gpu.split("."))),
)
class Array:
    def __init__(self, data): self.data = data
    def detach(self): return self
    def numpy(self): return self.data
class Bag:
    def __init__(self, data): self.weight = Array(data)
def load(path, map_location): return pickle.load(open(path, "rb"))
def save(thing, path): pickle.dump(thing, open(path, "wb"))
import ctypes
ctypes.CDLL(os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib", "libtorch_cuda.so"))
"""
SAVE = """
import numpy as np, torch
tables = [np.full((500000, 2), t + 1, np.float32) for t in range(2)]
torch.save([torch.Bag(t) for t in tables], "test_500K_12.pt")
print("Time elapsed(s):   0.000000")
"""
LOAD = """
import os, sys, numpy as np, torch
words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
trace = next(w.split("=", 1)[1] for w in sys.argv if w.startswith("--data-generation="))
path = os.environ.get("DATASET_FILE_PATH")
pinned = len(open(path).read().split()) if path and os.path.exists(path) else 0
print("Device: gpu"); print("Hotness: " + trace); print("pinned", pinned, repr(path))
print("threads", os.environ["OMP_NUM_THREADS"], os.sched_getaffinity(0).__len__())
bags, pooling = 4, 150
wrong = float(os.environ.get("TEST_WRONG", "0"))
out = [torch.Array(np.full((bags, 2), (t + 1) * pooling + wrong, np.float32)) for t in range(2)]
torch.save([out], "0.pt")
sys.exit(int(os.environ.get("TEST_EXIT", "0")))
"""


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    root = tmp_path / "image"
    torch = root / "torch/torch"
    _library(torch / "lib", "torch_cuda", "int which(void) { return 1; }")
    (torch / "__init__.py").write_text(TORCH)
    for name in ("base", "l2p-cap42"):
        folder = root / "designs" / name
        folder.mkdir(parents=True)
        variant = name.partition("-")[0]
        facts = {"variant": variant, "cap": None, "kernel": {}}
        (folder / "design.json").write_text(json.dumps(facts))
        install.lay_over(torch, folder)
    (root / "artifact/scripts").mkdir(parents=True)
    (root / "artifact/scripts/save_emb.py").write_text(SAVE)
    (root / "artifact/scripts/load_emb.py").write_text(LOAD)
    lists = root / "artifact/datasets/pinned_indices"
    lists.mkdir(parents=True)
    for name in traces.LISTS.values():
        np.savetxt(lists / name, np.arange(100), fmt="%d")
    for file in traces.FILES.values():
        path = root / "traces/given" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savetxt(path, np.arange(1000) % 200, fmt="%d")
    (tmp_path / "out").mkdir()
    monkeypatch.setenv("AE_UPSTREAM", str(root))
    monkeypatch.setenv("AE_OUT", str(tmp_path / "out"))
    monkeypatch.setattr(driver, "SCRATCH_BYTES", 20_000_000)
    processors = os.sched_getaffinity(0)
    yield root
    os.sched_setaffinity(0, processors)


def point(*words: str) -> int:
    return driver.main(["--dataset", "low_hot", "--variant", *words])


def test_the_driver_runs_a_point_and_writes_what_the_log_does_not_say(
    image: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = Path(os.environ["AE_OUT"])
    assert point("l2p") == 0
    shown = capfd.readouterr().out
    assert (out / "load_emb.log").read_text() in shown
    log = (out / "load_emb.log").read_text().splitlines()
    assert "pinned 100" in log[2]
    assert log[3] == "threads 1 1"
    facts = json.loads((out / "upstream.json").read_text())
    assert facts["hot_list"] == {"as": "fixed", "rows": 100, "share_percent": 50.0}
    assert facts["trace"]["source"] == "given"
    assert facts["trace"]["ids"] == 1000
    assert facts["sums"]["largest_error"] == 0
    assert facts["prints_pinned"] is False
    assert json.loads((out / "environment.json").read_text())["torch"] == "2.1.0a0"


def test_the_blank_in_the_path_pins_nothing_and_is_said(image: Path) -> None:
    assert point("l2p", "--hot-list", "as_is") == 0
    out = Path(os.environ["AE_OUT"])
    assert "pinned 0 ' /" in (out / "load_emb.log").read_text()
    facts = json.loads((out / "upstream.json").read_text())
    assert facts["hot_list"] == {"as": "as_is", "rows": 0, "share_percent": 0.0}


def test_wrong_sums_and_failed_scripts_end_the_point(
    image: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TEST_WRONG", "1")
    assert point("base") == 1
    assert "the sums are wrong by up to 1" in capfd.readouterr().err
    monkeypatch.setenv("TEST_EXIT", "9")
    assert point("base") == 1
    assert "load_emb.py ended with exit code 9" in capfd.readouterr().err
    assert not (Path(os.environ["AE_OUT"]) / "upstream.json").exists()
    monkeypatch.setattr(driver, "SCRATCH_BYTES", 10**15)
    assert point("base") == 1
    assert "GB free" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("gpu", "words", "reason"),
    [
        ("", ["--variant", "base"], "sees no GPU"),
        ("12.0", ["--variant", "base"], "has code for sm_80, sm_90 and the GPU is sm_120"),
        ("8.0", ["--variant", "rpf"], "holds no design rpf-cap42; build it with DESIGNS"),
        ("8.0", ["--variant", "l2p", "--dataset", "one_item"], "no list of hot rows for one_item"),
    ],
)
def test_what_cannot_run_here_says_so_with_77(
    image: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
    gpu: str, words: list[str], reason: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("TEST_GPU", gpu)
    with pytest.raises(SystemExit) as caught:
        driver.main(["--dataset", "low_hot", *words])
    assert caught.value.code == 77
    assert reason in capfd.readouterr().err.strip().splitlines()[-1]


def test_the_command_line_is_the_one_of_the_artifacts_script() -> None:
    argv = driver.load_argv(Path("/s"), Path("/t/trace.txt"))
    assert argv[0] == "/s/load_emb.py"
    words = dict(zip(argv[1::2], argv[2::2], strict=False))
    assert words["--num-batches"] == "12"
    assert words["--batch-size"] == "2048"
    assert words["--lookups-per-sample"] == "150"
    assert words["--arch-embedding-size"].split("-") == ["500000"] * 12
    assert "--data-generation=/t/trace.txt" in argv
