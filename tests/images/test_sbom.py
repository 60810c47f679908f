"""What the SBOM makes of an image's records. A real image: tests/real/test_image_sbom.py."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile

import pytest

from ae.errors import EnvironmentFault
from ae.images.sbom import as_text, document, packages, read_files

STATUS = """\
Package: bash
Status: install ok installed
Maintainer: Matthias Klose <doko@debian.org>
Architecture: amd64
Version: 5.2.15-2+b7
Homepage: http://tiswww.case.edu/php/chet/bash/bashtop.html
Description: GNU Bourne Again SHell
 Bash is an sh-compatible command language interpreter.

Package: gone
Status: deinstall ok config-files
Architecture: all
Version: 1

Package: libc6
Status: install ok installed
Architecture: amd64
Multi-Arch: same
Version: 1:2.36-9
"""
METADATA = """\
Metadata-Version: 2.4
Name: Some_Thing
Version: 1.0+cpu
License-Expression: MIT AND LicenseRef-Own
Classifier: License :: OSI Approved :: MIT License

License: not a header, but text
"""
FILES = {
    "var/lib/dpkg/status": STATUS,
    "var/lib/dpkg/info/bash.md5sums": "0  bin/bash\n",
    "var/lib/dpkg/info/libc6:amd64.md5sums": "1  lib/libc.so\n",
    "usr/share/doc/bash/copyright": "Files: *\nLicense: GPL-3+\n\nLicense: GFDL-NIV-1.3\n text\n",
    "etc/os-release": 'ID=debian\nVERSION_ID="12"\n',
    "opt/v/lib/some_thing-1.0.dist-info/METADATA": METADATA,
    "opt/v/lib/some_thing-1.0.dist-info/RECORD": "some_thing.py,sha256=x,1\n",
    "opt/v/lib/old-2.dist-info/METADATA": "Name: old\nVersion: 2\nLicense: BSD\n  long text\n",
    "usr/lib/python3/deb-3.egg-info/PKG-INFO": "Name: deb\nVersion: 3\nLicense: MIT\n",
    "opt/v/lib/some_thing.py": "print()\n",
}
HELD = {
    "Id": "sha256:" + "a" * 64,
    "Created": "2026-01-02T03:04:05.678Z",
    "Config": {"Labels": {"ae.content": "c" * 64, "org.opencontainers.image.licenses": "MIT"}},
}


def stream(files: dict[str, str]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return made.getvalue()


def chunks(data: bytes, size: int = 700) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def test_only_records_are_read_out_of_the_stream() -> None:
    found = read_files(chunks(stream(FILES)))
    assert set(found) == set(FILES) - {"opt/v/lib/some_thing.py"}
    assert found["var/lib/dpkg/status"].decode() == STATUS


def test_a_stream_that_breaks_off() -> None:
    data = stream(FILES)
    with pytest.raises(EnvironmentFault, match="ends too soon"):
        read_files(chunks(data[: data.index(b"GPL-3+")]))


def test_packages_with_versions_licences_and_checksums() -> None:
    found = {one.name: one for one in packages({k: v.encode() for k, v in FILES.items()})}
    assert sorted(found) == ["Some_Thing", "bash", "deb", "libc6", "old"]
    bash, libc, thing, old = (found[n] for n in ("bash", "libc6", "Some_Thing", "old"))
    assert bash.version == "5.2.15-2+b7"
    assert bash.purl == "pkg:deb/debian/bash@5.2.15-2%2Bb7?arch=amd64&distro=debian-12"
    assert bash.supplier == "Organization: Matthias Klose (doko@debian.org)"
    assert bash.licence == "NOASSERTION"
    assert bash.licence_words == "GPL-3+; GFDL-NIV-1.3"
    assert bash.listing_bytes == b"0  bin/bash\n"
    assert libc.purl == "pkg:deb/debian/libc6@1%3A2.36-9?arch=amd64&distro=debian-12"
    assert libc.listing == "var/lib/dpkg/info/libc6:amd64.md5sums"
    assert thing.purl == "pkg:pypi/some-thing@1.0%2Bcpu"
    assert thing.licence == "MIT AND LicenseRef-Own"
    assert thing.listing.endswith("some_thing-1.0.dist-info/RECORD")
    assert (found["deb"].version, found["deb"].licence) == ("3", "MIT")
    assert (old.licence, old.licence_words, old.listing) == ("NOASSERTION", "BSD", "")


def test_the_document_is_the_same_every_time_and_names_the_image() -> None:
    parts = packages({k: v.encode() for k, v in FILES.items()})
    found = document("ae/x:cpu", HELD, parts)
    assert as_text(found) == as_text(document("ae/x:cpu", HELD, list(reversed(parts))[::-1]))
    image = found["packages"][0]
    assert (image["name"], image["versionInfo"]) == ("ae/x:cpu", "c" * 64)
    assert image["checksums"] == [{"algorithm": "SHA256", "checksumValue": "a" * 64}]
    assert image["licenseDeclared"] == "MIT"
    assert found["creationInfo"]["created"] == "2026-01-02T03:04:05Z"
    assert [one["licenseId"] for one in found["hasExtractedLicensingInfos"]] == ["LicenseRef-Own"]
    (bash,) = [one for one in found["files"] if "bash" in one["fileName"]]
    assert {
        "algorithm": "SHA256",
        "checksumValue": hashlib.sha256(b"0  bin/bash\n").hexdigest(),
    } in (bash["checksums"])
    assert json.loads(as_text(found)) == found


def test_an_image_that_borrows_from_the_host_says_so() -> None:
    held = {"Id": "sha256:" + "a" * 64, "Config": {"Labels": {"ae.binds": '["/usr"]'}}}
    found = document("ae/x:cuda", held, [])
    assert '["/usr"]' in found["packages"][0]["comment"]
    assert found["creationInfo"]["created"] == "1970-01-01T00:00:00Z"
