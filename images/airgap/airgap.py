#!/usr/bin/env python3
"""Containers on a GPU host that has no network and no Docker. Standard library only.

On a connected Debian machine:
    airgap.py collect DIR            Docker's packages and the wheels that `ae` needs
    airgap.py contexts NAME DIR      what the image of a recipe takes as build contexts
Carry the folders DIR/part-* over. On the GPU host, as root:
    airgap.py unpack DIR/part-*      once for each folder, or all at once
    airgap.py start                  describe the GPUs (CDI) and start a private Docker daemon
    eval "$(airgap.py env)"          point `ae` at it
    airgap.py base                   make ae/base:host from the host's own files
    ae build NAME --flavour cuda --base-image ae/base:host --network none
    airgap.py registry               a registry on this host, to push to and pull from
    airgap.py stop                   stop daemon and registry

The base holds what a build needs: a shell, the basic programs and Python, as the host's package
manager has installed them. CUDA, PyTorch and all else are borrowed: when a container starts, the
host's /usr and /opt are bound read-only over it (label ae.binds). Nothing on the host is changed.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from carried import collect, contexts, unpack
from host_base import Fault, host_base, run

REPOSITORY = Path(__file__).resolve().parents[2]
DRIVER = Path("/usr/local/nvidia")  # where some hosts mount the driver's libraries


def start(home: Path, device_folder: Path, driver: Path) -> None:
    """Write the CDI spec and start a daemon of our own; one that runs already is kept."""
    programs = [home / "usr/sbin", home / "usr/bin"]
    if not (programs[0] / "dockerd").exists():
        raise Fault(f"no dockerd below {home}: run `airgap.py unpack` first")
    if Path("/sys/class/net/docker0").exists() and other_daemon(home):
        # A daemon that has no bridge of its own removes docker0.
        raise Fault("a Docker daemon runs on this machine already (docker0): use that one")
    for folder in (home / "cdi", home / "data", sockets(home)):
        folder.mkdir(exist_ok=True)
    (home / "cdi/nvidia.json").write_text(json.dumps(cdi_spec(device_folder, driver), indent=1))
    if daemon_pid(home):
        return
    config = {
        "features": {"cdi": True},
        "cdi-spec-dirs": [str(home / "cdi")],
        "iptables": False,
        "ip6tables": False,
        "bridge": "none",
    }
    (home / "daemon.json").write_text(json.dumps(config))
    # Where the client finds buildx.
    plugins = {"cliPluginsExtraDirs": [str(home / "usr/libexec/docker/cli-plugins")]}
    (home / "docker-config").mkdir(exist_ok=True)
    (home / "docker-config/config.json").write_text(json.dumps(plugins))
    libraries = [str(path) for path in home.glob("usr/lib/*-linux-gnu")]
    environment = os.environ | {
        "PATH": os.pathsep.join([*map(str, programs), "/usr/sbin:/usr/bin:/sbin:/bin"]),
        "LD_LIBRARY_PATH": os.pathsep.join(libraries),
    }
    with (home / "dockerd.log").open("wb") as log:
        argv = [str(programs[0] / "dockerd"), "--config-file", str(home / "daemon.json")]
        argv += ["--data-root", str(home / "data"), "--exec-root", str(sockets(home))]
        argv += ["-H", endpoint(home), "-p", str(home / "dockerd.pid")]
        subprocess.Popen(
            argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    for _ in range(300):
        if daemon_pid(home) and answers(home):
            return
        time.sleep(0.1)
    tail = (home / "dockerd.log").read_text(errors="replace").splitlines()[-15:]
    raise Fault("the daemon did not answer within 30 s:\n" + "\n".join(tail))


def cdi_spec(device_folder: Path, driver: Path) -> dict:
    """A CDI spec with every GPU by number, and `all`."""

    def node(name: str) -> dict:
        path = {"path": f"/dev/{name}"}
        return (
            path
            if device_folder == Path("/dev")
            else path | {"hostPath": f"{device_folder}/{name}"}
        )

    names = sorted(path.name for path in device_folder.glob("nvidia*") if not path.is_dir())
    numbers = sorted(int(name[6:]) for name in names if re.fullmatch(r"nvidia\d+", name))
    if not numbers:
        raise Fault(f"there is no GPU: no {device_folder}/nvidia0")
    shared = [node(name) for name in names if not re.fullmatch(r"nvidia\d+", name)]
    devices = [
        {"name": str(n), "containerEdits": {"deviceNodes": [node(f"nvidia{n}")]}} for n in numbers
    ]
    everything = [node(f"nvidia{n}") for n in numbers]
    devices.append({"name": "all", "containerEdits": {"deviceNodes": everything}})
    edits: dict = {"deviceNodes": shared}
    if driver.is_dir():
        options = ["ro", "nosuid", "nodev", "rbind"]
        edits["mounts"] = [
            {"hostPath": str(driver), "containerPath": str(driver), "options": options}
        ]
    return {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": devices,
        "containerEdits": edits,
    }


def make_base(home: Path, driver: Path, python: Path) -> None:
    """Import ae/base:host, made by host_base.py."""
    sys.path.insert(0, str(home / "site"))
    from docker.api import APIClient
    from docker.errors import DockerException

    with tempfile.TemporaryFile(prefix="airgap-", dir=home) as file:
        changes, words = host_base(file, driver, python)
        file.seek(0)
        chunks = iter(lambda: file.read(1 << 20), b"")  # of a file, docker-py sends no chunks
        try:
            client = APIClient(base_url=endpoint(home), version="auto", timeout=300)
            answer = client.import_image_from_stream(
                chunks, repository="ae/base", tag="host", changes=changes
            )
        except DockerException as error:
            raise Fault(f"the daemon refused the image: {error}") from error
    if '"error"' in answer:
        raise Fault(f"the daemon refused the image: {answer.strip()}")
    print(f"ae/base:host made: {words}", file=sys.stderr)


def start_registry(home: Path, port: int) -> None:
    """Start a registry on loopback that keeps its images below `home`, until `stop`.

    One that runs already is kept, at its own port.
    """
    program = home / "usr/bin/docker-registry"
    if not program.exists():
        raise Fault(f"no docker-registry below {home}: run `airgap.py unpack` first")
    if pid_of(home / "registry.pid", "docker-registry"):
        there = json.loads((home / "registry.yml").read_text())
        print(f"export AE_REGISTRY={there['http']['addr']}/ae")
        return
    config = {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": str(home / "registry")}},
        "http": {"addr": f"127.0.0.1:{port}"},
    }
    (home / "registry.yml").write_text(json.dumps(config))  # JSON is YAML
    with (home / "registry.log").open("wb") as log:
        argv = [str(program), "serve", str(home / "registry.yml")]
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    (home / "registry.pid").write_text(str(process.pid))
    for _ in range(100):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            print(f"export AE_REGISTRY=127.0.0.1:{port}/ae")
            return
        time.sleep(0.1)
    raise Fault(f"the registry did not answer within 10 s; see {home / 'registry.log'}")


def stop(home: Path) -> None:
    """Stop the daemon and the registry that we have started, and no other."""
    if registry := pid_of(home / "registry.pid", "docker-registry"):
        os.kill(registry, signal.SIGTERM)
    pid = daemon_pid(home)
    if pid is None:
        return
    os.kill(pid, signal.SIGTERM)
    for _ in range(200):
        if daemon_pid(home) is None:
            if os.path.ismount(home / "data"):  # its own mount, which it does not always undo
                run(["umount", str(home / "data")])
            if not sockets(home).is_relative_to(home):
                shutil.rmtree(sockets(home), ignore_errors=True)
            return
        time.sleep(0.1)
    raise Fault(f"dockerd (process {pid}) is still there after 20 s")


def print_environment(home: Path) -> None:
    """The lines that point `ae` at the daemon and at the carried packages."""
    print(f"export DOCKER_HOST={endpoint(home)} DOCKER_CONFIG={home / 'docker-config'}")
    print(f"export PATH={home / 'usr/bin'}:$PATH")
    print(f"export PYTHONPATH={home / 'site'}${{PYTHONPATH:+:$PYTHONPATH}}")


def sockets(home: Path) -> Path:
    """The folder of the daemon's sockets; a path to one may have at most 104 characters."""
    folder = home / "exec"
    if len(str(folder / "containerd/containerd-debug.sock")) <= 104:
        return folder
    return Path("/run") / f"ae-{hashlib.sha256(str(home).encode()).hexdigest()[:12]}"


