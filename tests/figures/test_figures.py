"""The figure machinery, with toy recipes: files, face, missing data, errors."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from ae.errors import RecipeError
from ae.figures import draw as figures
from ae.figures.draw import Plot, bars, new_panels
from ae.figures.summary import rows_of
from ae.records.files import Environment
from ae.report.chapter import bases_of, draw, face, machine_words

TOY = '''
import pandas as pd
from ae.figures.draw import NoData, Plot, bars, new_panels
from ae.figures.summary import pool

def times(frame):
    """A bar per variant."""
    found = pool(frame, "time", ["variant"])
    if found.empty:
        raise NoData("no record of metric time")
    figure, (axis,) = new_panels(1, len(found), title="Times")
    bars(axis, list(found["variant"]), list(found["median"]), low=list(found["low"]),
         high=list(found["high"]), colours=["#0072b2"] * len(found),
         texts=[f"{m:.1f}" for m in found["median"]], reach=found["high"].max())
    return Plot(figure=figure, table=found.drop(columns="samples"))

def plain(frame):
    figure, _ = new_panels(1, 1, title="Records")
    return Plot(figure=figure, table=frame)

def broken(frame):
    return frame["no such column"]

def wrong(frame):
    return 3
'''


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    folder = tmp_path / "recipes" / "toy"
    folder.mkdir(parents=True)
    (folder / "figures.py").write_text(TOY)
    return folder


def records(**samples: list[float]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"metric": "time", "unit": "us", "evidence": "measured", "samples": values,
             "n": len(values), "median": 0.0, "low": 0.0, "high": 0.0, "experiment": "e",
             "point": "p", "repeat": 0, "variant": name}
            for name, values in samples.items()
        ]
    )  # fmt: skip


def test_draw_writes_pdf_svg_png_and_the_plotted_values(recipe: Path, tmp_path: Path) -> None:
    frame = records(base=[4.0, 4.2, 4.1], fast=[2.0, 2.1])
    (drawn,) = draw(recipe, ["times"], frame, {"gpu": "NVIDIA A100"}, tmp_path / "out")
    assert drawn.reason == ""
    assert drawn.files["pdf"].read_bytes().startswith(b"%PDF")
    assert b"<svg" in drawn.files["svg"].read_bytes()
    assert drawn.files["png"].read_bytes().startswith(b"\x89PNG")
    table = pd.read_csv(drawn.files["csv"])
    assert list(table["variant"]) == ["base", "fast"]
    assert list(table["median"]) == [4.1, 2.05]
    assert list(table["n"]) == [3, 2]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "times.csv", "times.pdf", "times.png", "times.svg",
    ]  # fmt: skip


def test_the_same_records_give_the_same_bytes(recipe: Path, tmp_path: Path) -> None:
    frame = records(base=[4.0, 4.2, 4.1])
    (first,) = draw(recipe, ["times"], frame, {}, tmp_path / "a")
    (second,) = draw(recipe, ["times"], frame, {}, tmp_path / "b")
    for suffix in ("pdf", "svg", "png", "csv"):
        one, two = first.files[suffix], second.files[suffix]
        assert one.read_bytes() == two.read_bytes(), suffix


def test_a_figure_without_data_says_so_and_leaves_no_files(recipe: Path, tmp_path: Path) -> None:
    (drawn,) = draw(recipe, ["times"], records(), {}, tmp_path / "out")
    assert drawn.reason == "no record of metric time"
    assert drawn.files == {}
    assert list((tmp_path / "out").iterdir()) == []


def test_without_a_folder_nothing_is_saved(recipe: Path) -> None:
    (drawn,) = draw(recipe, ["times"], records(base=[4.0, 4.2, 4.1]), {}, None)
    assert (drawn.files, drawn.reason) == ({}, "")
    assert drawn.table is not None
    assert list(drawn.table["median"]) == [4.1]


def test_an_unknown_figure_names_the_nearest(recipe: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no function 'tims'") as error:
        draw(recipe, ["tims"], records(), {}, tmp_path)
    assert error.value.fix == "did you mean 'times'?"


def test_a_helper_imported_by_figures_py_is_not_a_figure(recipe: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no function 'poool'") as error:
        draw(recipe, ["poool"], records(), {}, tmp_path)
    assert "'pool'" not in error.value.fix


@pytest.mark.parametrize(
    ("name", "words"),
    [("broken", "figure 'broken' of toy failed: KeyError"), ("wrong", "did not return a Plot")],
)
def test_a_figure_that_fails_is_one_sentence(
    recipe: Path, tmp_path: Path, name: str, words: str
) -> None:
    with pytest.raises(RecipeError, match=words):
        draw(recipe, [name], records(base=[1.0]), {}, tmp_path)


def test_figures_py_that_is_missing_or_does_not_load(recipe: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="does not exist"):
        draw(tmp_path, ["times"], records(), {}, tmp_path)
    (recipe / "figures.py").write_text("def times(:\n")
    with pytest.raises(RecipeError, match="cannot be loaded: SyntaxError"):
        draw(recipe, ["times"], records(), {}, tmp_path)


def test_face_says_gpu_evidence_samples_and_spread() -> None:
    figure, _ = new_panels(1, 1, title="t")
    table = pd.DataFrame({"n": [84, 100], "evidence": ["measured", "measured+scaled"]})
    facts = Environment(gpu="NVIDIA H200", driver="580.159", cuda="13.0", torch="2.11.0")
    first, second = face(Plot(figure=figure, table=table), facts, []).splitlines()
    machine = "GPU: NVIDIA H200 (driver 580.159, CUDA 13.0, PyTorch 2.11.0)"
    assert first == f"{machine}   |   evidence: measured, scaled"
    assert second.startswith("samples: 84 to 100")
    assert second.endswith("whiskers: bootstrap 95 % interval")
    plot = Plot(figure=figure, table=table)

    def said(*counts: int) -> str:
        """Of as many label sets, each of so many processes."""
        each = [(f"v{at}", number) for at, count in enumerate(counts) for number in range(count)]
        frames = [records(**{name: [4.0]}).assign(repeat=number) for name, number in each]
        return face(plot, facts, rows_of(pd.concat(frames)))

    assert "5 to 6 processes on 1 device   |   bars: median, whiskers: boot" in said(5, 6)
    assert said(1).endswith("1 process   |   bars: median")
    some = said(1, 3)
    assert some.endswith("1 to 3 processes on 1 device   |   bars: median, whiskers: range")
    assert said(2, 5).endswith("bars: median, whiskers: 95 % interval (range below 5)")
    still = replace(plot, spread="one number per run, no spread")
    two = rows_of(pd.concat([records(base=[4.0]).assign(repeat=at) for at in range(2)]))
    said_of_two = face(still, facts, two)
    assert said_of_two.endswith("2 processes on 1 device   |   one number per run, no spread")
    elsewhere = [{**row, "uuid": f"GPU-{row['repeat']}"} for row in two]
    assert "   |   2 processes on 2 devices   |   " in face(still, facts, elsewhere)


def test_one_process_has_no_whisker_and_no_ends(recipe: Path, tmp_path: Path) -> None:
    one = records(base=[4.0, 4.2, 4.1, 4.0, 4.4])
    (drawn,) = draw(recipe, {"times": ("e",)}, one, {}, tmp_path)
    assert drawn.files["csv"].read_text().splitlines()[1].startswith("base,5,4.1,,,none,1,1,")
    several = pd.concat([one.assign(repeat=i) for i in range(3)])
    assert bases_of(rows_of(several)) == [("range", 3, 1)]
    assert bases_of(rows_of(several.assign(evidence="static"))) == []


def test_the_face_counts_the_processes_of_what_is_drawn(recipe: Path, tmp_path: Path) -> None:
    timed = pd.concat([records(base=[4.0, 4.2]).assign(repeat=i) for i in range(5)])
    once = records(base=[1.0])  # of another metric, or of another experiment than the figure's
    both = pd.concat([timed, once.assign(metric="found"), once.assign(experiment="f")])

    def said(function: str, experiment: str) -> str:
        (drawn,) = draw(recipe, {function: (experiment,)}, both, {}, tmp_path, ["svg"])
        return drawn.files["svg"].read_text()

    assert "|   5 processes on 1 device   |" in said("times", "e")
    assert "|   1 process   |" in said("times", "f")
    records_as_they_are = said("plain", "e")
    assert "|   1 to 5 processes on 1 device   |" in records_as_they_are


def test_a_figure_gets_the_records_of_its_experiments_alone(recipe: Path) -> None:
    both = pd.concat([records(base=[4.0]), records(base=[8.0]).assign(experiment="f")])
    for experiments, value in ((("e",), 4.0), (("f",), 8.0), (("e", "f"), 6.0)):
        (drawn,) = draw(recipe, {"times": experiments}, both, {}, None)
        assert drawn.table is not None
        assert list(drawn.table["median"]) == [value]
    (drawn,) = draw(recipe, {"times": ("another",)}, both, {}, None)
    assert drawn.reason


def test_the_face_says_where_variants_of_a_point_are_of_several_runs(
    recipe: Path, tmp_path: Path
) -> None:
    base, fast = (records(**{name: [4.0, 4.2]}).assign(point="e") for name in ("base", "fast"))

    def said(one: str, other: str) -> bool:
        both = pd.concat([base.assign(process=one), fast.assign(process=other)])
        (drawn,) = draw(recipe, {"times": ("e",)}, both, {}, tmp_path, ["svg"])
        return "variants of several runs, not paired" in drawn.files["svg"].read_text()

    assert said("monday/e", "tuesday/e")
    assert not said("monday/e/0", "monday/e/1")


@pytest.mark.parametrize(("high", "whiskers"), [(1.0, 0), (1.5, 1)])
def test_whiskers_are_drawn_where_there_is_a_spread(high: float, whiskers: int) -> None:
    _, (axis,) = new_panels(1, 1, title="t")
    bars(axis, ["a"], [1.0], low=[1.0], high=[high], colours=["red"], texts=[""], reach=1.0)
    (errors,) = axis.containers[1:]
    assert len(errors[2][0].get_segments()) == whiskers


@pytest.mark.parametrize(
    ("environment", "evidence", "words"),
    [
        ({"gpu": None, "cpu": "Xeon"}, ["measured"], "CPU: Xeon"),
        ({"gpu": ["NVIDIA H200", "NVIDIA H200"]}, ["measured"], "GPU: 2 x NVIDIA H200"),
        ({"gpu": [{"name": "A100"}]}, ["measured"], "GPU: A100"),
        ({"gpu": "A100"}, ["static"], "no GPU used: calculated, or read from compiled code"),
        ({}, ["measured"], "machine not recorded"),
    ],
)
def test_machine_words(environment: dict[str, object], evidence: list[str], words: str) -> None:
    assert machine_words(Environment.model_validate(environment), evidence) == words


def test_bars_start_at_zero_and_a_missing_value_has_no_bar() -> None:
    figure, (axis,) = new_panels(1, 2, title="t")
    bars(
        axis, ["a", "b"], [2.0, float("nan")], low=[1.9, 0], high=[2.1, 0],
        colours=["#000000"] * 2, texts=["2.0", "not measured"], reach=2.1, mark=1.0,
    )  # fmt: skip
    (bar,) = axis.patches
    assert bar.get_x() == 0
    assert bar.get_width() == 2.0
    assert axis.get_xlim()[0] == 0
    assert [text.get_text() for text in axis.texts] == ["2.0", "not measured"]
    assert figure.get_figwidth() > 0


@pytest.mark.parametrize(
    ("reach", "ticks"),
    [(2.3, [0, 1, 2, 3]), (100.0, [0, 25, 50, 75, 100]), (224.0, [0, 100, 200, 300])],
)
def test_ticks_of_bars_are_round(reach: float, ticks: list[int]) -> None:
    _, (axis,) = new_panels(1, 1, title="t")
    bars(axis, ["a"], [reach], low=[reach], high=[reach], colours=["red"], texts=[""], reach=reach)
    assert list(axis.get_xticks()) == ticks


def test_panels_beyond_one_line_wrap() -> None:
    _, axes = new_panels(7, 3, title="t")
    assert len(axes) == 7
    assert len({round(axis.get_subplotspec().rowspan.start) for axis in axes}) == 2


def test_matplotlib_is_not_imported_by_the_module() -> None:
    code = "import sys, ae.figures.draw; sys.exit('matplotlib' in sys.modules)"
    root = Path(figures.__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


def test_a_long_title_is_not_cut_off() -> None:
    title = "Theoretical occupancy of the compiled kernels (registers, bytes spilled)"
    figure, _ = new_panels(1, 3, title=title)
    figure.draw_without_rendering()
    (text,) = (text for text in figure.texts if text.get_text() == title)
    extent = text.get_window_extent()
    assert extent.x0 >= 0
    assert extent.x1 <= figure.bbox.x1


def test_texts_keep_clear_of_what_is_drawn_beside_the_bars() -> None:
    _, (axis,) = new_panels(1, 3, title="t")
    nan = float("nan")
    bars(
        axis, ["a", "b", "c"], [2.0, 2.0, nan], low=[2.0, 2.0, nan], high=[2.0, 2.0, nan],
        colours=["#000000"] * 3, texts=["x", "y", "none"], reach=10, beyond=[5.0, nan, 3.0],
    )  # fmt: skip
    first, second, _ = axis.texts
    assert first.get_position()[0] == pytest.approx(5.3)
    assert second.get_position()[0] == pytest.approx(2.3)
