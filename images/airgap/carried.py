"""What is carried to a host without a network: Docker's packages, wheels, build contexts."""

from __future__ import annotations

import re
import shutil
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from host_base import Fault, run

# Debian 13's are written in Go and need next to nothing of a libc. Its runc and tini need its own.
PACKAGES = {
    "trixie": ["docker.io", "docker-cli", "docker-buildx", "containerd"],
    "bookworm": ["runc", "libseccomp2", "tini", "docker-registry"],
}
# Of glibc 2.28 and older ones, which pip wants named.
PLATFORMS = ["manylinux1", "manylinux2014", *(f"manylinux_2_{minor}" for minor in range(17, 29))]
WHEELS = ["docker", "jinja2", "pydantic", "typer", "pyyaml"]
CONTEXTS = ("extra", "fbgemm", "stock21")  # named as the requirements that they are made from
SOURCES = re.compile(r"^ARG (\w+)_URL=(\S+)\nARG \1_SHA256=(\w+)$", re.MULTILINE)  # of Dockerfiles
MIRROR = "http://deb.debian.org/debian"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


def collect(target: Path, python: str, part_mb: int) -> None:
    """Download Debian packages and wheels into `target`/part-1, part-2 ..., each small enough."""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="airgap-") as temporary:
        folder = Path(temporary)
        for suite, names in PACKAGES.items():
            download_debs(suite, names, folder)
        download_wheels(python, folder, WHEELS)
        files = sorted(
            (path for path in folder.iterdir() if path.suffix in (".deb", ".whl")),
            key=lambda path: -path.stat().st_size,
        )
        for old in target.glob("part-*"):
            shutil.rmtree(old)
        for number, part in enumerate(split(files, part_mb * 1_000_000), 1):
            place = target / f"part-{number}"
            place.mkdir()
            for path in part:
                shutil.move(str(path), place / path.name)
            size = sum(path.stat().st_size for path in place.iterdir())
            print(f"{place}: {len(part)} files, {size / 1e6:.1f} MB")


def contexts(image: Path, target: Path, python: str, part_mb: int) -> None:
    """Pack the build contexts of an image on a borrowed base into target/NAME.tar.gz.01, .02 ...

    `image` is its folder, `python` the version of the GPU host's Python. Raises Fault for a context
    that cannot be had, once the others are packed.
    """
    if not (image / "Dockerfile").is_file():
        raise Fault(f"there is no image {image.name}: images/{image.name} has no Dockerfile")
    names = [name for name in CONTEXTS if (image / f"requirements-{name}.txt").is_file()]
    names += sources_of(image)
    if not names:
        raise Fault(f"{image} takes no build context of {', '.join(CONTEXTS)}, and no source")
    missing = []
    target.mkdir(parents=True, exist_ok=True)
    for old in target.glob(f"{image.name}.tar.gz.*"):
        old.unlink()
    with tempfile.TemporaryDirectory(prefix="airgap-") as temporary:
        archive = Path(temporary) / "archive"
        with tarfile.open(archive, "w:gz") as tar:
            for name in names:
                folder = Path(temporary) / name
                folder.mkdir()
                try:
                    make_context(image, name, python, folder)
                    tar.add(folder, name)
                except Fault as fault:
                    missing.append(f"{name} is not packed: {fault}")
        with archive.open("rb") as file:
            pieces = iter(lambda: file.read(part_mb * 1_000_000), b"")
            for number, piece in enumerate(pieces, 1):
                part = target / f"{image.name}.tar.gz.{number:02}"
                part.write_bytes(piece)
                print(f"{part}: {len(piece) / 1e6:.1f} MB")
    print(f"on the host: cat {image.name}.tar.gz.* | tar -xz -C DIR")
    if missing:
        raise Fault("\n".join([*missing, "docs/airgap.md says how to make it by hand"]))


def sources_of(image: Path) -> dict[str, tuple[str, str]]:
    """Address and checksum of each source that the image fetches, or takes as a build context."""
    text = (image / "Dockerfile").read_text()
    return {
        name.lower(): (url, sha256)
        for name, url, sha256 in SOURCES.findall(text)
        if f"\nFROM scratch AS {name.lower()}\n" in text
    }


