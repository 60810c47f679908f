"""`ae list` and `ae show`: a recipe in words, and the same as data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Annotated

from ae.claims.judge import Claim
from ae.claims.tables import load_claims
from ae.commands.options import AsJson, RecipeName, option, print_data
from ae.recipe.load import find_root, list_recipes, load_recipe
from ae.recipe.models import FigureRef, Recipe, Variant
from ae.units import counted, format_seconds, format_size

_WIDTH = 80
_UNBUILT = "* the recipe is written, and nobody of us has built and run it"


def list_papers(as_json: AsJson = False) -> None:
    """List the papers and their lanes."""
    root = find_root()
    recipes = [load_recipe(root, name) for name in list_recipes(root)]
    data = [recipe.model_dump(mode="json", by_alias=True) for recipe in recipes]
    print_data(as_json, data, list_text(recipes))


def show(
    name: RecipeName,
    everything: Annotated[bool, option("all that the recipe says", "--all")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a paper: variants, experiments, figures, claims, needs, time and disk."""
    root = find_root()
    recipe, claims = load_recipe(root, name), load_claims(root, name)
    data = {
        "recipe": recipe.model_dump(mode="json", by_alias=True),
        "claims": [one.model_dump(mode="json") for one in claims],
    }
    text = whole_text(recipe, claims, root) if everything else show_text(recipe, claims)
    print_data(as_json, data, text)


def list_text(recipes: Sequence[Recipe]) -> str:
    """One line per paper and lane."""
    rows = [("recipe", "lane", "venue", "what it measures")]
    for recipe in recipes:
        for lane, about in recipe.lanes.items():
            said = recipe.title if lane == "native" else about.summary
            rows.append((recipe.name, lane + "*" * (not about.built), recipe.paper.venue, said))
    if not recipes:
        return "no recipe yet"
    unbuilt = any(row[1].endswith("*") for row in rows)
    return _text([*_columns(rows), *(["", _UNBUILT] if unbuilt else [])])


def show_text(recipe: Recipe, claims: Sequence[Claim]) -> str:
    """What a person wants to know before a run: at most 40 lines of 80 characters."""
    paper, (lane, plain) = recipe.paper, recipe.plain_run()
    lines = [f"{recipe.name}: {recipe.title}", f"  {paper.title} ({paper.venue})", f"  {paper.url}"]
    lines += [f"  artifact: {paper.artifact}"] if paper.artifact else []
    lanes = [
        (name, ("" if about.built else "(never built here) ") + about.summary)
        for name, about in recipe.lanes.items()
    ]
    lines += _section("Lanes (--lane)", _columns(lanes))
    command = f"ae run {recipe.name}" + ("" if lane == "native" else f" --lane {lane}")
    lines += _section(f"`{command}`: {_total(recipe, plain)}", _experiments(recipe, plain))
    if rest := [name for name in recipe.experiments if name not in plain]:
        lines += [f"  by name (--experiment): {', '.join(rest)}"]
    lines += _section("Variants (--variant)", _titles(recipe.variants, 11))
    lines += _section("Figures", _titles(recipe.figures, 4))
    sources = Counter(claim.source for claim in claims).most_common()
    counts = ", ".join(f"{count} {source}" for source, count in sources)
    lines += ["", f"{len(claims)} claims" + (f" by source: {counts}" if counts else "")]
    lines += [f"Needs, parameters and every claim: ae show {recipe.name} --all"]
    return _text(lines)


def whole_text(recipe: Recipe, claims: Sequence[Claim], root: Path) -> str:
    """All that a recipe says, in its own words, and its claims."""
    text = (root / "recipes" / recipe.name / "recipe.yaml").read_text(encoding="utf-8")
    unread = " (not transcribed)"
    told = [(c.id, c.figure, c.sentence + ("" if c.transcribed else unread)) for c in claims]
    return "\n".join([text.rstrip(), *_section("# Claims", _columns(told))])


def _total(recipe: Recipe, names: Iterable[str]) -> str:
    """What experiments take together: time, disk, GPUs."""
    costs = [(recipe.points_of(name), recipe.experiments[name]) for name in names]
    took = format_seconds(sum(points * one.time.full for points, one in costs))
    disk = format_size(sum(points * one.disk for points, one in costs))
    needs = [recipe.needs_of(name).gpus for name in names if recipe.experiments[name].gpu != "none"]
    if not needs:
        return f"{took}, {disk}, no GPU"
    count = max(recipe.gpu_counts(need)[-1] for need in needs)
    memory = format_size(max(need.min_memory if need else 0 for need in needs))
    return f"{took}, {disk}, {f'up to {count} GPUs' if count > 1 else '1 GPU'} of {memory}"


def _experiments(recipe: Recipe, names: Iterable[str]) -> list[str]:
    rows = []
    for name in names:
        experiment, points = recipe.experiments[name], recipe.points_of(name)
        gpu = {"required": "GPU", "optional": "GPU or CPU", "none": "no GPU"}[experiment.gpu]
        took = format_seconds(points * experiment.time.full)
        disk = format_size(points * experiment.disk)
        rows.append((name, gpu, counted(points, "point"), took, disk, experiment.title))
    return _few(_columns(rows), 13)


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return ["", title, *(f"  {line}" for line in lines)] if lines else []


def _titles(parts: Mapping[str, Variant] | Mapping[str, FigureRef], most: int) -> list[str]:
    words = "; ".join(f"{name}: {part.title}" for name, part in parts.items())
    return _few(wrap(words, _WIDTH - 2), most)


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows as lines, all but the last cell aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    return ["  ".join(map(str.ljust, row, [*widths, 0])) for row in rows]


def _few(lines: list[str], most: int) -> list[str]:
    more = len(lines) - most + 1
    return lines if more < 2 else [*lines[: most - 1], f"... and {more} more (--all)"]


def _text(lines: Iterable[str]) -> str:
    """Lines cut to the width of a terminal."""
    return "\n".join(s if len(s) <= _WIDTH else s[: _WIDTH - 3].rstrip() + "..." for s in lines)
