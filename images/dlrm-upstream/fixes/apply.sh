#!/bin/sh
# Applies every fix, in order, to a checkout of the artifact: apply.sh FOLDER. Stops at the first
# that does not fit.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
for fix in "$here"/[0-9][0-9]-*.py; do
    echo "--- ${fix##*/}"
    PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}" PYTHONDONTWRITEBYTECODE=1 python3 "$fix" "$1"
done
