"""The lane upstream of dlrm: parser, plan, claims; what builds the image; the driver of a point.

The logs under logs/ are made up by us, in the format of the artifact's load_emb.py. Nothing of the
artifact is here; where its files are edited or run, small files of ours stand in.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from dlrm_records import BASE_US, DATASETS, Records

from ae.records.files import Row
from tests.upstream import SOURCES, Lane, write

LANE = Lane("dlrm", "dlrm_upstream")
driver = LANE.driver  # puts its folder on the path

from dlrm_upstream import build, designs, install, sums, traces  # noqa: E402

LOGS = Path(__file__).parent / "logs"
A100 = "NVIDIA A100-SXM4-40GB"


# Parser, plan, claims, figure.


def test_a_whole_log_gives_kernel_times_in_microseconds() -> None:
    found = LANE.parse.load_emb(LOGS / "base", {"dataset": "random", "variant": "base"})
    times, batch = found[:2]
    assert (times["metric"], times["unit"], times["warmup"]) == ("kernel_time", "us", 1)
    assert len(times["samples"]) == 17  # 2 tables, 9 batches, the first launch dropped
    assert times["samples"][:3] == pytest.approx([446.0, 447.0, 445.0])
    labels = {"launch": "one_table", "cap": "none", "trace": "generated"}
    assert times["labels"] == labels | {"dataset": "random", "variant": "base"}
    assert (batch["metric"], batch["unit"], batch["warmup"]) == ("batch_time", "ms", 8)
    assert batch["samples"] == pytest.approx([5.58])
    static = {
        (one["metric"], one["labels"]["arch"]): one["samples"]
        for one in found if one["evidence"] == "static"
    }  # fmt: skip
    assert (static["registers", "sm_80"], static["occupancy", "sm_80"]) == ([74], [37.5])


def without(start: str) -> Callable[[str], str]:
    return lambda text: re.sub(rf"(?m)^{re.escape(start)}.*\n", "", text, count=1)


def swap(old: str, new: str) -> Callable[[str], str]:
    return lambda text: text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("name", "harm", "why"),
    [
        ("base", without("Latency of Embedding"), "has 17 kernel times where 18 are due"),
        ("base", swap("0.446 ms", "nan ms"), "is none of load_emb.py's"),
        ("base", swap("Device: gpu", "Device: gpu\nDevice: gpu"), "a second time"),
        ("base", swap("Batch Size: 2048", "Batch Size: 1024"), "says batch 1024, the driver 2048"),
        ("base", swap("0.00558]", "0.00758]"), "average batch latency is 0.005580 s"),
        ("rpf_l2p", swap("Pinned size: 60000", "Pinned size: 0"), "rows were pinned"),
        ("l2p", swap("Device", "Pinned size: 1\nDevice"), "says 1 times how many rows"),
    ],
)
def test_a_broken_log_is_one_sentence(
    tmp_path: Path, name: str, harm: Callable[[str], str], why: str
) -> None:
    shutil.copytree(LOGS / name, tmp_path / name)
    text = (LOGS / name / "load_emb.log").read_text()
    assert harm(text) != text
    LANE.refuses("load_emb", write(tmp_path / name / "load_emb.log", harm(text)), {}, why)


def test_occupancy_follows_the_rule() -> None:
    rule = {80: 37.5, 65: 37.5, 64: 50, 48: 62.5, 42: 62.5, 40: 75, 33: 75, 32: 100}
    assert {registers: LANE.parse.occupancy(registers) for registers in rule} == rule
    with pytest.raises(ValueError, match="cannot take 0 registers"):
        LANE.parse.occupancy(0)


def test_every_command_line_means_a_design_of_the_image() -> None:
    assert len(LANE.plan()) == 5 * 5  # the artifact's five runs
    names = [name for name, one in LANE.recipe.experiments.items() if one.lane == "upstream"]
    found = set()
    for point in LANE.plan(names):
        words = LANE.words(point)
        found.add(designs.design(words["variant"], words["cap"]))
        assert words["dataset"] == point.labels["dataset"]
        assert str(point.image.flavour) == "cuda"
    assert found == set(designs.EVERY)


SHARES = {"base": 1.0, "optmt": 0.66, "rpf": 0.6, "l2p": 0.62, "rpf_l2p": 0.5}


def made_up(shares: dict[str, float], registers: float = 74, odd: float = 7) -> list[Row]:
    """Rows of the artifact's five designs: kernel time as a share of the baseline's."""
    records = Records()
    for dataset, (variant, share) in product(DATASETS, shares.items()):
        pins, plain = variant in designs.PINNING, variant == "base"
        if pins and dataset == "one_item":
            continue
        labels = {"dataset": dataset, "variant": variant, "cap": "none" if plain else "42",
                  "trace": "generated"} | ({"hot_list": "fixed"} if pins else {})  # fmt: skip
        records.add("upstream", "kernel_time", BASE_US[dataset] * share, noise=0.01, **labels)
        for metric, value, more in (
            ("sums_crc32", odd if variant == "rpf" else 7, {"evidence": "measured"}),
            ("registers", registers if plain else 42, {"evidence": "static", "arch": "sm_80"}),
            ("occupancy", 37.5 if plain else 62.5, {"evidence": "static", "arch": "sm_80"}),
        ):
            records.add("upstream", metric, value, unit="", n=1, noise=0, **labels, **more)
    return records.rows


def test_the_claims_by_the_authors_code_are_judged_and_drawn() -> None:
    good = made_up(SHARES)
    assert {v for n, v in LANE.verdicts(good, A100).items() if "upstream" in n} == {"reproduced"}
    here = {n: v for n, v in LANE.verdicts(good, "NVIDIA H200").items() if "upstream" in n}
    magnitudes = {name for name, verdict in here.items() if verdict == "direction holds"}
    assert magnitudes == {"D1-upstream", "D2-upstream", "D3-upstream"}
    assert set(here.values()) == {"direction holds", "reproduced"}
    bad = LANE.verdicts(made_up(SHARES | {"optmt": 1.1, "rpf_l2p": 0.9}, 54, 8), A100)
    assert {name for name, verdict in bad.items() if verdict == "not reproduced"} == {
        "D2-upstream", "D3-upstream", "D3-monotone-upstream", "D6-upstream", "upstream-sums",
        "upstream.optmt",
    }  # fmt: skip
    assert bad["D1-upstream"] == "reproduced"
    drawn = LANE.draw(good, "upstream")["upstream"].table.set_index(["dataset", "variant"])
    assert len(drawn) == 5 * 5 - 2  # one_item has no list of hot rows
    assert drawn.loc[("random", "rpf_l2p"), "speedup"] == pytest.approx(2.0, rel=0.02)
    assert drawn.loc[("random", "optmt"), "row"] == "OptMT, cap 42"


# What builds the image.


def test_designs_have_names_of_their_own_and_base_comes_first() -> None:
    assert len({one.name for one in designs.EVERY}) == len(designs.EVERY) == 17
    assert [one.name for one in designs.chosen("rpf-cap42,base,rpf-cap42")] == ["base", "rpf-cap42"]
    assert (designs.chosen("all"), designs.chosen("")) == (designs.EVERY, designs.ARTIFACT[:1])
    with pytest.raises(ValueError, match="there is no design rfp"):
        designs.chosen("rfp")


USAGE = """
arch = sm_80
 Function _ZN40EmbeddingBag_updateOutputKernel_sum_meanIdlEEvPKT0_:
  REG:82 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:488
 Function _ZN40EmbeddingBag_updateOutputKernel_sum_meanIflEEvPKT0_:
  REG:%d STACK:8 SHARED:10240 LOCAL:0 CONSTANT[0]:488
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


