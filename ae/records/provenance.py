"""Where a run came from: source revision, engine, host, GPUs. Gathered once, kept in run.json."""

from __future__ import annotations

import hashlib
import os
import platform
import socket
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from ae import __version__
from ae.host.git import git, revision
from ae.model import Machine
from ae.records.models import GpuFacts, Host, Provenance, Source

_MADE_FROM = ("ae", "images", "recipes")
_LONGEST = 200_000  # characters of a diff


def gather(root: Path, engine: Mapping[str, str], machine: Machine) -> Provenance:
    """Return what is known of the source, the engine and the machine of a run."""
    return Provenance(
        ae=__version__,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        command=tuple(sys.argv[1:]),
        source=source_facts(root),
        engine=dict(engine),
        host=Host(
            name=socket.gethostname(),
            system=platform.platform(),
            python=platform.python_version(),
            cpus=machine.cpus,
            memory_gib=round(machine.memory_gib, 1),
        ),
        gpus=tuple(
            GpuFacts.model_validate(
                vars(gpu)
                | {
                    "memory_gib": round(gpu.memory_gib, 1),
                    "compute_capability": ".".join(map(str, gpu.compute_capability)),
                    "other_processes": len(gpu.processes),
                }
            )
            for gpu in machine.gpus
        ),
    )


def source_facts(root: Path) -> Source:
    """Return the git revision and what differs from it, or say that there is no git.

    Files that git does not know yet count where a run is made from them. `stated_revision` is what
    AE_REVISION says, on a host that has only a copy of a tree.
    """
    stated = os.environ.get("AE_REVISION") or None
    if (commit := revision(root)) is None:
        return Source(revision=stated)
    diff = git(root, "diff", "HEAD") or ""
    changed = bool(diff.strip())
    new = (git(root, "ls-files", "--others", "--exclude-standard", *_MADE_FROM) or "").splitlines()
    found = {name: root / name for name in sorted(new) if (root / name).is_file()}
    return Source(
        revision=commit,
        dirty=bool(changed or new),
        stated_revision=stated,
        diff_sha256=hashlib.sha256(diff.encode()).hexdigest() if changed else None,
        diff=(diff if len(diff) < _LONGEST else diff[:_LONGEST] + "\n[cut]\n") if changed else None,
        new_files={
            name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in found.items()
        }
        or None,
    )