def make_context(image: Path, name: str, python: str, folder: Path) -> None:
    """Fill a folder from the wheels that the image's requirements-NAME.txt locks, or with the
    source that its Dockerfile names. Raises Fault."""
    if name in (sources := sources_of(image)):
        url, sha256 = sources[name]
        fetch = [sys.executable, str(image.parent / "sources/fetch.py"), url, sha256]
        run([*fetch, str(folder / url.rpartition("/")[2])])
        return
    with tempfile.TemporaryDirectory(prefix="airgap-") as temporary:
        locked = ["--no-deps", "--require-hashes", "-r", str(image / f"requirements-{name}.txt")]
        # torch 2.1.0 is read and not run, and there is none for a newer Python.
        download_wheels("3.11" if name == "stock21" else python, Path(temporary), locked)
        for path in Path(temporary).glob("*.whl"):
            if name == "stock21":
                extract = [sys.executable, "-m", "dlrm_inference.cuda.stock21", "extract"]
                run([*extract, str(path), str(folder)], cwd=image / "src")
                continue
            with zipfile.ZipFile(path) as wheel:
                if name == "extra":
                    wheel.extractall(folder)
                else:
                    source = (image / "src/dlrm_inference/cuda/fbgemm.py").read_text()
                    for library in re.findall(r'^    "(\w+\.so)",$', source, re.MULTILINE):
                        (folder / library).write_bytes(wheel.read(f"fbgemm_gpu/{library}"))


def download_wheels(python: str, folder: Path, words: list[str]) -> None:
    """Have pip download wheels for a host's Python."""
    run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder)]
        + ["--only-binary=:all:", "--python-version", python, "--implementation", "cp"]
        + [word for name in PLATFORMS for word in ("--platform", f"{name}_x86_64")]
        + words
    )


def download_debs(suite: str, names: list[str], folder: Path) -> None:
    """Download packages of a Debian suite with lists of our own: the system's are not touched."""
    private = folder / f"apt-{suite}"
    for name in ("lists/partial", "cache/archives/partial"):
        (private / name).mkdir(parents=True)
    sources = private / "sources.list"
    sources.write_text(f"deb [signed-by={KEYRING}] {MIRROR} {suite} main\n")
    (private / "status").touch()
    options = [
        f"Dir::Etc::SourceList={sources}",
        "Dir::Etc::SourceParts=/nonexistent",
        "Dir::Etc::PreferencesParts=/nonexistent",
        f"Dir::State::Lists={private}/lists",
        f"Dir::State::Status={private}/status",
        f"Dir::Cache={private}/cache",
        "APT::Architecture=amd64",
        "APT::Sandbox::User=root",
        "Acquire::Retries=3",
    ]
    apt = ["apt-get", "-qq", *(word for option in options for word in ("-o", option))]
    run([*apt, "update"])
    run([*apt, "download", *names], cwd=folder)


def split(files: list[Path], limit: int) -> list[list[Path]]:
    """Largest first, into as few parts as come out; a file over the limit is a part of its own."""
    parts: list[list[Path]] = []
    for path in files:
        size = path.stat().st_size
        for part in parts:
            if sum(one.stat().st_size for one in part) + size <= limit:
                part.append(path)
                break
        else:
            parts.append([path])
    return parts


def unpack(folders: list[Path], home: Path) -> None:
    """Unpack carried packages and wheels below `home`."""
    site = home / "site"
    site.mkdir(parents=True, exist_ok=True)
    found = [path for folder in folders for path in sorted(folder.iterdir())]
    for path in found:
        if path.suffix == ".deb":
            run(["dpkg", "-x", str(path), str(home)])
        elif path.suffix == ".whl":
            with zipfile.ZipFile(path) as wheel:
                wheel.extractall(site)
    link = home / "usr/bin/docker-init"  # Debian's points at the system's tini
    if (home / "usr/bin/tini-static").exists():
        link.unlink(missing_ok=True)
        link.symlink_to("tini-static")
    print(f"unpacked {len(found)} files into {home}", file=sys.stderr)
