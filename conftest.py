"""What every test run shares: the images' sources, signals, a cache, the order, allowed skips."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Generator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

IMAGES = Path(__file__).parent / "images"
sys.path += sorted(map(str, [*IMAGES.glob("*/src"), *IMAGES.glob("*/tests")]))
GROUPS = {"slurm": "slurm", "docker": "engine"}  # marker: tests that share a worker
ALLOWED_SKIPS = Path(__file__).parent / "tests" / "allowed_skips.txt"

# Whoever started the tests may ignore these (nohup, a shell's background job); programs that the
# tests start would inherit it.
for _number in (signal.SIGHUP, signal.SIGINT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(
            _number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL
        )

# What tests compile is kept here, named by its content, for later tests and later runs.
_CACHES = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
os.environ.setdefault("AE_TEST_CACHE", str(_CACHES / "ae-tests"))

# Without a GPU, Triton's kernels run in its interpreter. It must be set before Triton is imported,
# which PyTorch's own parts do as well.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Workers share the cores: a thread each, where a test names no number. It must be set before
# PyTorch is imported.
if "PYTEST_XDIST_WORKER" in os.environ:
    for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(_name, "1")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays to the end: a million objects that Python's garbage collector need
    not look at, neither while they come nor at every `gc.collect()` of a test (0.7 s each)."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_itemcollected(item: pytest.Item) -> None:
    """What asserts on times of a GPU needs one, even where nobody says so."""
    if item.get_closest_marker("timed"):
        item.add_marker("gpu")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `--dist loadgroup`: one worker for the tests of the engine, one for those of Slurm, the
    others by file. With `--no-loadscope-reorder` those two come first, then files with slow tests,
    then those with most tests: what is left for the end is short."""
    if not config.pluginmanager.hasplugin("xdist"):
        return
    group_of = {item: _group(item) for item in items}
    for item, group in group_of.items():
        item.add_marker(pytest.mark.xdist_group(group))
    if "PYTEST_XDIST_WORKER" in os.environ:
        slow = {group_of[item] for item in items if item.get_closest_marker("slow")}
        count = Counter(group_of.values())
        items.sort(
            key=lambda item: (
                group_of[item] not in GROUPS.values(),
                group_of[item] not in slow,
                -count[group_of[item]],
                group_of[item],
            )
        )


def _group(item: pytest.Item) -> str:
    own = [group for name, group in GROUPS.items() if item.get_closest_marker(name)]
    return own[0] if own else item.nodeid.split("::", 1)[0]


def pytest_configure(config: pytest.Config) -> None:
    """In CI no test may be skipped that is not on the list."""
    if os.environ.get("CI") == "true" and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Skips(ALLOWED_SKIPS))


class Skips:
    """Fails a run in which a test was skipped that the list does not allow.

    A line of the list is a pattern for node ids without parameters, then why it may be skipped.
    """

    def __init__(self, allowed: Path) -> None:
        lines = allowed.read_text().splitlines() if allowed.is_file() else []
        self._name = allowed.name
        self._patterns = [line.split()[0] for line in lines if line and not line.startswith("#")]
        self._refused: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test, or its set-up, was skipped."""
        self._see(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A whole file was skipped."""
        self._see(report)

    def _see(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if not report.skipped or hasattr(report, "wasxfail"):
            return
        name = report.nodeid.split("[")[0].split("@")[0]  # @ and a group: what xdist adds
        if not any(fnmatchcase(name, pattern) for pattern in self._patterns):
            why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
            self._refused[report.nodeid] = str(why)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """The exit code says it."""
        if self._refused and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name them."""
        if self._refused:
            terminalreporter.section(f"skipped, and not in {self._name}", red=True)
            for name, why in sorted(self._refused.items()):
                terminalreporter.line(f"{name}: {why}")
