"""A small reader of Dockerfiles: instructions, with their stages and the defaults of ARGs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

IMAGES = Path(__file__).resolve().parents[2] / "images"
ALL = sorted(path.parent.name for path in IMAGES.glob("*/Dockerfile"))
_COMMIT = r"[0-9a-f]{40}"
_RELEASE = r"(refs/tags/)?[A-Za-z_-]*\d+(\.\d+)+\w*"
_SUM = r"(sha256:)?[0-9a-f]{64}"


@dataclass
class Stage:
    """What stands between two FROM lines. `base` is what FROM names."""

    base: str
    name: str
    steps: list[Step] = field(default_factory=list)


@dataclass(frozen=True)
class Step:
    """One instruction, its continuation lines joined; heredocs are part of it."""

    line: int
    word: str  # in capitals
    text: str

    @property
    def is_exec_form(self) -> bool:
        try:
            found = json.loads(self.text)
        except ValueError:
            return False
        return isinstance(found, list) and all(isinstance(word, str) for word in found)


@dataclass(frozen=True)
class Dockerfile:
    stages: list[Stage]
    arguments: dict[str, str]  # the last default of every ARG; empty: none

    @classmethod
    def parse(cls, text: str) -> Dockerfile:
        stages: list[Stage] = []
        arguments: dict[str, str] = {}
        for step in instructions(text):
            if step.word == "FROM":
                words = [word for word in step.text.split() if not word.startswith("--")]
                stages.append(Stage(words[0], words[2] if len(words) > 2 else ""))
                continue
            if step.word == "ARG":
                for pair in step.text.split():
                    name, _, value = pair.partition("=")
                    if value or name not in arguments:
                        arguments[name] = value.strip("\"'")
            if stages:
                stages[-1].steps.append(step)
        return cls(stages, arguments)

    def value(self, text: str) -> str:
        """The text with the defaults of ARGs put in; an ARG without one stays as it is."""
        for _ in range(4):  # an ARG's default may name another ARG
            text = re.sub(
                r"\$(?:\{(\w+)\}|(\w+))",
                lambda found: self.arguments.get(found[1] or found[2]) or found[0],
                text,
            )
        return text

    def final_user(self) -> str:
        """Who the last stage runs as; empty when it and those below it never say."""
        named = {stage.name: stage for stage in self.stages if stage.name}
        stage: Stage | None = self.stages[-1]
        while stage is not None:
            users = [step.text for step in stage.steps if step.word == "USER"]
            if users:
                return users[-1]
            stage = named.get(self.value(stage.base))
        return ""

    def outside_images(self) -> list[str]:
        """What is taken from a registry."""
        named = {stage.name for stage in self.stages} | {"scratch"}
        return [self.value(s.base) for s in self.stages if self.value(s.base) not in named]


def instructions(text: str) -> Iterator[Step]:
    """The instructions of a Dockerfile, comments left out."""
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        joined = line
        while joined.endswith("\\"):
            following = next(lines, (0, ""))[1]
            if not following.lstrip().startswith("#"):
                joined = joined[:-1] + " " + following.strip()
        for marker in re.findall(r"<<-?[\"']?(\w+)[\"']?", joined):
            for _, inner in lines:
                joined += "\n" + inner
                if inner.strip() == marker:
                    break
        word, _, rest = joined.strip().partition(" ")
        yield Step(number, word.upper(), rest.strip())


def unpinned(file: Dockerfile, scripts: dict[str, str]) -> list[str]:
    """What is fetched without a commit, a release or a checksum, in words.

    `scripts` are the image's own shell scripts by name without ending: a step that calls one
    fetches what the script fetches. An ARG without a default is filled in by whoever builds.
    """
    found = []
    steps = [step for stage in file.stages for step in stage.steps]
    for step in steps:
        text = file.value(step.text)
        if step.word == "ADD" and re.search(r"https?://|\.git\b", text):
            if not re.search(rf"--checksum={_SUM}|\.git#{_COMMIT}", text):
                found.append(f"line {step.line}: ADD without --checksum")
        elif step.word == "RUN":
            found += [f"line {step.line}: {why}" for why in _unpinned_in(text, file, scripts)]
    return found


def _unpinned_in(text: str, file: Dockerfile, scripts: dict[str, str]) -> Iterator[str]:
    calls = [name for name in scripts if re.search(rf"\b{re.escape(name)}\b", text)]
    whole = "\n".join([text, *(scripts[name] for name in calls)])
    clones = len(re.findall(r"\bgit\b[^;&|\n]*?\b(?:clone|fetch)\b", text))
    clones += sum(len(re.findall(rf"\b{re.escape(n)}\b[^;&|\n]*\bhttps?://", text)) for n in calls
                  if "git" in scripts[n])  # fmt: skip
    empty = [name for name, value in file.arguments.items() if not value]
    pins = len(re.findall(rf"\b{_COMMIT}\b|(?<=[\s/\"]){_RELEASE}(?=[\s\"]|$)", text))
    pins += sum(f"${name}" in text or f"${{{name}}}" in text for name in empty)
    if clones > pins:
        yield f"{clones} git fetches and {pins} commits or releases"
    if re.search(r"\bgit\b[^;&|\n]*\bclone\b", text) and not re.search(
        r"\bcheckout\b|--branch|\breset\b", text
    ):
        yield "git clone without checkout"
    downloads = re.search(r"\b(curl|wget|urlretrieve|fetch\.py)\b", text)
    if (
        downloads
        and not re.search(rf"\b{_SUM}\b", whole)
        and not any(f"${name}" in text and "SHA" in name for name in empty)
    ):
        yield f"{downloads[1]} without a checksum"
    for command in re.findall(r"\bpip3? (?:install|download)\b[^;&|\n]*", text):
        offline = "--no-index" in command or re.search(r"\s(?:\.|/)\S*\s*$", command)
        if "--require-hashes" not in command and not offline:
            yield f"{command.strip()[:60]}: without --require-hashes"
