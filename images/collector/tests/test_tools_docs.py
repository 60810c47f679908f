"""The tool that the documentation shows is run as it stands there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from accel_trace import tools
from accel_trace.events import Memcpy
from accel_trace.tools.base import HANDLERS, MODES
from collector_logs import launch, write

_DOCS = Path(__file__).resolve().parents[3] / "docs" / "accel-trace.md"


def _copy(size: int, direction: int) -> Memcpy:
    return Memcpy(destination=1, source=2, size=size, direction=direction, asynchronous=0, stream=0)


def test_the_tool_of_thirty_lines_works_as_it_is_printed(tmp_path):
    (text,) = re.findall(r'```python\n("""Bytes copied.*?)```', _DOCS.read_text(), re.DOTALL)
    assert len(text.splitlines()) <= 30
    path = tmp_path / "copied_bytes.py"
    path.write_text(text)
    folder = tmp_path / "recorded"
    write(folder, 5, [
        _copy(1, 2), launch(0, "k", operator="aten::copy_"), _copy(2048, 2), _copy(1024, 3),
        _copy(99, 4), launch(1, "plain"), _copy(512, 3),
    ])  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "accel_trace", "report", folder, "--tool", path, "--set", "top=2"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines()[1:3]]
    assert lines == [["3.00", "KiB", "aten::copy_"], ["512", "B", "plain"]]
    found = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    copied = {r["labels"]["after"]: r["samples"] for r in found if r["metric"] == "copied"}
    assert copied == {"before the first launch": [1.0], "aten::copy_": [3072.0], "plain": [512.0]}


def test_the_documentation_names_every_tool_mode_and_option_that_it_shows():
    text = _DOCS.read_text()
    for name in tools.names():
        assert f"`{name}" in text, name
    for mode in MODES:
        assert f"`{mode}`" in text or f"mode={mode}" in text, mode
    for handler in re.findall(r"handlers=\(([^)]*)\)", text)[0].replace('"', "").split(", "):
        assert handler in HANDLERS
