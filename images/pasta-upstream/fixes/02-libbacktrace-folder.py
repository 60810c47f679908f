"""libbacktrace installs into lib on Debian and Ubuntu, and cpp_trace looks for it in lib64 alone.

Where: bin/utils/build_libbacktrace; the folder is whatever `gcc -print-multi-os-directory` says,
which is lib64 on Red Hat's systems and lib on Debian's.
Measurement: none; the same library is found under both names.
"""

from __future__ import annotations

from edit import Unexpected, done, folder_argument, read

SCRIPT = "bin/utils/build_libbacktrace"
LINK = """
# Added: the library under both names that the makefiles and compilers use.
backtrace="$ACCEL_PROF_DIR/build/backtrace"
if [ ! -e "$backtrace/lib64" ]; then ln -s lib "$backtrace/lib64"; fi
"""


def main() -> None:
    """Usage: 02-libbacktrace-folder.py ACCELPROF."""
    path = folder_argument("02-libbacktrace-folder.py ACCELPROF") / SCRIPT
    text = read(path)
    for words in ("make install", "build/backtrace"):
        if words not in text:
            raise Unexpected(f"{path} has no '{words}'; it does something else than it did")
    if LINK in text:
        raise Unexpected(f"{path} has been fixed already")
    path.write_text(text.rstrip("\n") + "\n" + LINK, encoding="utf-8")
    done("libbacktrace is found in lib64 too")


if __name__ == "__main__":
    main()
