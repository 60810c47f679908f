"""What a run says of itself: its options, and run.json."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accel_trace.launch import LaunchError, Outcome
from accel_trace.session import RUN_FILE
from accel_trace.tools.base import Needs, Tool, write_file


def pairs(words: Sequence[str]) -> dict[str, str]:
    """Return the words of `--set NAME=VALUE`. Raises LaunchError."""
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise LaunchError(f"--set {word}: write --set NAME=VALUE")
        found[name] = value
    return found


def write_run(
    folder: Path,
    options: argparse.Namespace,
    tool: Tool,
    needs: Needs,
    outcome: Outcome,
    passed: str,
) -> None:
    """Write run.json into the folder of a pass. Raises OSError."""
    name = str(Path(options.tool).resolve()) if options.tool.endswith(".py") else tool.name
    facts: dict[str, Any] = {
        "tool": name,
        "settings": tool.settings,
        "mode": needs.mode,
        "passed_through": passed,
        "handlers": needs.handlers,
        "environment": dict(needs.environment),
        "command": options.command,
        "filters": {"range": options.range, "kernels": options.kernels, "region": options.region,
                    "sample": options.sample, "every": options.every,
                    "distinct": options.distinct, "within": options.within},
        "exit_code": outcome.exit_code,
        "signal": outcome.signal,
        "elapsed_s": outcome.elapsed,
        "ended": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }  # fmt: skip
    write_file(folder / RUN_FILE, lambda path: path.write_text(json.dumps(facts, indent=2) + "\n"))
