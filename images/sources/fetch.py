"""Fetch one file while an image is built, and refuse it when its checksum is another one.

    fetch.py URL SHA256 TARGET

The certificates are those of $SSL_CERT_FILE where that is set. Needs Python alone.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

TRIES = 3


def fetch(url: str, sha256: str, target: Path, pause_s: float = 5.0) -> None:
    """Download `url` into `target`. Raises OSError, or ValueError on a wrong checksum."""
    part = target.with_name(target.name + ".part")
    target.parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, TRIES + 1):
        digest = hashlib.sha256()
        try:
            with urllib.request.urlopen(url, timeout=60) as source, part.open("wb") as kept:
                while chunk := source.read(1 << 20):
                    digest.update(chunk)
                    kept.write(chunk)
            break
        except urllib.error.HTTPError:
            raise  # the server answered: asking again helps nobody
        except OSError:
            if attempt == TRIES:
                raise
            time.sleep(pause_s)
    if digest.hexdigest() != sha256:
        part.unlink()
        raise ValueError(f"{url} has the sha256 {digest.hexdigest()}, expected {sha256}")
    os.replace(part, target)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: fetch.py URL SHA256 TARGET")
    try:
        fetch(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
    except (OSError, ValueError) as error:
        sys.exit(f"fetch.py: {error}")
