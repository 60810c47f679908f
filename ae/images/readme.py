"""The README of a bundle: what it is, how to check, load and run it, what it needs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ae.claims.judge import Claim
from ae.commands.show import show_text
from ae.recipe.models import Recipe
from ae.units import format_size

if TYPE_CHECKING:
    from ae.images.bundle import Facts


def render(recipe: Recipe, claims: Sequence[Claim], facts: Facts, file: str) -> str:
    """The text, made from the recipe's own fields and bundle.json. `file`: the archive's name."""
    paper = recipe.paper
    where = f"commit {facts.source.revision}" if facts.source.revision else "a folder without git"
    artifact = f" (that is {paper.artifact})" if paper.artifact else ""
    if facts.source.dirty:
        where += ", with changes"
    return f"""# {recipe.title}: a reproduction bundle

Everything that reproducing this paper needs, for a machine with or without a network:

> {paper.title}. {paper.venue}. {paper.url}

It is not the authors' artifact{artifact}.
Made by ae {facts.ae} from {where}, {facts.date}.

| in this archive | what it is |
|---|---|
{_parts(facts)}

## Check it

    sha256sum --check --quiet SHA256SUMS      # after `tar -xf {file}` in an empty folder

## Load it

With `ae` (Python 3.11 or later; `tree/` is a checkout of it, see below):

    ae load {file}                            # checks everything, then loads images and tree
    cd {recipe.name}-bundle
    ae run {recipe.name} --quick              # or without --quick: the paper's sizes

Without `ae`, an image alone:

{_by_hand(facts)}

`ae` itself, from the extracted archive:

    cd tree && python3 -m venv .venv
    .venv/bin/python -m pip install {_index(facts)}--editable .

## What it needs

{_images(facts)}

```
{show_text(recipe, claims)}
```

## Licences

The tree is under the Apache License 2.0 (`LICENSE`). The images hold software of others under
their own licences: Debian's under `/usr/share/doc/*/copyright`, Python's in the `*.dist-info`
folders of the packages. What the images themselves say:

{_licences(facts)}

## Citing

Cite the paper above for its results, and `CITATION.cff` for this reproduction.
"""


def _parts(facts: Facts) -> str:
    rows = [
        ("`bundle.json`", "what is in it: source, hashes, image ids"),
        ("`SHA256SUMS`", "a checksum of every other file"),
        ("`tree/`", f"the launcher, the recipe `{facts.recipe}`, the sources of its images, docs"),
    ]
    rows += [
        (f"`{image.folder}/`", f"{image.reference}, an OCI image layout") for image in facts.images
    ]
    if facts.data:
        rows.append(("`data/`", f"input files of the recipe ({len(facts.data)})"))
    if facts.references:
        rows.append(("`results/reference/`", f"measured on: {', '.join(facts.references)}"))
    if facts.wheels:
        rows.append(("`wheels/`", f"Python packages that ae needs ({facts.wheels})"))
    return "\n".join(f"| {name} | {what} |" for name, what in rows)


def _by_hand(facts: Facts) -> str:
    return "\n".join(
        f"    tar -C {image.folder} -c . | docker load    # {image.reference}"
        for image in facts.images
    )


def _images(facts: Facts) -> str:
    return "\n".join(
        f"- {image.reference}: {image.platform}, {format_size(image.size)} in the engine, "
        f"id `{image.image_id}`"
        + ("; borrows folders of the host it was made on" if "ae.binds" in image.labels else "")
        for image in facts.images
    )


def _licences(facts: Facts) -> str:
    key = "org.opencontainers.image.licenses"
    return "\n".join(
        f"- {image.reference}: {image.labels.get(key, 'its label names none')}"
        for image in facts.images
    )


def _index(facts: Facts) -> str:
    return "--no-index --find-links ../wheels " if facts.wheels else ""
