"""The upstream image's own Dockerfile, built in a real engine from stand-ins for what needs hours.

BuildKit lets a named context take the place of a stage. Those that fetch and those that install
gigabytes are replaced by tiny images of ours; everything after them is the Dockerfile as it is: the
full build, the loop over designs, the final image and its check.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
NAME = f"ae-test-dlrm-upstream-{os.getpid()}"

STAND_INS = r"""
FROM ae/base:cpu AS venv
USER 0:0
ENV PATH=/opt/ae/venv/bin:$PATH
RUN python3 -m venv /opt/ae/venv

FROM venv AS source
COPY setup.py CMakeLists.txt /src/pytorch/
COPY --chmod=755 cmake /opt/ae/venv/bin/cmake
RUN mkdir -p /src/pytorch/aten/src/ATen/native/cuda \
    && echo stock >/src/pytorch/aten/src/ATen/native/cuda/EmbeddingBag.cu

FROM venv AS artifact
COPY CMakeLists.txt /src/artifact/env_files/
RUN cd /src/artifact && mkdir -p /opt/ae/traces/authors \
        scripts datasets/pinned_indices opt_designs \
    && touch scripts/save_emb.py scripts/load_emb.py datasets/pinned_indices/list.txt \
    && cd opt_designs && mkdir baseline prefetching l2_pinning combined \
    && for file in baseline/EmbeddingBag_timed.cu prefetching/EmbeddingBag_regpref.txt \
        l2_pinning/EmbeddingBag_timed.cu combined/EmbeddingBag.cu; do echo "$file" >"$file"; done

FROM venv AS cuda
COPY --chmod=755 cuobjdump /usr/local/cuda-12.1/bin/cuobjdump

FROM venv AS runtime
COPY --from=images dlrm-upstream/driver /opt/ae/driver
COPY --from=images common/src /opt/ae/common
ENV PYTHONPATH=/opt/ae/driver:/opt/ae/common
"""
CMAKE = """#!/bin/sh
set -e
mkdir -p build/x torch/lib
cat aten/src/ATen/native/cuda/EmbeddingBag.cu >build/x/EmbeddingBag.cu.o
echo "${NVCC_APPEND_FLAGS#*=}" >>build/x/EmbeddingBag.cu.o
cp build/x/EmbeddingBag.cu.o torch/lib/libtorch_cuda.so
"""
CUOBJDUMP = """#!/bin/sh
registers=$(grep -xE '[0-9]+' "$2" || echo 74)
echo "arch = sm_80"
echo " Function _ZN40EmbeddingBag_updateOutputKernel_sum_meanIflEEv:"
echo "  REG:$registers STACK:0 SHARED:0 LOCAL:0"
"""
# A wheel of a torch that maps its library, as the real one does, and sees no GPU.
SETUP = '''
import os, subprocess, sys, zipfile
assert sys.argv[1:3] == ["bdist_wheel", "--dist-dir"], sys.argv
assert os.environ["CC"] == "gcc-11" and os.environ["CUDA_HOME"] == "/usr/local/cuda"
subprocess.run(["cmake"], check=True)
os.makedirs(sys.argv[3])
torch = """
import mmap, os
from types import SimpleNamespace
__version__ = "2.1.0a0"
version = SimpleNamespace(cuda="12.1", git_version="7bcf7da")
cuda = SimpleNamespace(is_available=lambda: False)
_at = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib", "libtorch_cuda.so")
_map = mmap.mmap(os.open(_at, os.O_RDONLY), 0, prot=mmap.PROT_READ)
"""
name = "torch-2.1.0a0.dist-info/"
with zipfile.ZipFile(sys.argv[3] + "/torch-2.1.0a0-py3-none-any.whl", "w") as wheel:
    wheel.writestr("torch/__init__.py", torch)
    wheel.write("torch/lib/libtorch_cuda.so")
    wheel.writestr(name + "METADATA", "Metadata-Version: 2.1\\nName: torch\\nVersion: 2.1.0a0\\n")
    wheel.writestr(name + "WHEEL", "Wheel-Version: 1.0\\nTag: py3-none-any\\n")
    wheel.writestr(name + "RECORD", "")
'''


@pytest.fixture
def buildx(docker_host: str) -> Iterator[list[str]]:
    from ae.images.content import find_client

    client = find_client(docker_host)
    yield [client, "buildx", "build", "--builder", "default", "--load", "--quiet"]
    tags = [f"{NAME}:{tag}" for tag in ("source", "artifact", "cuda", "runtime", "whole")]
    subprocess.run([client, "image", "rm", "--force", *tags], check=False, capture_output=True)


@pytest.mark.docker
def test_the_dockerfile_builds_from_stand_ins(buildx: list[str], tmp_path: Path) -> None:
    files = {
        "Dockerfile": STAND_INS, "cmake": CMAKE, "cuobjdump": CUOBJDUMP, "setup.py": SETUP,
        "CMakeLists.txt": "project(Tiny)\n",
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    contexts = []
    for stage in ("source", "artifact", "cuda", "runtime"):
        _run(
            *buildx, "--target", stage, "--tag", f"{NAME}:{stage}",
            "--build-context", f"images={ROOT / 'images'}",
            str(tmp_path),
        )  # fmt: skip
        contexts += ["--build-context", f"{stage}=docker-image://{NAME}:{stage}"]
    traces = tmp_path / "traces"
    traces.mkdir()
    (traces / "random_500K.txt").write_text("1\n")
    _run(
        *buildx, *contexts, "--build-context", f"traces={traces}",
        "--build-arg", "BASE_IMAGE=ae/base:cpu", "--build-arg", "DESIGNS=rpf,optmt-cap42",
        "--tag", f"{NAME}:whole",
        "--file", str(ROOT / "images/dlrm-upstream/Dockerfile"), str(ROOT / "images"),
    )  # fmt: skip
    inside = _run(
        buildx[0], "run", "--rm", "--network", "none", f"{NAME}:whole", "sh", "-euc",
        "id -u; cat /opt/ae/traces/given/random_500K.txt; cd /opt/ae/designs; ls;"
        " cat optmt-cap42/design.json;"
        " PYTHONPATH=rpf/site:$PYTHONPATH python -m dlrm_upstream.probe",
    ).splitlines()  # fmt: skip
    assert inside[:5] == ["10001", "1", "base", "optmt-cap42", "rpf"]
    assert json.loads("".join(inside[5:-1]))["kernel"]["sm_80"]["registers"] == 42
    assert json.loads(inside[-1])["library"] == "/opt/ae/designs/rpf/libtorch_cuda.so"


def _run(*argv: str) -> str:
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
