"""The recipe loader: what it accepts, and the file, line and hint of every error."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ae.errors import RecipeError, UsageError
from ae.recipe.load import find_root, list_recipes, load_recipe
from ae.recipe.models import Parameter, Recipe
from tests.toy import make_toy

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    return make_toy(tmp_path / "toy")


def edit(root: Path, old: str, new: str) -> int:
    """Replace `old` in the toy's recipe, once, and return the line where it stood."""
    path = root / "recipes" / "toy" / "recipe.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return text[: text.index(old)].count("\n") + 1


def fail(root: Path) -> RecipeError:
    with pytest.raises(RecipeError) as caught:
        load_recipe(root, "toy")
    assert caught.value.fix
    assert "\n" not in caught.value.message
    return caught.value


def test_toy_loads(toy: Path) -> None:
    recipe = load_recipe(toy, "toy")
    assert recipe.variants_of("together") == ("slow", "fast")
    assert recipe.variants_of("noop") == ()
    assert recipe.experiments["stuck"].timeout.quick == 2.0
    assert recipe.experiments["stuck"].disk == 1_000_000
    gpus = recipe.needs_of("gpu_only").gpus
    assert gpus is not None
    assert gpus.min_compute_capability == "8.0"
    assert gpus.min_memory == 8 * 10**9
    assert recipe.needs_of("noop").gpus is None
    network = recipe.needs_of("gpu_only").network
    assert network is not None
    assert network.value == "none"


@pytest.mark.parametrize("name", list_recipes(ROOT))
def test_every_recipe_of_this_repository_loads(name: str) -> None:
    assert load_recipe(ROOT, name).name == name


def test_unknown_recipe_names_the_nearest(toy: Path) -> None:
    with pytest.raises(UsageError, match="no recipe 'tyo'; did you mean 'toy'"):
        load_recipe(toy, "tyo")


