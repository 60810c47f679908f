#!/usr/bin/env bash
# A reference run on a GPU host that has neither network nor Docker, in a real container.
#
#   reference_run.sh RECIPE OUT [ADDITION...] [-- ARGUMENTS OF `ae run`...]
#
# Before it, on this host, for each folder that `airgap.py collect` made: airgap.py unpack FOLDER.
# Starts the engine, makes the image, runs the GPU parity tests and then the recipe, and leaves
# the run in OUT/run.tgz. ADDITION is what `airgap.py image --add` takes, e.g. DIR:/opt/ae/fbgemm.
set -euo pipefail
cd "$(dirname "$0")/../.."
recipe=$1 out=$2
shift 2
additions=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    additions+=(--add "$1")
    shift
done
[ $# -gt 0 ] && shift
airgap=(python3 images/base/airgap.py)
ae=(python3 -m ae)

step() { printf '=== %s (at %s s) ===\n' "$*" "$SECONDS"; }

step "engine"
"${airgap[@]}" start
trap '"${airgap[@]}" stop' EXIT
eval "$("${airgap[@]}" env)"
"${airgap[@]}" image "$recipe" "${additions[@]}"
export AE_RESULTS=${AE_RESULTS:-$PWD/results}
"${ae[@]}" doctor "$recipe" || true # its findings belong to the log, its verdict to a person

step "GPU parity tests"
python3 -m pytest -q -p no:cacheprovider -m gpu "images/$recipe/tests"

step "run"
code=0
"${ae[@]}" run "$recipe" --engine docker --no-build "$@" || code=$?

step "verdicts"
"${ae[@]}" check "$recipe" || true
run=$(ls -d "$AE_RESULTS/runs/$recipe"/*/ | tail -n 1)
mkdir -p "$out"
tar -C "$(dirname "$run")" -czf "$out/run.tgz" "$(basename "$run")"
"${ae[@]}" clean --dry-run
step "done, exit code of the run: $code"
exit "$code"
