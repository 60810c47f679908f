import os
import platform
import sys
from pathlib import Path

import pytest
from reprokit import environment

FAKE = """#!{python}
import sys
fields = sys.argv[1].removeprefix("--query-gpu=").split(",")
known = {known!r}
if any(field not in known for field in fields):
    sys.exit(2)
print(", ".join(known[field] for field in fields))
"""


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """Put a program in nvidia-smi's place that knows only the fields it is given."""

    def install(known):
        tool = tmp_path / "nvidia-smi"
        tool.write_text(FAKE.format(python=sys.executable, known=known))
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))

    return install


def test_this_machine_is_described(monkeypatch):
    monkeypatch.setenv("PATH", "")
    facts = environment.machine_facts(("pytest", "no-such-package"))
    assert facts["python"] == platform.python_version()
    assert facts["cpu"]
    assert facts["cpus_allowed"] == len(os.sched_getaffinity(0))
    assert list(facts["packages"]) == ["pytest"]
    assert "gpu" not in facts
    assert environment.gpu_clocks() == {}


@pytest.mark.skipif(
    not Path("/sys/devices/system/cpu/cpu0/cache/index0").exists(),
    reason="this kernel does not describe its caches",
)
def test_data_caches_are_in_bytes_and_grow_outwards():
    caches = environment.cpu_caches()
    assert 8 * 1024 <= caches["L1d"] <= caches["L2"]
    assert "L1" not in caches  # the instruction cache is none of ours


def test_a_gpu_is_described(nvidia_smi):
    known = {field: f"<{field}>" for field in environment._GPU_FACTS.values()}
    nvidia_smi(known | {"mig.mode.current": "[N/A]"})
    facts = environment.machine_facts()
    assert facts["gpu"] == "<name>"
    assert facts["driver"] == "<driver_version>"
    assert "mig" not in facts


def test_a_field_the_driver_does_not_know_costs_only_itself(nvidia_smi):
    nvidia_smi({"clocks.sm": "1980 MHz", "clocks.mem": "3201 MHz"})
    assert environment.gpu_clocks() == {"sm": "1980 MHz", "memory": "3201 MHz"}
