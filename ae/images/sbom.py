"""What an image is made of, as SPDX 2.3: read from its files, without running anything in it.

Debian packages come from dpkg's own records, Python packages from their *.dist-info. Each carries a
file whose checksum covers the whole package: dpkg's list of MD5 sums, or the wheel's RECORD.
Source of the format: https://spdx.github.io/spdx-spec/v2.3/
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.parser import HeaderParser
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ae import __version__
from ae.errors import EnvironmentFault

if TYPE_CHECKING:
    from ae.daemon.connection import Daemon

NONE = "NOASSERTION"
_STATUS = re.compile(r"var/lib/dpkg/(status|status\.d/[^/]+)")
_SUMS = re.compile(r"var/lib/dpkg/info/([^/]+)\.md5sums")
_COPYRIGHT = re.compile(r"usr/share/doc/([^/]+)/copyright")
_PYTHON = re.compile(r".*\.(dist-info/(METADATA|RECORD)|egg-info(/PKG-INFO)?)")
_METADATA = ("METADATA", "PKG-INFO", ".egg-info")  # Debian installs with the older forms
_RELEASES = ("etc/os-release", "usr/lib/os-release")
# Names that old metadata spells as SPDX does; anything else is a comment, not a declaration.
_PLAIN_LICENCES = {"MIT", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "PSF-2.0", "MPL-2.0"}
_LICENCE_REF = re.compile(r"LicenseRef-[A-Za-z0-9.\-]+")
_EXPRESSION = re.compile(r"[A-Za-z0-9.+()\- ]+")


@dataclass(frozen=True, kw_only=True)
class Package:
    """One package of an image. `listing` is the file that vouches for its contents."""

    kind: str  # deb | pypi
    name: str
    version: str
    purl: str
    licence: str = NONE  # an SPDX expression
    licence_words: str = ""  # what the package says where that is no SPDX expression
    supplier: str = NONE
    homepage: str = ""
    listing: str = ""  # path in the image; empty: the package has none
    listing_bytes: bytes = field(default=b"", repr=False)


def describe_image(daemon: Daemon, reference: str) -> dict[str, Any]:
    """Return the SPDX document of an image that a daemon holds. Raises EnvironmentFault."""
    from ae.daemon.connection import faults
    from ae.host import owner

    held = daemon.image(reference)
    if held is None:
        raise EnvironmentFault(
            f"the engine holds no image {reference}", fix="build or pull it first: ae build"
        )
    with faults(daemon.endpoint):
        # Never started; if this process is killed, `ae clean` finds the container by its labels.
        labels = owner.stamp({owner.RUN: f"sbom {reference}"})
        made = daemon.patient.create_container(held["Id"], command=["true"], labels=labels)["Id"]
        try:
            chunks = daemon.patient.export(made, chunk_size=1 << 20)
            found = read_files(chunks)
        finally:
            daemon.control.remove_container(made, v=True, force=True)
    return document(reference, held, packages(found))


def read_files(chunks: Iterable[bytes]) -> dict[str, bytes]:
    """Return the package records in a tar of a file system, by path; one pass, nothing unpacked.

    Raises EnvironmentFault when the stream is no whole archive.
    """
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(
            fileobj=io.BufferedReader(_Chunks(chunks), 1 << 20), mode="r|", bufsize=1 << 20
        ) as archive:
            for member in archive:
                name = member.name.removeprefix("./").lstrip("/")
                if member.isreg() and _wanted(name):
                    file = archive.extractfile(member)
                    found[name] = file.read() if file else b""
                archive.members = []  # type: ignore[attr-defined]  # an image has many files
    except tarfile.TarError as error:
        raise EnvironmentFault(
            f"the engine's export of the image ends too soon ({error})", fix="try again"
        ) from error
    return found


def packages(files: Mapping[str, bytes]) -> list[Package]:
    """Return the packages that an image's records name, sorted."""
    found = [*_debian(files), *_python(files)]
    return sorted(found, key=lambda one: (one.kind, one.name, one.version, one.listing))


