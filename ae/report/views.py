"""An interactive view of a figure: a Vega-Lite specification over the CSV of what it plots.

The table alone says what to show: its value is the last number before `low` and `high`, its labels
are the words, and those numbers before the value that it takes to tell the rows apart.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

from ae.figures.draw import PALETTE

if TYPE_CHECKING:
    import pandas as pd

Encoding = dict[str, Any]

_ABOUT = {"n", "low", "high", "spread", "processes", "devices", "unit", "evidence"}
_UNIT = re.compile(r"_(ns|us|ms|s|percent|mib|gb|per_s)$")
COLOURS = [
    PALETTE[name]
    for name in ("blue", "orange", "green", "vermilion", "sky", "purple", "grey", "olive")
]
_CROWD = 30  # marks; beyond that one label gets a panel for each of its values
_WIDE = 200  # largest over smallest value from which on a scale is logarithmic


def view(table: pd.DataFrame, over: str = "") -> dict[str, Any] | None:
    """The specification without its data, which the page reads from the figure's CSV.

    None where nothing tells the rows apart. `over` is the number that points lie over, then with
    panels by the first label, colours by the second.
    """
    names = [str(name) for name in table.columns if table[name].notna().any()]
    numbers = [name for name in names if table[name].dtype.kind in "iuf" and name not in _ABOUT]
    words = [name for name in names if name not in (*_ABOUT, *numbers)]
    columns = [str(name) for name in table.columns]
    first = columns[: columns.index("low")] if "low" in columns else ()
    last = [one for one in numbers if one in first][-1:]
    spans = [name for name in numbers if name.startswith(("start_", "end_"))]
    measures = last or spans[:2] or [name for name in numbers if name != over][-1:]
    if not measures:
        return None
    labels = sorted((one for one in words if _many(table, one)), key=lambda name: name == "row")
    axes = [name for name in numbers[: numbers.index(measures[0])] if _many(table, name)]
    if over:
        panel = _cloud(table, over, measures[0], labels)
    elif len(measures) == 2:
        panel = _time_line(table, measures, [*axes, *labels])
    else:
        keys = _telling(table, labels) or _telling(table, [*labels, *axes])
        if keys is None:
            return None
        panel = _single(table, measures[0], keys, axes)
    kinds = {name: "number" for name in columns if table[name].dtype.kind in "iuf"}
    return {**panel, "data": {"format": {"type": "csv", "parse": kinds}}}


def _many(table: pd.DataFrame, name: str) -> bool:
    return bool(table[name].nunique() > 1)


def _telling(table: pd.DataFrame, names: Sequence[str]) -> list[str] | None:
    """The fewest labels that no two rows agree in; of as many, those that stand last."""
    for count in range(min(len(names), 5) + 1):
        for found in combinations(reversed(names), count):
            if not found:
                if len(table) == 1:
                    return list(names[-1:])
            elif not table.duplicated(subset=list(found)).any():
                return sorted(found, key=names.index)
    return None


def _single(
    table: pd.DataFrame, value: str, keys: Sequence[str], axes: Sequence[str]
) -> dict[str, Any]:
    """One value: a line or a heat map over its continuous labels, else bars, or points."""
    running = [name for name in keys if name in axes and table[name].nunique() > 4]
    rest = [name for name in keys if name not in running]
    if len(running) >= 2:
        return _panels(_heat_map(table, value, *running[-2:]), [*running[:-2], *rest], table)
    if running:
        colour, rest = rest[-1:], rest[:-1]
        up = _axis(table, value, straight=True)
        encoding = {"x": _quantity(running[0]), "y": up, **_coloured(colour)}
        line = {"mark": {"type": "line", "point": {"size": 12}, "clip": True}, "encoding": encoding}
        return _panels([_zoom(line)], rest, table)
    counts = {name: int(table[name].nunique()) for name in rest}
    place = [name for name in rest if 2 * counts[name] > max(counts.values())][-1]
    others = [name for name in rest if name != place]
    colour = others[-1:] if len(others) > 1 or len(table) <= _CROWD else []
    colour = [name for name in colour if counts[name] <= len(COLOURS)]
    return _panels(
        _bars(table, _axis(table, value), place, colour),
        [name for name in others if name not in colour],
        table,
    )


def _bars(
    table: pd.DataFrame, shown: Encoding, place: str, colour: Sequence[str]
) -> list[Encoding]:
    """Bars from zero, points where the scale has none; whiskers; the paper's value, a diamond."""
    encoding: Encoding = {"y": _category(place), "x": shown, **_coloured(colour)}
    if colour:
        encoding["yOffset"] = {"field": colour[0], "sort": None}
    point = {"type": "point", "filled": True, "size": 60, "opacity": 1}
    logarithmic = shown["scale"].get("type") == "log"
    layers: list[Encoding] = [
        {"mark": point if logarithmic else {"type": "bar", "clip": True}, "encoding": encoding}
    ]
    where = {key: one for key, one in encoding.items() if key in ("y", "yOffset")}
    if "low" in table and table["low"].notna().any():
        ends = {**where, "x": {**shown, "field": "low"}, "x2": {"field": "high"}}
        layers.append({"mark": {"type": "rule", "strokeWidth": 1.2}, "encoding": ends})
    paper = [name for name in ("paper", "paper_low", "paper_high") if name in table]
    for name in (one for one in paper if table[one].notna().any()):
        marks = {**where, "x": {**shown, "field": name}}
        look = {"type": "point", "shape": "diamond", "size": 70, "clip": True, "color": "#888888"}
        there = {"filter": f"isValid(datum['{name}'])"}
        layers.append({"mark": look, "encoding": marks, "transform": [there]})
    return layers


