"""The SBOM of a real image, against what its own package managers say."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ae.daemon.connection import connect
from ae.errors import EnvironmentFault
from ae.host import owner
from ae.images.content import find_client
from ae.images.sbom import describe_image, write_sbom
from tests.conftest import BASE_IMAGE

pytestmark = pytest.mark.docker
HEXADECIMAL = {"SHA1": 40, "SHA256": 64}


def inside(endpoint: str, *argv: str) -> str:
    words = [find_client(endpoint), "--host", endpoint, "run", "--rm", "--network", "none"]
    done = subprocess.run([*words, BASE_IMAGE, *argv], capture_output=True, text=True, check=True)
    return done.stdout


def test_it_lists_what_the_package_managers_list(docker_host: str, tmp_path: Path) -> None:
    daemon = connect(docker_host)
    path = tmp_path / "base.spdx.json"
    number = write_sbom(daemon, BASE_IMAGE, path)
    text = path.read_text()
    found = json.loads(text)
    assert number == len(found["packages"]) - 1
    mine = [f"{owner.PID}={os.getpid()}", f"{owner.RUN}=sbom {BASE_IMAGE}"]
    assert daemon.control.containers(all=True, filters={"label": mine}) == []
    check_spdx(found)

    queried = inside(
        docker_host, "dpkg-query", "-W", "-f", "${Package} ${Version} ${db:Status-Status}\n"
    )
    installed = {
        tuple(line.split()[:2]) for line in queried.splitlines() if line.endswith(" installed")
    }
    assert installed == of_kind(found, "pkg:deb/")
    assert len(installed) > 50
    pip = json.loads(inside(docker_host, "python3", "-m", "pip", "list", "--format", "json"))
    assert {(one["name"], one["version"]) for one in pip} <= of_kind(found, "pkg:pypi/")

    sums = {one["fileName"]: one["checksums"] for one in found["files"]}
    stated = inside(docker_host, "sha256sum", "/var/lib/dpkg/info/bash.md5sums").split()[0]
    assert {"algorithm": "SHA256", "checksumValue": stated} in (
        sums["./var/lib/dpkg/info/bash.md5sums"]
    )

    path.write_text(text[:100])  # half a file is replaced, a whole one is kept
    write_sbom(daemon, BASE_IMAGE, path)
    assert path.read_text() == text
    written = path.stat().st_mtime_ns
    assert write_sbom(daemon, BASE_IMAGE, path) == number
    assert path.stat().st_mtime_ns == written
    daemon.close()


def test_an_image_that_is_not_there(docker_host: str) -> None:
    daemon = connect(docker_host)
    with pytest.raises(EnvironmentFault, match="holds no image ae/nowhere:cpu"):
        describe_image(daemon, "ae/nowhere:cpu")
    daemon.close()


def of_kind(found: dict[str, Any], start: str) -> set[tuple[str, ...]]:
    return {
        (one["name"], one["versionInfo"])
        for one in found["packages"]
        for ref in one.get("externalRefs", ())
        if ref["referenceLocator"].startswith(start)
    }


def check_spdx(found: dict[str, Any]) -> None:
    """What SPDX 2.3 requires of a document, of packages, of files and of relationships."""
    assert (found["spdxVersion"], found["dataLicense"]) == ("SPDX-2.3", "CC0-1.0")
    assert found["SPDXID"] == "SPDXRef-DOCUMENT"
    assert re.fullmatch(r"https://[^#\s]+", found["documentNamespace"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", found["creationInfo"]["created"])
    assert all(
        re.match(r"(Tool|Person|Organization): ", w) for w in found["creationInfo"]["creators"]
    )
    idents = [one["SPDXID"] for one in [*found["packages"], *found["files"]]]
    assert len(set(idents)) == len(idents)
    assert all(re.fullmatch(r"SPDXRef-[A-Za-z0-9.-]+", ident) for ident in idents)
    for one in found["packages"]:
        assert one["name"]
        assert one["versionInfo"]
        assert one["downloadLocation"] == "NOASSERTION"
    for one in [*found["files"], found["packages"][0]]:
        for row in one["checksums"]:
            assert re.fullmatch(
                rf"[0-9a-f]{{{HEXADECIMAL[row['algorithm']]}}}", row["checksumValue"]
            )
    for one in found["files"]:
        assert one["fileName"].startswith("./")
        assert "SHA1" in {row["algorithm"] for row in one["checksums"]}
    known = {*idents, "SPDXRef-DOCUMENT"}
    for one in found["relationships"]:
        assert {one["spdxElementId"], one["relatedSpdxElement"]} <= known
    described = [r for r in found["relationships"] if r["relationshipType"] == "DESCRIBES"]
    assert [r["relatedSpdxElement"] for r in described] == ["SPDXRef-Image"]
    named = {
        ident
        for r in found["relationships"]
        for ident in (r["spdxElementId"], r["relatedSpdxElement"])
    }
    assert named == known