def test_the_fixes_mend_the_paths_or_fail_loudly(tmp_path: Path) -> None:
    authors = "/scratch1/rzj5233/problem2/reproduce_MICRO24_GPU_DLRM_inference/scripts/"
    texts = {"save": "keep(1, '{0}test_500K_12.pt')\n"}
    texts["load"] = "a = take('{0}test_500K_12.pt')\nkeep(a, '{0}' + str(0) + '.pt')\n"
    files = {f"scripts/{n}_emb.py": (t.format(authors), t.format("")) for n, t in texts.items()}
    LANE.fixed(tmp_path, files, "apply.sh")


def test_only_whole_commit_names_are_fetched(tmp_path: Path) -> None:
    """fetch-commit.sh against a real repository of ours."""
    git = f"git -C {tmp_path} -c user.name=a -c user.email=a@example.org"
    fetch = f"{SOURCES / 'fetch-commit.sh'} file://{tmp_path}"
    script = f"""set -eu
        git init -q {tmp_path}
        for text in one two; do
            echo $text >{tmp_path}/file; {git} add file; {git} commit -q -m $text
        done
        {fetch} $({git} rev-parse HEAD~1) {tmp_path}/here
        {fetch} master {tmp_path}/no"""
    done = subprocess.run(["sh", "-c", script], check=False, capture_output=True, text=True)
    assert (done.returncode, "is not a whole commit name" in done.stderr) == (1, True), done.stderr
    assert (tmp_path / "here/file").read_text() == "one\n"


