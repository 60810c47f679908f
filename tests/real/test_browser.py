"""The site of the reference results in a real browser, as a person uses it: nothing is fetched,
nothing is wrong on the console, tables sort and filter, views open, and all of it prints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from csv import DictReader
from io import StringIO
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest

from ae.commands import results as commands
from ae.recipe.load import load_recipe
from ae.records.results import load_reference
from ae.report.chapter import draw_figures
from ae.report.views import COLOURS
from tests.conftest import missing
from tests.real.browser import Page, browser, find

ROOT = Path(__file__).resolve().parents[2]
SETS = [
    path
    for path in sorted((ROOT / "results/reference").glob("*/*/runs"))
    if (ROOT / "recipes" / path.parent.name).is_dir()
]
ALL_MB = 2.0  # of all pages, without the vendored code

CONTRAST = """(() => {
  const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (one) => {
    for (; one; one = one.parentElement) {
      const colour = parse(getComputedStyle(one).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const bad = new Set();
  for (const one of document.querySelectorAll("body *")) {
    const own = [...one.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!own || one.closest("script, svg") || !one.checkVisibility()) continue;
    const [a, b] = [light(parse(getComputedStyle(one).color)), light(behind(one))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) bad.add(`${one.tagName}.${one.className} ${ratio.toFixed(2)}`);
  }
  return [...bad];
})()"""
OPEN_VIEW = """(async () => {
  const figure = document.querySelectorAll("figure")[%d];
  figure.querySelector("button").click();
  const said = figure.querySelector("[role=status]");
  while (!said.textContent) await new Promise((done) => setTimeout(done, 50));
  const marks = figure.querySelectorAll(".view [role=graphics-symbol][aria-roledescription]");
  return [figure.id, said.textContent, marks.length,
    figure.querySelector(".view").getBoundingClientRect().height,
    figure.querySelector("img").checkVisibility(),
    figure.querySelector(".view [role=graphics-document]")?.ariaLabel,
    figure.querySelectorAll(".view .role-legend-symbol").length];
})()"""
SAVED = """(async () => {
  const blobs = [];
  URL.createObjectURL = (blob) => { blobs.push(blob); return "#"; };
  const figures = [...document.querySelectorAll("figure")];
  for (const figure of figures) [...figure.querySelectorAll("button")].at(-1).click();
  const texts = await Promise.all(blobs.map((one) => one.text()));
  return figures.map((figure, at) => [figure.id, texts[at], figure.dataset.view]);
})()"""
INTERVALS = """[...document.querySelectorAll("details table.data")].map((table) => {
  table.closest("details").open = true;
  const heads = [...table.tHead.rows[0].cells];
  const at = heads.findIndex((one) => one.innerText.includes("interval"));
  heads[at]?.querySelector("button")?.click();
  return at < 0 ? [] : [...table.tBodies[0].rows].map((row) => row.cells[at].innerText);
})"""
CLAIMS = "document.querySelector('table.claims')"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not SETS:
        pytest.skip("no reference set of a recipe that is here")
    folder = tmp_path_factory.mktemp("site")
    commands.site(folder, sorted({path.parent.parent.name for path in SETS}))
    return folder


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    if find() is None:
        missing("chromium is not installed; apt-get install chromium", "browser")
    with browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


def pages(site: Path) -> list[Path]:
    return [path for path in sorted(site.glob("*.html")) if path.name != "index.html"]


def fullest(site: Path) -> Path:
    return max(pages(site), key=lambda path: path.read_text().count("<figure"))


def quiet(page: Page) -> bool:
    """Nothing was said, and nothing asked for but the file itself and images within it."""
    files = [address for address in page.requests if not address.startswith(("data:", "blob:"))]
    return page.said == [] and len(files) == 1 and files[0].startswith("file://")


def test_the_pages_are_small_and_one_for_each_set(site: Path) -> None:
    assert len(pages(site)) == len(SETS)
    assert sum(path.stat().st_size for path in site.glob("*.html")) < ALL_MB * 1e6


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_page_loads_alone_and_can_be_read(site: Path, page: Page, dark: bool) -> None:
    for path in sorted(site.glob("*.html")):
        page.open(path, dark=dark)
        assert quiet(page), (path.name, page.requests, page.said)
        assert page.ask(CONTRAST) == [], path.name
        levels = page.ask("[...document.querySelectorAll('h1,h2,h3,h4')].map(h => +h.tagName[1])")
        assert levels.count(1) == 1
        assert levels[0] == 1
        assert all(below <= above + 1 for above, below in pairwise(levels))
        ids = page.ask("[...document.querySelectorAll('[id]')].map((one) => one.id)")
        assert len(ids) == len(set(ids)), path.name
        ends = page.ask(
            "[...document.querySelectorAll('a[href^=\"#\"]')].map(a => a.hash.slice(1))"
        )
        assert set(ends) <= set(ids), path.name
        assert page.ask("[...document.images].every((one) => one.naturalWidth > 100)")
        unnamed = (
            "document.querySelectorAll('img:not([alt]), th:not([scope]), table:not(:has(caption))')"
        )
        assert page.ask(f"[...{unnamed}].length") == 0
        page.open(path, width=400, dark=dark)
        assert page.ask("document.documentElement.scrollWidth") <= 400, path.name


def test_the_way_from_the_scoreboard_to_a_page_and_back(site: Path, page: Page) -> None:
    page.open(site / "index.html")
    links = page.ask("[...document.querySelectorAll('main li a')].map((one) => one.href)")
    assert sorted(Path(one).name for one in links) == [path.name for path in pages(site)]
    page.ask("document.querySelector('main li a').click()")
    page.wait_for("Page.loadEventFired")
    assert page.ask("document.querySelector('nav a').href").endswith("index.html")


def test_without_javascript_the_tables_are_whole(site: Path, page: Page) -> None:
    path = fullest(site)
    page.open(path, script=False)
    page.do("Emulation.setScriptExecutionDisabled", value=False)  # to be asked
    assert page.ask("document.querySelectorAll('button, input').length") == 0
    assert page.ask(f"{CLAIMS}.rows.length") > 20
    assert quiet(page)


def test_tables_sort_and_filter_by_keyboard(site: Path, page: Page) -> None:
    page.open(fullest(site))
    rows = f"[...{CLAIMS}.tBodies[0].rows].filter((row) => !row.hidden)"
    words = f"{rows}.map((row) => row.cells[6].innerText)"
    before = page.ask(words)
    head = f"[...{CLAIMS}.querySelectorAll('th')].find(h => h.innerText.startsWith('verdict'))"
    page.ask(f"{head}.querySelector('button').focus()")
    page.press("Enter")
    order = page.ask(f"{head}.dataset.order").split("|")
    assert page.ask(words) == sorted(before, key=order.index)
    assert page.ask(f"{head}.getAttribute('aria-sort')") == "ascending"
    page.press("Enter")
    assert page.ask(words) == sorted(before, key=order.index, reverse=True)
    assert page.ask(f"{head}.getAttribute('aria-sort')") == "descending"
    page.ask(f"{CLAIMS}.closest('.wide').previousElementSibling.querySelector('input').focus()")
    page.do("Input.insertText", text="reproduced")
    shown = page.ask(words)
    assert 0 < len(shown) < len(before)
    said = page.ask(f"{CLAIMS}.closest('.wide').previousElementSibling.innerText")
    assert f"{len(shown)} of {len(before)} rows" in said


def test_numbers_sort_as_numbers(site: Path, page: Page) -> None:
    page.open(fullest(site))
    table = "document.querySelector('details > .wide table')"
    page.ask(f"{table}.closest('details').open = true")
    column = page.ask(
        f"[...{table}.tHead.rows[0].cells].findIndex((one) => one.innerText.includes('['))"
    )
    page.ask(f"{table}.tHead.rows[0].cells[{column}].querySelector('button').click()")
    cells = page.ask(f"[...{table}.tBodies[0].rows].map((r) => r.cells[{column}].innerText)")
    values = [float(cell.replace(",", "").split()[0]) for cell in cells]
    assert len(values) > 2
    assert values == sorted(values)


def test_intervals_sort_as_numbers_also_beside_ranges(site: Path, page: Page) -> None:
    mixed = 0
    for path in pages(site):
        page.open(path)
        for column in page.ask(INTERVALS):
            ends = [cell.removeprefix("range ").replace(",", "") for cell in column if cell]
            low = [float(cell.split(" to ")[0]) for cell in ends]
            assert len(column) < 3 or low == sorted(low), path.name
            mixed += 0 < sum(cell.startswith("range ") for cell in column) < len(column)
    assert mixed


def test_every_figure_has_an_interactive_view(site: Path, page: Page) -> None:
    picks = set()
    for path in pages(site):
        page.open(path)
        for at in range(page.ask("document.querySelectorAll('figure').length")):
            name, said, marks, height, image, label, symbols = page.ask(OPEN_VIEW % at)
            pick = "; click the legend to pick one" if symbols else ""  # a heat map has a scale
            assert said == f"Point at a mark for its values{pick}.", name
            picks.add(pick)
            rows = page.ask(
                f"document.querySelectorAll('figure')[{at}].querySelectorAll('pre')[0].textContent"
            ).count("\n")
            assert marks > 1 or rows < 3, name
            assert height > 50, name
            assert not image, name
            assert label == page.ask(f"document.querySelectorAll('figure img')[{at}].alt"), name
        assert COLOURS[0] in page.ask(
            "[...document.querySelectorAll('.view path')]"
            ".flatMap((one) => [one.getAttribute('fill'), one.getAttribute('stroke')])"
        ), path.name
        assert page.said == [], path.name
        scripts = {Path(one).name for one in page.requests if one.startswith("file:")}
        assert scripts == {path.name, *(one.name for one in (site / "assets").glob("*.js"))}
    assert len(picks) == 2


def test_a_page_without_its_assets_says_so(site: Path, page: Page, tmp_path: Path) -> None:
    alone = tmp_path / "alone.html"
    alone.write_text(fullest(site).read_text())
    page.open(alone)
    name, said, _, _, image, *_ = page.ask(OPEN_VIEW % 0)
    assert said == "No interactive view: assets/ is not beside this page.", name
    assert image


def test_it_prints_with_its_provenance(site: Path, page: Page) -> None:
    path = fullest(site)
    page.open(path)
    assert not page.ask("document.querySelector('.provenance').open")
    printed = page.pdf()
    assert printed.startswith(b"%PDF")
    assert page.ask("document.querySelector('.provenance').open")
    page.do("Emulation.setEmulatedMedia", media="print")
    assert not page.ask("document.querySelector('.tools').checkVisibility()")
    assert page.ask("document.querySelector('.provenance pre').checkVisibility()")
    page.do(
        "Emulation.setDeviceMetricsOverride",
        width=720,
        height=1000,
        deviceScaleFactor=1,
        mobile=False,
    )  # about A4 between its margins
    wide = "[...document.querySelectorAll('.wide')]"
    cut = f"{wide}.filter((one) => one.scrollWidth > one.clientWidth)"
    assert page.ask(f"{cut}.map((one) => one.ariaLabel)") == []
    page.open(site / "index.html", width=720)
    page.do("Emulation.setEmulatedMedia", media="print")
    lines = """[...document.querySelectorAll('td:nth-child(3)')].map((cell) => {
      const all = document.createRange(); all.selectNodeContents(cell);
      return all.getClientRects().length; })"""
    assert set(page.ask(lines)) == {1}, "no word is broken"
    page.do("Emulation.setEmulatedMedia", media="")


@pytest.mark.parametrize("name", ["dlrm-h200", "rap-h200"])  # the largest; cells of two lines
def test_the_whole_csv_of_a_figure_is_shown_in_parts_and_saved(
    site: Path, page: Page, tmp_path: Path, name: str
) -> None:
    path = next(one for one in pages(site) if one.stem == name)
    recipe, machine = path.stem.split("-", 1)
    results = load_reference(ROOT / "results/reference" / machine / recipe)
    page.open(path)
    saved = {name: (csv, json.loads(view)) for name, csv, view in page.ask(SAVED)}
    assert page.ask("document.querySelectorAll('pre.same').length") > 0
    for one in draw_figures(ROOT, load_recipe(ROOT, recipe), results, tmp_path, []):
        if not one.files:
            continue
        csv, view = saved.pop(f"{path.stem}-{one.name}")
        whole = [*DictReader(StringIO(one.files["csv"].read_text()))]
        assert [*DictReader(StringIO(csv))] == whole
        numbers = set(pd.read_csv(one.files["csv"]).select_dtypes("number"))
        assert set(view["data"]["format"]["parse"]) == numbers
    assert saved == {}
