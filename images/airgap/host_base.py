"""A base image from a GPU host's own files: what a build runs, and labels for what is borrowed.

The base holds a shell, the basic programs and Python, as the host's package manager (dpkg) has
installed them. CUDA, PyTorch and all else stay on the host: the label `ae.binds` names folders that
the engine binds read-only when a container starts.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import tarfile
from pathlib import Path
from typing import IO

# Variables of the host that containers must have too: they keep NVLink multicast off.
KEPT = re.compile(r"NCCL_|NVSHMEM_|TORCH_SYMM_MEM_|CUDA_HOME$|TRITON_")
# What a build runs; with all that these need.
SEEDS = ("dash", "coreutils", "findutils", "grep", "sed", "python3")
LEFT_OUT = ("dpkg", "debconf", "install-info", "perl-base")  # needed only to install packages
UNUSED = ("/usr/share/doc/", "/usr/share/man/", "/usr/share/locale/", "/usr/share/lintian/")


class Fault(Exception):
    """One sentence for the person at the keyboard."""


def run(argv: list[str], cwd: Path | None = None) -> str:
    """Run a command; a failure is a Fault with its last words."""
    try:
        done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise Fault(f"there is no program '{argv[0]}'") from error
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines()[-5:]
        raise Fault(f"{' '.join(argv[:4])} ... failed ({done.returncode}): " + "\n".join(words))
    return done.stdout


def host_base(file: IO[bytes], driver: Path, python: Path) -> tuple[list[str], str]:
    """Write the base as a tar. Return the changes for `docker import`, and what it is in words."""
    binds = host_folders(python)
    packages = closure(SEEDS, installed_packages())
    write_base(file, package_files(packages), binds, python)
    changes = [
        *(f"ENV {key}={quoted(value)}" for key, value in image_environment(driver, python).items()),
        "LABEL ae.image=base",
        f"LABEL ae.binds={quoted(json.dumps(binds))}",
        "WORKDIR /tmp",
        'CMD ["python", "--version"]',
    ]
    size = f"{file.tell() / 1e6:.0f} MB"
    return changes, f"{len(packages)} packages, {size}, binds {' '.join(binds)}"


def quoted(value: str) -> str:
    """A value as a Dockerfile instruction takes it."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$")
    return f'"{escaped}"'


def installed_packages() -> dict[str, list[list[str]]]:
    """What every installed package, or virtual one, depends on: a list of alternatives each."""
    form = "${Package}\\t${db:Status-Abbrev}\\t${Pre-Depends}, ${Depends}\\t${Provides}\\n"
    found: dict[str, list[list[str]]] = {}
    virtual: list[tuple[str, str]] = []
    for line in run(["dpkg-query", "--show", f"--showformat={form}"]).splitlines():
        name, status, depends, provides = line.split("\t")
        if not status.startswith("ii"):
            continue
        found[name] = [package_names(group, "|") for group in depends.split(",") if group.strip()]
        virtual += [(other, name) for other in package_names(provides, ",")]
    for other, name in virtual:
        found.setdefault(other, [[name]])
    return found


def package_names(text: str, separator: str) -> list[str]:
    """The names in `a (>= 1) | b:any`, without versions and architectures."""
    words = (word.split("(")[0].strip().split(":")[0] for word in text.split(separator))
    return [word for word in words if word]


def closure(seeds: tuple[str, ...], depends: dict[str, list[list[str]]]) -> list[str]:
    """The seeds and all that they need, of what is installed."""
    missing = [name for name in seeds if name not in depends]
    if missing:
        raise Fault(f"the host's package manager has not installed {', '.join(missing)}")
    done: set[str] = set()
    todo = list(seeds)
    while todo:
        name = todo.pop()
        if name in done or name in LEFT_OUT:
            continue
        done.add(name)
        for alternatives in depends[name]:
            todo += [one for one in alternatives if one in depends][:1]
    return sorted(done)


def package_files(packages: list[str]) -> list[str]:
    """The files and links of packages, in /usr alone, without documentation."""
    known = set(run(["dpkg-query", "--show", "--showformat=${Package}\n"]).split())
    real = [name for name in packages if name in known]
    found = set()
    for line in run(["dpkg-query", "--listfiles", *real]).splitlines():
        path = re.sub(r"^/(bin|sbin|lib|lib32|lib64|libx32)/", r"/usr/\1/", line)
        kept = path.startswith("/usr/") and not path.startswith(UNUSED)
        if kept and (os.path.islink(path) or os.path.isfile(path)):
            found.add(path)
    return sorted(found)


