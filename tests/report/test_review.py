"""A review that can be pasted and an appendix that compiles, from committed results."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from ae.claims.judge import Verdict
from ae.model import Status
from ae.recipe.load import list_recipes, load_recipe
from ae.records.results import Results, load_reference
from ae.report.chapter import judge_results
from ae.report.review import WIDTH, Subject, anywhere, appendix, review, tex

ROOT = Path(__file__).resolve().parents[2]
SETS = sorted(path.parent for path in (ROOT / "results/reference").glob("*/*/runs"))
SETS = [path for path in SETS if (ROOT / "recipes" / path.name).is_dir()]
RECIPES = list_recipes(ROOT)


def subject_of(results: Results) -> Subject:
    recipe = load_recipe(ROOT, results.recipe)
    return Subject(recipe, judge_results(ROOT, recipe, results), results)


@cache
def kept(path: Path) -> Subject:
    """A reference set, judged once."""
    return subject_of(load_reference(path))


@pytest.fixture(scope="module", params=SETS, ids=lambda path: f"{path.parent.name}-{path.name}")
def subject(request: pytest.FixtureRequest) -> Subject:
    return kept(request.param)


def entries(said: str, claim: str) -> list[str]:
    """What a review, as one line, says of a claim."""
    return re.findall(rf"- {re.escape(claim)}: (.*?)(?= - [\w.-]+: | ###? |$)", said)


def test_every_verdict_is_in_the_review(subject: Subject) -> None:
    said = review(subject)
    flat = " ".join(said.split())
    for one in subject.judgements:
        if one.verdict in (Verdict.NOT_RUN, Verdict.NOT_TRANSCRIBED, Verdict.NOT_COMPARABLE):
            assert f"\n- {one.id}: " not in said
        else:
            assert f"\n- {one.id}: " in said
            found = " ".join(entries(flat, one.id))  # claims of two figures may have one sentence
            assert (" ".join(one.claim.sentence.split()) in found) == (
                one.verdict in (Verdict.NOT_REPRODUCED, Verdict.UNDECIDED)
            )
    silent = re.search(r"### No verdict.*?\n\n(.*?)\n\n", said, re.S)
    words = re.sub(r"\n  ", " ", silent[1]).splitlines() if silent else []
    counted = sum(int(line.rpartition(": ")[2]) for line in words)
    shown = sum(line.startswith("### ") and "No verdict" not in line for line in said.splitlines())
    assert counted + sum(map(len, subject.verdicts.values())) == len(subject.judgements)
    assert shown == len(subject.verdicts)


def test_every_number_with_an_interval_has_its_band(subject: Subject) -> None:
    said = " ".join(review(subject).split())
    for one in subject.judgements:
        if one.value is not None and one.verdict in subject.verdicts:
            (line,) = entries(said, one.id)
            assert "ours " in line
            assert "expected" in line or "the band is" in line


def test_a_review_is_text_that_fits_and_names_no_host(subject: Subject) -> None:
    said = review(subject)
    text = re.sub(r"```.*?```", "", said, flags=re.S)  # a table is as wide as it is
    long = [line for line in text.splitlines() if len(line) > WIDTH and "    " not in line[:4]]
    assert all(" " not in line.strip("- ") for line in long)
    assert "None" not in said
    for origin in subject.results.origins:
        assert not origin.provenance.host.name or origin.provenance.host.name not in said.split()


def test_the_hash_is_what_the_command_in_the_review_gives(subject: Subject) -> None:
    said = review(subject)
    (command,) = re.findall(r"`(sha256sum [^`]*)`", said)
    done = subprocess.run(
        ["sh", "-c", command], cwd=subject.results.path, capture_output=True, text=True, check=True
    )
    assert done.stdout.split()[0] in said.split()


def repeating(subject: Subject) -> list[str]:
    """The lines of the review that make the results again."""
    (found,) = re.findall(r"## To repeat\n\n(.*?)\n\n", review(subject), re.S)
    return [line.removeprefix("    ") for line in found.splitlines()]


def test_what_repeats_a_set_is_a_run_of_each_revision(subject: Subject) -> None:
    lines = repeating(subject)
    last = f"ae check {subject.recipe.name} {subject.results.name}"
    revisions = [line for line in lines if not line.startswith("ae run ")]
    assert (lines[0], lines[-1]) == (revisions[0], last)
    assert all(re.fullmatch("git checkout [0-9a-f]{40}", line) for line in revisions[:-1])
    assert len(set(revisions)) == len(revisions)
    assert not re.search("--seconds|--share|--no-build|device=", " ".join(lines))


def test_the_command_of_a_lease_is_told_as_a_run() -> None:
    lease = ["again", "toy", "--seconds", "60", "--no-build", "--gpus", "device=0,3", "--share=1/2"]
    assert anywhere(lease) == "ae run toy --gpus 2"
    assert anywhere(["run", "toy", "--gpus", "none"]) == "ae run toy --gpus none"
    assert anywhere(["run", "toy", "--set", "device=a"]) == "ae run toy --set device=a"
    results = load_reference(SETS[0])
    point, origin = results.points[0], results.origins[0]
    facts = origin.provenance.model_copy(update={"command": ("run", "toy")})
    for numbers, line in {(0,): "ae run toy", (0, 3): "ae run toy --repeat 2"}.items():
        keys = {str(number): number for number in numbers}
        points = [
            replace(point, status=point.status.model_copy(update={"key": key, "repeat": number}))
            for key, number in keys.items()
        ]
        made = origin.model_copy(update={"provenance": facts, "points": dict.fromkeys(keys, "")})
        assert line in repeating(subject_of(replace(results, origins=(made,), points=points)))


def test_deviations_are_said() -> None:
    results = load_reference(SETS[0])
    origin = results.origins[0].model_copy(update={"reduced": ("--quick",), "notes": ("a\nnote",)})
    point = results.points[0]
    failed = point.status.model_copy(update={"status": Status.FAILED, "reason": "it fell"})
    points = (*results.points, replace(point, status=failed))
    made = replace(results, origins=(origin,), points=points)
    said = review(subject_of(made))
    assert "- smaller than the paper's: --quick\n- a note\n" in said
    assert f"- {failed.id} failed: it fell\n" in said
    assert re.search(rf"- {failed.experiment}: .*1 failed", said)


@pytest.mark.parametrize("name", RECIPES)
def test_an_appendix_is_balanced_and_escaped(name: str) -> None:
    for subject in (nothing(name), *[kept(path) for path in SETS if path.name == name]):
        said = appendix(subject)
        assert said.isascii()
        code = "\n".join(line for line in said.splitlines() if not line.startswith("%"))
        open_: list[str] = []
        for word, group in re.findall(r"\\(begin|end)\{(\w+)\}", code):
            if word == "begin":
                open_.append(group)
            else:
                assert open_.pop() == group
        assert not open_
        plain = re.sub(r"\\[{}$&#_%]|\\textbackslash", "", code)
        assert plain.count("{") == plain.count("}")
        assert not re.search(r"[$&#_%^~<>|]", plain)
        assert set(re.findall(r"\\([a-zA-Z]+)", plain)) <= COMMANDS
        assert "item" in plain


COMMANDS = {
    "section", "subsection", "subsubsection", "paragraph", "emph", "small", "begin", "end", "item",
    "textbf", "texttt", "ttfamily", "allowbreak", "textless", "textgreater", "textbar",
    "textasciicircum", "textasciitilde", "appendix",
}  # fmt: skip


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="no pdflatex here")
@pytest.mark.parametrize("name", RECIPES)
def test_an_appendix_compiles(name: str, tmp_path: Path) -> None:
    (tmp_path / "ae.tex").write_text(appendix(nothing(name)))
    body = r"\begin{document}\appendix\input{ae}\end{document}"
    (tmp_path / "paper.tex").write_text(r"\documentclass[twocolumn]{article}" + body)
    words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Missing character" not in done.stdout
    assert (tmp_path / "paper.pdf").stat().st_size > 50_000


def test_what_is_special_in_latex_is_written_out() -> None:
    assert tex("50 % of $x_1 & {y}#") == r"50 \% of \$x\_\allowbreak{}1 \& \{y\}\#"
    assert tex("a\\b ~^ <|>") == (
        r"a\textbackslash{}b \textasciitilde{}\textasciicircum{} "
        r"\textless{}\textbar{}\textgreater{}"
    )
    assert tex("--set\x00 \u00e9\n\u2265") == "-{}-set? e ?"
    assert tex("a/b") == r"a/\allowbreak{}b"


def nothing(name: str) -> Subject:
    """A recipe without a result."""
    return subject_of(Results(path=ROOT, name="", recipe=name, points=(), origins=()))
