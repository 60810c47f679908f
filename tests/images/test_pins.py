"""Every pinned package is there: asked of PyPI and of Debian's mirror from a real container.

Nothing is downloaded: PyPI's index says which files a version has and what their hashes are, and
apt simulates the installation.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from ae.images.content import find_client
from tests.images.requirements import DEBIAN, LOCKS, debian_names, entries, header, label

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(300)]
CA = Path("/etc/ssl/certs/ca-certificates.crt")
# Runs in the container, standard library only: the files of every version, for one Python.
ASK = r"""
import json, re, sys, time, urllib.error, urllib.request
from concurrent.futures import ThreadPoolExecutor

def parsed(text, kind):
    if kind.endswith("json"):
        return json.loads(text)["files"]
    # A mirror may know the older form only.
    found = re.findall(r"<a ([^>]*#sha256=([0-9a-f]{64})[^>]*)>([^<]+)</a>", text)
    return [
        {"filename": name.strip(), "hashes": {"sha256": digest}, "yanked": "data-yanked" in tag}
        for tag, digest, name in found
    ]

def page(name):
    as_json = {"Accept": "application/vnd.pypi.simple.v1+json"}
    request = urllib.request.Request(f"https://pypi.org/simple/{name}/", headers=as_json)
    for attempt in (1, 2, 3):
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return parsed(answer.read().decode(), answer.headers.get_content_type())
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return []
        except OSError:
            pass
        time.sleep(attempt)
    raise SystemExit(f"PyPI does not answer for {name}")

def suits(filename, python):
    if filename.endswith((".tar.gz", ".zip")):
        return True
    tags = filename.removesuffix(".whl").split("-")[-3:]
    pythons, abis, platforms = (tag.split(".") for tag in tags)
    number = python.replace(".", "")
    exact = f"cp{number}" in pythons
    stable = "abi3" in abis and any(
        re.fullmatch(r"cp3\d+", p) and int(p[3:]) <= int(number[1:]) for p in pythons)
    pure = any(p in ("py3", "py2", f"py{number}") for p in pythons) and "none" in abis
    here = any(p == "any" or ("linux" in p and "x86_64" in p) for p in platforms)
    return here and (exact or stable or pure)

wanted = json.load(sys.stdin)
names = sorted({one["name"] for one in wanted})
with ThreadPoolExecutor(16) as pool:
    pages = dict(zip(names, pool.map(page, names)))
for one in wanted:
    files = [f for f in pages[one["name"]] if f["hashes"].get("sha256") in one["hashes"]]
    if not files:
        print(f"{one['file']}: {one['name']}=={one['version']}: none of its hashes is on PyPI")
    elif not any(suits(f["filename"], one["python"]) for f in files):
        print(f"{one['file']}: {one['name']}=={one['version']}: no file for Python {one['python']} "
              "on x86-64 Linux")
    elif all(f.get("yanked") for f in files):
        print(f"{one['file']}: note: {one['name']}=={one['version']} is yanked", file=sys.stderr)
"""


def in_container(
    endpoint: str, argv: list[str], given: str = ""
) -> subprocess.CompletedProcess[str]:
    words = [find_client(endpoint), "--host", endpoint, "run", "--rm", "--interactive", "--init"]
    words += ["--network", "host", "--user", "0:0"]
    if CA.is_file():
        words += ["--volume", f"{CA}:{CA}:ro", "--env", f"SSL_CERT_FILE={CA}"]
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        if os.environ.get(name):
            words += ["--env", name]
    return subprocess.run(
        [*words, "ae/base:cpu", *argv],
        input=given, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


def test_every_python_package_is_on_pypi(
    docker_host: str, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted, elsewhere = [], []
    for path in LOCKS:
        said = header(path)
        for one in entries(path):
            # A local version (torch==2.13.0+cpu) can lie on an index of its own only.
            if "+" in one.version or (said["index"] and "pypi.org" not in said["index"]
                                      and not path.with_suffix(".in").is_file()):  # fmt: skip
                elsewhere.append(f"{label(path)}: {one.name}=={one.version} ({said['index']})")
                continue
            wanted.append(
                {
                    "file": label(path),
                    "name": one.name,
                    "version": one.version,
                    "hashes": one.hashes,
                    "python": said["python"],
                }
            )
    with capsys.disabled():
        print(f"\n{len(wanted)} pins of {len(LOCKS)} files asked of PyPI")
        for line in elsewhere:
            print(f"not checked, not on PyPI: {line}")
    done = in_container(docker_host, ["python3", "-c", ASK], json.dumps(wanted))
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == ""


def test_a_hash_that_pypi_does_not_know(docker_host: str) -> None:
    """The check above can fail: a wrong hash, and wheels of other Pythons only."""
    pinned = next(
        one for path in LOCKS for one in entries(path)
        if one.name == "cuda-bindings"  # wheels and no sources
    )  # fmt: skip
    same = {"file": "f", "name": pinned.name, "version": pinned.version, "python": "3.11"}
    wanted = [
        {**same, "hashes": ["0" * 64]},
        {**same, "hashes": pinned.hashes, "python": "3.6"},
        {**same, "hashes": pinned.hashes},
    ]
    done = in_container(docker_host, ["python3", "-c", ASK], json.dumps(wanted))
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done.stdout + done.stderr
    assert "none of its hashes" in lines[0]
    assert "no file for Python 3.6" in lines[1]


@pytest.mark.skipif(not DEBIAN, reason="no image lists Debian packages")
def test_every_debian_package_can_be_installed(
    docker_host: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each list by itself, as its Dockerfile installs it; those of other suites are shown."""
    lists, elsewhere = {}, []
    for path in DEBIAN:
        if header(path)["suite"] == "bookworm":
            lists[label(path)] = debian_names(path)
        else:
            elsewhere.append(f"{label(path)}: suite {header(path)['suite']}")
    with capsys.disabled():
        print(f"\n{sum(map(len, lists.values()))} Debian packages of {len(lists)} lists")
        for line in elsewhere:
            print(f"not checked, the container has bookworm: {line}")
    script = """
set -eu
apt-get -qq update
status=0
while read -r file names; do
    # Each name is a word of its own.
    if ! apt-get -qq --simulate --no-install-recommends install $names >/tmp/out 2>&1; then
        echo "$file:"; grep '^E:' /tmp/out; status=1
    fi
done
exit $status
"""
    given = "".join(f"{name} {' '.join(names)}\n" for name, names in lists.items())
    done = in_container(docker_host, ["sh", "-c", script], given)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    bad = in_container(docker_host, ["sh", "-c", script], "x bash\nmine no-such-package=9\n")
    assert bad.returncode == 1
    assert "mine:" in bad.stdout
    assert "no-such-package" in bad.stdout
