"""The lock file: what it accepts, how it is written, and what it means for a run."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ae.errors import EnvironmentFault, RecipeError
from ae.images import lockfile
from ae.images.lockfile import Entry
from ae.model import Flavour, ImageRef

ROOT = Path(__file__).resolve().parents[2]
ENTRY = Entry(
    content="c" * 64,
    digest="sha256:" + "1" * 64,
    image_id="sha256:" + "2" * 64,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    return tmp_path


def image(root: Path, content: str = "c", override: str | None = None) -> ImageRef:
    return ImageRef(
        name="toy", flavour=Flavour.CPU, content=content * 64, source=root / "images/toy",
        override=override,
    )  # fmt: skip


def test_an_entry_is_stored_and_read_again(root: Path) -> None:
    assert lockfile.load(root).images == {}
    lockfile.store(root, "toy", Flavour.CUDA, ENTRY)
    lockfile.store(root, "toy", Flavour.CPU, ENTRY)
    lockfile.store(root, "alpha", Flavour.CPU, ENTRY)
    lock = lockfile.load(root)
    assert lock.entry("toy", Flavour.CPU) == ENTRY
    assert lock.entry("beta", Flavour.CPU) is None
    text = (root / lockfile.PATH).read_text()
    assert text.startswith("# The published images, by digest.")
    assert text.index("alpha") < text.index("toy")
    assert text.index("cpu") < text.index("cuda")
    assert [path.name for path in (root / "images").iterdir()] == ["lock.yaml"]


def test_only_the_sources_that_are_locked_are_locked(root: Path) -> None:
    lockfile.store(root, "toy", Flavour.CPU, ENTRY)
    assert lockfile.locked(image(root)) == ENTRY
    assert lockfile.locked(image(root, "d")) is None
    assert lockfile.locked(image(root, override="other:1")) is None


@pytest.mark.parametrize(
    ("found", "same"),
    [
        ({"Id": ENTRY.image_id}, True),
        ({"Id": ENTRY.digest, "RepoDigests": None}, True),
        ({"Id": "sha256:3", "RepoDigests": [f"r:5000/toy@{ENTRY.digest}"]}, False),
    ],
)
def test_an_engine_may_call_it_by_several_names(found: dict[str, object], same: bool) -> None:
    assert ENTRY.names(found) is same


def test_where_the_configuration_is_not_locked_the_name_must_do() -> None:
    entry = ENTRY.model_copy(update={"image_id": ENTRY.digest})
    assert entry.names({"Id": "sha256:3", "RepoDigests": [f"r:5000/toy@{ENTRY.digest}"]})
    assert not entry.names({"Id": "sha256:3", "RepoDigests": ["r:5000/toy@sha256:4"]})


def test_pushes_at_once_lose_no_entry(root: Path) -> None:
    names = [f"image{number}" for number in range(16)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: lockfile.store(root, name, Flavour.CPU, ENTRY), names))
    assert sorted(lockfile.load(root).images) == sorted(names)


def test_a_file_that_cannot_be_written(root: Path) -> None:
    (root / lockfile.PATH).mkdir()
    with pytest.raises(EnvironmentFault, match=r"lock\.yaml cannot be written"):
        lockfile.store(root, "toy", Flavour.CPU, ENTRY)
    assert [path.name for path in (root / "images").iterdir()] == ["lock.yaml"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("schema: 2\nimages: {}\n", "lock.yaml:1: schema: must be 1"),
        ("schema: 1\nimage: {}\n", "lock.yaml:2: unknown key 'image'; did you mean 'images'?"),
        ("schema: 1\nimages:\n  toy:\n    gpu: {}\n", "lock.yaml:4:"),
        (
            "schema: 1\nimages:\n  toy:\n    cpu:\n      digest: latest\n",
            "lock.yaml:5: images.toy.cpu.digest",
        ),
    ],
)
def test_a_wrong_file_names_the_line(root: Path, text: str, message: str) -> None:
    (root / lockfile.PATH).write_text(text)
    with pytest.raises(RecipeError) as caught:
        lockfile.load(root)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("content", "c" * 63), ("content", "c" * 65), ("content", "C" * 64),
        ("digest", "1" * 64), ("digest", "sha256:" + "1" * 63), ("digest", "sha512:" + "1" * 64),
        ("image_id", "sha256:" + "g" * 64), ("image_id", "x sha256:" + "1" * 64),
        ("content", 1), ("size", 5), ("more", 1),
    ],
)  # fmt: skip
def test_what_an_entry_cannot_hold(root: Path, key: str, value: object) -> None:
    wrong = ENTRY.model_dump() | {key: value}
    (root / lockfile.PATH).write_text(
        json.dumps({"schema": 1, "images": {"toy": {"cpu": wrong}}}, indent=1)
    )
    with pytest.raises(RecipeError, match=key):
        lockfile.load(root)


def test_an_entry_that_is_stored_again_takes_the_place_of_the_old(root: Path) -> None:
    newer = ENTRY.model_copy(update={"content": "d" * 64})
    for entry in (ENTRY, newer):
        lockfile.store(root, "toy", Flavour.CPU, entry)
    lockfile.store(root, "toy", Flavour.CUDA, ENTRY)
    lock = lockfile.load(root)
    assert (lock.entry("toy", Flavour.CPU), lock.entry("toy", Flavour.CUDA)) == (newer, ENTRY)
    assert lockfile.locked(image(root)) is None
    assert lockfile.locked(image(root, "d")) == newer


def test_the_file_of_this_repository() -> None:
    lockfile.load(ROOT)
    assert (ROOT / lockfile.PATH).read_text().startswith(lockfile.HEADER)