def host_folders(python: Path) -> list[str]:
    """The host folders that the image borrows: /usr, all of /opt, and wherever Python lives."""
    found = [Path("/usr")]
    if Path("/opt").is_dir():
        found += [path for path in sorted(Path("/opt").iterdir()) if path.name != "ae"]
    asked = run(
        [str(python), "-c", "import sys; print(sys.prefix, sys.base_prefix, sep='\\n')"]
    ).splitlines()
    for place in [*map(Path, asked), python.resolve().parent.parent]:
        if not any(place.is_relative_to(one) for one in found):
            found.append(place)
    return [str(path) for path in found if path.exists()]


def image_environment(driver: Path, python: Path) -> dict[str, str]:
    """Variables of the image: the host's own where they say where libraries are."""
    libraries = [str(driver / "lib64")] if driver.is_dir() else []
    libraries += [one for one in os.environ.get("LD_LIBRARY_PATH", "").split(":") if one]
    programs = ["/opt/ae/bin", str(python.parent), str(driver / "bin"), "/usr/local/cuda/bin"]
    programs += ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
    kept = {key: value for key, value in os.environ.items() if KEPT.match(key)}
    return {
        **kept,
        "PATH": ":".join(programs),
        "LD_LIBRARY_PATH": ":".join(dict.fromkeys(libraries)) or "/usr/lib",
        "AE_BORROWED": "1",  # what a Dockerfile looks at: nothing is to be installed
        "PYTHONUNBUFFERED": "1",
        "HOME": "/tmp",
    }


def write_base(file: IO[bytes], files: list[str], binds: list[str], python: Path) -> None:
    """The root file system as a tar: package files, links into /usr, folders to bind on, /etc."""
    with tarfile.open(fileobj=file, mode="w") as tar:
        made: set[str] = set()

        def add_folder(path: str, mode: int = 0o755) -> None:
            for parent in [*reversed(Path(path).parents), Path(path)]:
                name = str(parent).strip("/")
                if name in ("", ".") or name in made:
                    continue
                made.add(name)
                entry = tarfile.TarInfo(name)
                entry.type, entry.mode = tarfile.DIRTYPE, mode if str(parent) == path else 0o755
                tar.addfile(entry)

        def add_link(path: str, target: str) -> None:
            add_folder(str(Path(path).parent))
            entry = tarfile.TarInfo(path.strip("/"))
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)

        def add_text(path: str, text: str) -> None:
            add_folder(str(Path(path).parent))
            entry = tarfile.TarInfo(path.strip("/"))
            entry.size, entry.mode = len(text.encode()), 0o755
            tar.addfile(entry, io.BytesIO(text.encode()))

        def add_file(source: Path, target: str) -> None:
            add_folder(str(Path(target).parent))
            tar.add(source, target.strip("/"), filter=plain_owner)

        for path in ("/tmp", "/var/tmp"):  # first: a bind may lie below one of them
            add_folder(path, 0o1777)
        for path in ("/dev", "/proc", "/sys", "/run", "/root", "/home", "/ae", "/opt/ae", *binds):
            add_folder(path)
        for path in files:
            add_file(Path(path), path)
        if "/usr/bin/sh" not in files:  # on some systems no package owns it
            add_link("/usr/bin/sh", "dash")
        for name in ("bin", "lib", "lib64"):
            if Path("/", name).is_symlink():
                add_link(f"/{name}", f"usr/{name}")
        # A folder, not a link into the read-only /usr: Docker puts its init program there.
        for path in sorted(Path("/usr/sbin").iterdir()):
            add_link(f"/sbin/{path.name}", str(path))
        # Of /etc only what programs look up; the rest is the host's own business.
        for name in ("passwd", "group", "nsswitch.conf", "ld.so.cache", "localtime"):
            if Path("/etc", name).exists():
                add_file(Path("/etc", name).resolve(), f"/etc/{name}")
        for path in sorted(Path("/etc/alternatives").glob("*")):
            if path.is_symlink():
                add_link(str(path), os.readlink(path))
        # A script, not a link: through a link Python would not see its virtual environment. During
        # a build the borrowed Python is not there.
        host = shlex.quote(str(python))
        script = f'#!/bin/sh\n[ -x {host} ] && exec {host} "$@"\nexec /usr/bin/python3 "$@"\n'
        for program in ("python", "python3"):
            add_text(f"/opt/ae/bin/{program}", script)


def plain_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Everything in the image belongs to root and can be read by all."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    entry.mode |= 0o444
    return entry
