"""What goes into a bundle, and what happens to one that is not as it was written.

The engine here keeps images in memory, as the layouts that `docker save` gives; the real one is in
tests/real/test_bundle_circle.py.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from hypothesis import HealthCheck, given, settings, strategies

from ae.daemon.connection import Daemon
from ae.errors import AeError, EnvironmentFault, UsageError
from ae.images import pack
from ae.images.bundle import check, choose_folder, load
from ae.images.content import content_hash, image_ref
from ae.model import Flavour
from ae.recipe.load import load_recipe
from tests.conftest import safe_tar
from tests.toy import make_checkout

ROOT = Path(__file__).resolve().parents[2]


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def quiet(_text: str) -> None:
    pass


def tar_of(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path, data in files.items():
            info = tarfile.TarInfo(path)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def saved(labels: dict[str, str]) -> tuple[str, bytes]:
    """The id of an image and what `docker save` gives for it, by id."""
    layer = b"layer" * 9000
    config = json.dumps({"config": {"Labels": labels}}).encode()
    blobs = {f"blobs/sha256/{sha(data)}": data for data in (config, layer)}
    row = {"Config": f"blobs/sha256/{sha(config)}", "RepoTags": None}
    files = dict(sorted(blobs.items())) | {"manifest.json": json.dumps([row]).encode()}
    return f"sha256:{sha(config)}", tar_of(files)


class Engine:
    """Images by id, and tags: what a daemon does with `get`, `load`, `tag` and `remove`."""

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}
        self.tags: dict[str, str] = {}
        self.full = False
        self.deaf_to_tags = False

    def make(self, reference: str, labels: dict[str, str]) -> None:
        self.tags[reference], data = saved(labels)
        self.stored[self.tags[reference]] = data

    def inspect_image(self, name: str) -> dict[str, Any]:
        found = self._id(name)
        with tarfile.open(fileobj=io.BytesIO(self.stored[found])) as tar:
            config = json.load(cast("Any", tar.extractfile(f"blobs/sha256/{found[7:]}")))
        return {"Id": found, "Size": 45000, "Config": config["config"]}

    def get_image(self, name: str) -> Iterator[bytes]:
        assert name.startswith("sha256:")  # with a tag, the tag would go in
        yield self.stored[name]

    def load_image(self, data: Any, quiet: bool) -> Iterator[dict[str, str]]:
        content = data.read()
        if self.full:
            yield {"error": "write /layer.tar: no space left on device"}
            return
        try:
            with tarfile.open(fileobj=io.BytesIO(content)) as tar:
                (row,) = json.load(cast("Any", tar.extractfile("manifest.json")))
        except (tarfile.TarError, KeyError):
            yield {"error": "unrecognized image format"}
            return
        found = "sha256:" + row["Config"].rpartition("/")[2]
        self.stored[found] = content
        yield {"stream": f"Loaded image ID: {found}\n"}

    def images(self, quiet: bool, filters: dict[str, str] | None = None) -> list[str]:
        assert quiet  # ids alone
        every = [self.inspect_image(name) for name in self.stored]
        wanted = {tuple(label.split("=", 1)) for label in (filters or {}).values()}
        return [one["Id"] for one in every if wanted <= one["Config"]["Labels"].items()]

    def tag(self, name: str, repository: str, tag: str) -> None:
        if self.deaf_to_tags:
            raise EnvironmentFault("the daemon has gone away", fix="start it")
        self.tags[f"{repository}:{tag}"] = self._id(name)

    def remove_image(self, name: str, noprune: bool = False) -> None:
        found = self._id(name)
        self.tags.pop(name, None)
        if found not in self.tags.values():
            del self.stored[found]

    def _id(self, name: str) -> str:
        from docker.errors import ImageNotFound

        found = self.tags.get(name, name)
        if found not in self.stored:
            raise ImageNotFound("no such image")
        return found


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def daemon(engine: Engine) -> Daemon:
    return daemon_of(engine)


def daemon_of(engine: Engine) -> Daemon:
    made = Held("unix:///nowhere")
    vars(made).update(client=engine, info={})
    return made


class Held(Daemon):
    """A daemon that holds what the engine holds."""

    def image(self, reference: str) -> dict[str, Any] | None:
        from docker.errors import ImageNotFound

        try:
            found: dict[str, Any] = self.client.inspect_image(reference)  # type: ignore[no-untyped-call]
        except ImageNotFound:
            return None
        return found


def git(root: Path, *words: str) -> None:
    who = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "-C", str(root), *who, *words], check=True, capture_output=True)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with the toy, all of it committed, and a bundle of it beside."""
    top = tmp_path_factory.mktemp("template")
    root = make_checkout(top / "checkout")
    reference = root / "results/reference/h200/toy"
    reference.mkdir(parents=True)
    (reference / "run.json").write_text("{}")
    (root / ".gitignore").write_text("*.secret\n__pycache__/\n")
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


