"""What `ae list` and `ae show` print: a recipe in words, and the same as data. Pure functions."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ae.units import format_seconds, format_size

if TYPE_CHECKING:
    from ae.claims.judge import Claim
    from ae.recipe.models import Recipe
    from ae.recipe.needs import Needs

_WIDTH = 100


def recipe_summary(recipe: Recipe) -> dict[str, Any]:
    """What a program wants to know of a paper at a glance."""
    return {
        "name": recipe.name,
        "title": recipe.title,
        "venue": recipe.paper.venue,
        "lanes": {
            name: {"summary": lane.summary, "built": lane.built}
            for name, lane in recipe.lanes.items()
        },
        "experiments": list(recipe.experiments),
        "variants": list(recipe.variants),
    }


def list_text(recipes: Sequence[Recipe]) -> str:
    """One line per paper and lane."""
    rows = [
        (
            recipe.name,
            lane,
            "yes" if about.built else "never built here",
            recipe.paper.venue,
            recipe.title if lane == "native" else about.summary,
        )
        for recipe in recipes
        for lane, about in recipe.lanes.items()
    ]
    if not rows:
        return "no recipe yet"
    head = ("recipe", "lane", "built", "venue", "what it measures")
    foot = "never built here: the recipe is written, and nobody of us has built and run it"
    unbuilt = any(not about.built for recipe in recipes for about in recipe.lanes.values())
    return "\n".join([*_columns([head, *rows]), *(["", foot] if unbuilt else [])])


def recipe_details(recipe: Recipe, claims: Sequence[Claim]) -> dict[str, Any]:
    """Everything `ae show` says, as data: the recipe itself and its claims."""
    return {
        "recipe": recipe.model_dump(mode="json", by_alias=True),
        "claims": [
            {
                "id": claim.id,
                "figure": claim.figure,
                "sentence": claim.sentence,
                "kind": claim.kind,
                "reference": claim.reference,
                "transcribed": claim.transcribed,
            }
            for claim in claims
        ],
    }


def show_text(recipe: Recipe, claims: Sequence[Claim]) -> str:
    """Everything a person needs before a run, one section each."""
    paper = recipe.paper
    lines = [f"{recipe.name}: {recipe.title}", f"  {paper.title} ({paper.venue})", f"  {paper.url}"]
    if paper.artifact:
        lines.append(f"  artifact: {paper.artifact}")
    lines += _section("Lanes", _lanes(recipe))
    lines += _section("Variants", _variants(recipe))
    for name, axis in recipe.axes.items():
        rows = [
            (value, about.summary + ("" if about.default else " [only by name]"))
            for value, about in axis.values.items()
        ]
        lines += _section(f"Values of {name} (--set {name}=...)", rows)
    lines += _section("Experiments", _experiments(recipe))
    lines += _section("Figures", [(name, figure.title) for name, figure in recipe.figures.items()])
    lines += _section("Needs", _needs(recipe.needs))
    lines += _section("Parameters (--set key=value)", _parameters(recipe))
    lines += _section("Claims", _claims(claims))
    return "\n".join(lines)


def _section(title: str, rows: Iterable[tuple[str, ...]]) -> list[str]:
    rows = list(rows)
    return ["", title, *(f"  {line}" for line in _columns(rows, _WIDTH - 2))] if rows else []


def _lanes(recipe: Recipe) -> list[tuple[str, ...]]:
    return [
        (name, lane.summary + ("" if lane.built else " (recipe written, never built here)"))
        for name, lane in recipe.lanes.items()
    ]


def _variants(recipe: Recipe) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, variant in recipe.variants.items():
        against = f" [against {variant.baseline}]" if variant.baseline else ""
        rows.append((name, variant.title, variant.summary + against))
    return rows


def _experiments(recipe: Recipe) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, experiment in recipe.experiments.items():
        points = recipe.points_of(name)
        gpu = {"required": "GPU", "optional": "GPU or CPU", "none": "no GPU"}[experiment.gpu]
        cost = (
            f"{points} point{'s' if points > 1 else ''}, "
            f"{format_seconds(points * experiment.time.full)}, "
            f"{format_size(points * experiment.disk)}"
        )
        when = "" if experiment.default else "; by name only"
        rows.append((name, f"{gpu}; {cost}{when}", experiment.summary))
        own = _needs(experiment.needs)
        rows += [("", "needs " + row[0], row[1]) for row in own]
    return rows


def _needs(needs: Needs) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    if needs.gpus is not None:
        gpu = needs.gpus
        count = f"as {gpu.axis} says:" if gpu.axis else f"{gpu.count} x"
        words = [f"{count} {format_size(gpu.min_memory)}"]
        words.append(f"compute capability {'.'.join(map(str, gpu.min_compute_capability))}")
        if gpu.min_driver:
            words.append(f"driver {gpu.min_driver}")
        rows.append(("GPU " + ", ".join(words), gpu.why))
    if needs.memory is not None:
        rows.append((f"memory {format_size(needs.memory.value)}", needs.memory.why))
    if needs.shm_size is not None:
        rows.append((f"shm {format_size(needs.shm_size.value)}", needs.shm_size.why))
    if needs.ipc is not None:
        rows.append((f"ipc {needs.ipc.value}", needs.ipc.why))
    if needs.network is not None:
        rows.append((f"network {needs.network.value}", needs.network.why))
    rows += [(f"capability {cap.value}", cap.why) for cap in needs.cap_add]
    rows += [(f"ulimit {u.name}={u.soft}:{u.hard}", u.why) for u in needs.ulimits]
    rows += [(f"volume {volume.target}", volume.why) for volume in needs.volumes]
    rows += [
        (f"secret {secret.name}" + (" (optional)" if secret.optional else ""), secret.why)
        for secret in needs.secrets
    ]
    return rows


def _parameters(recipe: Recipe) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, parameter in recipe.parameters.items():
        default = parameter.default
        words = ",".join(default) if isinstance(default, list) else str(default)
        if parameter.quick is not None:
            words += f" (quick {parameter.quick})"
        rows.append((name, words, parameter.help))
    return rows


def _claims(claims: Sequence[Claim]) -> list[tuple[str, ...]]:
    return [
        (
            claim.id,
            claim.figure,
            claim.sentence + ("" if claim.transcribed else " [not transcribed]"),
        )
        for claim in claims
    ]


def _columns(rows: Sequence[tuple[str, ...]], width: int = _WIDTH) -> list[str]:
    """Align rows in columns; the last column is wrapped under itself."""
    columns = max(len(row) for row in rows)
    limits = [max(len(row[i]) for row in rows if i < len(row) - 1) for i in range(columns - 1)]
    limits = [min(limit, 48) for limit in limits]
    lines = []
    for row in rows:
        head = "  ".join(cell.ljust(limit) for cell, limit in zip(row[:-1], limits, strict=False))
        indent = len(head) + 2 if head else 0
        text = textwrap.wrap(row[-1], max(24, width - indent)) or [""]
        lines.append(f"{head}  {text[0]}" if head else text[0])
        lines += [" " * indent + more for more in text[1:]]
    return [line.rstrip() for line in lines]