def document(reference: str, held: Mapping[str, Any], parts: Iterable[Package]) -> dict[str, Any]:
    """Return the SPDX 2.3 document of an image. `held` is what the engine says of it (inspect)."""
    labels = (held.get("Config") or {}).get("Labels") or {}
    image_id = str(held["Id"]).removeprefix("sha256:")
    root: dict[str, Any] = {
        "SPDXID": "SPDXRef-Image",
        "name": reference,
        "versionInfo": labels.get("ae.content") or image_id,
        "downloadLocation": NONE,
        "filesAnalyzed": False,
        "checksums": [{"algorithm": "SHA256", "checksumValue": image_id}],
        "licenseConcluded": NONE,
        "licenseDeclared": labels.get("org.opencontainers.image.licenses") or NONE,
        "copyrightText": NONE,
        "primaryPackagePurpose": "CONTAINER",
        "comment": "The checksum is the image's id: the digest of its configuration.",
    }
    if labels.get("ae.binds"):
        root["comment"] += f" Borrowed from the host at run time, not listed: {labels['ae.binds']}"
    rows, listings = [root], []
    relations = [_relation("SPDXRef-DOCUMENT", "DESCRIBES", root["SPDXID"])]
    for number, part in enumerate(parts, 1):
        ident = f"SPDXRef-{part.kind}-{number}"
        rows.append(_package_row(part, ident))
        relations.append(_relation(root["SPDXID"], "CONTAINS", ident))
        if part.listing:
            listings.append(_file_row(part, f"SPDXRef-File-{number}"))
            relations.append(_relation(listings[-1]["SPDXID"], "METAFILE_OF", ident))
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": reference,
        "documentNamespace": _namespace(reference, image_id),
        "creationInfo": {
            # The image's own time, so that the same image gives the same document.
            "created": _seconds_only(str(held.get("Created") or "")),
            "creators": [f"Tool: ae-{__version__}"],
        },
        "packages": rows,
        "files": listings,
        "hasExtractedLicensingInfos": [
            {"licenseId": name, "extractedText": "See the package's own licence file."}
            for name in sorted({n for row in rows for n in _LICENCE_REF.findall(_declared(row))})
        ],
        "relationships": relations,
    }


def write_sbom(daemon: Daemon, reference: str, path: Path) -> int:
    """Write the document of an image, unless `path` holds it already; return how many packages.

    Raises EnvironmentFault.
    """
    held = daemon.image(reference)
    namespace = _namespace(reference, str(held["Id"])) if held else ""
    if path.is_file():
        with suppress(ValueError):  # a half-written file is written again
            found = json.loads(path.read_text())
            if isinstance(found, dict) and found.get("documentNamespace") == namespace:
                return len(found["packages"]) - 1
    found = describe_image(daemon, reference)
    path.write_text(as_text(found))
    return len(found["packages"]) - 1


def as_text(found: Mapping[str, Any]) -> str:
    """The document as it is written to a file."""
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def _debian(files: Mapping[str, bytes]) -> Iterator[Package]:
    release = _release(files)
    sums = {match[1]: path for path in files if (match := _SUMS.fullmatch(path))}
    for path, data in files.items():
        if not _STATUS.fullmatch(path):
            continue
        for paragraph in data.decode("utf-8", "replace").split("\n\n"):
            said = HeaderParser().parsestr(paragraph)
            name, version, architecture = said["Package"], said["Version"], said["Architecture"]
            # status.d (distroless images) has no field Status: what lies there is installed.
            if (
                not name
                or not version
                or "installed" not in (said["Status"] or "installed").split()
            ):
                continue
            listing = sums.get(f"{name}:{architecture}") or sums.get(name) or ""
            distribution = f"&distro={release}" if release else ""
            yield Package(
                kind="deb",
                name=name,
                version=version,
                purl=f"pkg:deb/debian/{quote(name)}@{quote(version, safe='')}"
                f"?arch={architecture}{distribution}",
                supplier=_supplier(said["Maintainer"]),
                licence_words=_copyright(files.get(f"usr/share/doc/{name}/copyright", b"")),
                homepage=said["Homepage"] or "",
                listing=listing,
                listing_bytes=files[listing] if listing else b"",
            )


def _python(files: Mapping[str, bytes]) -> Iterator[Package]:
    for path, data in files.items():
        if not (_PYTHON.fullmatch(path) and path.endswith(_METADATA)):
            continue
        said = HeaderParser().parsestr(data.decode("utf-8", "replace"))
        name, version = said["Name"], said["Version"]
        if not name or not version:
            continue
        listing = str(PurePosixPath(path).with_name("RECORD"))
        licence, words = _licence(said["License-Expression"], said["License"])
        classified = [c.split("::")[-1].strip() for c in said.get_all("Classifier", [])
                      if c.startswith("License ::")]  # fmt: skip
        canonical = re.sub(r"[-_.]+", "-", name).lower()
        yield Package(
            kind="pypi",
            name=name,
            version=version,
            purl=f"pkg:pypi/{canonical}@{quote(version, safe='')}",
            licence=licence,
            licence_words="; ".join(dict.fromkeys([words, *classified])).strip("; "),
            homepage=said["Home-page"] or "",
            listing=listing if listing in files else "",
            listing_bytes=files.get(listing, b""),
        )


