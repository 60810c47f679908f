"""Environments of the local engine: real ones, whole or not there at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from ae.engines.local import LocalEngine
from ae.errors import EnvironmentFault
from ae.images import environments
from ae.images.content import BuildOptions, image_ref
from ae.model import Flavour, ImageRef, RuntimeNeeds, Status
from tests.engines.acts import Lines, make_job
from tests.toy import make_toy

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ImageRef:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("AE_LOCAL_PYTHON", raising=False)
    return image_ref(make_toy(tmp_path / "root"), "toy", Flavour.CPU)


@pytest.mark.slow
def test_made_once_and_used(image: ImageRef, tmp_path: Path) -> None:
    engine = LocalEngine(build=BuildOptions())
    assert not engine.has_image(image)
    steps = Lines()
    engine.prepare(image, steps)
    assert [text for text in steps.of("stdout") if not text.startswith("::progress ")] == [
        "making an environment",
        "installing requirements-cpu.txt",
    ]
    assert engine.has_image(image)
    assert not engine.has_image(replace(image, content="f" * 64))
    made = environments.interpreter(image).stat().st_mtime_ns
    engine.prepare(image, Lines())
    assert environments.interpreter(image).stat().st_mtime_ns == made
    lines = Lines()
    code = "import sys, os, toy; print(sys.prefix); print(os.getcwd()); print(toy.__file__)"
    job = make_job(tmp_path / "out", argv=("python", "-c", code), image=image)
    outcome = engine.run(job, lines, 60)
    assert outcome.status is Status.DONE, outcome.reason
    assert lines.of("stdout") == [
        str(environments.folder(image)),
        str(tmp_path / "out"),
        str(image.source / "src/toy/__init__.py"),
    ]


def test_a_packet_that_cannot_be_had_leaves_nothing(image: ImageRef, tmp_path: Path) -> None:
    (image.source / "requirements-cpu.txt").write_text("no-such-thing @ file:///nonexistent.whl\n")
    engine = LocalEngine(build=BuildOptions())
    with pytest.raises(
        EnvironmentFault, match=r"installing requirements-cpu\.txt failed"
    ) as caught:
        engine.prepare(image, Lines())
    assert "--wheels" in caught.value.fix
    assert not engine.has_image(image)
    assert not environments.folder(image).exists()


def test_the_index_that_a_lock_names_is_asked(
    image: ImageRef, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyPI, here an empty folder, lacks the package; a folder of wheels takes the index's place."""
    wheel = tmp_path / "simple/onlythere/onlythere-1.0-py3-none-any.whl"
    wheel.parent.mkdir(parents=True)
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("onlythere.py", "")
        about = "Metadata-Version: 2.1\nName: onlythere\nVersion: 1.0\n"
        file.writestr("onlythere-1.0.dist-info/METADATA", about)
        tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        file.writestr("onlythere-1.0.dist-info/WHEEL", tags)
        file.writestr("onlythere-1.0.dist-info/RECORD", "")
    (wheel.parent / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", f"file://{tmp_path}/pypi")
    head = f"# index: file://{tmp_path}/simple\n"
    (image.source / "requirements-cpu.txt").write_text(f"{head}onlythere==1.0\n")
    with pytest.raises(EnvironmentFault, match="onlythere"):
        LocalEngine(build=BuildOptions(wheels=tmp_path)).prepare(image, Lines())
    steps = Lines()
    LocalEngine(build=BuildOptions()).prepare(image, steps)
    assert list(environments.folder(image).glob("lib/*/site-packages/onlythere.py"))
    assert steps.of("stdout") == [  # and none of pip's own lines
        "making an environment",
        "installing requirements-cpu.txt (packages: 1)",
        f"::progress 1/1 {wheel.name}",
    ]


def test_an_image_for_containers_only(image: ImageRef, tmp_path: Path) -> None:
    (image.source / "requirements-cpu.txt").unlink()
    with pytest.raises(EnvironmentFault, match="cannot run without a container engine"):
        LocalEngine(build=BuildOptions()).prepare(image, Lines())
    with pytest.raises(EnvironmentFault, match="not there or out of date"):
        LocalEngine().prepare(image, Lines())
    with pytest.raises(EnvironmentFault, match="needs a container engine"):
        LocalEngine().prepare(replace(image, override="x:y"), Lines())
    with pytest.raises(EnvironmentFault, match="environment of toy is not there"):
        LocalEngine().run(make_job(tmp_path / "out", "print:x", image=image), Lines(), 9)


MAKER = """
import sys
from pathlib import Path
from ae.host import signals
from ae.engines.local import LocalEngine
from ae.images.content import BuildOptions, image_ref
from ae.model import Flavour
class Telling:
    def line(self, stream, text): print(text, flush=True)
with signals.handled():
    image = image_ref(Path(sys.argv[1]), "toy", Flavour.CPU)
    print("start", flush=True)
    LocalEngine(build=BuildOptions()).prepare(image, Telling())
    print("made", flush=True)
"""


def make_elsewhere(image: ImageRef) -> subprocess.Popen[str]:
    root = str(image.source.parent.parent)
    return subprocess.Popen(
        [sys.executable, "-c", MAKER, root],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_half_an_environment_is_none(
    image: ImageRef, tmp_path: Path, number: signal.Signals
) -> None:
    maker = make_elsewhere(image)
    place = environments.folder(image)
    end = time.monotonic() + 20
    while not (place / "pyvenv.cfg").exists() and time.monotonic() < end:
        time.sleep(0.01)
    maker.send_signal(number)
    maker.communicate(timeout=30)
    assert maker.returncode != 0
    assert not LocalEngine().has_image(image)
    if number is signal.SIGINT:
        assert not place.exists()


@pytest.mark.slow
def test_two_makers_make_one(image: ImageRef, tmp_path: Path) -> None:
    makers = [make_elsewhere(image), make_elsewhere(image)]
    said = [maker.communicate(timeout=120) for maker in makers]
    assert [maker.returncode for maker in makers] == [0, 0], said
    assert sum("another ae makes this environment" in out for out, _ in said) == 1
    assert LocalEngine().has_image(image)


def test_what_a_process_cannot_be_given_is_said(
    image: ImageRef, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AE_LOCAL_PYTHON", sys.executable)
    monkeypatch.setenv("PYTHONPATH", "/of/the/caller")
    needs = RuntimeNeeds(cap_add=("SYS_ADMIN",))
    lines = Lines()
    job = make_job(tmp_path / "out", "env:PYTHONPATH", "env:HOME", image=image, needs=needs)
    outcome = LocalEngine().run(job, lines, 60)
    assert "capability SYS_ADMIN" in outcome.honoured["refused"]  # type: ignore[operator]
    path, home = lines.of("stdout")
    assert path == f"{image.source.parent}/common/src{os.pathsep}{image.source}/src"
    (image.source.parent / "shared/src").mkdir(parents=True)
    (image.source / "Dockerfile").write_text("FROM scratch\nCOPY shared/src /opt/shared\n")
    again = make_job(tmp_path / "again", image=image)
    there = LocalEngine().equivalent(again)[3]
    folders = [image.source.parent / "common", image.source.parent / "shared", image.source]
    assert there == "PYTHONPATH=" + os.pathsep.join(f"{folder}/src" for folder in folders)
    assert home not in ("unset", os.environ.get("HOME"))
    assert not Path(home).exists()  # it lasts as long as the point
    assert Path(home).parent == tmp_path / "out"  # what a killed launcher leaves is its run's
