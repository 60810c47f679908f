"""What goes into a bundle, and what happens to one that is not as it was written.

The engine here keeps images in memory, as the layouts that `docker save` gives; the real one is in
tests/real/test_bundle_circle.py.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from ae.daemon.connection import Daemon
from ae.errors import AeError, EnvironmentFault, UsageError
from ae.images import bundle, unpack
from ae.images.archives import ArchiveReader
from ae.images.bundle import Bundled, write_bundle
from ae.images.bundle_checks import verify
from ae.images.content import content_hash
from ae.model import Flavour
from ae.recipe.load import load_recipe
from tests.toy import make_checkout

ROOT = Path(__file__).resolve().parents[2]


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def quiet(_text: str) -> None:
    pass


class Engine:
    """Images by id, and tags: what a daemon does with `get`, `load`, `tag` and `remove`."""

    def __init__(self) -> None:
        self.images: dict[str, dict[str, bytes]] = {}
        self.tags: dict[str, str] = {}
        self.full = False
        self.deaf_to_tags = False

    def make(self, reference: str, labels: dict[str, str], layer: bytes = b"layer" * 9000) -> None:
        config = json.dumps({"config": {"Labels": labels}}).encode()
        blobs = {f"blobs/sha256/{sha(data)}": data for data in (config, layer)}
        manifest = json.dumps(
            {"schemaVersion": 2, "config": {"digest": f"sha256:{sha(config)}"},
             "layers": [{"digest": f"sha256:{sha(layer)}"}]}
        ).encode()  # fmt: skip
        blobs[f"blobs/sha256/{sha(manifest)}"] = manifest
        index = {"manifests": [{"digest": f"sha256:{sha(manifest)}", "annotations": {"a": "b"}}]}
        old = [{"Config": f"blobs/sha256/{sha(config)}", "RepoTags": [reference]}]
        self.images[f"sha256:{sha(config)}"] = {
            **dict(sorted(blobs.items())), "index.json": json.dumps(index).encode(),
            "manifest.json": json.dumps(old).encode(), "oci-layout": b"{}", "repositories": b"{}",
        }  # fmt: skip
        self.tags[reference] = f"sha256:{sha(config)}"

    def inspect_image(self, name: str) -> dict[str, Any]:
        files = self.images[self._id(name)]
        config = json.loads(files[json.loads(files["manifest.json"])[0]["Config"]])
        return {"Id": self._id(name), "Size": 45000, "Os": "linux", "Architecture": "amd64",
                "Created": "2026-01-01T00:00:00Z", "Config": config["config"]}  # fmt: skip

    def get_image(self, name: str) -> Iterator[bytes]:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            for path, data in self.images[self._id(name)].items():
                info = tarfile.TarInfo(path)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        yield out.getvalue()

    def load_image(self, data: Iterable[bytes], quiet: bool) -> Iterator[dict[str, str]]:
        reader = ArchiveReader(data, max_bytes=10**9, max_files=100)
        files = {member.name: b"".join(reader.chunks()) for member in reader}
        if self.full:
            yield {"error": "write /layer.tar: no space left on device"}
            return
        (image,) = json.loads(files["manifest.json"])
        assert image["RepoTags"] is None
        assert "annotations" not in files["index.json"].decode()
        self.images["sha256:" + image["Config"].rpartition("/")[2]] = files

    def tag(self, name: str, repository: str, tag: str) -> None:
        if self.deaf_to_tags:
            raise EnvironmentFault("the daemon has gone away", fix="start it")
        self.tags[f"{repository}:{tag}"] = self._id(name)

    def remove_image(self, name: str, noprune: bool = False) -> None:
        found = self._id(name)
        self.tags.pop(name, None)
        if found not in self.tags.values():
            del self.images[found]

    def _id(self, name: str) -> str:
        from docker.errors import ImageNotFound

        found = self.tags.get(name, name)
        if found not in self.images:
            raise ImageNotFound("no such image")
        return found


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def daemon(engine: Engine) -> Daemon:
    return daemon_of(engine)


def daemon_of(engine: Engine) -> Daemon:
    return Daemon("unix:///nowhere", cast("Any", engine), cast("Any", engine), "26", {})


def git(root: Path, *words: str) -> None:
    who = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "-C", str(root), *who, *words], check=True, capture_output=True)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with the toy, all of it committed, and a bundle of it beside."""
    top = tmp_path_factory.mktemp("template")
    root = make_checkout(top / "checkout")
    (root / "data").mkdir()
    (root / "data/numbers.txt").write_text("1 2 3\n")
    recipe = root / "recipes/toy/recipe.yaml"
    volume = "\nneeds:\n  volumes: [{source: data, target: /data, why: input}]\n"
    assert "\nneeds:\n" in recipe.read_text()
    recipe.write_text(recipe.read_text().replace("\nneeds:\n", volume))
    reference = root / "results/reference/h200/toy"
    reference.mkdir(parents=True)
    (reference / "run.json").write_text("{}")
    (root / ".gitignore").write_text("*.secret\n/data/\n__pycache__/\n")
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "all")
    engine = Engine()
    ready(root, engine)
    make(root, top / "toy.tar", daemon_of(engine))
    return top


