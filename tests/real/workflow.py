"""Runs a workflow of GitHub Actions here: each job in a clone of its own, each step's own words.

What GitHub brings stands in: the values of expressions are given, artifacts are folders, and `gh`
writes down what it is asked.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import yaml

GH = """#!/bin/sh
printf '%s\\n' "$*" >>"$GH_ASKED"
"""


def read(path: Path) -> dict[str, Any]:
    """A workflow."""
    document: dict[str, Any] = yaml.safe_load(path.read_text())
    return document


@dataclass
class Run:
    """One run of a workflow on a commit of a repository."""

    workflow: Mapping[str, Any]
    origin: Path
    ref: str
    folder: Path
    environment: Mapping[str, str]
    values: Mapping[str, Any]  # expression -> what it is worth
    outputs: dict[str, Any] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)  # job, with its matrix -> output
    left_out: set[str] = field(default_factory=set)  # jobs that are other workflows

    @property
    def artifacts(self) -> Path:
        """Where artifacts lie, a folder each."""
        return self.folder / "artifacts"

    @property
    def asked(self) -> list[str]:
        """What `gh` was asked to do, in order."""
        path = self.folder / "asked"
        return path.read_text().splitlines() if path.is_file() else []

    def all_jobs(self) -> None:
        """Every job, after those that it needs. Raises AssertionError with what a step said."""
        (self.folder / "bin").mkdir(parents=True)
        (self.folder / "bin/gh").write_text(GH)
        (self.folder / "bin/gh").chmod(0o755)
        jobs, done, skipped = dict(self.workflow["jobs"]), set[str](), set[str]()
        while jobs:
            name = next(name for name, job in jobs.items() if done.issuperset(job.get("needs", ())))
            job = jobs.pop(name)
            done.add(name)
            if "uses" in job:
                self.left_out.add(name)
            elif skipped.intersection(job.get("needs", ())) or not self._worth(
                job.get("if", True), {}
            ):
                skipped.add(name)
            else:
                for place in self._places(job):
                    self._job(name, job, place)

    def _places(self, job: Mapping[str, Any]) -> Iterator[dict[str, str]]:
        matrix = job.get("strategy", {}).get("matrix", {})
        axes = {
            axis: words if isinstance(words, list) else self._worth(words, {})
            for axis, words in matrix.items()
        }
        for values in product(*axes.values()):
            yield {f"matrix.{axis}": value for axis, value in zip(axes, values, strict=True)}

    def _job(self, name: str, job: Mapping[str, Any], place: Mapping[str, str]) -> None:
        label = "-".join([name, *place.values()])
        folder = self.folder / "jobs" / label
        folder.mkdir(parents=True)
        values = dict(place)
        for step in job["steps"]:
            if not self._worth(step.get("if", True), values):
                continue
            if "uses" in step:
                given = {k: self._filled(v, values) for k, v in step.get("with", {}).items()}
                self._action(step["uses"].partition("@")[0], given, folder)
            else:
                found = self._step(label, job, step, folder, values)
                if "id" in step:
                    values |= {f"steps.{step['id']}.outputs.{k}": v for k, v in found.items()}
        for key, word in job.get("outputs", {}).items():
            value = self._worth(word, values)
            self.outputs[f"needs.{name}.outputs.{key}"] = value
            self.outputs[f"fromJSON(needs.{name}.outputs.{key})"] = json.loads(value)

    def _action(self, name: str, given: Mapping[str, str], folder: Path) -> None:
        match name:
            case "actions/checkout":
                words = ["git", "clone", "-q", "--branch", self.ref, str(self.origin), str(folder)]
                subprocess.run(words, check=True, capture_output=True)
                self._virtual_environment(folder)
            case "actions/upload-artifact" | "actions/upload-pages-artifact":
                source = folder / given["path"]
                target = self.artifacts / given.get("name", "github-pages")
                assert source.exists(), given
                assert not target.exists(), f"two artifacts {target.name}"
                if source.is_dir():
                    shutil.copytree(source, target, copy_function=os.link)
                else:
                    target.mkdir(parents=True)
                    shutil.copy(source, target)
            case "actions/download-artifact":
                if "name" in given:
                    self._fetch(given["name"], folder / given["path"])
                else:
                    found = list(self.artifacts.glob(given["pattern"]))
                    assert found, given
                    for one in found:
                        self._fetch(one.name, folder / given["path"] / one.name)
            case "actions/deploy-pages":
                assert (self.artifacts / "github-pages/index.html").is_file()
            case _:
                raise AssertionError(f"nothing stands for {name} here")

    def _fetch(self, name: str, target: Path) -> None:
        shutil.copytree(self.artifacts / name, target, copy_function=os.link)

    def _virtual_environment(self, folder: Path) -> None:
        """What `make setup` has made for these tests is its .venv, too: none is made again."""
        (folder / ".venv").mkdir()
        for path in Path(sys.prefix).iterdir():
            (folder / ".venv" / path.name).unlink(missing_ok=True)
            if path.name not in (".dev", ".run"):
                (folder / ".venv" / path.name).symlink_to(path)
        for name in (".run", ".dev"):
            (folder / ".venv" / name).touch()

    def _step(
        self,
        label: str,
        job: Mapping[str, Any],
        step: Mapping[str, Any],
        folder: Path,
        values: Mapping[str, str],
    ) -> dict[str, str]:
        assert "${{" not in step["run"], "a value in a script is code: give it as a variable"
        declared = {**self.workflow.get("env", {}), **job.get("env", {}), **step.get("env", {})}
        output = self.folder / "output"
        output.write_text("")
        environment = {
            **self.environment,
            **{key: str(self._filled(word, values)) for key, word in declared.items()},
            "PATH": f"{self.folder / 'bin'}:{self.environment['PATH']}",
            "GH_ASKED": str(self.folder / "asked"),
            "GITHUB_OUTPUT": str(output),
            "GITHUB_WORKSPACE": str(folder),
        }
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            check=False, timeout=250,
        )  # fmt: skip
        said = f"$ {step['run']}\n{done.stdout}{done.stderr}"
        self.said[label] = self.said.get(label, "") + said
        assert done.returncode == 0, f"{label}: {said}"
        return dict(line.split("=", 1) for line in output.read_text().splitlines())

    def _filled(self, text: object, values: Mapping[str, Any]) -> str:
        """A text with its expressions filled in."""
        return re.sub(
            r"\$\{\{ (.*?) \}\}", lambda match: str(self._worth(match[0], values)), str(text)
        )

    def _worth(self, text: object, values: Mapping[str, Any]) -> Any:
        """What one expression is worth. An output that no step has set is empty."""
        if not isinstance(text, str):
            return text
        whole = re.fullmatch(r"\$\{\{ (.*?) \}\}", text)
        assert whole, f"{text} is not one expression"
        known = {**self.values, **self.outputs, **values}
        if whole[1].startswith("steps."):
            return known.get(whole[1], "")
        return known[whole[1]]


def plain_environment() -> dict[str, str]:
    """Ours, without what tells `ae` where things are."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("AE_", "GIT_"))}