def test_a_name_cannot_leave_the_folder(toy: Path) -> None:
    with pytest.raises(UsageError):
        load_recipe(toy, "../recipes/toy")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("    summary: \"both", "    sumary: \"both",
         "unknown key 'sumary' in experiments.together; did you mean 'summary'?"),
        ("\nimage: toy", "\nimgae: toy", "unknown key 'imgae'; did you mean 'image'?"),
        ("memory: {value: 64MB, why: \"so that it meets its limit soon\"}",
         "memory: {value: 64MB}",
         "missing key 'why' in experiments.hungry.needs.memory; every need says why"),
        ("    gpu: optional", "    gpu: maybe",
         "experiments.either.gpu: must be 'required', 'optional' or 'none', not 'maybe'"),
        ("default: 30, quick: 8", "default: thirty, quick: 8",
         "parameters.samples: `default` must be a whole number, not 'thirty'"),
        ("default: 30, quick: 8", "default: 30, quick: 0",
         "parameters.samples: `quick` must be at least 1, not 0"),
        ("choices: [forward, backward]", "choices: [up, down]",
         "parameters.order: `default` cannot be 'forward'"),
        ("type: bool", "type: boole", "parameters.verbose.type: must be 'int'"),
        ("timeout: {full: 5s, quick: 2s}", "timeout: {full: 5 parsecs, quick: 2s}",
         "'5 parsecs' is not a time"),
        ("timeout: {full: 5s, quick: 2s}", "timeout: {full: 1s, quick: 2s}",
         "the full timeout is shorter than the expected time"),
        ("value: 64MB", "value: 64", "'64' is not a size"),
        ('min_compute_capability: "8.0"', "min_compute_capability: 8.0",
         "min_compute_capability: must be text; put it in quotes"),
        ('min_driver: "550.54"', "min_driver: 550.54",
         "min_driver: must be text; put it in quotes"),
        ('"{variants}",\n              --size', '"{varaints}",\n              --size',
         "nobody defines the placeholder {varaints} in experiments.together.command"),
        ('--variants, "{variant}"', '--variants, "{dataset}{samples}"',
         "the command does not say which variants to run"),
        ('"{variants}",\n              --size', '"{variant}",\n              --size',
         "nobody defines the placeholder {variant} in"),
        ('noop]', '"{dataset}"]', "nobody defines the placeholder {dataset} in"),
        ('noop]', '"{0}"]', "is not plain text with {names}"),
        ('noop]', '"{size.real}"]', "is not plain text with {names}"),
        ('noop]', '"{size"]', "experiments.noop.command: "),
        (', --scale, "{scale}"', "", "no command uses the parameter 'scale'"),
        ("    gpu: none\n    command: [python, -m, toy, noop]",
         "    axes: [dataset]\n    gpu: none\n    command: [python, -m, toy, noop]",
         "the command does not use the axis 'dataset'"),
        ("\naxes:\n", "\naxes:\n  unused: {help: x, values: {a: {summary: b}}}\n",
         "no command uses the axis 'unused'"),
        ("variants: [slow, fast]", "variants: [slow, fats]",
         "unknown variant 'fats' in experiments.apart.variants[1]; did you mean 'fast'?"),
        ("variants: [slow, fast]", "variants: [slow, slow]", "names something twice"),
        ("baseline: slow}\nparam", "baseline: solw}\nparam", "unknown variant 'solw'"),
        ('eight times"}', 'eight times", baseline: fast}', "baselines go in a circle: "),
        ("experiments: [together, apart]", "experiments: [together, aprat]",
         "unknown experiment 'aprat' in figures.times.experiments[1]; did you mean 'apart'?"),
        ("baseline: slow}\n", "baseline: nil}\n",
         "unknown variant 'nil' in variants.fast.baseline"),
        ("rows: [dataset, variant], baseline: slow", "rows: [dataset, variant], baseline: fst",
         "unknown variant 'fst' in table.baseline; did you mean 'fast'?"),
        ("name: toy", "name: tyo", "name is 'tyo' but the folder is 'toy'"),
        ("\nimage: toy", "\nimage: tyo", "unknown image 'tyo' in image; did you mean 'toy'?"),
        ("schema: 1", "schema: 2", "schema: must be 1, not 2"),
        ("\nparameters:\n", "\nparameters:\n  device: {type: int, default: 1, help: x}\n",
         "the name 'device' is taken"),
        ("\naxes:\n  dataset:", "\naxes:\n  size:", "the name 'size' is taken"),
        ("title: Nothing\n", "title: Nothing\n    title: Nothing\n",
         "the key 'title' stands twice"),
        ("      gpus: {count: 1", "      gpus: {count: 0", "needs.gpus.count: "),
        ("      gpus: {count: 1", "      gpus: {count: two", "needs.gpus.count: "),
        ("      gpus: {count: 1", "      gpus: {count: '{gpus}'", "unknown axis 'gpus' in "),
        ("      gpus: {count: 1", "      gpus: {count: '{dataset}'",
         "'ones' is not a number of GPUs"),
        ('help: "which numbers"', 'help: "which numbers"\n    quick: [oens]',
         "unknown value 'oens' in axes.dataset.quick[0]; did you mean 'ones'?"),
        ("variants: [slow, fast]", "variants: [slow, fast]\n    only: {dataset: [oens]}",
         "unknown value 'oens' in experiments.apart.only.dataset[0]; did you mean 'ones'?"),
        ("variants: [slow, fast]", "variants: [slow, fast]\n    only: {datset: [ones]}",
         "unknown axis 'datset' in experiments.apart.only.datset; did you mean 'dataset'?"),
        ("variants: [slow, fast]", "variants: [slow, fast]\n    only: {dataset: []}",
         "only.dataset: names nothing"),
        ("      ones: {summary: \"only ones\"}\n      ramp: {summary: \"0, 1, 2 ...\"}",
         "      ones: {summary: x, default: false}",
         "no value of the axis 'dataset' is part of a plain run"),
        ("\nneeds:\n  network", "\nneeds:\n  privileged: true\n  network",
         "unknown key 'privileged' in needs"),
        ("\nneeds:\n  network", "\nneeds:\n  cap_add: [{value: ALL, why: x}]\n  network",
         "ALL is not given to anybody"),
        ("\nneeds:\n  network", "\nneeds:\n  cap_add: [{value: SYS_ADMIN}]\n  network",
         "missing key 'why' in needs.cap_add[0]; every need says why"),
        ("\nneeds:\n  network",
         "\nneeds:\n  ipc: {value: host, why: x}\n  shm_size: {value: 1GB, why: x}\n  network",
         "`ipc: host` and `shm_size` exclude each other"),
        ("schema: 1", "schema: [1", "not valid YAML: "),
        ("schema: 1", "schema: !!python/name:os.system 1", "not valid YAML: "),
        ("schema: 1", "schema: &a [*a]", "not valid YAML: "),
        ("  native: {summary: \"the standard", "  nativ: {summary: \"the standard",
         "unknown lane 'nativ' in lanes.nativ; did you mean 'native'?"),
    ],
)  # fmt: skip
def test_errors(toy: Path, old: str, new: str, message: str) -> None:
    edit(toy, old, new)
    error = fail(toy)
    assert re.match(r"recipes/toy/recipe\.yaml:\d+: ", error.message), error.message
    assert message in error.message


