"""What is carried to a host without a network: Docker's packages and wheels; fetched, unpacked."""

from __future__ import annotations

import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from host_base import run

# Debian 13's are written in Go and need next to nothing of a libc. Its runc and tini need its own.
PACKAGES = {
    "trixie": ["docker.io", "docker-cli", "docker-buildx", "containerd"],
    "bookworm": ["runc", "libseccomp2", "tini", "docker-registry"],
}
WHEELS = ["docker", "jinja2", "pydantic", "typer", "pyyaml"]
MIRROR = "http://deb.debian.org/debian"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


def collect(target: Path, python: str, part_mb: int) -> None:
    """Download Debian packages and wheels into `target`/part-1, part-2 ..., each small enough."""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="airgap-") as temporary:
        folder = Path(temporary)
        for suite, names in PACKAGES.items():
            download_debs(suite, names, folder)
        platforms = ["manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64"]
        run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder)]
            + ["--only-binary=:all:", "--python-version", python, "--implementation", "cp"]
            + [word for name in platforms for word in ("--platform", name)]
            + WHEELS
        )
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
