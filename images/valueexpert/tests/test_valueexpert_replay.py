"""The mini-benchmarks: replays are the same bit by bit; detectors find what is labelled."""

from __future__ import annotations

import json
import subprocess
from importlib.metadata import distribution
from pathlib import Path

import pytest
from accel_trace import tools
from accel_trace.reporting import make_report, open_sessions, write_report
from accel_trace.toolchain import find_toolchain
from accel_trace.values.accesses import read_values
from native_support import need_tools
from valueexpert import build, traces
from valueexpert.bounds import MEMORY, gain, moved, spared
from valueexpert.catalog import MINIS, Label, Mini
from valueexpert.replay import ReplayError, run

BACKPROP = MINIS["backprop"]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("replays")


def program(mini: Mini, folder: Path) -> Path:
    path = folder / mini.name
    return path if path.is_file() else build.replay_program(mini.name, folder)


@pytest.mark.parametrize("name", MINIS)
def test_a_replay_is_what_was_recorded(name: str, programs: Path, tmp_path: Path) -> None:
    """Every value of every access, and every byte that was copied, is the recorded one's."""
    mini = MINIS[name]
    with traces.opened(mini) as folders:
        for variant, folder in folders.items():
            said = run(program(mini, programs), variant, mini.replay, tmp_path / variant)
            assert said == traces.said(folder)
            recorded, contents = read_values(folder / "values-1.npz")
            again, copied = read_values(tmp_path / variant / "values-1.npz")
            for column in recorded.__dataclass_fields__:
                assert list(getattr(again, column)) == list(getattr(recorded, column)), column
            assert copied.bytes.tobytes() == contents.bytes.tobytes()
            assert copied.ends.tolist() == contents.ends.tolist()


@pytest.mark.parametrize("name", MINIS)
def test_before_is_flagged_and_after_is_not(name: str) -> None:
    mini, wanted = MINIS[name], traces.labels()[name]
    with traces.opened(mini) as folders:
        found = {variant: traces.findings(folder)[1] for variant, folder in folders.items()}
        said = {variant: traces.said(folder) for variant, folder in folders.items()}
    for variant, rows in found.items():
        score = traces.score(rows, wanted[variant])
        assert (score.false, score.missed) == ((), ()), variant
        assert (score.precision, score.recall) == (1.0, 1.0)
    assert traces.fixed(mini, found)
    assert bool(mini.fixed) != bool(mini.why)
    what, times = mini.less
    if what:
        assert said["before"][what] == times * said["after"][what]


def test_a_wrong_label_costs_precision_and_recall() -> None:
    with traces.opened(BACKPROP) as folders:
        rows = traces.findings(folders["before"])[1]
    wanted = traces.labels()["backprop"]["before"]
    other = Label("heavy_type", "nowhere", "nothing")
    score = traces.score(rows, [*wanted[1:], other])
    assert (score.missed, score.false) == ((other,), (wanted[0],))
    assert score.precision == score.recall == (len(wanted) - 1) / len(wanted)
    assert not traces.fixed(BACKPROP, {"before": rows, "after": rows, "floats": rows})


def test_bytes_of_pathfinder_fall_exactly_four_times() -> None:
    mini = MINIS["pathfinder"]
    with traces.opened(mini) as folders:
        before, findings = traces.findings(folders["before"])
        after, _ = traces.findings(folders["after"])
    assert moved(before) == {part: 4 * size for part, size in moved(after).items()}
    stakes = spared(before, findings, set(mini.fixed["after"]))
    promised = {part: gain(moved(before)[part], stake) for part, stake in stakes.items()}
    assert promised == {"kernel": 4.0, MEMORY: 4.0}, "before alone promises what after gives"
    assert gain(10, 10) is None


def test_a_sum_that_leaves_the_byte_is_refused(programs: Path, tmp_path: Path) -> None:
    path = program(MINIS["pathfinder"], programs)
    rows = 200
    with pytest.raises(ReplayError, match="does not fit into a byte; take fewer rows"):
        run(path, "after", rows * 1_000_000 + 64, tmp_path)
    done = subprocess.run(
        [path, "before", str(rows * 1_000_000 + 64), "1"], capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert json.loads(done.stdout)["error"] == 0


def test_the_error_of_hotspot_is_said_and_bounded(programs: Path) -> None:
    path = program(MINIS["hotspot3d"], programs)
    errors = {}
    for variant in ("before", "after"):
        done = subprocess.run(
            [path, variant, "12", "1"], capture_output=True, text=True, check=True
        )
        errors[variant] = json.loads(done.stdout)["error"]
    assert errors["before"] == 0
    assert 0 < errors["after"] < 0.001


def test_double_literals_change_no_bit_of_backprop_here(programs: Path) -> None:
    """The change is zero whatever the precision; what differs is the arithmetic, on a GPU."""
    path = program(BACKPROP, programs)
    digests = {
        json.loads(
            subprocess.run([path, variant, "64", "1"], capture_output=True, check=True).stdout
        )["digest"]
        for variant in BACKPROP.variants
    }
    assert len(digests) == 1


def test_the_tool_reads_a_recorded_mini(tmp_path: Path) -> None:
    tool = tools.find("value_patterns")({"top": 3}, tmp_path)
    with traces.opened(BACKPROP) as folders:
        text = write_report(tool, make_report(tool, open_sessions(folders["before"])), tmp_path)
    assert "redundant write at adjust (weights); all of it could go; test before the store" in text
    assert "3 more: see the table" in text
    assert "loads: " in text
    assert (tmp_path / "value-flow-1.html").is_file()
    rows = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    counts = {r["labels"]["pattern"]: r["samples"][0] for r in rows if r["metric"] == "findings"}
    assert counts == {"redundant_write": 2, "single_zero": 3, "zero_upload": 1}
    assert {r["evidence"] for r in rows if r["metric"] == "bound"} <= {"simulated"}


@pytest.mark.parametrize("name", MINIS)
def test_cuda_compiles_for_both_architectures(name: str, tmp_path: Path) -> None:
    need_tools()
    assert build.cuda_program(name, tmp_path).stat().st_size > 0


def test_cuda_programs_link_by_nvidias_wheels_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the image of flavour cuda, where no toolkit is installed."""
    need_tools()
    wheels = Path(str(distribution("nvidia-cuda-nvcc").locate_file("nvidia/cu13")))
    monkeypatch.setenv("ACCEL_TRACE_TOOLKIT", str(wheels))
    assert find_toolchain().nvcc == wheels / "bin" / "nvcc"
    assert build.cuda_program("pathfinder", tmp_path).stat().st_size > 0


def test_words_when_nothing_can_be_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(build.BuildError, match="nothing\\.cu does not compile"):
        build.replay_program("nothing", tmp_path)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(build.BuildError, match="g\\+\\+ is not here"):
        build.replay_program("bfs", tmp_path)
    monkeypatch.setenv("VALUEEXPERT_KERNELS", str(tmp_path))
    with pytest.raises(build.BuildError, match="set VALUEEXPERT_KERNELS"):
        build.kernels()
