"""The command line. Exit codes: run passes the target's through; else 0 done, 1 failed, 2 bad
arguments, 77 cannot run here, 126 and 127 a target that cannot be started, 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from reprokit.skip import EXIT_CODE as CANNOT_RUN

from accel_trace import build, export, probe, tools
from accel_trace.builds import LIBRARY, BuildError
from accel_trace.launch import (
    Filters,
    LaunchError,
    Outcome,
    environment,
    prepare_folder,
    refuse_nesting,
    run_target,
)
from accel_trace.log import LogError, LogReader, read_status
from accel_trace.reporting import RECORDS, make_report, open_sessions, write_report
from accel_trace.runs import pairs, write_run
from accel_trace.session import Session, SessionError
from accel_trace.tools.base import ANALYSING, PATCHING, Needs, Tool, ToolError
from accel_trace.tools.lines import event_text

FAILED = 1
BAD_ARGUMENTS = 2
INTERRUPTED = 130
BROKEN_PIPE = 141


class CannotRun(RuntimeError):
    """This machine cannot do it; one sentence."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise LaunchError(f"{message}; see {self.prog} --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    command: list[str] | None = None
    if "--" in words:
        at = words.index("--")
        words, command = words[:at], words[at + 1 :]
    try:
        options = _parser().parse_args(words)
        if command is not None and options.action is not _run:
            raise LaunchError("only accel-trace run takes a command after --")
        if options.action is _run and not command:
            raise LaunchError("write the command after --: accel-trace run --tool NAME -- COMMAND")
        options.command = command
        return int(options.action(options))
    except (LaunchError, SessionError, LogError, ToolError) as error:
        _say(str(error))
        return BAD_ARGUMENTS
    except CannotRun as error:
        _say(str(error))
        return CANNOT_RUN
    except KeyboardInterrupt:
        _say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # `accel-trace log FILE | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except OSError as error:
        _say(f"{error.filename or 'output'}: {error.strerror or error}")
        return FAILED


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="accel-trace", description="Shows what a CUDA or PyTorch program does with its GPU."
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)

    run = actions.add_parser("run", help="run a program under a tool", usage=(
        "accel-trace run --tool NAME [options] -- COMMAND [ARGUMENT ...]"))  # fmt: skip
    run.set_defaults(action=_run)
    run.add_argument("--tool", required=True, help="a tool's name, or the path of your own .py")
    run.add_argument("--out", type=Path, help="folder for logs and report (default: a new one)")
    run.add_argument("--force", action="store_true", help="take a folder of an earlier run")
    run.add_argument("--range", default="", metavar="A:B", help="analyse launches A to B-1")
    run.add_argument("--kernels", default="", metavar="REGEX", help="analyse kernels so named")
    run.add_argument("--region", default="", metavar="NAME", help="analyse inside this region")
    run.add_argument("--sample", type=int, default=1, metavar="N", help="analyse one launch in N")
    run.add_argument("--every", type=int, default=0, metavar="N",
                     help="analyse one iteration in N, the others without patches")  # fmt: skip
    run.add_argument("--within", type=float, default=0, metavar="X",
                     help="so few of --every that all take at most X times as long")  # fmt: skip
    run.add_argument("--distinct", type=int, default=0, metavar="N",
                     help="as --every, and infer the launches of the others")  # fmt: skip
    run.add_argument("--set", action="append", default=[], metavar="K=V", help="a tool's option")
    run.add_argument("--library", type=Path, metavar="DIR", help="a built library (default: build)")
    run.add_argument("--no-probe", action="store_true", help="do not test first whether it works")
    run.add_argument("--pass-through", action="store_true",
                     help="where the tool cannot work, run the program without it")  # fmt: skip

    report = actions.add_parser("report", help="read a recorded folder again")
    report.set_defaults(action=_report)
    report.add_argument("folder", type=Path)
    report.add_argument("--tool", help="another tool than that of the run")
    report.add_argument("--set", action="append", default=[], metavar="K=V", help="a tool's option")

    actions.add_parser("tools", help="list the tools and their options").set_defaults(action=_tools)

    test = actions.add_parser("probe", help="test whether this machine allows patching")
    test.set_defaults(action=_probe)
    test.add_argument("--library", type=Path, metavar="DIR", help="a built library")

    out = actions.add_parser("export", help="write a trace for Perfetto, or JSON lines")
    out.set_defaults(action=_export)
    out.add_argument("folder", type=Path)
    out.add_argument("--format", choices=sorted(export.FORMATS), default="chrome")
    out.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")

    log = actions.add_parser("log", help="print a log")
    log.set_defaults(action=_log)
    log.add_argument("file", type=Path)

    make = actions.add_parser("build", help="compile the library and the patches")
    make.set_defaults(action=_build)
    make.add_argument("--arch", metavar="80,90", help="GPUs to compile for (default: the usual)")
    return parser


def _run(options: argparse.Namespace) -> int:
    """Start the target; whatever happens to the tool after that, the exit code is the target's."""
    refuse_nesting(os.environ)
    cls = tools.find(options.tool)
    settings = cls.read_settings(pairs(options.set))
    out = options.out or Path(f"accel-trace-{cls.name}-{time.strftime('%Y%m%d-%H%M%S')}")
    tool = cls(settings, out)
    filters = Filters(
        launches=options.range, kernels=options.kernels, region=options.region,
        sample=options.sample, every=options.every, distinct=options.distinct,
        within=options.within,
    )  # fmt: skip
    if filters.distinct and not tool.infers:
        raise LaunchError(f"--distinct: {tool.name} infers nothing; use working_set, or --every")
    prepare_folder(out, options.force)
    outcome, sessions = _record(tool, options, filters, out)
    if len(sessions) == tool.passes:
        _finish(tool, sessions, out)
    return outcome.exit_code


