"""What Slurm's commands refuse, and the fix; a real Slurm: tests/real/slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from ae.engines.slurm import queue
from ae.errors import EnvironmentFault, UsageError


@pytest.mark.parametrize(
    ("said", "fix", "kind"),
    [
        (
            "resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\n"
            "fatal: Could not establish a configuration source",
            "no Slurm is set up here: type it on a login node, or set SLURM_CONF",
            EnvironmentFault,
        ),
        (
            "error: Batch job submission failed: Requested node configuration is not available",
            "no node has so much",
            queue.NoNode,
        ),
        ("fatal: Unable to process configuration file", "see `sinfo`, `squeue`", EnvironmentFault),
        (
            "error: Invalid account or account/partition combination",
            "see `sinfo`;",
            EnvironmentFault,
        ),
    ],
)
def test_each_refusal_has_its_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, fix: str, kind: type[Exception]
) -> None:
    program = tmp_path / "sinfo"  # what the real one prints, word by word
    program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{said}\nEND\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(EnvironmentFault, match="sinfo refused: ") as caught:
        queue.call("sinfo")
    assert caught.value.fix.startswith(fix)
    assert type(caught.value) is kind


def test_what_a_person_chose_of_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBATCH_PARTITION", "gpu")
    monkeypatch.setenv("SBATCH_QOS", "")
    monkeypatch.setenv("SBATCH_TIMELIMIT", "1")
    monkeypatch.setenv("PARTITION", "none")
    for name in ("ACCOUNT", "CONSTRAINT", "RESERVATION"):
        monkeypatch.delenv(f"SBATCH_{name}", raising=False)
    assert queue.choices() == {"SBATCH_PARTITION": "gpu"}


def test_what_a_person_asks_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RUNTIME", "SHARED", "POLL_S"):
        monkeypatch.setenv(f"AE_SLURM_{name}", "")
    asked = queue.wanted()
    assert (asked.runtime, asked.shared, asked.poll_s) == (None, False, 30)
    for name, word in (("RUNTIME", "podman"), ("SHARED", "0"), ("POLL_S", "0.5")):
        monkeypatch.setenv(f"AE_SLURM_{name}", word)
    asked = queue.wanted()
    assert (asked.runtime, asked.shared, asked.poll_s) == ("podman", False, 0.5)
    monkeypatch.setenv("AE_SLURM_SHARED", "1")
    assert queue.wanted().shared


@pytest.mark.parametrize(
    ("name", "word", "said"),
    [
        ("RUNTIME", "foo", "input should be 'pyxis', 'apptainer', 'podman' or 'none'"),
        ("SHARED", "perhaps", "input should be a valid boolean"),
        ("POLL_S", "abc", "input should be a valid number"),
        ("POLL_S", "-1", "input should be greater than 0"),
        ("POLL_S", "0", "input should be greater than 0"),
        ("POLL_S", "nan", "input should be "),
        ("POLL_S", "inf", "input should be a finite number"),
    ],
)
def test_what_nobody_can_ask_of_it(
    monkeypatch: pytest.MonkeyPatch, name: str, word: str, said: str
) -> None:
    monkeypatch.setenv(f"AE_SLURM_{name}", word)
    with pytest.raises(UsageError, match=f"^AE_SLURM_{name}={word}: {said}") as caught:
        queue.wanted()
    assert caught.value.fix
