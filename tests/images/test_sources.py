"""What images fetch while they are built: images/sources, on a server of our own."""

from __future__ import annotations

import functools
import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ae.recipe.code import load_code
from tests.images.dockerfiles import IMAGES


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "weights").write_bytes(b"weights")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_fetch_keeps_what_has_the_right_checksum_and_nothing_else(
    served: str, tmp_path: Path
) -> None:
    fetch = load_code(IMAGES / "sources", "fetch", fix="").fetch
    target = tmp_path / "cache" / "whisper" / "small.pt"
    right = hashlib.sha256(b"weights").hexdigest()
    with pytest.raises(ValueError, match=f"has the sha256 {right}"):
        fetch(f"{served}/weights", "0" * 64, target)
    assert list(target.parent.iterdir()) == []
    with pytest.raises(OSError, match="404"):
        fetch(f"{served}/other", right, target)
    fetch(f"{served}/weights", right, target)
    assert target.read_bytes() == b"weights"
