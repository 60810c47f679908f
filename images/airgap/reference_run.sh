#!/usr/bin/env bash
# A reference run on a GPU host that has neither network nor Docker, in a real container.
#
#   reference_run.sh RECIPE OUT [tests=no] [minutes=N | again=yes] [NAME=DIR...] \
#       [-- ARGUMENTS OF `ae run`... [-- ...]]
#
# Before it, on this host, for each folder that `airgap.py collect` made: airgap.py unpack FOLDER.
# Starts the engine, makes a base from the host's own files, builds the image on it, pushes it to a
# registry on this host and pulls it back by digest, runs the GPU parity tests and then the recipe
# from the pulled image, and leaves the run in OUT/run.tgz; after each further `--` stands another run
# of its own. What programs recorded in bulk (folders `traces`) is left behind. NAME=DIR is a build
# context (`ae build --context`), e.g. fbgemm=DIR; `extra` is a folder of Python packages that the host
# lacks. Where the image has a script on_host.sh, what that compiles here is added to it. `tests=no`
# leaves the tests out, where they have a call of their own. `minutes=N` is a lease's length, all of
# this included: what fits is run and nothing that is finished (leases.py, docs/reference.md); after
# `--` stand --experiment, --variant, --set, --repeat, --gpus. `again=yes` measures a tenth of what
# is finished once more, to be compared and not to be kept. On TERM, too, run.tgz is written, with
# all that had finished. How the tests went stands beside the run, in OUT/gpu-tests.txt.
# Afterwards, in a checkout: tar -xzf run.tgz -C results/runs/RECIPE, then `ae keep`
# each run. That wants the revision of this copy of the tree: set AE_REVISION to it, or be in a clean
# checkout.
set -euo pipefail
cd "$(dirname "$0")/../.."
recipe=$1 out=$2
shift 2
contexts=()
extra=
with_tests=yes
minutes=
again=no
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    if [ "${1%%=*}" = extra ]; then
        extra=${1#*=}
    elif [ "${1%%=*}" = tests ]; then
        with_tests=${1#*=}
        case $with_tests in yes | no) ;; *) echo "tests=$with_tests: yes or no" >&2 && exit 2 ;; esac
    elif [ "${1%%=*}" = again ]; then
        again=${1#*=}
        case $again in yes | no) ;; *) echo "again=$again: yes or no" >&2 && exit 2 ;; esac
    elif [ "${1%%=*}" = minutes ]; then
        minutes=${1#*=}
        case $minutes in '' | *[!0-9]*) echo "$1: a whole number of minutes" >&2 && exit 2 ;; esac
    else
        contexts+=(--context "$1")
        # The parity tests run outside the image, and find the same folder in AE_<NAME>_DIR.
        variable=AE_${1%%=*}_DIR
        export "${variable^^}=$(realpath "${1#*=}")"
    fi
    shift
done
[ $# -gt 0 ] && shift
if [ -z "${AE_REVISION:-}" ] && [ -n "$(git status --porcelain 2>&1)" ]; then
    echo "set AE_REVISION to the revision of this tree: 'ae keep' takes no run without one" >&2
    exit 2
fi
airgap=(python3 images/airgap/airgap.py)
ae=(python3 -m ae)

# The tests of an image and of what it is made from.
tests_of() {
    python3 -c 'import sys; from pathlib import Path; from ae.images.content import made_from
print(*filter(lambda path: Path(path).is_dir(),
              (f"images/{part}/tests" for part in made_from(Path("."), sys.argv[1]))))' "$1"
}

step() { printf '=== %s (at %s s) ===\n' "$*" "$SECONDS"; }

# A command that is handed a signal to this script, and waited for.
child=
stopped=
attended() {
    local code=0
    "$@" &
    child=$!
    wait "$child" || code=$?
    while kill -0 "$child" 2>/dev/null; do # a signal ended the wait
        wait "$child" && code=0 || code=$?
    done
    child=
    [ -z "$stopped" ] || exit 143
    return "$code"
}
trap 'stopped=yes; if [ -n "$child" ]; then kill -TERM "$child" || true; else exit 143; fi' \
    TERM INT HUP

# The recipe's runs that were made since it ran first, as run.tgz.
made=()
pack() {
    [ -n "${before+set}" ] || return 0
    mapfile -t made < <(comm -13 <(echo "$before") <(runs))
    unset before
    mkdir -p "$out"
    if [ "${#made[@]}" -gt 0 ]; then
        tar -C "$AE_RESULTS/runs/$recipe" --exclude=traces -czf "$out/run.tgz" "${made[@]}"
        [ "$again" = no ] || return 0 # to be compared
        echo "to keep them, in a checkout: mkdir -p results/runs/$recipe &&" \
            "tar -xzf run.tgz -C results/runs/$recipe"
        for run in "${made[@]}"; do echo "    ae keep $run"; done
    else
        echo "no run was begun: there is no run.tgz" >&2
    fi
}
runs() { if [ -d "$AE_RESULTS/runs/$recipe" ]; then ls "$AE_RESULTS/runs/$recipe"; fi; }

step "engine"
"${airgap[@]}" start
trap 'pack; "${airgap[@]}" stop' EXIT
eval "$("${airgap[@]}" env)"
export AE_RESULTS=${AE_RESULTS:-$PWD/results}

if [ -x "images/$recipe/on_host.sh" ]; then
    step "what the image needs compiled on this host"
    more=$(mktemp -d)
    [ -n "$extra" ] && cp -R "$extra/." "$more"
    extra=$more
    "images/$recipe/on_host.sh" "$extra"
fi
if [ -n "$extra" ]; then
    contexts+=(--context "extra=$extra")
    AE_EXTRA_DIR=$(realpath "$extra")
    export AE_EXTRA_DIR
fi

step "image"
"${airgap[@]}" base
"${ae[@]}" build "$recipe" --flavour cuda --base-image ae/base:host --network none "${contexts[@]}"

step "registry: push, forget, pull by digest"
eval "$("${airgap[@]}" registry)"
"${ae[@]}" push "$recipe" --flavour cuda
cat images/lock.yaml
docker image rm --force "$(docker image inspect --format '{{.Id}}' "ae/$recipe:cuda")" >/dev/null
"${ae[@]}" pull "$recipe" --flavour cuda
"${ae[@]}" doctor "$recipe" || true # its findings belong to the log, its verdict to a person

tests=0
tested="not run by this call"
if [ "$with_tests" = yes ]; then
    step "GPU parity tests"
    PYTHONPATH=$PYTHONPATH${AE_EXTRA_DIR:+:$AE_EXTRA_DIR} \
        attended python3 -m pytest -q -p no:cacheprovider -m gpu $(tests_of "$recipe") || tests=$?
    tested=passed
    [ "$tests" = 0 ] || tested="FAILED, exit code $tests: no number of this run holds"
fi
mkdir -p "$out"
echo "GPU tests: $tested" | tee "$out/gpu-tests.txt"

step "run"
code=0
before=$(runs)
words=()
for word in "$@" --; do
    if [ "$word" != -- ]; then
        words+=("$word")
        continue
    fi
    if [ "$again" = yes ]; then
        attended python3 images/airgap/leases.py again "$recipe" --engine docker "${words[@]}" ||
            code=$?
    elif [ -n "$minutes" ]; then # the last minute is for packing
        attended python3 images/airgap/leases.py run "$recipe" --engine docker \
            --seconds "$((minutes * 60 - SECONDS - 60))" "${words[@]}" || code=$?
    else
        attended "${ae[@]}" run "$recipe" --engine docker --no-build "${words[@]}" || code=$?
    fi
    words=()
done
pack

step "verdicts"
for run in "${made[@]}"; do "${ae[@]}" check "$recipe" "$run" || true; done
"${ae[@]}" clean --dry-run
step "done, exit code of the run: $code, of the tests: $tests"
exit "$((code ? code : tests))"