# Traces and sums.


def test_generated_traces_have_the_lists_rows_as_their_hot_rows() -> None:
    hot = np.random.default_rng(0).permutation(20_000)[:2_400]
    shares = {}
    for dataset in ("high_hot", "med_hot", "low_hot"):
        ids = traces.generate(dataset, hot, rows=20_000, ids=60_000)
        assert (ids.min() >= 0, ids.max() < 20_000) == (True, True)
        shares[dataset] = traces.share_of(ids, hot)
        assert np.isin(np.bincount(ids, minlength=20_000).argsort()[-20:], hot).all()
        assert (ids == traces.generate(dataset, hot, rows=20_000, ids=60_000)).all()
    assert shares["high_hot"] > shares["med_hot"] > shares["low_hot"] > 12
    assert set(traces.generate("one_item", hot, rows=20_000, ids=50)) == {0}
    unique = np.unique(traces.generate("random", hot, rows=20_000, ids=20_000)).size
    assert unique / 20_000 == pytest.approx(1 - np.exp(-1), abs=0.02)


def test_a_trace_that_a_person_brings_wins_and_is_checked(tmp_path: Path) -> None:
    given, authors = (tmp_path / name / traces.FILES["med_hot"] for name in ("given", "authors"))
    for path, text, ids in ((authors, "1\n2\n900000\n", [1, 2]), (given, "3\n", [3])):
        write(path, text)
        found = traces.find("med_hot", tmp_path, tmp_path, tmp_path)
        assert (found.source, found.ids.tolist()) == (path.parents[1].name, ids)
    for text, why in (("", "has no id"), ("x\n", "no row id"), ("-1\n", "negative")):
        given.write_text(text)
        with pytest.raises(ValueError, match=why):
            traces.find("med_hot", tmp_path, tmp_path, tmp_path)


def test_sums_are_checked_against_a_circle_of_ids() -> None:
    generator = np.random.default_rng(2)
    tables = [generator.random((50, 8), dtype=np.float32) for _ in range(2)]
    ids = generator.integers(0, 50, 37)
    stream = ids[np.arange(2 * 20 * 3) % 37].reshape(2, 20, 3)  # tables, bags, pooling
    outputs = [tables[t][stream[t]].sum(axis=1) for t in range(2)]
    assert sums.largest_error(outputs, tables, ids, 3) < sums.TOLERANCE
    assert sums.checksum([outputs]) != sums.checksum([outputs[::-1]])
    for wrong in (0.01, np.nan):
        outputs[1][3, 2] += wrong
        found = sums.largest_error(outputs, tables, ids, 3)
        assert found == pytest.approx(wrong, rel=1e-3, nan_ok=True)


# The driver, with a tiny torch and tiny scripts of ours in the place of the real ones.

TORCH = """
import ctypes, os, pickle
from types import SimpleNamespace
__version__ = "2.1.0a0"
version = SimpleNamespace(cuda="12.1", git_version="7bcf7da")
_gpu = os.environ["TEST_GPU"]
cuda = SimpleNamespace(
    is_available=lambda: bool(_gpu), get_arch_list=lambda: ["sm_80", "sm_90"],
    get_device_name=lambda n: "Test GPU",
    get_device_capability=lambda n: tuple(map(int, _gpu.split("."))),
)
class Array:
    def __init__(self, data): self.data, self.weight = data, self
    def detach(self): return self
    def numpy(self): return self.data
def load(path, map_location): return pickle.load(open(path, "rb"))
def save(thing, path): pickle.dump(thing, open(path, "wb"))
if "TEST_NO_LIBRARY" not in os.environ:
    ctypes.CDLL(os.path.dirname(os.path.abspath(__file__)) + "/lib/libtorch_cuda.so")
"""
SAVE = """
import numpy as np, torch
tables = [np.full((500000, 2), t + 1, np.float32) for t in range(2)]
torch.save([torch.Array(t) for t in tables], "test_500K_12.pt")
"""
LOAD = """
import os, sys, numpy as np, torch
path = os.environ.get("DATASET_FILE_PATH")
pinned = len(open(path).read().split()) if path and os.path.exists(path) else 0
print("pinned", pinned, repr(path))
threads = os.environ["OMP_NUM_THREADS"], len(os.sched_getaffinity(0))
assert threads == ("1", 1), threads
print(*sys.argv[1:])
wrong = float(os.environ.get("TEST_WRONG", "0"))
out = [torch.Array(np.full((4, 2), (t + 1) * 150 + wrong, np.float32)) for t in range(2)]
torch.save([out], "0.pt")
sys.exit(int(os.environ.get("TEST_EXIT", "0")))
"""