def test_an_axis_that_says_how_many_gpus_must_be_the_experiments(toy: Path) -> None:
    edit(toy, "ones: {", "'1': {")
    edit(toy, "ramp: {", "'2': {")
    edit(toy, "\nneeds:\n", "\nneeds:\n  gpus: {count: '{dataset}', why: x}\n")
    error = fail(toy)
    assert "either lacks the axis 'dataset' that says how many GPUs it gets" in error.message
    edit(toy, "    gpu: optional\n", "    gpu: optional\n    needs: {gpus: {count: 2, why: x}}\n")
    recipe = load_recipe(toy, "toy")  # those without a GPU need no axis
    assert recipe.gpu_counts(recipe.needs.gpus) == (1, 2)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    gpu: optional", "    gpu: maybe"),
        ("schema: 1", "schema: one"),
        ('"adds every number once", baseline: slow', '"adds every number once", baseline: solw'),
        ("title: Nothing", "titel: Nothing"),
        ("  verbose: {type: bool", "  verbose: {type: boole"),
    ],
)
def test_the_line_is_the_one_at_fault(toy: Path, old: str, new: str) -> None:
    line = edit(toy, old, new)
    assert fail(toy).message.startswith(f"recipes/toy/recipe.yaml:{line}: ")


def test_the_first_of_several_errors_is_shown(toy: Path) -> None:
    edit(toy, "title: Nothing", "titel: Nothing")
    first = edit(toy, "title: One by one", "titel: One by one")
    message = fail(toy).message
    assert f":{first}: " in message
    assert message.endswith("more)")


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "the file is empty"), (b"- a\n", "not a mapping"), (b"\xff\xfe", "not UTF-8"),
     (b"a: \x00\n", "not valid YAML"), (b"[a]: b\n", "a key must be a plain word"),
     (b"a: b: c\n", "not valid YAML"), (b"\ta: b\n", "not valid YAML")],
)  # fmt: skip
def test_files_that_are_no_recipe(toy: Path, content: bytes, message: str) -> None:
    (toy / "recipes" / "toy" / "recipe.yaml").write_bytes(content)
    assert message in fail(toy).message


def test_words_that_yaml_takes_for_something_else_stay_keys(toy: Path) -> None:
    edit(toy, "      ones: {", "      on: {")
    assert list(load_recipe(toy, "toy").axes["dataset"].values) == ["on", "ramp"]


def test_an_experiment_may_take_a_need_away(toy: Path) -> None:
    edit(toy, "\nneeds:\n  network", '\nneeds:\n  shm_size: {value: 1GB, why: "x"}\n  network')
    edit(toy, "      memory: {value: 64MB", "      shm_size: null\n      memory: {value: 64MB")
    recipe = load_recipe(toy, "toy")
    assert recipe.needs_of("hungry").shm_size is None
    assert recipe.needs_of("noop").shm_size is not None


def test_list_skips_folders_without_a_recipe(toy: Path) -> None:
    (toy / "recipes" / "empty").mkdir()
    assert list_recipes(toy) == ["toy"]
    assert list_recipes(toy / "nowhere") == []


def test_find_root(toy: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("AE_ROOT", raising=False)
    monkeypatch.chdir(toy / "recipes" / "toy")
    assert find_root() == toy.resolve()
    monkeypatch.chdir(toy / "images")
    assert find_root() == toy.resolve()
    monkeypatch.chdir(tmp_path)
    assert find_root() == ROOT  # nothing above: the checkout of the package
    monkeypatch.setenv("AE_ROOT", str(toy))
    assert find_root() == toy.resolve()
    monkeypatch.setenv("AE_ROOT", str(tmp_path))
    with pytest.raises(UsageError, match="AE_ROOT is"):
        find_root()


def test_parameters_read_what_a_person_types(toy: Path) -> None:
    parameters = load_recipe(toy, "toy").parameters
    assert parameters["size"].parse("1_000") == 1000
    assert parameters["words"].parse("a, b,c") == ("a", "b", "c")
    assert parameters["verbose"].parse("TRUE") is True
    assert parameters["scale"].parse("2e-3") == 0.002
    assert parameters["gpu_name"].parse("") == ""
    default = Parameter(type="float", default=1, help="x").value(False)
    assert str(default) == str(parameters["scale"].parse("1")) == "1.0"  # one command, one key


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [("size", "many", "must be a whole number, not 'many'"), ("size", "0", "must be at least 1"),
     ("size", "2000000", "must be at most 1000000, not 2000000"),
     ("size", "1.5", "must be a whole number"),
     ("verbose", "yes", "must be true or false"), ("scale", "nan", "must be a finite number"),
     ("scale", "x", "must be a number"), ("order", "forwrad", "did you mean 'forward'"),
     ("words", ",", "must be a list of words")],
)  # fmt: skip
def test_parameters_refuse(toy: Path, key: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_recipe(toy, "toy").parameters[key].parse(text)


def test_recipes_are_frozen(toy: Path) -> None:
    recipe = load_recipe(toy, "toy")
    assert isinstance(recipe, Recipe)
    with pytest.raises(ValueError, match="frozen"):
        recipe.name = "other"  # type: ignore[misc]


def test_a_word_of_a_list_is_one_word() -> None:
    """Words are handed to a workload with commas between them."""
    with pytest.raises(ValueError, match="must be a list of words"):
        Parameter(type="list", default=["one,two"], help="x")
    assert Parameter(type="list", default=["one", "two"], help="x").value(False) == ("one", "two")
