"""`ae shell`: a shell where a paper's points run."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import NoReturn

from ae.commands.run import choose_engine, plan_for, settle
from ae.errors import EnvironmentFault
from ae.images.content import BuildOptions
from ae.plan.selection import Selection
from ae.records.folder import results_dir
from ae.run.display import Display


def open_shell(
    name: str, *, engine_name: str | None, image: str | None, secrets: Mapping[str, str]
) -> NoReturn:
    """Replace this process by a shell with a point's image, GPUs, limits and mounts."""
    asked = settle(name, Selection(image_override=image), secrets)
    engine, machine = choose_engine(asked, engine_name, None, BuildOptions())
    point = plan_for(asked, machine).points[0]
    if not engine.has_image(point.image):
        engine.prepare(point.image, Display(()))
    out = results_dir(asked.root) / "shell" / name
    out.mkdir(parents=True, exist_ok=True)
    argv, environment = engine.shell(point, out, asked.given.files)
    print(f"shell of {name} on engine {engine.name}; $AE_OUT is {out}", file=sys.stderr)
    try:
        os.execvpe(argv[0], argv, environment)
    except OSError as error:
        raise EnvironmentFault(
            f"{argv[0]} cannot be started: {error.strerror}", fix=f"install {argv[0]}"
        ) from error