def _heat_map(table: pd.DataFrame, value: str, across: str, up: str) -> list[Encoding]:
    scale = {"scheme": "viridis", "type": "log" if _is_wide(table[value]) else "linear"}
    few: Encoding = {"axis": {"labelOverlap": True}, "sort": "ascending"}
    encoding = {
        "x": {**_category(across), **few, "title": _title(across)},
        "y": {**_category(up), **few, "sort": "descending", "title": _title(up)},
        "color": {"field": value, "type": "quantitative", "scale": scale, "title": _title(value)},
    }
    above = {"filter": f"datum['{value}'] > 0"}  # others have no place on a logarithmic scale
    return [{"mark": "rect", "encoding": encoding, "transform": [above]}]


def _time_line(table: pd.DataFrame, ends: Sequence[str], labels: Sequence[str]) -> dict[str, Any]:
    """Bars from a start to an end."""
    few = [name for name in labels if table[name].nunique() <= len(COLOURS)]
    lane = few[-1:]
    encoding = {"x": _quantity(ends[0]), "x2": {"field": ends[1]}, **_coloured(lane)}
    encoding.update({"y": _category(lane[0])} if lane else {})
    mark = {"type": "bar", "clip": True}
    return _panels([_zoom({"mark": mark, "encoding": encoding}, "x")], few[:-1], table, 1)


def _cloud(table: pd.DataFrame, over: str, up: str, labels: Sequence[str]) -> dict[str, Any]:
    """One measure against the other."""
    few = [name for name in labels if table[name].nunique() <= len(COLOURS)][:2]
    encoding = {"x": _axis(table, over), "y": _axis(table, up), **_coloured(few[-1:])}
    encoding.update({"shape": {**encoding["color"]}} if few else {})
    cloud = {"mark": {"type": "point", "clip": True, "size": 22}, "encoding": encoding}
    return _panels([_zoom(cloud)], few[:-1], table)


