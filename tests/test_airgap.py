"""images/airgap/airgap.py: its pure parts, and with Docker's own packages a daemon from scratch."""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import safe_tar

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "images/airgap/airgap.py"


@pytest.fixture(scope="module")
def airgap() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPT.parent)
        yield importlib.import_module("airgap")


@pytest.fixture(scope="module")
def carried(airgap: ModuleType) -> ModuleType:
    return importlib.import_module("carried")


@pytest.fixture(scope="module")
def base(airgap: ModuleType) -> ModuleType:
    return importlib.import_module("host_base")


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    folder = tmp_path / "dev"
    folder.mkdir()
    for name in ("nvidia0", "nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm", "null"):
        (folder / name).touch()
    (folder / "nvidia-caps").mkdir()
    return folder


def test_every_gpu_is_described(airgap: ModuleType, devices: Path, tmp_path: Path) -> None:
    spec = airgap.cdi_spec(devices, tmp_path)
    assert [device["name"] for device in spec["devices"]] == ["0", "2", "10", "all"]
    everything = spec["devices"][-1]["containerEdits"]["deviceNodes"]
    assert [node["path"] for node in everything] == [
        "/dev/nvidia0",
        "/dev/nvidia2",
        "/dev/nvidia10",
    ]
    shared = [node["path"] for node in spec["containerEdits"]["deviceNodes"]]
    assert shared == ["/dev/nvidia-uvm", "/dev/nvidiactl"]
    assert spec["containerEdits"]["mounts"][0]["hostPath"] == str(tmp_path)
    json.dumps(spec)


