"""A release, from its first images to the pull of somebody else: every step that needs no GitHub.

`.github/workflows/release.yml` runs on a checkout with the toy in the papers' place, because their
images take hours; against a real Docker Engine, a real registry that wants a password, and a real
git. `gh` only writes down what it is asked; artifacts are folders (tests/real/workflow.py).
"""

from __future__ import annotations

import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from ae import __version__
from ae.daemon.connection import Daemon, connect
from tests.real.workflow import Run, plain_environment, read
from tests.servers.registry import PASSWORD, Registry
from tests.servers.registry import registry as real_registry
from tests.toy import make_checkout

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(900)]
ROOT = Path(__file__).resolve().parents[2]
NAME = f"toy{secrets.token_hex(4)}"
TAG = f"v{__version__}"
IMAGES = [f"ae/{NAME}:cpu", f"ae/{NAME}:cuda"]


def git(where: Path, *words: str) -> str:
    who = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    argv = ["git", *who, "-C", str(where), *words]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def ae(where: Path, environment: Mapping[str, str], *words: str) -> str:
    argv, env = [sys.executable, "-m", "ae", *words], {**environment, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        argv, cwd=where, env=env, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def daemon(docker_host: str) -> Iterator[Daemon]:
    """The engine, without the images of this test afterwards."""
    made = connect(docker_host)
    had_base = made.image("ae/base:cuda") is not None
    yield made
    forget(made)
    if not had_base:
        made.client.remove_image("ae/base:cuda")
    made.close()


def forget(daemon: Daemon) -> None:
    for one in daemon.client.images(filters={"label": [f"ae.image={NAME}"]}):
        daemon.client.remove_image(one["Id"], force=True)
    assert not any(daemon.image(name) for name in IMAGES)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Registry]:
    with real_registry(tmp_path / "registry", password=True) as made:
        yield made


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    """A bare repository with the toy, and everything else that a release is made of."""
    root = make_checkout(tmp_path / "checkout", NAME)
    ignore = shutil.ignore_patterns("__pycache__", "node_modules", "*.egg-info")
    for folder in (".ci", ".github", "images/base", "images/collector", "images/common/src"):
        shutil.copytree(ROOT / folder, root / folder, ignore=ignore, dirs_exist_ok=True)
    for file in ("CHANGELOG.md", "MANIFEST.in", "requirements-dev.txt"):
        shutil.copy(ROOT / file, root)
    (root / "images/lock.yaml").write_text("schema: 1\nimages: {}\n")
    git(root, "init", "--quiet", "--initial-branch", "main")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "all")
    environment = plain_environment() | {"AE_LOCAL_PYTHON": sys.executable}
    ae(root, environment, "run", NAME, "--quick", "--engine", "local")
    (run,) = (root / "results/runs" / NAME).iterdir()
    ae(root, environment, "keep", run.name)
    git(root, "add", "--all")  # the reference results that the site shows
    git(root, "commit", "--quiet", "--message", "results")
    git(tmp_path, "clone", "--quiet", "--bare", str(root), "origin.git")
    return tmp_path / "origin.git"


def release(origin: Path, ref: str, place: Registry, folder: Path, docker_host: str) -> Run:
    """Run the workflow on a branch or a tag."""
    environment = plain_environment() | {
        "DOCKER_CONFIG": str(folder.parent / "docker"),
        "DOCKER_HOST": docker_host,
        "GITHUB_ACTOR": "ae",
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    values = {
        "!vars.AE_IMAGE_RUNNER": False,  # what a machine of GitHub is cleared of is not ours
        "vars.AE_REGISTRY || format('ghcr.io/{0}', github.repository)": place.name,
        "github.event.repository.default_branch": "main",
        "github.ref_name": ref,
        "github.ref_type == 'tag'": ref.startswith("v"),
        "github.repository": "somebody/ae",
        "secrets.GITHUB_TOKEN": PASSWORD,
    }
    workflow = read(ROOT / ".github/workflows/release.yml")
    run = Run(workflow, origin, ref, folder, environment, values)
    run.all_jobs()
    assert run.left_out == {"ci"}
    return run


def test_from_the_first_images_to_a_release(
    origin: Path, place: Registry, daemon: Daemon, docker_host: str, tmp_path: Path
) -> None:
    # By hand, on main: images are built and pushed, and their digests are a pull request.
    first = release(origin, "main", place, tmp_path / "first", docker_host)
    for flavour in ("cpu", "cuda"):
        said = first.said[f"images-{NAME}-{flavour}"]
        assert f"images/lock.yaml has no ae/{NAME}:{flavour}" in said
        assert f"built ae/{NAME}:{flavour}" in said
        assert f"pushed {place.name}/{NAME}@sha256:" in said
    assert first.asked == ["pr create --base main --head lock-main --fill"]
    locked = yaml.safe_load(git(origin, "show", "lock-main:images/lock.yaml"))
    assert locked["registry"] == place.name
    assert sorted(locked["images"][NAME]) == ["cpu", "cuda"]
    changed = git(origin, "diff", "--name-only", "main", "lock-main").split()
    assert changed == ["images/lock.yaml"]

    # It is merged, and the merge is tagged: the published images are taken, and nothing is built.
    git(origin, "branch", "--force", "main", "lock-main")
    git(origin, "tag", TAG, "main")
    forget(daemon)
    tagged = release(origin, TAG, place, tmp_path / "tagged", docker_host)
    for flavour in ("cpu", "cuda"):
        digest = locked["images"][NAME][flavour]["digest"]
        said = tagged.said[f"images-{NAME}-{flavour}"]
        assert f"ae/{NAME}:{flavour} pulled, {digest}" in said
        assert "built" not in said
        assert f"pushed {place.name}/{NAME}@{digest}" in said
    create, *uploads = tagged.asked  # no pull request: the lock is as it was
    names = [f"accel_trace-{__version__}-py3-none-any.whl", f"ae-{__version__}-py3-none-any.whl"]
    names += [f"accel_trace-{__version__}.tar.gz", f"ae-{__version__}.tar.gz", "site.tar.gz"]
    assert create.startswith(f"release create {TAG} --draft --verify-tag")
    assert create.endswith(" ".join(f"dist/{name}" for name in names))
    assert sorted(uploads) == [
        f"release upload {TAG} dist/{NAME}-{flavour}.tar.gz.aa dist/{NAME}-{flavour}.tar.sha256"
        " --clobber"
        for flavour in ("cpu", "cuda")
    ]
    assert (tagged.artifacts / "packages/notes.md").read_text().strip()

    # The bundle, from its parts.
    parts = tagged.artifacts / f"bundle-{NAME}-cpu"
    environment = plain_environment() | {"DOCKER_HOST": docker_host}
    join = f"cat {NAME}-cpu.tar.gz.* | gunzip >{NAME}-cpu.tar && sha256sum -c {NAME}-cpu.tar.sha256"
    subprocess.run(["bash", "-ec", join], cwd=parts, check=True, capture_output=True)
    ae(parts, environment, "load", f"{NAME}-cpu.tar", "--dry-run")

    # Somebody else, who names no registry.
    forget(daemon)
    git(tmp_path, "clone", "--quiet", "--branch", TAG, str(origin), "elsewhere")
    environment |= {"DOCKER_CONFIG": str(tmp_path / "docker")}
    for flavour in ("cpu", "cuda"):
        ae(tmp_path / "elsewhere", environment, "pull", NAME, "--flavour", flavour)
    assert all(daemon.image(name) for name in IMAGES)
