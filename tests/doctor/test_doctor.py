"""Every check of `ae doctor`, by values; and one real look at this machine."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ae.daemon import connection
from ae.doctor.checks import Check, checks_to_text, diagnose, exit_code, judge
from ae.doctor.facts import Demands, Facts, Image, demands_of
from ae.model import Availability, Gpu, GpuRequest
from ae.recipe.load import load_recipe
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
GOOD = Facts(
    engine=DOCKER,
    docker=DOCKER,
    client=Availability(ok=True, detail="/usr/bin/docker"),
    gpus=(A100,),
    counters_restricted=False,
    shm=10**9,
    nofile=4096,
    disk_free=10**12,
    disk_path="/results",
)
NEED = Demands(
    name="paper",
    command="ae run paper",
    gpu="required",
    request=GpuRequest(min_memory_gib=7.5, min_compute_capability=(8, 0), min_driver="550.54"),
    disk=10**9,
)

MISSING = Image(reference="ae/paper:cuda", ready=False, disk_free=10**11, disk_needed=15 * 10**9)


def verdicts(facts: Facts, demands: Demands = NEED) -> dict[str, Check]:
    return {check.name: check for check in judge(facts, demands)}


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
        ({"gpus": ()}, "gpu", "fail", "nvidia-smi lists no GPU"),
        ({"gpus": (replace(A100, memory_gib=4.0),)}, "gpu 0", "fail", "7.5 GiB needed"),
        ({"gpus": (replace(A100, compute_capability=(7, 5)),)}, "gpu 0", "fail", "8.0 needed"),
        ({"gpus": (replace(A100, driver="535.9"),)}, "gpu 0", "fail", "550.54 or newer needed"),
        ({"gpus": (replace(A100, processes=(42,)),)}, "gpu 0", "warn", "busy with 1 other"),
        ({"docker": replace(DOCKER, facts={})}, "gpu route", "warn", "neither a CDI spec"),
        (
            {"docker": replace(DOCKER, facts={}), "wanted_engine": "docker"},
            "gpu route",
            "fail",
            "neither a CDI spec",
        ),
        ({"disk_writable": False}, "disk", "fail", "/results cannot be written to"),
        ({"image": MISSING}, "image", "warn", "ae/paper:cuda is missing or out of date"),
        (
            {"image": replace(MISSING, disk_free=10**9)},
            "image",
            "fail",
            "which takes 15 GB, and 1 GB are free",
        ),
        ({"disk_free": 10**6}, "result", "fail", "will not work before this is put right: disk"),
        ({"counters_restricted": True}, "counters", "warn", "for root only"),
        ({"mps_pipe": "/tmp/nvidia-mps"}, "mps", "warn", "/tmp/nvidia-mps exists"),
        ({"nofile": 256}, "nofile", "warn", "256 files"),
        ({"disk_free": 10**6}, "disk", "fail", "paper needs 1 GB"),
    ],
)
def test_each_shortcoming(change: dict[str, object], name: str, verdict: str, words: str) -> None:
    check = verdicts(replace(GOOD, **change))[name]  # type: ignore[arg-type]
    assert check.verdict == verdict
    assert words in check.sentence
    assert check.fix
    assert exit_code([check]) == (3 if verdict == "fail" else 0)


def test_a_driver_is_compared_as_numbers() -> None:
    newer = replace(GOOD, gpus=(replace(A100, driver="1000.1"),))
    assert verdicts(newer)["gpu 0"].verdict == "ok"


def test_limits_against_what_the_recipe_needs() -> None:
    little = replace(GOOD, memlock=65536, shm=10**6)
    local = replace(little, local=True)
    for facts, verdict in ((little, "warn"), (local, "fail")):
        found = verdicts(facts, replace(NEED, memlock=math.inf))["memlock"]
        assert (found.verdict, "processes may lock 65.5 kB" in found.sentence) == (verdict, True)
        assert verdicts(facts, replace(NEED, memlock=65537))["memlock"].verdict == verdict
        assert verdicts(facts, replace(NEED, memlock=65536))["memlock"].verdict == "ok"
    much = replace(NEED, shm=10**6 + 1)
    assert verdicts(local, much)["shm"].verdict == "fail"
    assert "needs 1 MB" in verdicts(local, much)["shm"].sentence
    assert verdicts(local, replace(NEED, shm=10**6))["shm"].verdict == "ok"
    assert verdicts(little, much)["shm"].verdict == "ok"  # a container is given its own
    assert "any number of files" in verdicts(replace(GOOD, nofile=math.inf))["nofile"].sentence
    assert [verdicts(replace(GOOD, nofile=n))["nofile"].verdict for n in (1023, 1024)] == [
        "warn",
        "ok",
    ]


def test_a_machine_without_gpu_is_fine_for_what_needs_none() -> None:
    bare = replace(GOOD, gpus=(), counters_restricted=None)
    assert verdicts(bare, replace(NEED, gpu="optional"))["gpu"].verdict == "warn"
    assert verdicts(bare, replace(NEED, gpu="none"))["gpu"].verdict == "ok"
    assert "counters" not in verdicts(bare)


def test_one_good_gpu_among_bad_ones_is_enough() -> None:
    small = replace(A100, index=1, memory_gib=2.0)
    found = verdicts(replace(GOOD, gpus=(A100, small)))
    assert found["gpu 0"].verdict == "ok"
    assert found["gpu 1"].verdict == "warn"
    both = verdicts(
        replace(GOOD, gpus=(A100, small)), replace(NEED, request=replace(NEED.request, count=2))
    )
    assert both["gpu 1"].verdict == "fail"
    assert (
        verdicts(GOOD, replace(NEED, request=replace(NEED.request, count=2)))["gpu"].verdict
        == "fail"
    )


def test_what_a_recipe_demands(tmp_path: Path) -> None:
    assert demands_of(load_recipe(make_toy(tmp_path), "toy")) == Demands(
        name="toy", command="ae run toy", disk=6 * 10**6, gpu="none"
    )


@pytest.mark.parametrize(
    ("new", "changed"),
    [
        ("shm_size: {value: 2GB, why: x}", {"shm": 2 * 10**9}),
        ("ulimits: [{name: memlock, soft: 99, hard: -1, why: x}]", {"memlock": 99}),
        ("ulimits: [{name: memlock, soft: -1, hard: -1, why: x}]", {"memlock": math.inf}),
        ("ulimits: [{name: stack, soft: -1, hard: -1, why: x}]", {}),
        (
            "gpus: {count: 2, min_memory: 4GiB, min_driver: '550.1', why: x}",
            {"request": GpuRequest(count=2, min_memory_gib=4.0, min_driver="550.1")},
        ),
    ],
)
def test_needs_become_demands(tmp_path: Path, new: str, changed: dict[str, object]) -> None:
    root = make_toy(tmp_path)
    recipe = root / "recipes" / "toy" / "recipe.yaml"
    plain = demands_of(load_recipe(root, "toy"))
    recipe.write_text(recipe.read_text().replace("\nneeds:\n", f"\nneeds:\n  {new}\n"))
    assert demands_of(load_recipe(root, "toy")) == replace(plain, **changed)  # type: ignore[arg-type]


def test_a_real_look_and_its_two_forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_toy(tmp_path)
    checks = diagnose(root, load_recipe(root, "toy"))
    names = {check.name for check in checks}
    assert {"python", "engine", "build", "mps", "shm", "memlock", "nofile", "disk"} <= names
    engine = next(check for check in checks if check.name == "engine")
    assert engine.verdict == "warn"  # the guard leaves no daemon to unmarked tests
    text = checks_to_text(checks)
    assert "fix: install Docker" in text
    asked = {check.name: check for check in diagnose(root, None, "docker")}
    assert asked["engine"].verdict == "fail"
    assert "no Docker daemon runs at" in asked["engine"].sentence


def test_a_gpu_that_does_not_fit_is_no_failure_where_the_recipe_also_runs_on_a_cpu() -> None:
    old = Gpu(
        index=0, uuid="GPU-a", name="Old GPU", memory_gib=80.0, memory_free_gib=80.0,
        compute_capability=(7, 0), driver="580.1",
    )  # fmt: skip
    request = GpuRequest(min_compute_capability=(8, 0))
    for gpu, verdict in (("optional", "warn"), ("required", "fail")):
        demands = Demands(gpu=gpu, name="dlrm", request=request)  # type: ignore[arg-type]
        found = {check.name: check for check in judge(replace(GOOD, gpus=(old,)), demands)}
        assert found["gpu 0"].verdict == verdict
        assert ("run on the CPU" in found["gpu 0"].sentence) == (verdict == "warn")


def test_a_busy_gpu_still_serves() -> None:
    busy = replace(GOOD, gpus=(replace(A100, processes=(7, 8)), replace(A100, index=1)))
    for gpu in ("optional", "required"):
        demands = replace(NEED, gpu=gpu, request=GpuRequest(count=2))  # type: ignore[arg-type]
        found = verdicts(busy, demands)
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
    assert "result" not in verdicts(GOOD, Demands())


def test_text_is_wrapped_under_itself() -> None:
    check = Check("disk", "warn", "word " * 40, "fix it " * 20)
    lines = checks_to_text([check], 80).splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert lines[1].startswith(" " * 17 + "word")
    assert any(line.startswith(" " * 17 + "fix: ") for line in lines)


def test_only_the_lane_of_a_plain_run_counts(tmp_path: Path) -> None:
    root = make_toy(tmp_path)
    recipe = load_recipe(root, "toy")
    changed = recipe.experiments["gpu_only"].model_copy(
        update={"lane": "upstream", "default": True}
    )
    experiments = recipe.experiments | {"gpu_only": changed}
    assert demands_of(recipe.model_copy(update={"experiments": experiments})).gpu != "required"


def test_what_only_gpus_run_is_left_out_without_one_not_refused(tmp_path: Path) -> None:
    recipe = load_recipe(make_toy(tmp_path), "toy")
    changed = recipe.experiments["gpu_only"].model_copy(update={"default": True})
    experiments = recipe.experiments | {"gpu_only": changed}
    demands = demands_of(recipe.model_copy(update={"experiments": experiments}))
    assert (demands.gpu, demands.on_gpus_alone) == ("optional", ("gpu_only",))
    found = next(check for check in judge(replace(GOOD, gpus=()), demands) if check.name == "gpu")
    assert (found.verdict, "left out: gpu_only" in found.sentence) == ("warn", True)


def test_the_disk_of_what_is_left_out_is_not_asked_for(tmp_path: Path) -> None:
    recipe = load_recipe(make_toy(tmp_path), "toy")
    large = recipe.experiments["gpu_only"].model_copy(update={"default": True, "disk": 10**15})
    experiments = recipe.experiments | {"gpu_only": large}
    demands = demands_of(recipe.model_copy(update={"experiments": experiments}))

    def disk(facts: Facts) -> str:
        return next(check for check in judge(facts, demands) if check.name == "disk").verdict

    assert disk(GOOD) == "fail"
    assert disk(replace(GOOD, gpus=())) == "ok"


def ask_doctor(folder: Path, *before: str) -> dict[str, dict[str, str]]:
    """`ae doctor toy --json` in a process of its own, with the socket `folder`/docker.sock."""
    own = {
        "AE_ROOT": str(make_toy(folder / "checkout")),
        "AE_LOCAL_PYTHON": sys.executable,
        "DOCKER_HOST": f"unix://{folder}/docker.sock",
        "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    ended = subprocess.run(
        [*before, sys.executable, "-m", "ae", "doctor", "toy", "--json"],
        cwd=folder, env=os.environ | own, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.stderr == ""
    return {check["name"]: check for check in json.loads(ended.stdout)}


def test_a_daemon_that_is_missing(tmp_path: Path) -> None:
    found = ask_doctor(tmp_path)
    assert found["engine"]["verdict"] == "warn"
    assert "no Docker Engine answers" in found["engine"]["sentence"]
    assert "result" in found


def test_a_daemon_that_is_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert connection.PING_TIMEOUT_S <= 10
    monkeypatch.setattr(connection, "PING_TIMEOUT_S", 0.5)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/silent.sock")
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent.sock"))
        silent.listen(16)
        began = time.monotonic()
        found = {check.name: check for check in diagnose(ROOT, None)}
    assert "no Docker Engine answers" in found["engine"].sentence
    assert 0.5 < time.monotonic() - began < 8


def test_a_socket_without_permission(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as closed:
        closed.bind(str(tmp_path / "docker.sock"))
        closed.listen(1)
        (tmp_path / "docker.sock").chmod(0)
        meek = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]  # root as all others
        found = ask_doctor(tmp_path, *(meek if os.getuid() == 0 else []))
    assert "no Docker Engine answers" in found["engine"]["sentence"]
    assert "result" in found


def test_an_engine_that_was_asked_for_is_fine_without_docker() -> None:
    bare = replace(GOOD, docker=NONE, engine=LOCAL)
    assert verdicts(replace(bare, wanted_engine="local"))["engine"] == Check(
        "engine", "ok", LOCAL.detail
    )
    assert "gpu route" not in verdicts(bare)


def test_docker_without_a_gpu_route_fails_only_what_needs_docker_and_a_gpu() -> None:
    bare = replace(GOOD, docker=replace(DOCKER, facts={}), wanted_engine="docker")
    assert verdicts(bare, replace(NEED, gpu="optional"))["gpu route"].verdict == "warn"
    assert verdicts(bare)["gpu route"].verdict == "fail"
    nvidia = replace(GOOD, docker=replace(DOCKER, facts={"gpu_route": "nvidia"}))
    assert "the NVIDIA runtime" in verdicts(nvidia)["gpu route"].sentence


def test_the_edges_of_disk_and_image() -> None:
    assert verdicts(replace(GOOD, disk_free=NEED.disk))["disk"].verdict == "ok"
    assert verdicts(replace(GOOD, disk_free=NEED.disk - 1))["disk"].verdict == "fail"
    assert verdicts(replace(GOOD, disk_free=1), Demands())["disk"].sentence.endswith(
        "and a run needs 1 GB"
    )
    ready = replace(MISSING, ready=True, disk_free=0)
    assert verdicts(replace(GOOD, image=ready))["image"].verdict == "ok"
    for free, verdict in ((0, "warn"), (MISSING.disk_needed - 1, "fail"), (10**11, "warn")):
        image = replace(MISSING, disk_free=free)  # 0: nobody knows
        assert verdicts(replace(GOOD, image=image))["image"].verdict == verdict
    assert "image" not in verdicts(GOOD)


def test_what_only_gpus_take_counts_where_a_gpu_is_required() -> None:
    bare = replace(GOOD, gpus=(), disk_free=5 * 10**8)
    demands = replace(NEED, disk_on_gpus_alone=6 * 10**8)
    assert verdicts(bare, demands)["disk"].verdict == "fail"
    assert verdicts(bare, replace(demands, gpu="optional"))["disk"].verdict == "ok"
    assert verdicts(bare)["gpu"].fix.startswith("install the NVIDIA driver")


def test_the_fix_of_a_gpu_that_does_not_fit_and_the_count_of_warnings() -> None:
    old = verdicts(replace(GOOD, gpus=(replace(A100, driver="500.1"),)))["gpu 0"]
    small = verdicts(replace(GOOD, gpus=(replace(A100, memory_gib=1.0),)))["gpu 0"]
    assert (old.fix, small.fix) == ("update the NVIDIA driver", "use another GPU")
    two = verdicts(replace(GOOD, mps_pipe="/p", counters_restricted=True))["result"]
    assert two.sentence.endswith("mind the 2 warnings above")


def test_what_experiments_take_of_the_disk(tmp_path: Path) -> None:
    root = make_toy(tmp_path)
    path = root / "recipes" / "toy" / "recipe.yaml"
    path.write_text(path.read_text().replace("    gpu: none\n", "    gpu: optional\n", 1))
    demands = demands_of(load_recipe(root, "toy"))
    assert (demands.gpu, demands.on_gpus_alone) == ("optional", ())
    path.write_text(path.read_text().replace("    gpu: optional\n", "    gpu: required\n", 1)
        .replace("\nneeds:\n", "\nneeds:\n  gpus: {why: x}\n"))  # fmt: skip
    demands = demands_of(load_recipe(root, "toy"))
    assert (demands.gpu, demands.on_gpus_alone) == ("optional", ("together",))
    assert (demands.disk, demands.disk_on_gpus_alone) == (6 * 10**6, 2 * 10**6)
