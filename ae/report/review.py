"""A paper's recipe and claims, and what a run has made of them, as text for other people's forms:
a review (Markdown) and the authors' artifact appendix (LaTeX). Both are templates over `Subject`.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from shlex import join

from ae.claims.judge import Judgement, Verdict, bounds
from ae.model import Status
from ae.recipe.models import Recipe
from ae.records.results import Results, digest
from ae.report import text
from ae.report.chapter import machine_words, tables_of
from ae.report.tables import clean
from ae.units import counted, folded, format_seconds, format_size

WIDTH = 78  # of a review's text
_MOST = 5  # facts of a figure in the appendix
_SILENT = (Verdict.NOT_COMPARABLE, Verdict.NOT_RUN, Verdict.NOT_TRANSCRIBED)
_TEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#",
    "_": r"\_\allowbreak{}", "%": r"\%", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}",
    "/": r"/\allowbreak{}", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
}  # fmt: skip


def anywhere(command: Sequence[str]) -> str:
    """A run's command for other hosts: without a lease's words, and with a number of GPUs."""
    line = re.sub(r" --(seconds|share)[ =]\S+| --no-build\b", "", join(["ae", *command]))
    line = re.sub(r"(?<=--gpus[ =])device=(\S+)", lambda found: str(found[1].count(",") + 1), line)
    return re.sub("^ae again ", "ae run ", line)


@dataclass(frozen=True)
class Subject:
    """A paper, its claims as judged, and the results that they were judged on."""

    recipe: Recipe
    judgements: Sequence[Judgement]
    results: Results  # without points: nothing was measured

    @cached_property
    def hosts(self) -> list[str]:
        """System, processors, memory and engine of each start of a run; never a host's name."""
        found = []
        for facts in (origin.provenance for origin in self.results.origins):
            size = f"{facts.host.cpus} CPUs, {facts.host.memory_gib:g} GiB of memory"
            engine = facts.engine.get("detail", "engine not recorded")
            found.append(f"{facts.host.system}, {size}; {engine}")
        return list(dict.fromkeys(found))

    @cached_property
    def ran(self) -> list[str]:
        """Of every experiment how many points ended how, in how many processes, and their time."""
        ended = [point.status for point in self.results.points]
        ids = {one.id for one in ended}
        later = Counter(p.experiment for p in self.results.missing if p.id not in ids)
        rows = []
        for name in dict.fromkeys([*(one.experiment for one in ended), *later]):
            own = [one for one in ended if one.experiment == name]
            counts = Counter(str(one.status) for one in own) + Counter({"not run": later[name]})
            spent = format_seconds(math.fsum(one.seconds for one in own))
            said = ", ".join(f"{count} {word}" for word, count in counts.items())
            processes = len({one.repeat for one in own if one.status is Status.DONE})
            usual = self.recipe.experiments[name].processes
            few = f"; {processes} of {usual} processes" if 0 < processes < usual else ""
            rows.append(f"{name}: {said}{few}; {spent}")
        return rows

    @cached_property
    def deviations(self) -> list[str]:
        """In what the run is not what the recipe asks for, a sentence each."""
        found = []
        for origin in self.results.origins:
            source = origin.provenance.source
            small = ", ".join(origin.reduced)
            found += [f"smaller than the paper's: {small}"] * bool(small)
            found += [*origin.notes, *origin.provenance.about]
            if source.dirty:
                found.append(f"the source differed from its revision (diff {source.diff_sha256})")
            if busy := sum(gpu.other_processes or 0 for gpu in origin.provenance.gpus):
                found.append(f"processes of others on the GPUs when it started: {busy}")
        good = (Status.DONE, Status.SKIPPED)
        failed = [one.status for one in self.results.points if one.status.status not in good]
        found += [f"{one.id} {one.status}: {one.reason}" for one in failed]
        _, skipped = tables_of(self.recipe, self.results)
        found += [f"skipped {what}: {why}" for what, why in skipped]
        return [clean(one) for one in dict.fromkeys(found)]

    @cached_property
    def verdicts(self) -> dict[Verdict, list[Judgement]]:
        """The claims that have a verdict, by it."""
        shown = [word for word in Verdict if word not in _SILENT]
        each = {word: [one for one in self.judgements if one.verdict is word] for word in shown}
        return {word: found for word, found in each.items() if found}

    @cached_property
    def silent(self) -> list[str]:
        """How many claims have no verdict, for each kind and reason."""
        said = Counter(
            f"{one.verdict}, {re.sub(r'^([0-9]+ of [0-9]+ cells: )+| [(].*', '', one.reason)}"
            for one in self.judgements
            if one.verdict in _SILENT
        )
        return [f"{clean(why)}: {count}" for why, count in said.most_common()]

    @cached_property
    def commands(self) -> dict[str, dict[str, set[int]]]:
        """What makes the results again: by revision each command, and which processes it gave."""
        numbers = {one.status.key: one.status.repeat for one in self.results.points}
        found: dict[str, dict[str, set[int]]] = {}
        for origin in self.results.origins:
            source = origin.provenance.source
            runs = found.setdefault(source.stated_revision or source.revision or "UNKNOWN", {})
            gave = runs.setdefault(anywhere(origin.provenance.command), set())
            gave.update(numbers.get(key, 0) for key in origin.points)
        return found

    @cached_property
    def images(self) -> list[str]:
        """Every image by its sources' hash, and by the digests of what really ran."""
        made = dict(pair for one in self.results.origins for pair in one.images.items())
        ids: dict[str, dict[str, None]] = {}
        for status in (point.status for point in self.results.points):
            given = status.honoured.get("image", {}).get("digests", [])
            digests = [one.rpartition("@")[2] for one in given] or [status.image_id]
            ids.setdefault(status.image, {}).update(dict.fromkeys(filter(None, digests)))
        return [f"{name}: sources {made.get(name, '?')}, ran {', '.join(found) or '?'}"
                for name, found in ids.items()]  # fmt: skip

    def cost(self, *names: str) -> str:
        """Points, time and disk of experiments."""
        each = [(self.recipe.points_of(name), self.recipe.experiments[name]) for name in names]
        took = format_seconds(sum(points * one.time.full for points, one in each))
        disk = format_size(sum(points * one.disk for points, one in each))
        return f"{counted(sum(points for points, _ in each), 'point')}, {took}, {disk}"

    @cached_property
    def facts(self) -> dict[str, list[Judgement]]:
        """The first claim of every fact, by what of the paper it is about."""
        first = {one.claim.fact or one.claim.id: one for one in reversed(self.judgements)}
        found: dict[str, list[Judgement]] = {}
        for one in reversed(first.values()):
            found.setdefault(one.claim.figure, []).append(one)
        return found


