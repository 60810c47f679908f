#!/usr/bin/env python3
"""Real containers on a GPU host with no network and no Docker. Standard library only.

On a connected Debian machine:   airgap.py collect DIR           packages and wheels into DIR
On the GPU host, as root:        airgap.py start DIR             unpack them, start a Docker Engine
                                 eval "$(airgap.py env)"         point `ae` at it
                                 airgap.py image dlrm            an image of the host's own CUDA
                                                                 and PyTorch plus our workload
                                 airgap.py stop                  stop that engine, no other

The image borrows the host's folders: its label `ae.binds` names them and the engine mounts them
read-only at the same path. What is in the image itself: links, a few files of /etc, the workload.
"""

from __future__ import annotations

import argparse
import glob
import http.client
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import time
import urllib.parse
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STATE = Path(os.environ.get("AE_AIRGAP_STATE", "/var/tmp/ae-airgap"))
# Debian 13's engine needs only glibc 2.34; Debian 12's runc, libseccomp and tini no newer one.
PACKAGES = {"trixie": ("docker.io", "containerd"), "bookworm": ("runc", "libseccomp2", "tini")}
WHEELS = ("docker", "pydantic", "pyyaml", "typer")
BINDS = ("/usr", "/opt")  # where the host keeps CUDA, Python and PyTorch
ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "passwd", "group", "localtime")


def fail(sentence: str, fix: str) -> None:
    """Stop with one sentence and its fix; exit code 3 is the environment's."""
    print(f"error: {sentence}\n  fix: {fix}", file=sys.stderr)
    raise SystemExit(3)


def collect(folder: Path, python: str, mirror: str) -> None:
    """Download the engine's packages (`engine/`, 60 MB) and ae's wheels (`python/`)."""
    engine, wheels = folder / "engine", folder / "python"
    engine.mkdir(parents=True, exist_ok=True)
    wheels.mkdir(parents=True, exist_ok=True)
    state = folder / ".apt"
    for suite, names in PACKAGES.items():
        _download_debs(state / suite, suite, names, engine, mirror)
    shutil.rmtree(state)
    platforms = [f"manylinux_2_{n}_x86_64" for n in (28, 27, 17, 12, 5)]
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:"]
        + [word for name in (*platforms, "manylinux2014_x86_64") for word in ("--platform", name)]
        + ["--python-version", python, "--implementation", "cp", "-d", str(wheels), *WHEELS],
        check=True,
    )
    for part in (engine, wheels):
        size = sum(path.stat().st_size for path in part.iterdir())
        print(f"{part}: {len(list(part.iterdir()))} files, {size / 1e6:.0f} MB")


def _download_debs(
    state: Path, suite: str, names: tuple[str, ...], target: Path, mirror: str
) -> None:
    """Fetch packages of one Debian suite with an apt of its own; nothing is installed."""
    for name in ("lists/partial", "cache/archives/partial"):
        (state / name).mkdir(parents=True, exist_ok=True)
    source = state / "sources.list"
    keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
    source.write_text(f"deb [signed-by={keyring} arch=amd64] {mirror} {suite} main\n")
    options = [
        f"-oDir::Etc::sourcelist={source.resolve()}",
        "-oDir::Etc::sourceparts=/dev/null",
        "-oDir::Etc::preferencesparts=/dev/null",
        f"-oDir::State::lists={(state / 'lists').resolve()}",
        f"-oDir::Cache={(state / 'cache').resolve()}",
        "-oDir::State::status=/dev/null",  # what is installed here does not matter
        "-oAPT::Sandbox::User=root",
        "-qq",
    ]
    subprocess.run(["apt-get", *options, "update"], check=True)
    subprocess.run(["apt-get", *options, "download", *names], check=True, cwd=target)