def _copyright(data: bytes) -> str:
    """The short names in a machine-readable copyright file; they are Debian's, not SPDX's."""
    found = re.findall(r"^License:[ \t]*(\S.*)$", data.decode("utf-8", "replace"), re.MULTILINE)
    return "; ".join(dict.fromkeys(name.strip() for name in found))


def _licence(expression: str | None, words: str | None) -> tuple[str, str]:
    """An SPDX expression, and the words where there is none. Whole licence texts are cut."""
    if expression and _EXPRESSION.fullmatch(expression.strip()):
        return expression.strip(), ""
    lines = (words or "").strip().splitlines()
    if len(lines) == 1 and lines[0].strip() in _PLAIN_LICENCES:
        return lines[0].strip(), ""
    return NONE, lines[0].strip()[:200] if lines else ""


def _package_row(part: Package, ident: str) -> dict[str, Any]:
    row: dict[str, Any] = {
        "SPDXID": ident,
        "name": part.name,
        "versionInfo": part.version,
        "supplier": part.supplier,
        "downloadLocation": NONE,
        "filesAnalyzed": False,
        "licenseConcluded": NONE,
        "licenseDeclared": part.licence,
        "copyrightText": NONE,
        "externalRefs": [
            {
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": part.purl,
            }
        ],
    }
    if part.licence_words:
        row["licenseComments"] = part.licence_words
    if part.homepage.startswith(("http://", "https://")) and " " not in part.homepage:
        row["homepage"] = part.homepage
    return row


def _file_row(part: Package, ident: str) -> dict[str, Any]:
    return {
        "SPDXID": ident,
        "fileName": f"./{part.listing}",
        "checksums": [
            # SPDX 2.3 wants the first for every file; it is no proof of anything.
            {
                "algorithm": "SHA1",
                "checksumValue": hashlib.sha1(
                    part.listing_bytes, usedforsecurity=False
                ).hexdigest(),
            },
            {
                "algorithm": "SHA256",
                "checksumValue": hashlib.sha256(part.listing_bytes).hexdigest(),
            },
        ],
        "licenseConcluded": NONE,
        "copyrightText": NONE,
        "comment": "The checksums of this package's files.",
    }


def _declared(row: Mapping[str, Any]) -> str:
    return str(row["licenseDeclared"])


def _relation(one: str, kind: str, other: str) -> dict[str, str]:
    return {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}


def _namespace(reference: str, image_id: str) -> str:
    """An address for this document and no other; nothing needs to lie there."""
    digest = image_id.removeprefix("sha256:")
    return f"https://spdx.org/spdxdocs/{quote(reference, safe='')}-{digest}"


def _supplier(maintainer: str | None) -> str:
    """`Name <mail>` in SPDX's form: `Organization: Name (mail)`."""
    found = re.fullmatch(r"\s*(.*?)\s*<([^<>]+)>\s*", maintainer or "")
    return f"Organization: {found[1]} ({found[2]})" if found and found[1] else NONE


def _release(files: Mapping[str, bytes]) -> str:
    """`debian-12`, from os-release; empty when it does not say."""
    for path in _RELEASES:
        pairs = dict(
            line.split("=", 1) for line in files.get(path, b"").decode().splitlines() if "=" in line
        )
        if "ID" in pairs and "VERSION_ID" in pairs:
            name, number = (pairs[key].strip("\"' ") for key in ("ID", "VERSION_ID"))
            return f"{name}-{number}"
    return ""


def _seconds_only(time: str) -> str:
    """Docker's time in SPDX's form, 2024-01-01T00:00:00Z; the epoch when there is none."""
    found = re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", time)
    return f"{found[0]}Z" if found and not found[0].startswith("0001") else "1970-01-01T00:00:00Z"


def _wanted(name: str) -> bool:
    return bool(
        _STATUS.fullmatch(name)
        or _SUMS.fullmatch(name)
        or _PYTHON.fullmatch(name)
        or _COPYRIGHT.fullmatch(name)
        or name in _RELEASES
    )


class _Chunks(io.RawIOBase):
    """A stream of chunks as a file to read."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = chunk
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size
