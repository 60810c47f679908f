"""The build parameters are for persistent memory, and the files that hold them are made by hand.

Where: deps/nGraph/deps/build.json says what the ngraph fork is compiled with, and
AutoTM/deps/build.json whether Gurobi is used. The authors' docker/gpu writes both while it builds;
its comment says that Gurobi is off, and the text turns it on.
Measurement: none; these are the authors' own values for the GPU, with Gurobi. Without a licence at
run time the solver falls back to Cbc, which is much weaker: environment.json says which was there.
"""

from __future__ import annotations

import json

from edit import Unexpected, done, folder_argument

WANTED = {
    "deps/nGraph/deps/build.json": {"DEBUG": False, "PMDK": False, "NUMA": False, "GPU": True},
    "AutoTM/deps/build.json": {"GUROBI": True},
}


def main() -> None:
    """Usage: 01-build-parameters.py AUTOTM."""
    root = folder_argument("01-build-parameters.py AUTOTM")
    for name, values in WANTED.items():
        path = root / name
        if not path.parent.is_dir():
            raise Unexpected(f"{path.parent} does not exist: a submodule is missing")
        path.write_text(json.dumps(values), encoding="utf-8")
    done(f"{len(WANTED)} files of build parameters are for the GPU")


if __name__ == "__main__":
    main()
