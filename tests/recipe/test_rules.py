"""The edges of a recipe's rules: what just passes, what just fails, and what a recipe answers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ae.errors import RecipeError
from ae.recipe.load import find_root, load_recipe
from ae.recipe.models import Recipe
from tests.toy import make_toy


def small(**changed: Any) -> dict[str, Any]:
    """A recipe of one experiment."""
    return {
        "schema": 1, "name": "toy", "title": "t", "image": "toy",
        "paper": {"title": "t", "venue": "v", "url": "u"},
        "lanes": {"native": {"summary": "s"}},
        "variants": {"a": {"title": "A", "summary": "s"}, "b": {"title": "B", "summary": "s"}},
        "axes": {
            "size": {
                "help": "h",
                "values": {"1": {"summary": "s"}, "2": {"summary": "s"},
                           "4": {"summary": "s", "default": False}},
            }
        },
        "experiments": {"one": experiment()},
        **changed,
    }  # fmt: skip


def experiment(**changed: Any) -> dict[str, Any]:
    return {
        "title": "t", "summary": "s", "gpu": "none", "variants": "all", "axes": ["size"],
        "command": ["x", "{variants}", "{size}", "{device}", "{repeat}"],
        "time": {"full": "2s", "quick": "1s"}, "timeout": {"full": "2s", "quick": "1s"}, **changed,
    }  # fmt: skip


def need(**changed: Any) -> dict[str, Any]:
    return {"value": "1GB", "why": "w", **changed}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_toy(tmp_path)


def load(root: Path, document: dict[str, Any]) -> Recipe:
    (root / "recipes/toy/recipe.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    return load_recipe(root, "toy")


def of(**changed: Any) -> dict[str, Any]:
    return small(experiments={"one": experiment(**changed)})


def number(**changed: Any) -> dict[str, Any]:
    parameter = {"type": "int", "default": 5, "help": "h", **changed}
    command = [*experiment()["command"], "{n}"]
    return small(parameters={"n": parameter}, experiments={"one": experiment(command=command)})


GPUS = {"count": "{size}", "why": "w"}
SECRET = {"name": "a", "target": "/run/secrets/a", "why": "w"}

PASS = {
    "the timeout may be the expected time": small(),
    "a lane nobody built needs no experiment": small(
        lanes={"native": {"summary": "s"}, "upstream": {"summary": "s", "built": False}}
    ),
    "no variants, and a command without them": small(
        variants={}, experiments={"one": experiment(variants=[], command=["x", "{size}"])}
    ),
    "variants of a point each": of(interleave=False),
    "ipc host alone": small(needs={"ipc": need(value="host")}),
    "a private ipc and a size": small(needs={"ipc": need(value="private"), "shm_size": need()}),
    "no GPU and an axis that counts them": small(
        needs={"gpus": GPUS},
        experiments={"one": experiment(axes=[], command=["{variants}"]),
                     "two": experiment(gpu="required")},
    ),
    "a bound that is met": number(min=5, max=5),
    "a quick value of nothing": number(quick=0),
    "a capability with its prefix": small(needs={"cap_add": [need(value="CAP_SYS_ADMIN")]}),
    "unlimited": small(needs={"ulimits": [{"name": "stack", "soft": -1, "hard": -1, "why": "w"}]}),
}  # fmt: skip

FAIL = [
    (of(lane="upstream"), "unknown lane 'upstream' in experiments.one.lane"),
    (of(timeout={"full": "2s", "quick": "0.5s"}), "the quick timeout is shorter"),
    (of(timeout={"full": "1s", "quick": "1s"}), "the full timeout is shorter"),
    (of(axes=["size", "size"]), "names something twice"),
    (of(variants=["a", "a"]), "names something twice"),
    (of(gpu="required"), "`gpu: required` without `needs.gpus`"),
    (of(gpu="optional", axes=[], command=["{variants}"], needs={"gpus": GPUS}), "lacks the axis"),
    (of(command=["{variants!r}", "{size}"]), "is not plain text with {names}"),
    (of(command=["{variants:>3}", "{size}"]), "is not plain text with {names}"),
    (of(command=["{variant}", "{size}"]), "nobody defines the placeholder {variant}"),
    (of(command=["{size}"]), "does not say which variants to run"),
    (of(only={"size": []}), "experiments.one.only.size: names nothing"),
    (of(default=False), "no experiment is part of a plain run of the lane native"),
    (small(lanes={"native": {"summary": "s", "built": False}, "upstream": {"summary": "s"}}),
     "no experiment is part of a plain run of the lane upstream"),
    (small(lanes={"upstream": {"summary": "s"}, "native": {"summary": "s", "built": False}},
           experiments={"one": experiment(lane="upstream")}),
     "no experiment is part of a plain run of the lane native"),
    (small(lanes={"native": {"summary": "s", "image": "nowhere"}}), "unknown image 'nowhere'"),
    (small(axes={**small()["axes"], "repeat": small()["axes"]["size"]}),
     "the name 'repeat' is taken"),
    (small(needs={"gpus": {**GPUS, "count": "{nothing}"}}), "unknown axis 'nothing' in needs.gpus"),
    (number(replaces="nothing"), "unknown axis 'nothing' in parameters.n.replaces"),
    (small(needs={"gpus": GPUS}, axes={"size": {"help": "h", "values": {"08": {"summary": "s"}}}}),
     "'08' is not a number of GPUs"),
    (small(needs={"gpus": GPUS}, axes={"size": {"help": "h", "values": {"x": {"summary": "s"}}}}),
     "'x' is not a number of GPUs"),
    (small(needs={"ipc": need(value="host")},
           experiments={"one": experiment(needs={"shm_size": need()})}),
     "`ipc: host` and `shm_size` exclude each other"),
    (small(needs={"secrets": [SECRET, {**SECRET, "target": "/run/secrets/b"}]}), "the same name"),
    (small(needs={"secrets": [SECRET, {**SECRET, "name": "b"}]}), "the same target"),
    (small(needs={"secrets": [{**SECRET, "target": "/ae/out/x"}]}), "cannot be put at /ae/out/x"),
    (small(needs={"secrets": [{**SECRET, "target": "/run/../x"}]}), "cannot be put at /run/../x"),
    (small(needs={"ulimits": [{"name": "stack", "soft": -2, "hard": -1, "why": "w"}]}), "soft"),
    (small(needs={"network": need(value="all")}),
     "needs.network.value: must be 'none', 'bridge' or 'host', not 'all'"),
    (of(time={"full": "0s", "quick": "1s"}), "time.full"),
    (of(interleave="yes"), "interleave: must be true or false"),
    (number(min=6), "must be at least 6, not 5"),
    (number(max=4), "must be at most 4, not 5"),
    (number(min=12345678), "must be at least 12345678, not 5"),
    (number(type="float", max=0.000001), "must be at most 0.000001, not 5"),
    (number(default=True), "must be a whole number, not True"),
    (number(default=2**63), "must be a finite number of a sensible size"),
    (number(choices=["a"]), "`type: choice` and a list of `choices` go together"),
    (number(type="choice", default="a"), "`type: choice` and a list of `choices` go together"),
    (number(type="str", default="a", max=3), "only an int or a float has `min` and `max`"),
    (number(type="bool", default=1), "must be true or false, not 1"),
    (number(type="list", default=[]), "must be a list of words"),
    (number(type="list", default=["a,b"]), "must be a list of words"),
    (number(type="list", default=["1"], min=1), "only an int or a float has `min` and `max`"),
    (number(type="list of int", default=["1", "x"]), "must be a whole number, not 'x'"),
    (number(type="list of float", default=["2", "0.5"], min=1), "must be at least 1, not 0.5"),
    (number(type="list of choice", default=["c"], choices=["a", "b"]), "cannot be 'c'"),
    (number(type="list of choice", default=["c"]), "`type: choice` and a list of `choices`"),
    (number(type="str", default=3), "must be text, not 3"),
]  # fmt: skip


@pytest.mark.parametrize("document", PASS.values(), ids=PASS.keys())
def test_what_just_passes(root: Path, document: dict[str, Any]) -> None:
    assert load(root, document).name == "toy"


@pytest.mark.parametrize(("document", "message"), FAIL, ids=[message for _, message in FAIL])
def test_what_just_fails(root: Path, document: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(message)):
        load(root, document)


def test_a_circle_of_baselines_is_found_and_named(root: Path) -> None:
    a, b = ({"title": "t", "summary": "s", "baseline": other} for other in "ba")
    with pytest.raises(RecipeError, match="in a circle: a -> b -> a"):
        load(root, small(variants={"a": a, "b": b}))
    load(root, small(variants={"a": a, "b": {**b, "baseline": None}}))


def test_values_of_an_axis(root: Path) -> None:
    recipe = load(root, small())
    assert recipe.values_of("one", "size") == ("1", "2")
    assert recipe.values_of("one", "size", quick=True) == ("1", "2")
    assert recipe.possible_values("one", "size") == ("1", "2", "4")
    assert recipe.points_of("one") == 2
    quick = small(experiments={"one": experiment(only={"size": ["4"]}), "two": experiment()})
    quick["axes"]["size"]["quick"] = ["2"]
    recipe = load(root, quick)
    assert recipe.values_of("two", "size") == ("1", "2")
    assert recipe.values_of("two", "size", quick=True) == ("2",)
    assert recipe.possible_values("one", "size") == ("4",)
    assert recipe.values_of("one", "size", quick=True) == ("4",)  # none of its own is quick


def test_points_and_variants_of_experiments(root: Path) -> None:
    recipe = load(root, small(experiments={
        "one": experiment(interleave=False),
        "two": experiment(interleave=False, variants=["b"]),
        "none": experiment(interleave=False, variants=[], command=["{size}"]),
    }))  # fmt: skip
    assert [recipe.points_of(name) for name in ("one", "two", "none")] == [4, 2, 2]
    assert recipe.variants_of("one") == ("a", "b")
    assert recipe.variants_of("two") == ("b",)


def test_gpus_images_secrets_and_the_plain_run(root: Path) -> None:
    (root / "images/toy2").mkdir()
    recipe = load(root, small(
        lanes={"native": {"summary": "s"}, "upstream": {"summary": "s", "image": "toy2"}},
        needs={"gpus": GPUS, "secrets": [SECRET]},
        experiments={
            "own": experiment(default=False),
            "one": experiment(gpu="optional"),
            "theirs": experiment(lane="upstream", needs={"secrets": [{**SECRET, "name": "z"}]}),
        },
    ))  # fmt: skip
    assert recipe.gpu_counts(recipe.needs.gpus) == (1, 2, 4)
    assert recipe.gpu_counts(None) == (1,)
    assert recipe.secrets() == ["a", "z"]
    assert recipe.image_of("upstream") == "toy2"
    assert recipe.image_of("native") == "toy"
    assert recipe.plain_run() == ("native", ("one",))


def test_a_lane_without_a_default_runs_all_of_its_experiments(root: Path) -> None:
    recipe = load(root, small(
        lanes={"upstream": {"summary": "s", "built": False}},
        experiments={"one": experiment(lane="upstream", default=False)},
    ))  # fmt: skip
    assert recipe.plain_run() == ("upstream", ("one",))


def test_what_parameters_are_when_nobody_sets_them(root: Path) -> None:
    def value(small: bool, **changed: Any) -> object:
        return load(root, number(**changed)).parameters["n"].value(small)

    assert value(False, quick=0) == 5
    assert value(True, quick=0) == 0
    assert value(True) == 5
    assert value(False, type="list", default=["x", "y"]) == ("x", "y")
    assert value(False, type="float", default=3) == 3.0
    assert value(False, type="bool", default=False) is False


def test_volumes_are_read_only_unless_they_say_so(root: Path) -> None:
    volume = {"source": "data", "target": "/data", "why": "w"}
    recipe = load(root, small(needs={"volumes": [volume, {**volume, "read_only": False}]}))
    assert [volume.read_only for volume in recipe.needs.volumes] == [True, False]
    assert load(root, PASS["a capability with its prefix"]).needs.cap_add[0].value == "SYS_ADMIN"


def test_roots_have_both_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AE_ROOT", raising=False)
    (tmp_path / "inner/recipes").mkdir(parents=True)
    (tmp_path / "recipes").mkdir()
    (tmp_path / "images").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    assert find_root() == tmp_path
    (tmp_path / "inner/images").mkdir()
    assert find_root() == tmp_path / "inner"