@pytest.fixture
def root(template: Path, tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of one's own, and its image in the engine."""
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    root = tmp_path / "checkout"
    shutil.copytree(template / "checkout", root)
    ready(root, engine)
    return root


@pytest.fixture
def made(template: Path, tmp_path: Path) -> Path:
    """A bundle of one's own."""
    return Path(shutil.copy(template / "toy.tar", tmp_path))


def ready(root: Path, engine: Engine, flavour: str = "cpu") -> None:
    labels = {"ae.image": "toy", "ae.flavour": flavour, "ae.content": content_hash(root, "toy")}
    engine.make(f"ae/toy:{flavour}", labels)


def make(root: Path, output: Path, daemon: Daemon, **options: Any) -> Bundled:
    return write_bundle(root, load_recipe(root, "toy"), output, daemon, say=quiet, **options)


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {info.name: cast("Any", tar.extractfile(info)).read() for info in tar}


# -- what goes in -------------------------------------------------------------------------------


def test_what_a_bundle_holds(made: Path) -> None:
    held = members(made)
    names = list(held)
    assert names[:4] == ["bundle.json", "README.md", "LICENSE", "CITATION.cff"]
    assert names[-1] == "SHA256SUMS"
    for name in ("tree/ae/cli.py", "tree/recipes/toy/recipe.yaml", "tree/images/toy/Dockerfile",
                 "tree/images/docker-bake.hcl", "tree/pyproject.toml", "tree/LICENSE",
                 "tree/docs/contracts.md", "data/data/numbers.txt", "images/toy-cpu/index.json",
                 "results/reference/h200/toy/run.json"):  # fmt: skip
        assert name in names, name
    assert not [name for name in names if "tests/" in name or "repositories" in name]
    facts = json.loads(held["bundle.json"])
    assert facts["schema"] == 1
    assert facts["images"][0]["image_id"].startswith("sha256:")
    assert facts["source"] == {"revision": facts["source"]["revision"], "dirty": False}
    assert len(facts["source"]["revision"]) == 40


def test_tar_and_sha256sum_alone_can_check_it(made: Path, tmp_path: Path) -> None:
    folder = tmp_path / "by-hand"
    folder.mkdir()
    subprocess.run(["tar", "-xf", str(made), "-C", str(folder)], check=True)
    check = ["sha256sum", "--check", "--quiet", "--strict", "SHA256SUMS"]
    subprocess.run(check, cwd=folder, check=True)
    (folder / "README.md").write_text("other")
    assert subprocess.run(check, cwd=folder, check=False, capture_output=True).returncode != 0


def test_the_readme_says_what_a_reader_needs(made: Path) -> None:
    text = members(made)["README.md"].decode()
    wanted = ["On Adding Numbers", "TOY 2000", "ae load toy.tar", "ae run toy --quick", "data/"]
    for words in (*wanted, "docker load", "sha256sum --check", "linux/amd64", "Licences"):
        assert words in text, words


def test_the_licence_and_the_citation_are_whole() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "END OF TERMS AND CONDITIONS" in text
    assert "Version 2.0, January 2004" in text
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors", "license", "version"} <= set(cited)
    assert cited["license"] == "Apache-2.0"


def test_the_same_inputs_give_the_same_bytes(root: Path, tmp_path: Path, daemon: Daemon) -> None:
    (tmp_path / "a").mkdir()
    first = make(root, tmp_path / "a/toy.tar", daemon)
    for path in root.rglob("*"):
        path.touch()
    (tmp_path / "b").mkdir()
    second = make(root, tmp_path / "b/toy.tar", daemon)
    assert first.sha256 == second.sha256 == sha(second.path.read_bytes())
    packed = [make(root, tmp_path / f"{one}/toy.tar.gz", daemon) for one in "ab"]
    assert packed[0].sha256 == packed[1].sha256
    assert gzip.decompress(packed[0].path.read_bytes())[:11] == b"bundle.json"


def test_source_date_epoch_is_the_time_of_everything(
    root: Path, tmp_path: Path, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1000000000")
    done = make(root, tmp_path / "toy.tar", daemon)
    assert done.facts.date == "2001-09-09T01:46:40+00:00"
    with tarfile.open(done.path) as tar:
        assert {info.mtime for info in tar} == {1000000000}


def test_nothing_of_the_person_goes_in(
    root: Path, tmp_path: Path, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ignored files, registry logins, licences and certificates in and around the checkout."""
    word = "do-not-publish"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AE_SECRET_GUROBI", str(tmp_path / "home/gurobi.lic"))
    own = ["home/.docker/config.json", "home/.config/ae/config.yaml", "home/gurobi.lic"]
    for name in (*own, "checkout/recipes/toy/my.secret", "checkout/results/runs/toy/1/run.json"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(word)
    done = make(root, tmp_path / "toy.tar", daemon)
    assert word.encode() not in done.path.read_bytes()
    assert str(tmp_path).encode() not in done.path.read_bytes()


def test_what_git_does_not_know_stops_it(root: Path, tmp_path: Path, daemon: Daemon) -> None:
    (root / "recipes/toy/notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"git does not know recipes/toy/notes\.txt"):
        make(root, tmp_path / "toy.tar", daemon)


def test_an_image_made_from_an_ignored_file_stops_it(
    root: Path, tmp_path: Path, daemon: Daemon, engine: Engine
) -> None:
    (root / "images/toy/key.secret").write_text("x")
    ready(root, engine)
    with pytest.raises(UsageError, match="a file that git ignores"):
        make(root, tmp_path / "toy.tar", daemon)


def test_a_folder_that_the_image_is_built_from_goes_in(
    root: Path, tmp_path: Path, engine: Engine, daemon: Daemon
) -> None:
    shared = root / "images/shared"
    for name in ("src/tool.py", "native/inject.cc"):
        (shared / name).parent.mkdir(parents=True)
        (shared / name).write_text("1\n")
    dockerfile = root / "images/toy/Dockerfile"
    dockerfile.write_text(dockerfile.read_text() + "COPY shared/src /opt/shared\n")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "shared")
    ready(root, engine)
    make(root, tmp_path / "toy.tar", daemon)
    assert {"tree/images/shared/src/tool.py", "tree/images/shared/native/inject.cc"} <= set(
        members(tmp_path / "toy.tar")
    )
    (shared / "native/key.secret").write_text("x")
    ready(root, engine)
    with pytest.raises(UsageError, match="a file that git ignores") as caught:
        make(root, tmp_path / "again.tar", daemon)
    assert "images/toy images/shared images/base`" in str(caught.value.fix)


def test_without_git_all_sources_go_in(
    root: Path, tmp_path: Path, daemon: Daemon, engine: Engine
) -> None:
    (root / ".git").rename(tmp_path / "git")
    (root / "recipes/toy/__pycache__").mkdir()
    (root / "recipes/toy/__pycache__/x.pyc").write_text("cache")
    done = make(root, tmp_path / "toy.tar", daemon)
    assert done.facts.source.revision is None
    assert not [name for name in members(done.path) if "__pycache__" in name]


def test_files_that_differ_from_the_commit_are_said(
    root: Path, tmp_path: Path, daemon: Daemon
) -> None:
    (root / "recipes/toy/figures.py").write_text("# changed\n")
    said: list[str] = []
    done = write_bundle(
        root, load_recipe(root, "toy"), tmp_path / "toy.tar", daemon, say=said.append
    )
    assert done.facts.source.dirty
    assert any("dirty" in line for line in said)


def test_an_image_that_is_not_the_published_one_is_said(
    root: Path, tmp_path: Path, daemon: Daemon, engine: Engine
) -> None:
    said: list[str] = []
    for image_id in ("sha256:" + "0" * 64, engine.tags["ae/toy:cpu"]):
        entry = {"content": content_hash(root, "toy"), "digest": "sha256:" + "1" * 64,
                 "image_id": image_id, "size": 1, "platform": "linux/amd64"}  # fmt: skip
        lock = {"schema": 1, "images": {"toy": {"cpu": entry}}}
        (root / "images/lock.yaml").write_text(json.dumps(lock))
        git(root, "add", "images/lock.yaml")
        recipe = load_recipe(root, "toy")
        write_bundle(root, recipe, tmp_path / "toy.tar", daemon, say=said.append)
    assert [line for line in said if "lock.yaml" in line] == [
        "note: ae/toy:cpu is not the published image that images/lock.yaml names"
    ]


def test_an_image_that_is_missing_or_out_of_date(
    root: Path, tmp_path: Path, daemon: Daemon, engine: Engine
) -> None:
    with pytest.raises(EnvironmentFault, match="ae/toy:cuda is not there") as caught:
        make(root, tmp_path / "toy.tar", daemon, flavours=[Flavour.CUDA])
    assert caught.value.fix == "ae build toy --flavour cuda"
    (root / "images/toy/bin/python").write_text("#!/bin/sh\n")
    with pytest.raises(EnvironmentFault, match="not built from this tree"):
        make(root, tmp_path / "toy.tar", daemon)
    engine.tags.clear()
    with pytest.raises(EnvironmentFault, match="ae/toy:cpu is not there"):
        make(root, tmp_path / "toy.tar", daemon)


def test_every_flavour_that_is_built_goes_in(
    root: Path, tmp_path: Path, daemon: Daemon, engine: Engine
) -> None:
    ready(root, engine, "cuda")
    done = make(root, tmp_path / "both.tar", daemon)
    assert [image.flavour for image in done.facts.images] == ["cpu", "cuda"]
    done = make(root, tmp_path / "one.tar", daemon, flavours=[Flavour.CUDA])
    assert [image.flavour for image in done.facts.images] == ["cuda"]


def test_a_small_disk_is_refused_at_once(
    root: Path, tmp_path: Path, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ae.host.machine.free_disk", lambda path: 1000)
    (tmp_path / "out").mkdir()
    with pytest.raises(EnvironmentFault, match=r"needs .* of disk"):
        make(root, tmp_path / "out/toy.tar", daemon)
    assert not list((tmp_path / "out").iterdir())


def test_a_fault_in_the_middle_leaves_nothing(
    root: Path, tmp_path: Path, daemon: Daemon, engine: Engine
) -> None:
    """The engine gives a layer that is not what its name says."""
    files = engine.images[engine.tags["ae/toy:cpu"]]
    layer = next(name for name, data in files.items() if data.startswith(b"layer"))
    files[layer] = files[layer][:-1] + b"!"
    (tmp_path / "out").mkdir()
    (tmp_path / "out/toy.tar").write_text("an older bundle")
    with pytest.raises(EnvironmentFault, match="not those of its digest"):
        make(root, tmp_path / "out/toy.tar", daemon)
    assert [path.read_text() for path in (tmp_path / "out").iterdir()] == ["an older bundle"]


def test_a_layout_without_one_of_its_layers(
    root: Path, tmp_path: Path, daemon: Daemon, engine: Engine
) -> None:
    files = engine.images[engine.tags["ae/toy:cpu"]]
    del files[next(name for name, data in files.items() if data.startswith(b"layer"))]
    with pytest.raises(EnvironmentFault, match="lacks a blob"):
        make(root, tmp_path / "toy.tar", daemon)


@pytest.mark.parametrize("name", ["toy", "toy.zip", "toy.tar.zst", "no/such/folder/toy.tar"])
def test_names_that_a_bundle_cannot_have(
    root: Path, tmp_path: Path, daemon: Daemon, name: str
) -> None:
    with pytest.raises(UsageError) as caught:
        make(root, tmp_path / name, daemon)
    assert caught.value.fix


def test_wheels_for_a_reader_offline(root: Path, tmp_path: Path, daemon: Daemon) -> None:
    with pytest.raises(UsageError, match="no wheel"):
        make(root, tmp_path / "toy.tar", daemon, wheels=tmp_path)
    (tmp_path / "typer-1-py3-none-any.whl").write_text("wheel")
    (tmp_path / "ca.pem").write_text("certificate")
    done = make(root, tmp_path / "toy.tar", daemon, wheels=tmp_path)
    held = members(done.path)
    assert [name for name in held if name.startswith("wheels/")] == [
        "wheels/typer-1-py3-none-any.whl"
    ]
    assert "--no-index --find-links ../wheels" in held["README.md"].decode()


# -- loading --------------------------------------------------------------------------------------


def files_below(folder: Path) -> dict[str, bytes]:
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


@pytest.mark.parametrize("ending", ["tar", "tar.gz"])
def test_the_tree_comes_back(
    root: Path, tmp_path: Path, daemon: Daemon, engine: Engine, ending: str
) -> None:
    made = make(root, tmp_path / f"toy.{ending}", daemon)
    before = dict(engine.tags)
    engine.images.clear()
    engine.tags.clear()
    done = unpack.load_bundle(made.path, tmp_path / "new", None, daemon, quiet)
    assert done.states == {"ae/toy:cpu": "loaded"}
    assert engine.tags == before
    new = tmp_path / "new"
    assert content_hash(new, "toy") == content_hash(root, "toy")
    assert load_recipe(new, "toy") == load_recipe(root, "toy")
    assert (new / "data/numbers.txt").read_text() == "1 2 3\n"
    assert (new / "results/reference/h200/toy/run.json").is_file()
    assert (new / "images/toy/bin/python").stat().st_mode & 0o111
    again = make(new, tmp_path / "again.tar", daemon)  # and makes a bundle again
    assert set(members(again.path)) == set(members(made.path))
    done = unpack.load_bundle(made.path, new, None, daemon, quiet)
    assert (done.wrote_tree, done.states) == (False, {"ae/toy:cpu": "already there"})


def test_where_the_tree_goes(
    made: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    verified = verify(made)
    assert unpack.choose_folder(verified, None, root) == (root, False)
    assert unpack.choose_folder(verified, None, None) == (Path("toy-bundle"), True)
    assert unpack.choose_folder(verified, None, ROOT) == (Path("toy-bundle"), True)
    (root / "data/numbers.txt").write_text("4")
    assert unpack.choose_folder(verified, None, root) == (Path("toy-bundle"), True)
    (root / "data/numbers.txt").write_text("1 2 3\n")
    (root / "recipes/toy/more.py").touch()
    assert unpack.choose_folder(verified, None, root) == (Path("toy-bundle"), True)
    with pytest.raises(UsageError, match="is there already"):
        unpack.choose_folder(verified, root, None)
    with pytest.raises(UsageError, match="no folder"):
        unpack.choose_folder(verified, Path("no/such/parent"), None)


Change = Callable[[dict[str, bytes]], None]


def rewrite(path: Path, change: Change, *, sums: bool = False) -> None:
    """Write a bundle anew with other members; `sums`: with checksums that fit them."""
    held = members(path)
    change(held)
    if sums:
        del held["SHA256SUMS"]
        text = "".join(f"{sha(data)}  {name}\n" for name, data in held.items())
        held["SHA256SUMS"] = text.encode()
    with tarfile.open(path, "w") as tar:
        for name, data in held.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def flip(held: dict[str, bytes], name: str) -> None:
    held[name] = bytes([held[name][0] ^ 1]) + held[name][1:]


def with_facts(**fields: object) -> Change:
    def change(held: dict[str, bytes]) -> None:
        held["bundle.json"] = json.dumps(json.loads(held["bundle.json"]) | fields).encode()

    return change


def blob(held: dict[str, bytes]) -> str:
    return next(name for name, data in held.items() if data.startswith(b"layerlayer"))


WRONG: list[tuple[str, Change, bool, str]] = [
    ("flipped in the tree", lambda h: flip(h, "tree/ae/cli.py"), False,
     "'tree/ae/cli.py' is not what its checksum says"),
    ("flipped in a blob", lambda h: flip(h, blob(h)), False, "not those of its digest"),
    ("flipped, and the sums made anew", lambda h: flip(h, blob(h)), True, "not those of its"),
    ("a member missing", lambda h: cast("None", h.pop("tree/LICENSE")), False,
     "lacks 'tree/LICENSE', which its checksums name"),
    ("a member more", lambda h: h.update({"SHA256SUMS": h.pop("SHA256SUMS"), "tree/x": b""}), False,
     "holds 'tree/x' behind its checksums"),
    ("a member more before the sums",
     lambda h: h.update({"tree/x": b"", "SHA256SUMS": h.pop("SHA256SUMS")}), False,
     "holds 'tree/x', which its checksums do not name"),
    ("no sums", lambda h: cast("None", h.pop("SHA256SUMS")), False, "SHA256SUMS, is missing"),
    ("sums that are none", lambda h: h.update({"SHA256SUMS": b"hello\n"}), False, "cannot be read"),
    ("no part of a bundle", lambda h: h.update({"etc/passwd": b"x"}), True, "no part of a bundle"),
    ("another image's folder", lambda h: h.update({"images/evil/x": b"x"}), True, "no part of"),
    ("a file in a layout", lambda h: h.update({"images/toy-cpu/x": b"x"}), True, "no OCI layout"),
    ("a blob missing", lambda h: cast("None", h.pop(blob(h))), True, "lacks a blob"),
    ("out of the folder", lambda h: h.update({"tree/../../x": b"x"}), True, "leads out"),
    ("absolute", lambda h: h.update({"/x": b"x"}), True, "leads out"),
    ("a newer schema", with_facts(schema=2, more=1), True, "was made by a newer ae"),
    ("facts that are none", with_facts(images=7), True, "does not say what it should"),
    ("facts of another image", lambda h: with_facts(
        images=[json.loads(h["bundle.json"])["images"][0] | {"image_id": "sha256:" + "0" * 64}]
    )(h), True, "holds another image as ae/toy:cpu"),
    ("an image folder that climbs", with_facts(contents={"../x": "0" * 64}), True, "does not say"),
    ("not JSON", lambda h: h.update({"bundle.json": b"{"}), True, "cannot be read"),
    ("of another kind", with_facts(kind="other"), True, "is not a bundle of ae"),
    ("another order", lambda h: h.update({"bundle.json": h.pop("bundle.json")}), True, "not a"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "sums", "said"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG]
)
def test_a_bundle_that_is_not_as_it_was_written(
    made: Path,
    tmp_path: Path,
    daemon: Daemon,
    engine: Engine,
    change: Change,
    sums: bool,
    said: str,
) -> None:
    rewrite(made, change, sums=sums)
    refused(made, tmp_path, daemon, engine, said)


def refused(made: Path, tmp_path: Path, daemon: Daemon, engine: Engine, said: str) -> AeError:
    """Loading says so in one sentence with a fix, before the engine or the disk see anything."""
    engine.images.clear()
    engine.tags.clear()
    around = tmp_path / "around"
    around.mkdir(exist_ok=True)
    with pytest.raises(AeError) as caught:
        unpack.load_bundle(made, around / "new", None, daemon, quiet)
    assert said in caught.value.message
    assert caught.value.fix
    assert not list(around.iterdir())
    assert not engine.images
    return caught.value


@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("ending", ["tar", "tar.gz"])
def test_a_bundle_that_is_cut_off(
    root: Path, tmp_path: Path, daemon: Daemon, engine: Engine, ending: str, share: float
) -> None:
    made = make(root, tmp_path / f"toy.{ending}", daemon).path
    data = made.read_bytes()
    made.write_bytes(data[: int(len(data) * share)])
    refused(made, tmp_path, daemon, engine, f"toy.{ending} is")


@pytest.mark.parametrize(
    "junk", [b"", b"hello\n" * 1000, b"\x1f\x8b junk", b"\x28\xb5\x2f\xfd zst"]
)
def test_what_is_no_bundle_at_all(
    tmp_path: Path, daemon: Daemon, engine: Engine, junk: bytes
) -> None:
    path = tmp_path / "toy.tar"
    path.write_bytes(junk)
    refused(path, tmp_path, daemon, engine, "toy.tar is")
    refused(tmp_path / "nothing.tar", tmp_path, daemon, engine, "there is no file")


def test_a_link_in_a_bundle_is_refused(
    made: Path, tmp_path: Path, daemon: Daemon, engine: Engine
) -> None:
    held = members(made)
    with tarfile.open(made, "w") as tar:
        for name, data in held.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
            if name == "bundle.json":
                info = tarfile.TarInfo("tree/inside")
                info.type, info.linkname = tarfile.SYMTYPE, "ae"
                tar.addfile(info)
    refused(made, tmp_path, daemon, engine, "is no ordinary file")


# -- faults while it is installed --------------------------------------------------------------


def test_a_full_engine_leaves_nothing(
    made: Path, tmp_path: Path, daemon: Daemon, engine: Engine
) -> None:
    engine.full = True
    error = refused(made, tmp_path, daemon, engine, "disk of the Docker daemon is full")
    assert "docker system df" in error.fix


def test_a_fault_at_the_very_end_takes_everything_back(
    made: Path, root: Path, tmp_path: Path, daemon: Daemon, engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Image loaded, tree written, tag moved; then the folder cannot get its name."""
    mine = engine.tags["ae/toy:cpu"]
    engine.images.clear()
    engine.make("ae/toy:cpu", {"ae.content": "another"})
    other = engine.tags["ae/toy:cpu"]
    assert other != mine

    def fail(part: Path, folder: Path) -> None:
        assert engine.tags["ae/toy:cpu"] == mine
        raise OSError("the disk is gone")

    monkeypatch.setattr(unpack, "_put", fail)
    (tmp_path / "around").mkdir()
    with pytest.raises(OSError, match="the disk is gone"):
        unpack.load_bundle(made, tmp_path / "around/new", None, daemon, quiet)
    assert engine.tags == {"ae/toy:cpu": other}
    assert set(engine.images) == {other}
    assert not list((tmp_path / "around").iterdir())


def test_an_engine_that_will_not_tag(
    made: Path, tmp_path: Path, daemon: Daemon, engine: Engine
) -> None:
    engine.deaf_to_tags = True
    refused(made, tmp_path, daemon, engine, "gone away")


def test_a_file_that_changes_after_it_was_checked(
    made: Path, tmp_path: Path, daemon: Daemon, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified = verify(made)
    rewrite(made, lambda held: flip(held, "tree/ae/cli.py"))
    monkeypatch.setattr(unpack, "verify", lambda path: verified)
    refused(made, tmp_path, daemon, engine, "changed while it was loaded")


def test_labels_that_the_bundle_does_not_name(
    made: Path, tmp_path: Path, daemon: Daemon, engine: Engine
) -> None:
    def change(held: dict[str, bytes]) -> None:
        facts = json.loads(held["bundle.json"])
        facts["images"][0]["labels"]["ae.image"] = "other"
        held["bundle.json"] = json.dumps(facts).encode()

    rewrite(made, change, sums=True)
    refused(made, tmp_path, daemon, engine, "the labels of ae/toy:cpu")


def test_the_schema_in_the_code_is_the_one_it_writes() -> None:
    fields = bundle.Facts.model_fields["schema_version"]
    assert fields.default == bundle.SCHEMA
