"""Every check of `ae doctor`, by values; and one real look at this machine."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ae.commands.machine import look
from ae.daemon import connection
from ae.doctor import Check, Facts, checks_to_text, exit_code, judge, judge_image
from ae.errors import EnvironmentFault
from ae.model import Availability, Flavour, Gpu, ImageRef, Plan, Point, RuntimeNeeds, Ulimit
from tests.toy import make_toy

ROOT = Path(__file__).resolve().parents[2]
A100 = Gpu(
    index=0,
    uuid="GPU-a",
    name="NVIDIA A100",
    memory_gib=40.0,
    memory_free_gib=39.0,
    compute_capability=(8, 0),
    driver="550.54.15",
)
DOCKER = Availability(
    ok=True,
    detail="Docker Engine 26.1.5 at unix:///run/docker.sock, CDI",
    facts={"gpu_route": "cdi"},
)
NONE = Availability(ok=False, detail="nothing there", fix="put something there")
LOCAL = Availability(ok=True, detail="processes of this machine")
POINT = Point(
    id="p", recipe="paper", experiment="e", labels={}, variants=(), argv=("true",), env={},
    image=ImageRef(name="paper", flavour=Flavour.CUDA, content="c" * 64, source=Path("x/y/z")),
    needs=RuntimeNeeds(), timeout_s=1, expected_s=1, disk_bytes=10**9,
)  # fmt: skip
PLAN = Plan(recipe="paper", lane="native", flavour=Flavour.CUDA, quick=False, points=(POINT,))
GOOD = Facts(
    engine=DOCKER,
    docker=DOCKER,
    client=Availability(ok=True, detail="/usr/bin/docker"),
    gpus=(A100,),
    counters_restricted=False,
    shm=10**9,
    disk_free=10**12,
    disk_path="/results",
    command="ae run paper",
    plan=PLAN,
)
NEEDED = 15 * 10**9


def image(*, free: int = 10**11, ready: bool = False) -> Check:
    return judge_image("ae/paper:cuda", ready, free, NEEDED)


def verdicts(facts: Facts) -> dict[str, Check]:
    return {check.name: check for check in judge(facts)}


def needing(**needs: object) -> Plan:
    """A plan of one point with these needs."""
    return replace(PLAN, points=(replace(POINT, needs=RuntimeNeeds(**needs)),))  # type: ignore[arg-type]


def test_a_good_machine() -> None:
    found = verdicts(GOOD)
    assert {check.verdict for check in found.values()} == {"ok"}
    assert exit_code(found.values()) == 0
    assert "NVIDIA A100, 40 GiB (39 free), compute capability 8.0" in found["gpu 0"].sentence


@pytest.mark.parametrize(
    ("change", "name", "verdict", "words"),
    [
        ({"engine": NONE}, "engine", "fail", "nothing there"),
        ({"docker": NONE, "engine": LOCAL}, "engine", "warn", "no Docker Engine answers"),
        ({"client": NONE}, "build", "warn", "nothing there"),
        ({"gpus": ()}, "gpu", "warn", "nvidia-smi lists no GPU"),
        (
            {"plan": None, "refused": EnvironmentFault("e cannot run here", fix="buy one")},
            "plan",
            "fail",
            "e cannot run here",
        ),
        ({"gpus": (replace(A100, processes=(42,)),)}, "gpu 0", "warn", "busy with 1 other"),
        ({"docker": replace(DOCKER, facts={})}, "gpu route", "warn", "neither a CDI spec"),
        ({"disk_writable": False}, "disk", "fail", "/results cannot be written to"),
        ({"image": image()}, "image", "warn", "ae/paper:cuda is missing or out of date"),
        (
            {"image": image(free=10**9)},
            "image",
            "fail",
            "which takes 15 GB, and 1 GB are free",
        ),
        ({"disk_free": 10**6}, "result", "fail", "will not work before this is put right: disk"),
        ({"counters_restricted": True}, "counters", "warn", "for root only"),
        ({"mps_pipe": "/tmp/nvidia-mps"}, "mps", "warn", "/tmp/nvidia-mps exists"),
        ({"disk_free": 10**6}, "disk", "fail", "a run needs 1 GB"),
    ],
)
def test_each_shortcoming(change: dict[str, object], name: str, verdict: str, words: str) -> None:
    check = verdicts(replace(GOOD, **change))[name]  # type: ignore[arg-type]
    assert check.verdict == verdict
    assert words in check.sentence
    assert check.fix
    assert exit_code([check]) == (3 if verdict == "fail" else 0)


def test_limits_against_what_the_plan_needs() -> None:
    little = replace(GOOD, memlock=65536, shm=10**6)
    local = replace(little, local=True)

    def memlock(soft: int) -> Plan:
        return needing(ulimits=(Ulimit(name="stack", soft=-1, hard=-1),
                                Ulimit(name="memlock", soft=soft, hard=-1)))  # fmt: skip

    for facts, verdict in ((little, "warn"), (local, "fail")):
        found = verdicts(replace(facts, plan=memlock(-1)))["memlock"]
        assert (found.verdict, "processes may lock 65.5 kB" in found.sentence) == (verdict, True)
        assert verdicts(replace(facts, plan=memlock(65537)))["memlock"].verdict == verdict
        assert verdicts(replace(facts, plan=memlock(65536)))["memlock"].verdict == "ok"
    assert verdicts(local)["memlock"].verdict == "ok"
    much = verdicts(replace(local, plan=needing(shm_bytes=10**6 + 1)))["shm"]
    assert (much.verdict, "1 MB are needed" in much.sentence) == ("fail", True)
    assert verdicts(replace(local, plan=needing(shm_bytes=10**6)))["shm"].verdict == "ok"
    # A container is given its own.
    assert verdicts(replace(little, plan=needing(shm_bytes=10**6 + 1)))["shm"].verdict == "ok"


def test_what_the_planner_leaves_out_is_a_warning() -> None:
    bare = replace(GOOD, gpus=(), counters_restricted=None, plan=replace(PLAN, notes=("a", "b")))
    found = verdicts(bare)
    assert (found["plan"].verdict, found["plan"].sentence) == ("warn", "1 points would run; a; b")
    assert "counters" not in found
    assert found["result"].verdict == "ok"


@pytest.mark.parametrize(
    ("gpus", "said"),
    [
        ((A100, replace(A100, index=1)), "has 40 GiB of memory, 60 GiB needed"),
        ((replace(A100, memory_gib=80.0),), "2 GPUs are needed and there are 1"),
        ((replace(A100, memory_gib=80.0, driver="500.1"),) * 2, "550.54 or newer needed"),
        ((), "this machine shows no GPU"),
        ((replace(A100, memory_gib=80.0), replace(A100, index=1, memory_gib=80.0)), ""),
    ],
)
@pytest.mark.parametrize("alone", [True, False])
def test_a_recipe_that_needs_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: tuple[Gpu, ...], said: str, alone: bool
) -> None:
    """What GPUs alone run is left out beside what runs without, and else refused."""
    root = make_toy(tmp_path)
    path = root / "recipes" / "toy" / "recipe.yaml"
    text = path.read_text().replace("count: 1, min_memory: 8GB", "count: 2, min_memory: 60GiB")
    first, other = text.split("\n  gpu_only:\n")
    text = first + "\n  gpu_only:\n" + other.replace("    default: false\n", "", 1)
    if alone:
        text = re.sub(r"\n  (together|apart):\n", r"\n  \1:\n    default: false\n", text)
    path.write_text(text)
    monkeypatch.setenv("AE_ROOT", str(root))
    monkeypatch.setenv("AE_LOCAL_PYTHON", sys.executable)
    monkeypatch.setattr("ae.host.machine.query_gpus", lambda: gpus)
    monkeypatch.setattr("ae.doctor.judge_image", lambda *_: None)
    found = verdicts(look("toy", None))["plan"]
    assert said in found.sentence
    assert found.verdict == ("fail" if alone else "warn") if said else "ok"
    assert bool(found.fix) is (found.verdict == "fail")


def test_a_real_look_and_its_two_forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AE_ROOT", str(make_toy(tmp_path)))
    checks = judge(look("toy", None))
    names = {check.name for check in checks}
    assert {"python", "engine", "build", "mps", "shm", "memlock", "disk", "plan"} <= names
    engine = next(check for check in checks if check.name == "engine")
    assert engine.verdict == "warn"  # the guard leaves no daemon to unmarked tests
    text = checks_to_text(checks)
    assert "fix: install Docker" in text
    asked = {check.name: check for check in judge(look(None, "docker"))}
    assert asked["engine"].verdict == "fail"
    assert "no Docker daemon runs at" in asked["engine"].sentence


def test_a_busy_gpu_still_serves() -> None:
    found = verdicts(replace(GOOD, gpus=(replace(A100, processes=(7, 8)), replace(A100, index=1))))
    assert found["gpu 0"].verdict == "warn"
    assert found["gpu 0"].sentence.endswith("busy with 2 other process(es): 7, 8")
    assert found["gpu 1"].verdict == "ok"
    assert "gpu" not in found


def test_the_last_line_says_whether_a_run_will_work() -> None:
    assert verdicts(GOOD)["result"] == Check(
        "result", "ok", f"`ae run paper` works here: {DOCKER.detail}"
    )
    said = verdicts(replace(GOOD, mps_pipe="/p"))["result"].sentence
    assert said.endswith("mind the 1 warning above")
    assert "result" not in verdicts(replace(GOOD, command=""))


def test_text_is_wrapped_under_itself() -> None:
    check = Check("disk", "warn", "word " * 40, "fix it " * 20)
    lines = checks_to_text([check], 80).splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert lines[1].startswith(" " * 17 + "word")
    assert any(line.startswith(" " * 17 + "fix: ") for line in lines)


def ask_doctor(folder: Path, *before: str) -> tuple[float, dict[str, dict[str, str]]]:
    """`ae doctor toy --json` in a process of its own, with the socket `folder`/docker.sock."""
    own = {
        "AE_ROOT": str(make_toy(folder / "checkout")),
        "AE_LOCAL_PYTHON": sys.executable,
        "DOCKER_HOST": f"unix://{folder}/docker.sock",
        "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    began = time.monotonic()
    ended = subprocess.run(
        [*before, sys.executable, "-m", "ae", "doctor", "toy", "--json"],
        cwd=folder, env=os.environ | own, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.stderr == ""
    return time.monotonic() - began, {check["name"]: check for check in json.loads(ended.stdout)}


def test_a_daemon_that_is_missing(tmp_path: Path) -> None:
    _, found = ask_doctor(tmp_path)
    assert found["engine"]["verdict"] == "warn"
    assert "no Docker Engine answers" in found["engine"]["sentence"]
    assert "result" in found


def test_a_daemon_that_is_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert connection.PING_TIMEOUT_S <= 20
    monkeypatch.setattr(connection, "PING_TIMEOUT_S", 0.5)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/silent.sock")
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent.sock"))
        silent.listen(16)
        began = time.monotonic()
        found = {check.name: check for check in judge(look(None, None))}
    assert "no Docker Engine answers" in found["engine"].sentence
    assert 0.5 < time.monotonic() - began < 8


def test_a_socket_without_permission(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as closed:
        closed.bind(str(tmp_path / "docker.sock"))
        closed.listen(1)
        (tmp_path / "docker.sock").chmod(0)
        meek = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]  # root as all others
        _, found = ask_doctor(tmp_path, *(meek if os.getuid() == 0 else []))
    assert "no Docker Engine answers" in found["engine"]["sentence"]
    assert "result" in found


def test_an_engine_that_was_asked_for_is_fine_without_docker() -> None:
    bare = replace(GOOD, docker=NONE, engine=LOCAL)
    assert verdicts(replace(bare, wanted_engine="local"))["engine"] == Check(
        "engine", "ok", LOCAL.detail
    )
    assert "gpu route" not in verdicts(bare)


def test_how_docker_hands_over_gpus() -> None:
    nvidia = replace(GOOD, docker=replace(DOCKER, facts={"gpu_route": "nvidia"}))
    assert "the NVIDIA runtime" in verdicts(nvidia)["gpu route"].sentence


def test_the_edges_of_disk_and_image() -> None:
    several = replace(GOOD, plan=replace(PLAN, points=(POINT, POINT)))
    assert verdicts(replace(several, disk_free=2 * 10**9))["disk"].verdict == "ok"
    assert verdicts(replace(several, disk_free=2 * 10**9 - 1))["disk"].verdict == "fail"
    assert verdicts(replace(GOOD, disk_free=1, plan=None))["disk"].sentence.endswith(
        "and a run needs 1 GB"
    )
    for free in (0, 1, 10**11):
        assert image(free=free, ready=True).verdict == "ok"
    for free, verdict in ((0, "warn"), (NEEDED - 1, "fail"), (NEEDED, "warn"), (10**11, "warn")):
        found = verdicts(replace(GOOD, image=image(free=free)))  # 0: nobody knows
        assert found["image"].verdict == verdict
        assert ("image" in found["result"].sentence) is (verdict == "fail")
    assert "image" not in verdicts(GOOD)


def test_the_count_of_warnings() -> None:
    two = verdicts(replace(GOOD, mps_pipe="/p", counters_restricted=True))["result"]
    assert two.sentence.endswith("mind the 2 warnings above")


def test_an_environment_is_no_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AE_ROOT", str(make_toy(tmp_path)))
    monkeypatch.setenv("AE_LOCAL_PYTHON", sys.executable)
    found = {check.name: check for check in judge(look("toy", "local"))}
    said = f"the environment of {sys.executable} is there and up to date"
    assert found["image"] == Check("image", "ok", said)
    assert found["result"].sentence.startswith("`ae run toy --engine local` works here")


def test_an_image_that_the_engine_cannot_make() -> None:
    fault = EnvironmentFault("podman has no image", fix="load it")
    found = verdicts(replace(GOOD, refused=fault))
    assert found["image"] == Check("image", "fail", "podman has no image", "load it")
    assert found["plan"].verdict == "ok"
    assert found["result"].sentence.endswith("put right: image")