def ours(one: Judgement) -> str:
    """What was found for a claim, its interval, and what would hold."""
    value = text.judgement_cells(one)[2].removesuffix(" (1 process)")
    bounded = one.claim.lower is not None or one.claim.upper is not None
    band = f"the band is {bounds(one.claim)}" if bounded and "expected" not in one.reason else ""
    return "; ".join(filter(None, [value and f"ours {value}", one.reason, band]))


def review(subject: Subject) -> str:
    """A review of the subject's results as Markdown."""
    return _render("review.md", subject)


def appendix(subject: Subject) -> str:
    """The artifact appendix as LaTeX, to be `\\input` after `\\appendix`."""
    return _render("appendix.tex", subject)


def tex(value: object) -> str:
    """Text for LaTeX, in ASCII: every special character escaped, `?` for what has no such form."""
    apart = unicodedata.normalize("NFKD", clean(value))  # letters, and their accents
    plain = "".join(c if c.isascii() else "?" for c in apart if not unicodedata.combining(c))
    return "".join(_TEX.get(char, char) for char in plain).replace("--", "-{}-")


def _render(name: str, subject: Subject) -> str:
    import jinja2

    page = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        finalize=tex if name.endswith(".tex") else None,
        variable_start_string="<<", variable_end_string=">>",
        block_start_string="<%", block_end_string="%>",
        comment_start_string="<#", comment_end_string="#>",
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    page.globals |= {"bounds": bounds, "ours": ours, "names": subject.recipe.plain_run()[1]}
    page.globals |= {"text": text, "size": format_size, "digest": digest, "most": _MOST}
    page.globals |= {"machine_words": machine_words}
    page.filters |= {"clean": clean, "fold": _fold}
    return page.get_template(name).render(subject=subject, recipe=subject.recipe)


def _fold(lines: Iterable[str], start: str = "- ") -> str:
    """A list of sentences, folded."""
    return "\n".join(folded(start + one, WIDTH, len(start)) for one in lines)
