"""A figure's SVG for the page: smaller, and the same picture."""

from __future__ import annotations

import io
import re
from xml.etree import ElementTree

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure

from ae.figures.draw import STYLE
from ae.report.svg import address, small

FONT = "font-family:'DejaVu Sans', 'Verdana', sans-serif;"  # of all words, as the sheet says


@pytest.fixture(scope="module")
def svg() -> str:
    return drawn("ae")


def drawn(salt: str) -> str:
    """Bars, some translucent, hatches, clipped lines, markers, hostile and rotated words."""
    with mpl.rc_context({**STYLE, "svg.hashsalt": salt}):
        figure = Figure()
        axis = figure.subplots()
        axis.bar(["a <b>", "50 % & #1", 'it\'s "c"'], [1.23456, 2, 3], hatch="//")
        axis.barh([0.2, 0.4], [1, 1.5], height=0.5, color="red", alpha=0.3)
        axis.plot([0, 1, 2], [0.5, 2.5, 1.0], marker="o")
        axis.text(1, 1, "1.234567 turned", rotation=30)
        axis.set_xlim(-0.5, 1.7)
        axis.set_title("$10^{4}$")
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None})
    return written.getvalue()


def looks(svg: str) -> list[tuple[str, str, list[tuple[float, float]]]]:
    """What is drawn, in its order: the tag with all of its style and whether something clips it,
    its text, its corners. A line with a marker counts as the marker, at each of its corners.

    Paths of one look, one after the other, count as one, but for those that shine through. What is
    referred to counts first; of an axis' ticks the lines, the marks and the words, in this order.
    """
    root = ElementTree.fromstring(svg)
    sheet = "".join(style.text or "" for style in root.iterfind(".//{*}style"))
    rules = dict(re.findall(r"\.(s\d+)\{([^}]*)\}", sheet))
    found: list[tuple[str, str, list[tuple[float, float]]]] = []
    above = {id(one): parent for parent in root.iter() for one in parent}

    def styles(one: ElementTree.Element) -> list[str]:
        names = one.get("class", "").split()
        attributes = [f"clip-path:{one.get('clip-path')}"] * ("clip-path" in one.attrib)
        own = re.sub("(?<=[:;]) ", "", one.get("style", "")).replace(FONT, "")
        return [own, *(rules[name] for name in names), *attributes]

    def lines_of(one: ElementTree.Element) -> list[ElementTree.Element]:
        lines = [one]
        while id(lines[-1]) in above:
            lines.append(above[id(lines[-1])])
        return lines

    def look_of(one: ElementTree.Element) -> str:
        lines = lines_of(one)
        every = (rule for each in lines for rule in styles(each))
        own = next((rule for rule in every if rule and not rule.startswith("clip-path")), "")
        clipped = any("clip-path:url" in rule for each in lines for rule in styles(each))
        return f"{own} {clipped}"

    inside = {id(one) for marker in root.iterfind(".//{*}marker") for one in marker.iter()}

    def place(one: ElementTree.Element) -> tuple[bool, int]:
        """Not among what is referred to; the axis' first place, its kinds after one another."""
        lines = lines_of(one)
        axis = [each for each in lines if each.get("id", "").startswith("matplotlib.axis")]
        at = every.index(axis[0]) if axis else every.index(one)
        kind = ["path", "use", "text"].index(one.tag.partition("}")[2]) if axis else 0
        return all(not each.tag.endswith("defs") for each in lines), 10 * at + kind

    every = list(root.iter())
    shapes = ("path", "text", "use", "rect")
    drawn = [one for one in every if one.tag.partition("}")[2] in shapes]
    for one in sorted(drawn, key=place):
        tag = one.tag.partition("}")[2]
        if id(one) in inside:
            continue
        if marked := re.search(r"marker:url\(#(\w+)\)", one.get("style", "")):
            (used,) = root.iterfind(f".//{{*}}marker[@id='{marked[1]}']/{{*}}use")
            clips = look_of(one).split()[-1]
            look = (f"use {rules[used.get('class', '')]} {clips} None False", "")
            found += [(*look, [corner]) for corner in corners(one.get("d", ""))]
            continue
        style = re.sub(r"url\(#\w+\)", "url", look_of(one))
        at = [(float(one.get("x", 0)), float(one.get("y", 0)))] if tag == "use" else []
        about = f"{tag} {style} {one.get('fill')} {'rotate(-30' in one.get('transform', '')}"
        look = (about, re.sub(r"\n\s*", "", "".join(one.itertext())))
        if tag == "path" and "opacity" not in style and found and found[-1][:2] == look:
            found[-1][2].extend(corners(one.get("d", "")))
        else:
            found.append((*look, at or corners(one.get("d", ""))))
    return found


def corners(path: str) -> list[tuple[float, float]]:
    """The ends of a path's pieces, in full, however they are written."""
    x = y = 0.0
    start = (x, y)
    found = []
    for letter, text in re.findall(r"([A-Za-z])([^A-Za-z]*)", path):
        numbers = [float(number) for number in re.findall(r"-?(?:\d+\.?\d*|\.\d+)", text)]
        by = (x, y) if letter.islower() else (0.0, 0.0)
        if letter in "Zz":
            x, y = start
        elif letter in "Hh":
            x = by[0] + numbers[0]
        elif letter in "Vv":
            y = by[1] + numbers[0]
        else:
            x, y = by[0] + numbers[-2], by[1] + numbers[-1]
        start = (x, y) if letter in "Mm" else start
        found.append((x, y))
    return found


def test_the_picture_is_the_same(svg: str) -> None:
    before, after = looks(svg), looks(small(svg))
    assert [one[:2] for one in after] == [one[:2] for one in before]
    for (_, _, old), (_, _, new) in zip(before, after, strict=True):
        assert len(old) == len(new)
        for a, b in zip(old, new, strict=True):
            assert b == pytest.approx(a, abs=0.011)
    assert len(small(svg)) < 0.5 * len(svg)
    assert f"text{{{FONT.replace(':', ': ')} " in small(svg)


def test_a_formula_stays_in_its_place(svg: str) -> None:
    assert re.search(r"<g transform='translate\([\d. ]+\)[^>]*'><text><tspan", small(svg))


def test_every_reference_has_its_target(svg: str) -> None:
    one = small(svg)
    ids = re.findall(r" id='([^']*)'", one)
    assert len(ids) == len(set(ids)) == 7
    # The clip, the hatch, two ticks' shapes, the marker's, and what stands in many places, twice.
    assert set(re.findall(r"(?:url\(|href=')#(\w+)", one)) == set(ids)


def test_the_same_figure_has_the_same_bytes(svg: str) -> None:
    again = drawn("another")  # with other names; what clips has others in every process
    assert again != svg
    assert small(again) == small(svg)


def test_the_address_fits_an_attribute(svg: str) -> None:
    one = address(svg)
    assert one.startswith("data:image/svg+xml,<svg")
    assert not set('"&#\n') & set(one)