def test_a_host_without_gpu(airgap: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(airgap.Fault, match="there is no GPU"):
        airgap.cdi_spec(tmp_path, tmp_path)


def test_parts_are_small_enough(carried: ModuleType, tmp_path: Path) -> None:
    files = []
    for number, size in enumerate([60, 50, 30, 20, 5]):
        path = tmp_path / str(number)
        path.write_bytes(b"x" * size)
        files.append(path)
    parts = carried.split(files, 80)
    assert sorted(path for part in parts for path in part) == sorted(files)
    assert all(sum(path.stat().st_size for path in part) <= 80 for part in parts)
    assert len(parts) == 3


@safe_tar
def test_build_contexts_are_packed_from_what_is_locked(
    carried: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real pip, with a folder of wheels in place of an index. torch 2.1.0 is not among them."""
    code = "src/dlrm_inference/cuda/fbgemm.py"
    image, wheels = tmp_path / "dlrm", tmp_path / "wheels"
    (image / code).parent.mkdir(parents=True)
    shutil.copy(ROOT / "images/dlrm" / code, image / code)
    noise = random.Random(1).randbytes(2_500_000)
    libraries = re.findall(r"\w+\.so", (ROOT / "images/dlrm" / code).read_text())
    assert len(libraries) == 5
    inside = dict.fromkeys([f"fbgemm_gpu/{name}" for name in [*libraries, "other.so"]], b"code")
    make_wheel(wheels, image, "fbgemm", "cp312-cp312-manylinux_2_28_x86_64", inside)
    make_wheel(wheels, image, "extra", "py3-none-any", {"highspy/__init__.py": noise})
    source = tmp_path / "orig.tar.xz"
    source.write_bytes(b"source")
    digest = hashlib.sha256(b"source").hexdigest()
    (image / "Dockerfile").write_text(
        "ARG OTHER_URL=file:///none\nARG OTHER_SHA256=0\n"  # fetched while it is built
        f"ARG OWN_URL={source.as_uri()}\nARG OWN_SHA256={digest}\n\nFROM scratch AS own\n"
    )
    shutil.copytree(ROOT / "images/sources", tmp_path / "sources")
    (image / "requirements-stock21.txt").write_text(f"torch==2.1.0 --hash=sha256:{'0' * 64}\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    target = tmp_path / "carried"
    with pytest.raises(carried.Fault, match=r"(?s)^stock21 is not packed.*docs/airgap.md"):
        carried.contexts(image, target, "3.12", 1)
    parts = sorted(target.iterdir())
    assert [part.name for part in parts] == [f"dlrm.tar.gz.0{number}" for number in (1, 2, 3)]
    assert all(part.stat().st_size <= 1_000_000 for part in parts)
    whole = io.BytesIO(b"".join(part.read_bytes() for part in parts))
    with tarfile.open(fileobj=whole) as tar:
        tar.extractall(tmp_path / "there", filter="data")
    assert (tmp_path / "there/extra/highspy/__init__.py").read_bytes() == noise
    assert {path.name for path in (tmp_path / "there/fbgemm").iterdir()} == set(libraries)
    assert (tmp_path / "there/own/orig.tar.xz").read_bytes() == b"source"
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "Dockerfile").write_text("FROM scratch\n")
    with pytest.raises(carried.Fault, match="no build context"):
        carried.contexts(bare, target, "3.12", 1)


def make_wheel(wheels: Path, image: Path, name: str, tag: str, files: dict[str, bytes]) -> None:
    """A wheel of these files, and the image's requirements-NAME.txt that locks it."""
    wheels.mkdir(exist_ok=True)
    path = wheels / f"{name}-1-{tag}.whl"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n"
    about = {"METADATA": metadata, "WHEEL": f"Wheel-Version: 1.0\nTag: {tag}\n", "RECORD": ""}
    with zipfile.ZipFile(path, "w") as wheel:
        for file, data in files.items():
            wheel.writestr(file, data)
        for file, text in about.items():
            wheel.writestr(f"{name}-1.dist-info/{file}", text)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    (image / f"requirements-{name}.txt").write_text(f"{name}==1 --hash=sha256:{digest}\n")


def test_the_base_holds_what_a_build_runs(base: ModuleType, tmp_path: Path) -> None:
    python = Path(sys.executable)
    packages = base.closure(base.SEEDS, base.installed_packages())
    assert {"dash", "coreutils", "libc6", "python3"} <= set(packages)
    assert "dpkg" not in packages
    files = base.package_files(packages)
    binds = base.host_folders(python)
    with (tmp_path / "base.tar").open("w+b") as file:
        base.write_base(file, files, binds, python)
        file.seek(0)
        with tarfile.open(fileobj=file) as tar:
            names = tar.getnames()
            script = tar.extractfile("opt/ae/bin/python")
            assert script is not None
            assert str(python) in script.read().decode()
            assert tar.getmember("tmp").mode == 0o1777
            assert tar.getmember("sbin").isdir()
            assert not any(one.mode & 0o4000 for one in tar.getmembers()), "setuid"
    assert "usr/bin/sh" in names
    assert any(name.startswith("usr/lib/python3") for name in names)
    assert not any(name.startswith("usr/share/doc/") for name in names)
    assert all(Path(bind.strip("/")).as_posix() in names for bind in binds)
    assert "/usr" in binds
    assert any(python.is_relative_to(bind) for bind in binds)


def test_what_packages_need(base: ModuleType) -> None:
    depends = {"a": [["gone", "b"], ["dpkg"]], "b": [["virtual"]], "virtual": [["c"]], "c": []}
    assert base.closure(("a",), depends | {"dpkg": [["d"]]}) == ["a", "b", "c", "virtual"]
    with pytest.raises(base.Fault, match="has not installed zsh"):
        base.closure(("zsh",), depends)
    assert base.package_names("libc6 (>= 2.3), python3:any | x", ",") == ["libc6", "python3"]


def test_its_environment_keeps_multicast_off(
    base: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    monkeypatch.setenv("SECRET_TOKEN", "x")
    found = base.image_environment(tmp_path, Path(sys.executable))
    assert found["NCCL_NVLS_ENABLE"] == "0"
    assert "SECRET_TOKEN" not in found
    assert found["LD_LIBRARY_PATH"].startswith(f"{tmp_path}/lib64")
    assert base.quoted('a"$b\\') == '"a\\"\\$b\\\\"'


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_a_socket_has_a_path_that_the_system_takes(airgap: ModuleType) -> None:
    short, deep = Path("/tmp/home"), Path("/tmp", "x" * 100)
    assert airgap.socket_path(short).is_relative_to(short)
    assert len(str(airgap.socket_path(deep))) < 60
    assert airgap.sockets(deep) != airgap.sockets(deep / "other")


def test_one_sentence_for_a_person(tmp_path: Path) -> None:
    argv = [sys.executable, str(SCRIPT), "--home", str(tmp_path), "start"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr == f"airgap: no dockerd below {tmp_path}: run `airgap.py unpack` first\n"


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/usr/bin/apt-get").exists(), reason="needs root and Debian"
)
def test_from_packages_to_a_container(docker_host: str, tmp_path: Path) -> None:
    """Collect, unpack, start, make the base, build on it, run, push to and pull from a registry."""
    # A home so deep that sockets below it would have paths too long for the system.
    home = tmp_path / ("deep" * 20)
    carried, devices = tmp_path / "carried", tmp_path / "dev"
    devices.mkdir()
    for name in ("nvidia0", "nvidiactl"):
        os.mknod(devices / name, 0o20666, os.makedev(1, 3))  # /dev/null in disguise

    def script(*words: str) -> str:
        argv = [sys.executable, str(SCRIPT), "--home", str(home), *words]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def on_host(*words: str) -> str:
        """Run a command as a person does after `eval "$(airgap.py env)"`."""
        line = f'eval "$({sys.executable} {SCRIPT} --home {home} env)" && exec "$@"'
        argv = ["bash", "-c", line, "bash", *words]
        environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
        done = subprocess.run(
            argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    script("collect", str(carried), "--python", version)
    parts = sorted(carried.iterdir())
    assert all(sum(f.stat().st_size for f in part.iterdir()) <= 48e6 for part in parts)
    ae = [sys.executable, "-m", "ae"]
    try:
        script("start", *map(str, parts), "--dev", str(devices))
        script("start", "--dev", str(devices))  # again: it is there already
        script("base")
        built = ["build", "dlrm", "--flavour", "cuda", "--base-image", "ae/base:host"]
        built += ["--network", "none"]
        assert "built ae/dlrm:cuda" in on_host(*ae, *built)
        code = (
            "import sys; from pathlib import Path; from ae.engines.docker import DockerEngine\n"
            "from ae.images.content import image_ref; from ae.model import *\n"
            "from tests.engines.acts import Lines, make_job\n"
            "engine, lines = DockerEngine(), Lines()\n"
            "image = image_ref(Path('.'), 'dlrm', Flavour.CUDA)\n"
            "assert engine.has_image(image)\n"
            "show = 'import dlrm_inference, os; print(os.path.exists(\"/dev/nvidia0\"))'\n"
            "job = make_job(Path(sys.argv[1]), argv=('python', '-c', show), image=image,"
            " needs=RuntimeNeeds(gpus=GpuRequest(count=1, devices=(GpuId(index=0),))))\n"
            "print(engine.run(job, lines, 60).status, lines.got)"
        )
        said = on_host(sys.executable, "-c", code, str(tmp_path / "out"))
        assert said == "done [('stdout', 'True')]\n"
        port = free_port()
        named = f"export AE_REGISTRY=127.0.0.1:{port}/ae\n"
        assert script("registry", "--port", str(port)) == named
        assert script("registry") == named  # it is there already
        reference = f"127.0.0.1:{port}/ae/dlrm:cuda"
        on_host("docker", "tag", "ae/dlrm:cuda", reference)
        assert "digest: sha256:" in on_host("docker", "push", reference)
    finally:
        script("stop")