def _record(
    tool: Tool, options: argparse.Namespace, filters: Filters, out: Path
) -> tuple[Outcome, list[Session]]:
    """Run the target once per pass; fewer sessions than passes mean that there is no report."""
    sessions: list[Session] = []
    outcome = Outcome(0)
    for number in range(tool.passes):
        try:
            needs = tool.needs_of(number, sessions)
        except ToolError as error:
            if not sessions:
                raise
            _say(f"{tool.name}: {error}")
            break
        if (filters.every or filters.distinct) and not sessions and needs.mode not in ANALYSING:
            raise LaunchError(
                f"--every and --distinct: {tool.name} analyses no launches, so leave them out"
            )
        needs, library, passed = _ready(needs, options)
        folder = out if tool.passes == 1 else out / f"pass-{number + 1}"
        folder.mkdir(exist_ok=True)
        env = environment(os.environ, needs, filters, folder, library)
        outcome = run_target(options.command, env)
        if not outcome.started:
            _say(outcome.error)
            break
        try:
            write_run(folder, options, tool, needs, outcome, passed)
            sessions.append(Session(folder))
        except (OSError, SessionError) as error:
            _say(f"no report: {error}; the logs are in {folder}")
            break
        if number + 1 < tool.passes and (outcome.exit_code or passed):
            if outcome.exit_code:
                _say(f"pass {number + 1} ended with {outcome.exit_code}, so no other is made")
            break
    return outcome, sessions


def _finish(tool: Tool, sessions: Sequence[Session], out: Path) -> None:
    """Report on standard error; no failure in here changes the exit code."""
    try:
        text = write_report(tool, make_report(tool, sessions), out)
    except (ToolError, SessionError, OSError) as error:
        _say(f"no report: {error}; the logs are in {out}")
        return
    _print(text)
    _say(f"report and {RECORDS} are in {out}")


def _ready(needs: Needs, options: argparse.Namespace) -> tuple[Needs, Path, str]:
    """Return needs, the folder of the built library, and "" or why the tool is passed by.

    Modes that patch kernels are probed first. Raises CannotRun, unless --pass-through was given.
    """
    if needs.mode == "none":
        return needs, Path(), ""
    try:
        library = _library(options.library)
        reason = ""
        if needs.mode in PATCHING and not options.no_probe:
            reason = probe.driver_problem() or probe.probe(library)
    except CannotRun as error:
        reason = str(error)
    if not reason:
        return needs, library, ""
    if not options.pass_through:
        raise CannotRun(reason)
    _say(f"{reason}; the program runs without the tool")
    return Needs(mode="none"), Path(), reason


def _library(given: Path | None) -> Path:
    if given is not None:
        if not (given / LIBRARY).is_file():
            raise LaunchError(f"{given}: holds no {LIBRARY}; see accel-trace build")
        return given
    return _built(None)


def _built(archs: str | None) -> Path:
    try:
        return build.ensure_built(None if archs is None else build.read_archs(archs))
    except build.ArchError as error:
        raise LaunchError(str(error)) from error
    except BuildError as error:
        raise CannotRun(f"the library cannot be built: {error}") from error


def _report(options: argparse.Namespace) -> int:
    sessions = open_sessions(options.folder)
    if not sessions[-1].run and not sessions[-1].processes:
        raise SessionError(f"{options.folder}: holds no recorded run")
    name = options.tool or sessions[-1].run.get("tool")
    if not name:
        raise ToolError(f"{options.folder}: does not say its tool; name one with --tool")
    cls = tools.find(name)
    settings = {} if options.tool else dict(sessions[-1].run.get("settings", {}))
    tool = cls(settings | cls.read_settings(pairs(options.set)), options.folder)
    print(write_report(tool, make_report(tool, sessions), options.folder), end="")
    return 0


def _tools(options: argparse.Namespace) -> int:
    for name, cls in tools.names().items():
        runs = "" if cls.passes == 1 else f" ({cls.passes} runs of the program)"
        print(f"{name}: {cls.help}{runs}")
        for option in cls.options:
            choices = f" [{', '.join(option.choices)}]" if option.choices else ""
            default = option.default if option.default != "" else "none"
            print(f"    {option.name}={default}{choices}: {option.help}")
    return 0


def _probe(options: argparse.Namespace) -> int:
    reason = probe.driver_problem() or probe.probe(_library(options.library))
    if reason:
        raise CannotRun(reason)
    print("kernels can be patched here: a patched kernel ran, and its accesses were counted")
    return 0


def _export(options: argparse.Namespace) -> int:
    sessions = open_sessions(options.folder)
    count = export.FORMATS[options.format](sessions[-1], options.output)
    print(f"{options.output}: {count} entries")
    return 0


def _log(options: argparse.Namespace) -> int:
    reader = LogReader(options.file)
    status = read_status(options.file.with_suffix(".status"))
    print(f"process {reader.pid}, status {status.state or 'unknown'} {status.why}".rstrip())
    for event in reader:
        print(event_text(event))
    for kind, count in sorted(reader.unknown.items()):
        print(f"skipped: {count} frames of kind {kind}, which is not known here")
    if reader.damage:
        print(f"not whole: {reader.damage}")
    return 0


def _build(options: argparse.Namespace) -> int:
    print(_built(options.arch))
    return 0


def _say(text: str) -> None:
    _print(f"accel-trace: {text}\n")


def _print(text: str) -> None:
    """Write to standard error, if there is one; that it cannot be written changes no exit code."""
    try:
        if sys.stderr:
            print(text, end="", file=sys.stderr, flush=True)
    except OSError:  # what is left of it would be written at the exit, and fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