def _panels(
    layers: Sequence[Encoding], names: Sequence[str], table: pd.DataFrame, across: int = 3
) -> dict[str, Any]:
    """The layers in one panel, or in one for every combination of the values of the labels."""
    first, encoding = layers[0], layers[0]["encoding"]
    encoding["tooltip"] = [
        {"field": name} | ({"title": title} if (title := _title(name)) != name else {})
        for name in map(str, table)
        if _many(table, name)
    ]
    if encoding.get("color", {}).get("type") == "nominal":
        chosen = {"type": "point", "fields": [encoding["color"]["field"]]}
        legend = {"name": "chosen", "select": chosen, "bind": "legend"}
        first["params"] = [*first.get("params", ()), legend]
        encoding["opacity"] = {"condition": {"param": "chosen", "value": 1}, "value": 0.12}
    spec: dict[str, Any] = {"layer": list(layers)}
    if encoding.get("y", {}).get("type") == "nominal":
        offset = "yOffset" in encoding
        spec["height"] = {"step": 9 if offset else 18, "for": "offset" if offset else "position"}
    if not names:
        return spec
    words = [f"{_title(name)} " * (table[name].dtype.kind in "iuf") for name in names]
    each = table[list(names)].astype(str).radd(words).agg(", ".join, axis=1)
    told = (f"'{word}' + " * bool(word) for word in words)
    joined = " + ', ' + ".join(f"{w}datum['{n}']" for w, n in zip(told, names, strict=True))
    facet = {"field": "panel", "type": "nominal", "sort": list(each.unique()), "title": None}
    found: dict[str, Any] = {
        "transform": [{"calculate": joined, "as": "panel"}],
        "facet": facet, "columns": across, "spec": spec,
    }  # fmt: skip
    if "height" in spec and len(layers) == 1 and "type" not in encoding["x"].get("scale", {}):
        places = table[encoding["y"]["field"]]
        if places.groupby(each).nunique().mean() < 0.75 * places.nunique():
            found["resolve"] = {"scale": {"y": "independent"}}  # else Vega-Lite warns of it
    return found


def _zoom(layer: Encoding, *axes: str) -> Encoding:
    select: Encoding = {"type": "interval"} | ({"encodings": list(axes)} if axes else {})
    return {**layer, "params": [{"name": "zoom", "select": select, "bind": "scales"}]}


def _coloured(names: Sequence[str]) -> Encoding:
    """Colour by the first of the names, if any."""
    return {"color": {**_category(names[0]), "title": _title(names[0])}} if names else {}


def _category(name: str) -> Encoding:
    return {"field": name, "type": "nominal", "sort": None, "title": None}


def _quantity(name: str) -> Encoding:
    scale = {"nice": False, "zero": False}
    return {"field": name, "type": "quantitative", "title": _title(name), "scale": scale}


def _axis(table: pd.DataFrame, name: str, *, straight: bool = False) -> Encoding:
    """The axis of a value, with its unit; a paper's value far beyond ours does not stretch it."""
    units = set(table["unit"].dropna()) if "unit" in table and not _UNIT.search(name) else set()
    title = f"{_title(name)} [{min(units)}]" if len(units) == 1 and min(units) else _title(name)
    most = float(table.filter(items=[name, "high"]).max().max())
    paper = [float(table[one].max()) for one in ("paper", "paper_high") if one in table]
    most = max([0.0, most, *(value for value in paper if value <= 2 * most)])
    least = min(0.0, float(table[name].min()))
    scale: Encoding = {"domain": [least, 1.05 * most]} if most > least else {}
    if _is_wide(table[name]) and table[name].min() > 0 and not straight:
        scale = {"type": "log"}
    return {"field": name, "type": "quantitative", "title": title, "scale": scale}


def _is_wide(values: pd.Series[float]) -> bool:
    """Whether the values above 0 are of very different sizes; shares of a whole are not."""
    there = values[values > 0]
    share = str(values.name).endswith(("_percent", "share"))
    return bool(len(there) and there.max() > _WIDE * there.min() and not share)


def _title(name: str) -> str:
    """A column's name in words: `kernel_time_us` is `kernel time [us]`."""
    unit = _UNIT.search(name)
    words = (name[: unit.start()] if unit else name).replace("_", " ")
    shown = {"percent": "%", "mib": "MiB", "gb": "GB", "per_s": "1/s"}
    return f"{words} [{shown.get(unit[1], unit[1])}]" if unit else words