def make(root: Path, output: Path, daemon: Daemon, **options: Any) -> pack.Facts:
    flavours = options.pop("flavours", [Flavour.CPU])
    images = [image_ref(root, "toy", flavour) for flavour in flavours]
    return pack.write(root, load_recipe(root, "toy"), images, output, daemon, quiet)


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {info.name: cast("Any", tar.extractfile(info)).read() for info in tar}


def tree(path: Path) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(members(path)["tree.tar"])) as tar:
        return {one.name: cast("Any", tar.extractfile(one)).read() for one in tar if one.isreg()}


# -- what goes in -------------------------------------------------------------------------------


def test_what_a_bundle_holds(made: Path, template: Path) -> None:
    held = members(made)
    assert list(held) == [
        "bundle.json", "README.md", "tree.tar", "images/toy-cpu.tar", "SHA256SUMS",
    ]  # fmt: skip
    names = tree(made)
    for name in ("ae/cli.py", "recipes/toy/recipe.yaml", "images/toy/Dockerfile", "LICENSE",
                 "pyproject.toml", "docs/contracts.md",
                 "results/reference/h200/toy/run.json"):  # fmt: skip
        assert name in names, name
    facts = json.loads(held["bundle.json"])
    head = subprocess.run(
        ["git", "-C", template / "checkout", "rev-parse", "HEAD"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert (facts["schema"], facts["revision"]) == (3, head.stdout.strip())
    assert facts["images"][0]["content"] == content_hash(template / "checkout", "toy")


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
    wanted = ["On Adding Numbers", "TOY 2000", "ae load toy.tar", "ae run toy --quick"]
    for words in (*wanted, "docker load", "sha256sum --check", "LICENSE", "CITATION.cff"):
        assert words in text, words


def test_the_licence_and_the_citation_are_whole() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "END OF TERMS AND CONDITIONS" in text
    assert "Version 2.0, January 2004" in text
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors", "license", "version"} <= set(cited)
    assert cited["license"] == "Apache-2.0"


def test_nothing_of_the_person_goes_in(
    root: Path, tmp_path: Path, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ignored files, registry logins, licences and certificates in and around the checkout."""
    word = "do-not-publish"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AE_SECRET_GUROBI", str(tmp_path / "home/gurobi.lic"))
    own = ["home/.docker/config.json", "home/gurobi.lic"]
    for name in (*own, "checkout/recipes/toy/my.secret", "checkout/results/runs/toy/1/run.json"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(word)
    make(root, tmp_path / "toy.tar", daemon)
    data = (tmp_path / "toy.tar").read_bytes()
    assert word.encode() not in data
    assert str(tmp_path).encode() not in data


@pytest.mark.parametrize("name", ["recipes/toy/notes.txt", "images/toy/key.secret"])
def test_what_git_does_not_know_stops_it(
    root: Path, tmp_path: Path, daemon: Daemon, engine: Engine, name: str
) -> None:
    (root / name).write_text("mine")  # the second is ignored, and the image is built from it
    ready(root, engine)
    with pytest.raises(UsageError, match=f"{name} is not as in the commit"):
        make(root, tmp_path / "toy.tar", daemon)
    assert not (tmp_path / "toy.tar").exists()


def test_a_folder_without_git_stops_it(root: Path, tmp_path: Path, daemon: Daemon) -> None:
    (root / ".git").rename(tmp_path / "git")
    with pytest.raises(UsageError, match="no git checkout"):
        make(root, tmp_path / "toy.tar", daemon)


def test_a_file_that_differs_from_the_commit_stops_it(
    root: Path, tmp_path: Path, daemon: Daemon
) -> None:
    (root / "recipes/toy/figures.py").write_text("# changed\n")
    with pytest.raises(UsageError, match=r"recipes/toy/figures\.py is not as in the commit"):
        make(root, tmp_path / "toy.tar", daemon)
    git(root, "commit", "-q", "-a", "-m", "changed")
    make(root, tmp_path / "toy.tar", daemon)
    assert tree(tmp_path / "toy.tar")["recipes/toy/figures.py"] == b"# changed\n"


def test_an_image_that_is_missing_or_out_of_date(
    root: Path, tmp_path: Path, daemon: Daemon, engine: Engine
) -> None:
    with pytest.raises(EnvironmentFault, match="ae/toy:cuda is not there") as caught:
        make(root, tmp_path / "toy.tar", daemon, flavours=[Flavour.CUDA])
    assert caught.value.fix == "ae build toy --flavour cuda"
    (root / "images/toy/bin/python").write_text("#!/bin/sh\n")
    with pytest.raises(EnvironmentFault, match="not built from this tree"):
        make(root, tmp_path / "toy.tar", daemon)


def test_an_image_without_labels_is_not_bundled(
    root: Path, tmp_path: Path, daemon: Daemon, engine: Engine
) -> None:
    engine.make("ae/toy:cpu", {"ae.content": content_hash(root, "toy"), "ae.image": "toy"})
    with pytest.raises(EnvironmentFault, match="not built from this tree"):
        make(root, tmp_path / "toy.tar", daemon)


def test_a_small_disk_is_refused_at_once(
    root: Path, tmp_path: Path, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ae.host.machine.free_disk", lambda path: 1000)
    (tmp_path / "out").mkdir()
    with pytest.raises(EnvironmentFault, match=r"needs .* of disk"):
        make(root, tmp_path / "out/toy.tar", daemon)
    assert not list((tmp_path / "out").iterdir())


def test_a_fault_in_the_middle_leaves_what_was_there(
    root: Path, tmp_path: Path, daemon: Daemon, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(name: str) -> Iterator[bytes]:
        yield engine.stored[name][:1000]
        raise EnvironmentFault("the daemon has gone away", fix="start it")

    monkeypatch.setattr(engine, "get_image", broken)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/toy.tar").write_text("an older bundle")
    with pytest.raises(EnvironmentFault, match="gone away"):
        make(root, tmp_path / "out/toy.tar", daemon)
    assert [path.read_text() for path in (tmp_path / "out").iterdir()] == ["an older bundle"]


@pytest.mark.parametrize("name", ["toy", "toy.zip", "toy.tar.gz", "no/such/folder/toy.tar"])
def test_names_that_a_bundle_cannot_have(
    root: Path, tmp_path: Path, daemon: Daemon, name: str
) -> None:
    with pytest.raises(UsageError) as caught:
        make(root, tmp_path / name, daemon)
    assert caught.value.fix


# -- loading --------------------------------------------------------------------------------------


@safe_tar
def test_the_tree_comes_back(
    made: Path, root: Path, tmp_path: Path, daemon: Daemon, engine: Engine
) -> None:
    before = dict(engine.tags)
    engine.stored.clear()
    engine.tags.clear()
    new = tmp_path / "new"
    said: list[str] = []
    load(check(made), new, daemon, said.append)
    assert [line for line in said if line.startswith("loading ae/toy:cpu")]
    assert engine.tags == before
    assert content_hash(new, "toy") == content_hash(root, "toy")
    assert load_recipe(new, "toy") == load_recipe(root, "toy")
    assert (new / "results/reference/h200/toy/run.json").is_file()
    assert (new / "images/toy/bin/python").stat().st_mode & 0o111
    said.clear()
    load(check(made), tmp_path / "again", daemon, said.append)
    assert said == []  # the engine has the image


@safe_tar
def test_where_the_tree_goes(
    made: Path, root: Path, tmp_path: Path, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below the folder that one is in, wherever `ae` itself is; never over anything."""
    monkeypatch.chdir(tmp_path)
    checked = check(made)
    assert choose_folder(checked, None) == Path("toy-bundle")
    assert choose_folder(checked, Path("x")) == Path("x")
    load(checked, choose_folder(checked, None), daemon, quiet)
    assert (tmp_path / "toy-bundle/recipes/toy/recipe.yaml").is_file()
    with pytest.raises(UsageError, match="is there already"):
        choose_folder(checked, None)
    (tmp_path / "empty").mkdir()
    assert choose_folder(checked, tmp_path / "empty") == tmp_path / "empty"
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    for wrong in (root, made, Path("a/b"), tmp_path / "link"):
        with pytest.raises(UsageError, match="cannot be written") as caught:
            choose_folder(checked, wrong)
        assert caught.value.fix


Change = Callable[[dict[str, bytes]], object]


def rewrite(path: Path, change: Change, *, sums: bool = False) -> None:
    """Write a bundle anew with other members; `sums`: with checksums that fit them."""
    held = members(path)
    change(held)
    if sums:
        held.pop("SHA256SUMS", None)
        text = "".join(f"{sha(data)}  {name}\n" for name, data in held.items())
        held["SHA256SUMS"] = text.encode()
    path.write_bytes(tar_of(held))


def flip(held: dict[str, bytes], name: str) -> None:
    held[name] = bytes([held[name][0] ^ 1]) + held[name][1:]


def with_facts(**fields: object) -> Change:
    def change(held: dict[str, bytes]) -> None:
        held["bundle.json"] = json.dumps(json.loads(held["bundle.json"]) | fields).encode()

    return change


def with_image(labels: dict[str, str]) -> Change:
    """Another image, that bundle.json names by its id; `labels` are in place of ours."""

    def change(held: dict[str, bytes]) -> None:
        (image,) = json.loads(held["bundle.json"])["images"]
        own = {"ae.image": "toy", "ae.flavour": "cpu", "ae.content": image["content"]}
        image["image_id"], held["images/toy-cpu.tar"] = saved(own | labels)
        with_facts(images=[image])(held)

    return change


def with_tree(add: Callable[[tarfile.TarFile], object]) -> Change:
    def change(held: dict[str, bytes]) -> None:
        out = io.BytesIO(held["tree.tar"])
        with tarfile.open(fileobj=out, mode="a") as tar:
            add(tar)
        held["tree.tar"] = out.getvalue()

    return change


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def sparse() -> tarfile.TarInfo:
    """A file of a terabyte that takes no bytes in the archive."""
    info = tarfile.TarInfo("x")
    info.pax_headers = {"GNU.sparse.map": "0,0", "GNU.sparse.size": str(2**40)}
    return info


def without(name: str) -> Change:
    return lambda held: held.pop(name)


def image_facts(**fields: object) -> Change:
    def change(held: dict[str, bytes]) -> None:
        (image,) = json.loads(held["bundle.json"])["images"]
        with_facts(images=[image | fields])(held)

    return change


def renamed(old: str, new: str) -> Change:
    return lambda held: held.update({new: held.pop(old)})


ELSE = "which would be written elsewhere"
OTHER = "does not hold the images"
WRONG: list[tuple[str, Change, bool, str]] = [
    ("flipped in the tree", lambda h: flip(h, "tree.tar"), False, "not those of its SHA256SUMS"),
    ("flipped in an image", lambda h: flip(h, "images/toy-cpu.tar"), False, "not those of its"),
    ("flipped in the readme", lambda h: flip(h, "README.md"), False, "not those of its"),
    ("a member missing", without("README.md"), False, "not those of its"),
    ("a member missing, sums that fit", without("README.md"), True, OTHER),
    ("an image missing, sums that fit", without("images/toy-cpu.tar"), True, OTHER),
    ("an image more", lambda h: h.update({"images/x-cpu.tar": b""}), True, OTHER),
    ("a member more", lambda h: h.update({"images/x.tar": b""}), False, "not those of its"),
    ("no sums", without("SHA256SUMS"), False, "not those of its SHA256SUMS"),
    ("sums that are none", lambda h: h.update({"SHA256SUMS": b"hello\n"}), False, "not those of"),
    ("no part of a bundle", lambda h: h.update({"etc/passwd": b"x"}), True, "no part of a bundle"),
    ("out of the folder", lambda h: h.update({"images/../../x.tar": b"x"}), True, "no part of"),
    ("absolute", lambda h: h.update({"/x": b"x"}), True, "no part of"),
    ("a newer schema", with_facts(schema=4, more=1), True, "of another version"),
    ("facts that are none", with_facts(images=7), True, "does not read"),
    ("no images", with_facts(images=[]), True, "does not read"),
    ("another flavour", image_facts(flavour="cuda"), True, OTHER),
    ("an image folder that climbs", image_facts(name="../x"), True, "does not read"),
    ("not JSON", lambda h: h.update({"bundle.json": b"{"}), True, "does not read"),
    ("deep JSON", lambda h: h.update({"bundle.json": b"[" * 10**6}), True, "does not read"),
    ("of another kind", with_facts(kind="other"), True, "does not read"),
    ("another order", renamed("bundle.json", "bundle.json"), False, "is not a bundle of ae"),
    ("an image without labels",
     with_image({"ae.image": "", "ae.flavour": "", "ae.content": ""}), True, "holds another image"),
    ("without the label of its sources", with_image({"ae.content": "x"}), True, "another image"),
    ("of another paper", with_image({"ae.image": "x"}), True, "holds another image"),
    ("of another flavour", with_image({"ae.flavour": "cuda"}), True, "holds another image"),
    ("an image that is none", lambda h: h.update({"images/toy-cpu.tar": tar_of({"x": b"x"})}), True,
     "unrecognized image"),
    ("an image that is no archive", lambda h: h.update({"images/toy-cpu.tar": b"x"}), True,
     "unrecognized image"),
    ("a tree that climbs", with_tree(lambda t: t.addfile(tarfile.TarInfo("../x"))), True, ELSE),
    ("a link out of it", with_tree(lambda t: t.addfile(link("x", "../../x"))), True, ELSE),
    ("a link that is absolute", with_tree(lambda t: t.addfile(link("x", "/etc"))), True, ELSE),
    ("a hard link out", with_tree(lambda t: t.addfile(link("x", "/etc/passwd", tarfile.LNKTYPE))),
     True, ELSE),
    ("a device", with_tree(lambda t: t.addfile(link("x", "", tarfile.CHRTYPE))), True, ELSE),
    ("a sparse file", with_tree(lambda t: t.addfile(sparse())), True, "damaged"),
    ("a tree that is none", lambda h: h.update({"tree.tar": b"hello" * 1000}), True, "damaged"),
    ("an empty tree", lambda h: h.update({"tree.tar": tar_of({})}), True, "and other sources"),
    ("other sources", with_tree(lambda t: t.addfile(tarfile.TarInfo("images/toy/Dockerfile"))),
     True, "and other sources"),
]  # fmt: skip


@safe_tar
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
    """Loading says so in one sentence with a fix; engine and disk are as they were before."""
    engine.stored.clear()
    engine.tags.clear()
    around = tmp_path / "around"
    around.mkdir(exist_ok=True)
    with pytest.raises(AeError) as caught:
        load(check(made), around / "new", daemon, quiet)
    assert said in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.fix
    assert not list(around.iterdir())
    assert not engine.stored
    assert not engine.tags
    return caught.value


def test_what_lies_behind_the_end(
    made: Path, tmp_path: Path, daemon: Daemon, engine: Engine
) -> None:
    made.write_bytes(made.read_bytes() + b"x" * tarfile.RECORDSIZE)
    refused(made, tmp_path, daemon, engine, "damaged at its end")


@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.9, 0.999, 0.999999])
def test_a_bundle_that_is_cut_off(
    made: Path, tmp_path: Path, daemon: Daemon, engine: Engine, share: float
) -> None:
    data = made.read_bytes()
    made.write_bytes(data[: int(len(data) * share)])
    refused(made, tmp_path, daemon, engine, "toy.tar is")


@pytest.mark.parametrize(
    "junk", [b"", b"hello\n" * 1000, b"\x1f\x8b junk", b"\x28\xb5\x2f\xfd zst", bytes(20480)]
)
def test_what_is_no_bundle_at_all(
    tmp_path: Path, daemon: Daemon, engine: Engine, junk: bytes
) -> None:
    path = tmp_path / "toy.tar"
    path.write_bytes(junk)
    refused(path, tmp_path, daemon, engine, "toy.tar is not a bundle")
    refused(tmp_path / "nothing.tar", tmp_path, daemon, engine, "there is no file")


def test_a_link_in_a_bundle_is_refused(
    made: Path, tmp_path: Path, daemon: Daemon, engine: Engine
) -> None:
    with tarfile.open(made, "a") as tar:
        tar.addfile(link("images/x.tar", "toy-cpu.tar"))
    refused(made, tmp_path, daemon, engine, "no part of a bundle")


@pytest.mark.parametrize("name", ["README.md", "tree.tar", "images/toy-cpu.tar"])
def test_a_member_that_comes_twice_is_refused(
    made: Path, tmp_path: Path, daemon: Daemon, engine: Engine, name: str
) -> None:
    """Another file first, then the honest one, which the checksums are of."""
    held = members(made)
    with tarfile.open(made, "w") as tar:
        for member, data in held.items():
            for content in [b"other", data] if member == name else [data]:
                info = tarfile.TarInfo(member)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    refused(made, tmp_path, daemon, engine, f"holds '{name}'")


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_header_that_would_fill_the_memory(
    tmp_path: Path, daemon: Daemon, engine: Engine, kind: bytes
) -> None:
    """A small file that says it holds a name of a gigabyte, behind an honest first member."""
    info = link("x", "", kind)
    info.size = 2**30
    path = tmp_path / "toy.tar"
    with path.open("wb") as file:
        file.write(tar_of({"bundle.json": b"{}"})[:1024])
        file.write(info.tobuf())
        file.truncate(2**30)
    tracemalloc.start()
    refused(path, tmp_path, daemon, engine, "toy.tar is")
    assert tracemalloc.get_traced_memory()[1] < 20 * 2**20
    tracemalloc.stop()


# -- faults while it is installed --------------------------------------------------------------


@safe_tar
def test_a_full_engine_leaves_nothing(
    made: Path, tmp_path: Path, daemon: Daemon, engine: Engine
) -> None:
    engine.full = True
    error = refused(made, tmp_path, daemon, engine, "no space left on device")
    assert "system df" in error.fix


def test_a_small_disk_is_refused_before_the_engine_sees_anything(
    made: Path, tmp_path: Path, daemon: Daemon, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ae.host.machine.free_disk", lambda path: 1000)
    refused(made, tmp_path, daemon, engine, "of disk")


@safe_tar
def test_a_fault_at_the_very_end_takes_everything_back(
    made: Path, tmp_path: Path, daemon: Daemon, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Image loaded, tree written; then the folder cannot get its name, and no tag has moved."""
    image_id = json.loads(members(made)["bundle.json"])["images"][0]["image_id"]
    engine.stored.clear()
    engine.make("ae/toy:cpu", {"ae.content": "another"})
    before = dict(engine.tags)

    def fail(self: Path, target: Path) -> None:
        assert image_id in engine.stored
        assert engine.tags == before
        raise OSError("the disk is gone")

    monkeypatch.setattr(Path, "rename", fail)
    (tmp_path / "around").mkdir()
    with pytest.raises(OSError, match="the disk is gone"):
        load(check(made), tmp_path / "around/new", daemon, quiet)
    assert engine.tags == before
    assert set(engine.stored) == set(before.values())
    assert not list((tmp_path / "around").iterdir())


@safe_tar
def test_an_image_that_was_there_before_stays_there_after_a_fault(
    made: Path, root: Path, tmp_path: Path, daemon: Daemon, engine: Engine
) -> None:
    ready(root, engine)
    before = dict(engine.tags)
    engine.deaf_to_tags = True
    with pytest.raises(EnvironmentFault, match="gone away"):
        load(check(made), tmp_path / "new", daemon, quiet)
    assert engine.tags == before
    assert set(engine.stored) == set(before.values())
    assert not (tmp_path / "new").exists()


@safe_tar
def test_an_engine_that_will_not_tag(
    made: Path, tmp_path: Path, daemon: Daemon, engine: Engine
) -> None:
    engine.deaf_to_tags = True
    refused(made, tmp_path, daemon, engine, "gone away")


# -- any bytes -----------------------------------------------------------------------------------

KEYS = sorted(pack.Facts.model_json_schema()["properties"])
FUZZ = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def sentence(path: Path) -> str:
    """What `check` says; "" when it finds nothing wrong. Nothing else may come out of it."""
    try:
        check(path)
    except AeError as error:
        return error.message if error.fix else "no fix"
    return ""


@FUZZ
@given(data=strategies.data())
def test_any_changed_byte_is_found(made: Path, tmp_path: Path, data: strategies.DataObject) -> None:
    """Headers, data, padding: whatever byte of the archive it is."""
    content = bytearray(small_bundle(made))
    place = data.draw(strategies.integers(0, len(content) - 1))
    content[place] ^= data.draw(strategies.integers(1, 255))
    path = tmp_path / "changed.tar"
    path.write_bytes(content)
    if said := sentence(path):
        assert "changed.tar" in said
    else:  # times and owners in a header, padding: what is restored is the same
        assert members(path) == members(tmp_path / "small.tar")


@FUZZ
@given(data=strategies.data())
def test_any_cut_is_found(made: Path, tmp_path: Path, data: strategies.DataObject) -> None:
    content = small_bundle(made)
    path = tmp_path / "cut.tar"
    path.write_bytes(content[: data.draw(strategies.integers(0, len(content) - 1))])
    assert "cut.tar is" in sentence(path)


JSON = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.integers() | strategies.text()
    | strategies.floats(),
    lambda inner: strategies.lists(inner) | strategies.dictionaries(strategies.text(), inner),
    max_leaves=8,
)  # fmt: skip


@FUZZ
@given(
    key=strategies.sampled_from(sorted(pack.Facts.model_json_schema()["properties"])), value=JSON
)
def test_any_index_is_read_or_refused(made: Path, tmp_path: Path, key: str, value: object) -> None:
    path = tmp_path / "index.tar"
    path.write_bytes(small_bundle(made))
    rewrite(path, with_facts(**{key: value}), sums=True)
    said = sentence(path)
    if key == "images" or (key in ("kind", "schema") and value not in ("ae-bundle", 2)):
        assert said


@FUZZ
@given(junk=strategies.binary(max_size=2000))
def test_any_bytes_are_no_bundle(tmp_path: Path, junk: bytes) -> None:
    path = tmp_path / "junk.tar"
    for content in (junk, b"\x1f\x8b" + junk, b"bundle.json" + junk):
        path.write_bytes(content)
        assert "junk.tar is" in sentence(path)


def small_bundle(made: Path) -> bytes:
    """The bundle without its tree, so that every byte has a chance."""
    small = made.with_name("small.tar")
    if not small.exists():
        shutil.copy(made, small)
        rewrite(small, lambda held: held.update({"tree.tar": tar_of({})}), sums=True)
    return small.read_bytes()