def start(folder: Path, devices: str, driver: str | None) -> None:
    """Unpack the packages, describe the GPUs by CDI, start dockerd and wait until it answers."""
    if os.geteuid() != 0:
        fail("a Docker Engine of one's own needs root", "run it as root")
    if _answers():
        print(f"already running at {_endpoint()}")
        return
    packages = sorted((folder / "engine").glob("*.deb"))
    if not packages:
        fail(f"there are no packages in {folder}/engine", "airgap.py collect DIR, then carry DIR")
    root = STATE / "root"
    for name in ("root", "cdi", "data", "exec"):
        (STATE / name).mkdir(parents=True, exist_ok=True)
    for package in packages:
        subprocess.run(["dpkg", "-x", str(package), str(root)], check=True)
    spec = cdi_spec(sorted(glob.glob(devices)), driver)
    (STATE / "cdi" / "nvidia.json").write_text(json.dumps(spec, indent=1))
    config = {
        "features": {"cdi": True},
        "cdi-spec-dirs": [str(STATE / "cdi")],
        "iptables": False,
        "ip6tables": False,
        "bridge": "none",
        "init-path": str(root / "usr/bin/tini-static"),
    }
    (STATE / "daemon.json").write_text(json.dumps(config, indent=1))
    search = [str(root / part) for part in ("usr/bin", "usr/sbin", "sbin", "bin")]
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([*search, os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")]),
        "LD_LIBRARY_PATH": str(root / "usr/lib/x86_64-linux-gnu"),
    }
    with (STATE / "dockerd.log").open("w") as log:
        subprocess.Popen(
            [
                *("dockerd", "--config-file", str(STATE / "daemon.json")),
                *("--data-root", str(STATE / "data"), "--exec-root", str(STATE / "exec")),
                *("-H", _endpoint(), "-p", str(STATE / "dockerd.pid")),
            ],
            executable=shutil.which("dockerd", path=environment["PATH"]),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + 30
    while not _answers():
        if time.monotonic() > deadline:
            print((STATE / "dockerd.log").read_text()[-3000:], file=sys.stderr)
            fail("dockerd did not answer within 30 s", f"see {STATE}/dockerd.log")
        time.sleep(0.1)
    print(f"Docker Engine {_get('/version')['Version']} at {_endpoint()}")


def cdi_spec(nodes: list[str], driver: str | None) -> dict[str, object]:
    """A CDI spec of kind nvidia.com/gpu: each GPU by its index, and `all`."""
    if not nodes:
        fail(
            "this host has no NVIDIA device files",
            "load the driver; nvidia-smi shows whether it is",
        )
    shared = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
    edits: dict[str, object] = {
        "deviceNodes": [{"path": path} for path in shared if Path(path).exists()],
        "env": ["NVIDIA_VISIBLE_DEVICES=void"],
    }
    if driver:
        options = ["ro", "nosuid", "nodev", "rbind"]
        edits["mounts"] = [{"hostPath": driver, "containerPath": driver, "options": options}]
        edits["env"] = ["NVIDIA_VISIBLE_DEVICES=void", f"LD_LIBRARY_PATH={driver}/lib64"]
    devices = [
        {"name": str(index), "containerEdits": {"deviceNodes": [{"path": path}]}}
        for index, path in enumerate(nodes)
    ]
    every = {"deviceNodes": [{"path": path} for path in nodes]}
    return {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "containerEdits": edits,
        "devices": [*devices, {"name": "all", "containerEdits": every}],
    }


def image(name: str, flavour: str, copies: list[str], variables: list[str], python: str) -> None:
    """Import `ae/NAME:FLAVOUR`: an almost empty root that borrows this host's folders."""
    sys.path.insert(0, str(ROOT))
    from ae.images import content_hash

    bin_dir = str(Path(python).parent)  # as named: a virtual environment's python is a link
    binds = list(BINDS)
    if not any(bin_dir.startswith(f"{bind}/") for bind in binds):
        binds.append(str(Path(sys.prefix)))
    paths = [
        bin_dir,
        "/usr/local/cuda/bin",
        "/usr/local/bin",
        "/usr/sbin",
        "/usr/bin",
        "/sbin",
        "/bin",
    ]
    changes = [
        f"ENV PATH={':'.join(paths)}",
        f"ENV PYTHONPATH=/srv/ae/common:/srv/ae/{name}",
        "ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1",
        *(f"ENV {variable}" for variable in variables),
        "WORKDIR /tmp",
        f"LABEL ae.image={name} ae.flavour={flavour} ae.content={content_hash(ROOT, name)}",
        f"LABEL ae.base=host ae.binds={json.dumps(json.dumps(binds))}",
        'CMD ["python3"]',
    ]
    pieces = [
        (ROOT / "images/common/src", "srv/ae/common"),
        (ROOT / f"images/{name}/src", f"srv/ae/{name}"),
    ]
    for copy in copies:
        source, _, target = copy.partition(":")
        if not target.startswith("/") or not Path(source).exists():
            fail(
                f"--copy {copy}: not an existing source and an absolute target", "--copy DIR:/srv/x"
            )
        pieces.append((Path(source), target.lstrip("/")))
    query = urllib.parse.urlencode(
        [("fromSrc", "-"), ("repo", f"ae/{name}"), ("tag", flavour)]
        + [("changes", c) for c in changes]
    )
    body = _root_tar(pieces)
    answer = _request("POST", f"/images/create?{query}", body, "application/x-tar").decode()
    lines = [json.loads(line) for line in answer.splitlines() if line.strip()]
    errors = [line["error"] for line in lines if "error" in line]
    if errors:
        fail(f"the engine refused the image: {errors[0]}", f"see {STATE}/dockerd.log")
    size = f"{len(body) / 1e6:.1f} MB"
    print(f"ae/{name}:{flavour} {lines[-1]['status']} ({size}, borrows {', '.join(binds)})")


def _root_tar(pieces: list[tuple[Path, str]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for folder in (
            "dev",
            "etc",
            "proc",
            "run",
            "sys",
            "sbin",
            "var",
            "var/tmp",
            "home",
            "root",
            "srv",
        ):
            tar.addfile(_entry(folder, tarfile.DIRTYPE, 0o755))
        for folder in ("tmp", "var/tmp"):
            tar.addfile(_entry(folder, tarfile.DIRTYPE, 0o1777))
        for bind in BINDS:
            tar.addfile(_entry(bind.lstrip("/"), tarfile.DIRTYPE, 0o755))
        for name in ("bin", "lib", "lib64"):  # sbin stays a folder: the engine puts its init there
            tar.addfile(_entry(name, tarfile.SYMTYPE, 0o777, link=f"usr/{name}"))
        tar.addfile(_entry("sbin/ldconfig", tarfile.SYMTYPE, 0o777, link="/usr/sbin/ldconfig"))
        for name in ETC:
            if Path("/etc", name).exists():
                tar.add(f"/etc/{name}", f"etc/{name}")
        for source, target in pieces:
            tar.add(source, target, filter=_without_caches)
    return buffer.getvalue()


def _entry(name: str, kind: bytes, mode: int, link: str = "") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.linkname = kind, mode, link
    return entry


def _without_caches(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if "__pycache__" in entry.name or entry.name.endswith(".egg-info"):
        return None
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    entry.mode |= 0o444 | (0o111 if entry.isdir() else 0)
    return entry


def stop() -> None:
    """Stop the engine that `start` started, by its pid file."""
    try:
        pid = int((STATE / "dockerd.pid").read_text())
        os.kill(pid, 15)
    except (OSError, ValueError):
        print("not running")
        return
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    print(
        "stopped" if not Path(f"/proc/{pid}").exists() else f"pid {pid} is still there after 30 s"
    )


def _endpoint() -> str:
    return f"unix://{STATE}/docker.sock"


class _Connection(http.client.HTTPConnection):
    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(str(STATE / "docker.sock"))


def _request(method: str, path: str, body: bytes | None = None, kind: str = "") -> bytes:
    connection = _Connection("localhost")
    try:
        connection.request(method, path, body, {"Content-Type": kind} if kind else {})
        answer = connection.getresponse()
        data = answer.read()
    finally:
        connection.close()
    if answer.status >= 300:
        fail(
            f"the engine answered {answer.status}: {data.decode(errors='replace')[:300]}",
            "see its log",
        )
    return data


def _get(path: str) -> dict[str, str]:
    answer: dict[str, str] = json.loads(_request("GET", path))
    return answer


def _answers() -> bool:
    try:
        _get("/version")
    except OSError:
        return False
    return True


def main() -> None:
    """Parse the command line and run one verb."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("collect", help="download packages and wheels (connected machine)")
    verb.add_argument("folder", type=Path)
    verb.add_argument("--python", default="3.12", help="the GPU host's Python (default 3.12)")
    verb.add_argument("--mirror", default="http://deb.debian.org/debian", help="Debian mirror")
    verb = verbs.add_parser("start", help="start the engine (GPU host, root)")
    verb.add_argument("folder", type=Path)
    verb.add_argument(
        "--devices", default="/dev/nvidia[0-9]*", help="glob of the GPUs' device files"
    )
    driver = "/usr/local/nvidia" if Path("/usr/local/nvidia").is_dir() else None
    verb.add_argument("--driver-dir", default=driver, help="the driver's folder outside /usr/lib")
    verbs.add_parser("env", help="print the export line that points ae at the engine")
    verb = verbs.add_parser("image", help="make ae/NAME from the host's own files")
    verb.add_argument("name")
    verb.add_argument("--flavour", default="cuda", choices=("cuda", "cpu"))
    verb.add_argument("--copy", action="append", default=[], metavar="SRC:/DEST")
    verb.add_argument("--env", action="append", default=[], metavar="KEY=VALUE")
    verb.add_argument("--python", default=sys.executable, help="the interpreter that has PyTorch")
    verbs.add_parser("stop", help="stop the engine")
    words = parser.parse_args()
    try:
        _run(words)
    except subprocess.CalledProcessError as error:
        fail(f"{error.cmd[0]} exited {error.returncode}", "its own message stands above")


def _run(words: argparse.Namespace) -> None:
    if words.verb == "collect":
        collect(words.folder, words.python, words.mirror)
    elif words.verb == "start":
        start(words.folder, words.devices, words.driver_dir)
    elif words.verb == "env":
        print(f"export DOCKER_HOST={_endpoint()}")
    elif words.verb == "image":
        image(words.name, words.flavour, words.copy, words.env, words.python)
    else:
        stop()


if __name__ == "__main__":
    main()
