"""Secrets: which file is meant, what a recipe may ask for, and masked lines."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ae.engines.local import LocalEngine
from ae.engines.secrets import Mask, mounts_of, resolve
from ae.errors import EnvironmentFault, UsageError
from ae.model import Machine, Mount, RuntimeNeeds, Secret, Status
from ae.plan.planner import make_plan
from ae.plan.selection import Selection
from ae.recipe.load import load_recipe
from ae.recipe.needs import Needs
from tests.engines.acts import Lines, make_job
from tests.real.acting import NAME, make_root

LICENCE = "# Gurobi WLS\nWLSACCESSID=0a1b2c3d-aaaa\nWLSSECRET=s3cr3t-of-the-person\nLICENSEID=42\n"


@pytest.fixture
def licence(tmp_path: Path) -> Path:
    path = tmp_path / "gurobi.lic"
    path.write_text(LICENCE)
    path.chmod(0o600)
    return path


def test_the_option_beats_the_variable(licence: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("another")
    other.chmod(0o600)
    environment = {"AE_SECRET_GUROBI": str(other), "AE_SECRET_SPARE": str(other)}
    assert resolve(["gurobi"], {}, environment) == {"gurobi": other}
    assert resolve(["gurobi"], {"gurobi": str(licence)}, environment) == {"gurobi": licence}
    assert resolve(["gurobi"], {}, {}) == {}
    assert Secret(name="my-key", target="/x").variable == "AE_SECRET_MY_KEY"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "no file"),
        (lambda path: path.mkdir(), "no file"),
        (lambda path: path.touch(), "is empty"),
        (os.mkfifo, "no file"),
        (lambda path: path.write_bytes(bytes(2**20 + 1)), "larger than 1 MiB"),
    ],
)
def test_a_file_that_cannot_be_one(tmp_path: Path, make: Any, words: str) -> None:
    make(tmp_path / "it")
    with pytest.raises(UsageError, match=words) as caught:
        resolve(["gurobi"], {"gurobi": str(tmp_path / "it")}, {})
    assert caught.value.fix
    with pytest.raises(UsageError, match=words):
        resolve(["gurobi"], {}, {"AE_SECRET_GUROBI": str(tmp_path / "it")})


def test_a_secret_that_the_recipe_does_not_have(licence: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'gurobi'"):
        resolve(["gurobi"], {"gurobbi": str(licence)}, {})


@pytest.mark.parametrize(
    "target", ["run/x", "/", "/run/", "/run/../etc/x", "/ae/out/licence", "//x"]
)
def test_where_a_secret_cannot_go(target: str) -> None:
    with pytest.raises(ValidationError):
        Needs.model_validate({"secrets": [{"name": "a", "target": target, "why": "x"}]})


@pytest.mark.parametrize(("names", "targets"), [("aa", "xy"), ("ab", "xx")])
def test_two_secrets_differ(names: str, targets: str) -> None:
    pairs = zip(names, targets, strict=True)
    both = [{"name": name, "target": f"/run/{target}", "why": "x"} for name, target in pairs]
    with pytest.raises(ValidationError, match="two `secrets` have the same"):
        Needs.model_validate({"secrets": both})


SECRETS = (
    "{secrets: [{name: gurobi, target: /run/secrets/gurobi.lic, optional: OPTIONAL, "
    "why: the solver wants it}]}"
)


def test_the_plan_stops_without_a_secret_that_it_needs(tmp_path: Path) -> None:
    root = make_root(tmp_path, needs=SECRETS.replace("OPTIONAL", "false"))
    recipe = load_recipe(root, NAME)
    assert recipe.secrets() == ["gurobi"]
    content = {NAME: "c"}
    with pytest.raises(EnvironmentFault, match="middle needs the secret 'gurobi'") as caught:
        make_plan(recipe, Selection(), Machine(), root, content)
    assert "--secret gurobi=FILE, or AE_SECRET_GUROBI=FILE" in caught.value.fix
    others = Selection(experiments=("first", "last"))
    assert len(make_plan(recipe, others, Machine(), root, content).points) == 2
    plan = make_plan(recipe, Selection(), Machine(), root, content, ["gurobi"])
    assert [len(point.needs.secrets) for point in plan.points] == [0, 1, 0]


def test_a_plan_without_an_optional_secret(tmp_path: Path) -> None:
    root = make_root(tmp_path, needs=SECRETS.replace("OPTIONAL", "true"))
    recipe = load_recipe(root, NAME)
    without = make_plan(recipe, Selection(), Machine(), root, {NAME: "c"})
    given = make_plan(recipe, Selection(), Machine(), root, {NAME: "c"}, ["gurobi"])
    assert all(point.needs.secrets == () for point in without.points)
    keys = [[point.key for point in plan.points] for plan in (without, given)]
    assert keys[0][0] == keys[1][0]
    assert keys[0][1] != keys[1][1]  # it may compute something else


def test_what_a_secret_says_is_masked(licence: Path) -> None:
    mask = Mask({"gurobi": licence})
    said = mask.text("id 0a1b2c3d-aaaa, WLSSECRET=s3cr3t-of-the-person! LICENSEID=42 id 42")
    assert said == "id [secret gurobi], [secret gurobi]! [secret gurobi] id 42"
    assert Mask({}).text("any line") == "any line"


def test_a_secret_is_a_read_only_mount_of_the_persons_file(licence: Path, tmp_path: Path) -> None:
    needs = RuntimeNeeds(secrets=(Secret(name="gurobi", target="/run/secrets/g"),))
    job = make_job(tmp_path / "out", "print:x", needs=needs)
    job.secrets["gurobi"] = licence  # type: ignore[index]
    assert mounts_of(job) == (Mount(source=licence, target="/run/secrets/g", read_only=True),)


def test_an_engine_without_containers_gives_none(
    licence: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AE_LOCAL_PYTHON", sys.executable)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    engine = LocalEngine()
    needed = Secret(name="gurobi", target="/run/secrets/g")
    job = make_job(tmp_path / "1", "print:x", needs=RuntimeNeeds(secrets=(needed,)))
    with pytest.raises(EnvironmentFault, match="which only a container can be given"):
        engine.run(job, Lines(), 60)
    spared = replace(needed, optional=True)
    job = make_job(tmp_path / "2", "print:x", needs=RuntimeNeeds(secrets=(spared,)))
    outcome = engine.run(job, Lines(), 60)
    assert outcome.status is Status.DONE
    assert "secret gurobi" in outcome.honoured["refused"]  # type: ignore[operator]