def socket_path(home: Path) -> Path:
    """The daemon's own socket."""
    return sockets(home) / "docker.sock"


def endpoint(home: Path) -> str:
    """Where our daemon listens."""
    return f"unix://{socket_path(home)}"


def daemon_pid(home: Path) -> int | None:
    """The daemon's process id, if it runs."""
    return pid_of(home / "dockerd.pid", "dockerd")


def pid_of(file: Path, program: str) -> int | None:
    """The process id in a file, if that is (still) the program's."""
    try:
        pid = int(file.read_text())
        return pid if program in Path(f"/proc/{pid}/cmdline").read_text() else None
    except (OSError, ValueError):
        return None


def other_daemon(home: Path) -> bool:
    """Whether a Docker daemon that is not ours runs on this machine."""
    names = (path for path in Path("/proc").glob("[0-9]*/comm"))
    pids = [int(path.parent.name) for path in names if read_or_nothing(path) == "dockerd"]
    return any(pid != daemon_pid(home) for pid in pids)


def read_or_nothing(path: Path) -> str:
    """A small file's text; nothing when the process has gone meanwhile."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def answers(home: Path) -> bool:
    """Whether the daemon takes connections and says that it is well."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(5)
            connection.connect(str(socket_path(home)))
            connection.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
            return b" 200 " in connection.recv(4096)
    except OSError:
        return False