@pytest.fixture
def image(tmp_path: Path) -> Path:
    root = tmp_path / "image"
    torch = write(root / "torch/torch/__init__.py", TORCH)
    library = write(torch / "lib/which.c", "int which(void) { return 1; }")
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-o", "libtorch_cuda.so", "which.c"], cwd=library, check=True
    )
    for name in ("base", "l2p-cap42"):
        design = write(root / "designs" / name / "design.json", "{}")
        install.lay_over(torch, design)
    write(root / "artifact/scripts/save_emb.py", SAVE)
    write(root / "artifact/scripts/load_emb.py", LOAD)
    for name in traces.LISTS.values():
        rows = "\n".join(map(str, range(100)))
        write(root / "artifact/datasets/pinned_indices" / name, rows)
    for name in traces.FILES.values():
        write(root / "traces/given" / name, "\n".join(str(n % 200) for n in range(1000)))
    return root


@pytest.mark.parametrize(
    ("words", "more", "code", "why"),
    [
        ("l2p", {}, 0, "pinned 100 '/"),
        ("l2p --hot-list as_is", {}, 0, "pinned 0 ' /"),  # the blank in the path pins nothing
        ("base", {"TEST_WRONG": "1"}, 1, "the sums are wrong by up to 1"),
        ("base", {"TEST_EXIT": "9"}, 1, "load_emb.py ended with exit code 9"),
        ("base", {"TEST_DISK": str(10**15)}, 1, "GB free"),
        ("base", {"TEST_NO_LIBRARY": "1"}, 1, "was expected"),
        ("optmt --cap none", {}, 2, "base is the kernel without a cap"),
        ("base", {"TEST_GPU": ""}, 77, "sees no GPU"),
        ("base", {"TEST_GPU": "12.0"}, 77, "has code for sm_80, sm_90 and the GPU is sm_120"),
        ("rpf", {}, 77, "holds no design rpf-cap42; build it with DESIGNS"),
        ("l2p --dataset one_item", {}, 77, "no list of hot rows for one_item"),
    ],
)
def test_a_point_runs_the_scripts_or_says_why_not(
    image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str], words: str, more: dict[str, str], code: int, why: str,
) -> None:  # fmt: skip
    places = {"AE_UPSTREAM": str(image), "AE_OUT": str(tmp_path), "TEST_GPU": "8.0"}
    for name, value in (places | more).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(driver, "SCRATCH_BYTES", int(more.get("TEST_DISK", 20_000_000)))
    processors = os.sched_getaffinity(0)
    try:
        ended = driver.main(["--dataset", "low_hot", "--variant", *words.split()])
    except SystemExit as error:
        ended = error.code
    finally:
        os.sched_setaffinity(0, processors)
    shown = capfd.readouterr()
    assert (ended, why in (shown.err if code else shown.out)) == (code, True), shown
    assert (tmp_path / "upstream.json").exists() == (code == 0)
    if code == 0:
        log = (tmp_path / "load_emb.log").read_text()
        assert log in shown.out
        rows = "-".join(["500000"] * 12)
        assert "--batch-size 2048 --lookups-per-sample 150 --arch-sparse-feature-size 128 " in log
        assert f"--arch-embedding-size {rows} --data-generation={image}/traces/given/" in log
        facts = json.loads((tmp_path / "upstream.json").read_text())
        hot = ("as_is", 0, 0) if "as_is" in words else ("fixed", 100, 50)
        assert tuple(facts["hot_list"].values()) == hot
        assert (facts["trace"]["source"], facts["trace"]["ids"]) == ("given", 1000)
        assert (facts["sums"]["largest_error"], facts["prints_pinned"]) == (0, False)
        assert json.loads((tmp_path / "environment.json").read_text())["torch"] == "2.1.0a0"
