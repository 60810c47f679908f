"""What a bundle holds: what a recipe needs of the checkout, and nothing that git ignores."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ae.errors import UsageError
from ae.host import processes
from ae.images.archives import read_chunks
from ae.images.content import content_hash, made_from
from ae.recipe.models import Recipe

# Where there is no git, these say what is no source.
_NO_SOURCE = ("__pycache__", "build", "dist")
_NO_SOURCE_ENDINGS = (".pyc", ".egg-info", ".swp", "~")
# What `ae` itself is, beside the recipe. All of it is taken from the checkout or, where the recipe
# lies in a folder without it, from the checkout that this program runs from.
_LAUNCHER = ("ae", "pyproject.toml", "README.md", "LICENSE", "CITATION.cff", "docs", "Makefile")
_NEEDED = ("ae", "pyproject.toml", "LICENSE", "CITATION.cff")
_IMAGES = ("images/common", "images/base", "images/docker-bake.hcl", "images/lock.yaml")


@dataclass(frozen=True)
class File:
    """A file and its name in the bundle."""

    name: str
    path: Path

    @property
    def size(self) -> int:
        """Bytes."""
        return self.path.stat().st_size

    @property
    def executable(self) -> bool:
        """Whether it is a program."""
        return os.access(self.path, os.X_OK)

    def chunks(self) -> Iterator[bytes]:
        """Its bytes."""
        return read_chunks(self.path)


def tree_files(root: Path, recipe: Recipe) -> list[File]:
    """The part of the checkout that the recipe needs, as `tree/...`, and its reference results.

    Raises UsageError for what git does not know of, and for what would be missing afterwards.
    """
    own = Path(__file__).resolve().parents[2]
    names = image_names(root, recipe)
    shared = {part for name in names for part in made_from(root, name)}
    folders = [f"images/{name}" for name in dict.fromkeys((*names, *sorted(shared)))]
    parts = list(dict.fromkeys((f"recipes/{recipe.name}", *folders, *_IMAGES)))
    found = dict(_listed(root, [part for part in parts if (root / part).exists()]))
    for part in _LAUNCHER:
        home = root if (root / part).exists() else own
        if (home / part).exists():
            found |= _listed(home, [part])
        elif part in _NEEDED:
            raise UsageError(
                f"a bundle holds {part}, and neither {root} nor {own} has it",
                fix="run ae from a checkout",
            )
    references = [path.relative_to(root) for path in _references(root, recipe.name)]
    results = _listed(root, [path.as_posix() for path in references])
    files = [File(f"tree/{name}", path) for name, path in found.items()]
    files += [File(name, path) for name, path in results.items()]
    _refuse_links(files)
    for name in names:
        _require_content(root, name, found)
    return sorted(files, key=lambda file: file.name)


def image_names(root: Path, recipe: Recipe) -> list[str]:
    """The folders under images/ that the lanes of a recipe build from."""
    names = [recipe.image_of(lane) for lane in recipe.lanes]
    return [name for name in dict.fromkeys(names) if (root / "images" / name).is_dir()]


def data_files(root: Path, recipe: Recipe) -> list[File]:
    """Files of the folders in the checkout that containers read, as `data/...`.

    The recipe names these itself, so they go in whether git knows them or not. A folder that
    containers write to, or that lies outside of the checkout, does not.
    """
    needs = [recipe.needs_of(name) for name in recipe.experiments]
    sources = {v.source for need in needs for v in need.volumes if v.read_only}
    files: dict[str, File] = {}
    for source in sorted(sources):
        top = Path(os.path.normpath(root / source))
        if Path(source).is_absolute() or not top.is_relative_to(root):
            continue
        if not top.exists():
            raise UsageError(
                f"the recipe {recipe.name} reads {source}, which is not there",
                fix="get the data first (see the recipe's docs)",
            )
        for path in [top] if top.is_file() else sorted(_walk(top, everything=True)):
            name = f"data/{path.relative_to(root).as_posix()}"
            files[name] = File(name, path)
    _refuse_links(files.values())
    return [files[name] for name in sorted(files)]


def wheel_files(folder: Path) -> list[File]:
    """The wheels of a folder, as `wheels/...`."""
    files = [File(f"wheels/{path.name}", path) for path in sorted(folder.glob("*.whl"))]
    if not files:
        raise UsageError(
            f"there is no wheel in {folder}",
            fix=f"pip download --dest {folder} . (in the checkout)",
        )
    return files


def revision(root: Path) -> tuple[str | None, bool, int | None]:
    """The commit of the checkout, whether files differ from it, and its date (seconds)."""
    if not _has_git(root):
        return os.environ.get("AE_REVISION") or None, False, None
    sha, _, date = _git(root, "log", "-1", "--format=%H %ct").strip().partition(" ")
    return sha, bool(_git(root, "status", "--porcelain", "--untracked-files=no").strip()), int(date)


def same_files(root: Path, recipe: str, sums: Mapping[str, str]) -> bool:
    """Whether a checkout has these files, and no other file in the recipe's folder.

    `sums`: path in the checkout -> sha256.
    """
    folder = root / "recipes" / recipe
    here = {path.relative_to(root).as_posix() for path in _walk(folder)} if folder.is_dir() else ()
    return all(name in sums for name in here) and all(
        (root / name).is_file() and file_sha256(root / name) == digest
        for name, digest in sums.items()
    )


def file_sha256(path: Path) -> str:
    """The sha256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    for chunk in read_chunks(path):
        digest.update(chunk)
    return digest.hexdigest()