def main() -> int:
    """Run one verb."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    home = os.environ.get("AE_AIRGAP_HOME", "/tmp/ae-airgap")
    parser.add_argument("--home", type=Path, default=Path(home), help="all it writes")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name, what in (
        ("collect", "download what a host lacks"),
        ("contexts", "pack the build contexts of an image"),
    ):
        verb = verbs.add_parser(name, help=what)
        if name == "contexts":
            verb.add_argument("image", metavar="NAME", help="a folder below images/")
        verb.add_argument("dir", type=Path)
        verb.add_argument("--python", default="3.12", help="the host's Python")
        verb.add_argument("--part-mb", type=int, default=48, help="size of what is carried at once")
    verb = verbs.add_parser("unpack", help="unpack carried folders")
    verb.add_argument("dirs", type=Path, nargs="+")
    verb = verbs.add_parser("start", help="start the daemon")
    verb.add_argument("dirs", type=Path, nargs="*", help="carried folders to unpack first")
    verb.add_argument("--dev", type=Path, default=Path("/dev"), help="where the GPU's nodes are")
    verb.add_argument("--driver", type=Path, default=DRIVER)
    verb = verbs.add_parser("base", help="make a base image from the host's own files")
    verb.add_argument("--driver", type=Path, default=DRIVER)
    verb.add_argument("--python", type=Path, default=Path(sys.executable))
    verb = verbs.add_parser("registry", help="start a registry on loopback")
    verb.add_argument("--port", type=int, default=5000)
    verbs.add_parser("env", help="print export lines")
    verbs.add_parser("stop", help="stop the daemon")
    words = parser.parse_args()
    home = words.home.resolve()
    try:
        if words.verb == "collect":
            collect(words.dir.resolve(), words.python, words.part_mb)
        elif words.verb == "contexts":
            image = REPOSITORY / "images" / words.image
            contexts(image, words.dir.resolve(), words.python, words.part_mb)
        elif words.verb == "unpack":
            unpack(words.dirs, home)
        elif words.verb == "start":
            if words.dirs:
                unpack(words.dirs, home)
            start(home, words.dev, words.driver)
            print_environment(home)
        elif words.verb == "base":
            make_base(home, words.driver, words.python)
        elif words.verb == "registry":
            start_registry(home, words.port)
        elif words.verb == "env":
            print_environment(home)
        else:
            stop(home)
    except Fault as fault:
        print(f"airgap: {fault}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