def _listed(home: Path, parts: Sequence[str]) -> dict[str, Path]:
    """Name -> path of the files below `parts`: those that git tracks, or where there is none, all
    that are no caches."""
    if not parts:
        return {}
    if not _has_git(home):
        tops = [home / part for part in parts]
        paths = [p for top in tops for p in ([top] if top.is_file() else _walk(top))]
        return {path.relative_to(home).as_posix(): path for path in paths}
    unknown = _git(home, "ls-files", "-z", "--others", "--exclude-standard", "--", *parts)
    if unknown:
        names = [name for name in unknown.split("\0") if name]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        raise UsageError(
            f"git does not know {', '.join(names[:3])}{more}; only what git tracks goes into a "
            "bundle",
            fix="git add it, remove it, or add it to .gitignore",
        )
    tracked = _git(home, "ls-files", "-z", "--cached", "--", *parts).split("\0")
    paths = [home / name for name in tracked if name]
    return {p.relative_to(home).as_posix(): p for p in paths if p.is_symlink() or p.exists()}


def _require_content(root: Path, image: str, found: dict[str, Path]) -> None:
    """The image must not depend on a file that stays behind: what is restored hashes the same."""
    with tempfile.TemporaryDirectory(prefix="ae-content-") as folder:
        for name, path in found.items():
            if name.startswith("images/"):
                copy = Path(folder, name)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.symlink_to(path.resolve())
        if content_hash(Path(folder), image) != content_hash(root, image):
            raise UsageError(
                f"the image {image} is built from a file that git ignores, so a bundle without it "
                "would be another image",
                fix="see `git status --ignored "
                + " ".join(f"images/{part}" for part in made_from(root, image))
                + "`",
            )


def _refuse_links(files: Iterable[File]) -> None:
    for file in files:
        if file.path.is_symlink() or not file.path.is_file():
            raise UsageError(
                f"{file.path} is no ordinary file, and a bundle holds nothing else",
                fix="put the file itself there",
            )
        if any(ord(letter) < 32 or letter == "\\" for letter in file.name):
            raise UsageError(
                f"the name {file.name!r} cannot stand in a list of checksums", fix="rename it"
            )


def _references(root: Path, recipe: str) -> list[Path]:
    return sorted((root / "results/reference").glob(f"*/{recipe}"))


def _walk(folder: Path, *, everything: bool = False) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        name = path.name
        skipped = name.startswith(".") or name in _NO_SOURCE or name.endswith(_NO_SOURCE_ENDINGS)
        if skipped and not everything:
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _walk(path, everything=everything)
        else:
            yield path


def _has_git(home: Path) -> bool:
    """Whether `home` is the top of a git checkout. Git must then answer: it knows what to leave."""
    return (home / ".git").exists()


def _git(home: Path, *words: str) -> str:
    done = processes.run(["git", "-C", str(home), *words], timeout_s=60)
    if done.returncode != 0:
        raise UsageError(
            f"git {words[0]} failed in {home}: {done.stderr.strip()}", fix="see what git says there"
        )
    return done.stdout
