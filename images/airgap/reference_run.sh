#!/usr/bin/env bash
# A reference run on a GPU host that has neither network nor Docker, in a real container.
#
#   reference_run.sh RECIPE OUT [tests=no | tests=correct | tests=timed] [minutes=N | again=yes] \
#       [NAME=DIR...] [-- ARGUMENTS OF `ae run`... [-- ...]]
#
# Before it, on this host, for each folder that `airgap.py collect` made: airgap.py unpack FOLDER.
# Starts the engine, makes a base from the host's own files, builds the image on it, pushes it to a
# registry on this host and pulls it back by digest, runs the GPU parity tests and then the recipe
# in containers of the pulled image (the tests with the host's pytest, which the base borrows, and on
# the image's own sources), and leaves the run in OUT/run.tgz; after each further `--` stands another
# run of its own. Left behind are points that have not finished, and what programs recorded in bulk
# (folders `traces`). NAME=DIR is a build context (`airgap.py contexts`), e.g. fbgemm=DIR; `extra`
# is a folder of Python packages that the host lacks. Where the image, or one that it is made from,
# has a script on_host.sh, what that compiles here is added to it. Tests of correctness run first,
# in four workers; then those that assert on measured times, one after another, with the GPU to
# themselves. `tests=correct` runs the first alone, `tests=timed` the others, `tests=no` none.
# `minutes=N` is a lease's length, all of this included: what fits is run and nothing that is
# finished (leases.py, docs/reference.md); after `--` stand --experiment, --variant, --set,
# --repeat, --gpus, --share. `again=yes` measures more processes of a tenth of what is
# finished: on another host. How the tests went stands beside the run, in OUT/gpu-tests.txt.
#
# Several may run at once, each with its own OUT and GPUs (`-- --gpus device=1`: the tests use
# those, too). They share engine, base and registry. An engine that runs already is left running;
# who started it stops it, when the others are through. OUT/pid is this script's process: on TERM it
# writes what has finished into OUT/run.tgz and ends, on USR1 it writes that and goes on.
# Afterwards, in a checkout: tar -xzf run.tgz -C results/runs/RECIPE, then `ae keep` each run. That
# wants the revision of this copy of the tree: set AE_REVISION to it, or be in a clean checkout.
set -euo pipefail
cd "$(dirname "$0")/../.."
recipe=$1 out=$2
shift 2
contexts=()
extra=
with_tests=(correct timed)
minutes=
again=no
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    value=${1#*=}
    case $1 in
    tests=yes) ;;
    tests=no) with_tests=() ;;
    tests=correct | tests=timed) with_tests=("$value") ;;
    tests=*) echo "$1: yes, no, correct or timed" >&2 && exit 2 ;;
    again=yes | again=no) again=$value ;;
    again=*) echo "$1: yes or no" >&2 && exit 2 ;;
    minutes= | minutes=*[!0-9]*) echo "$1: a whole number of minutes" >&2 && exit 2 ;;
    minutes=*) minutes=$value ;;
    extra=*) extra=$value ;;
    *)
        contexts+=(--context "$1")
        ;;
    esac
    shift
done
[ $# -gt 0 ] && shift
if [ -z "${AE_REVISION:-}" ]; then # a push writes the lock, which is no other tree
    if [ -n "$(git status --porcelain -- . ':!images/lock.yaml' 2>&1)" ]; then
        echo "set AE_REVISION to the revision of this tree: 'ae keep' takes no run without one" >&2
        exit 2
    fi
    AE_REVISION=$(git rev-parse HEAD)
    export AE_REVISION
fi
airgap=(python3 images/airgap/airgap.py)
ae=(python3 -m ae)
home=${AE_AIRGAP_HOME:-/tmp/ae-airgap} # of all that share the engine
export AE_RESULTS=${AE_RESULTS:-$PWD/results}
mkdir -p "$home" "$out"
echo $$ >"$out/pid"

step() { printf '=== %s (at %s s) ===\n' "$*" "$SECONDS"; }

# A command that is waited for. It gets the TERM that this script gets; after USR1 it goes on.
child=
children=()
signalled=
stopped=
attended() {
    local code=0
    "$@" &
    child=$!
    children+=("$child")
    while
        signalled=
        wait "$child" && code=0 || code=$?
        [ -n "$signalled" ]
    do [ -n "$stopped" ] || pack; done
    child=
    [ -z "$stopped" ] || exit 143
    return "$code"
}
trap 'signalled=yes' USR1
trap 'signalled=yes stopped=yes; [ -n "$child" ] || exit 143; kill -TERM "$child" || true' \
    TERM INT HUP

# What has finished in the runs that this script has made, as run.tgz.
began=
made=()
pack() {
    local lock run pid
    [ -n "$began" ] || return 0
    made=()
    for lock in "$AE_RESULTS/runs/$recipe"/*/.lock; do # run|host|process|...
        [ "$lock" -nt "$out/gpu-tests.txt" ] || continue
        IFS='|' read -r run _ pid _ <"$lock" || true
        case " ${children[*]} " in *" $pid "*) made+=("$run") ;; esac
    done
    [ "${#made[@]}" -gt 0 ] || { echo "no run was begun: there is no run.tgz" >&2 && return; }
    # 1: something was added meanwhile, by a run that goes on.
    tar -C "$AE_RESULTS/runs/$recipe" --exclude=traces --exclude='.*' -czf "$out/run.tgz.part" \
        "${made[@]}" || [ $? = 1 ]
    mv "$out/run.tgz.part" "$out/run.tgz"
    echo "to keep them, in a checkout: mkdir -p results/runs/$recipe &&" \
        "tar -xzf run.tgz -C results/runs/$recipe"
    for run in "${made[@]}"; do echo "    ae keep $run"; done
}

# The engine is stopped by who started it, once nobody else holds the lock 9.
started=
more=
at_the_end() {
    trap '' TERM INT HUP USR1 # the engine is not left behind
    pack
    rm -rf "$more" "${tree:-}"
    exec 8>&- # who waits to prepare may go on
    [ -z "$started" ] || { flock 9 && "${airgap[@]}" stop; }
}
trap at_the_end EXIT
exec 9>"$home/in-use"
flock --shared 9

eval "$("${airgap[@]}" env)"
# Its sources' hash; the image and what it is made from: what each compiles here, and its tests.
found=$(python3 -c 'import sys; from pathlib import Path
from ae.images.content import content_hash, made_from
print(content_hash(Path("."), sys.argv[1]), *made_from(Path("."), sys.argv[1]))' "$recipe")
key="${found%% *} ${contexts[*]} $extra" # what tells one image of this recipe from another
scripts=() test_folders=()
for part in ${found#* }; do
    if [ -x "images/$part/on_host.sh" ]; then scripts+=("images/$part/on_host.sh"); fi
    if [ -d "images/$part/tests" ]; then test_folders+=("images/$part/tests"); fi
done
if [ "${#scripts[@]}" -gt 0 ]; then
    step "what the image needs compiled on this host"
    more=$(mktemp -d -p "$home")
    [ -n "$extra" ] && cp -R "$extra/." "$more"
    extra=$more
    for script in "${scripts[@]}"; do "$script" "$extra"; done
fi
if [ -n "$extra" ]; then
    contexts+=(--context "extra=$extra")
fi

{
    flock 8 # one after another: what one has made serves the next
    step "engine"
    if ! docker version >/dev/null 2>&1; then
        "${airgap[@]}" start
        started=yes
    fi

    step "image"
    docker image inspect ae/base:host >/dev/null 2>&1 || "${airgap[@]}" base
    eval "$("${airgap[@]}" registry)"
    if [ "$(cat "$home/made-$recipe" 2>/dev/null)" = "$key" ] &&
        docker image inspect "ae/$recipe:cuda" >/dev/null 2>&1; then
        echo "as another of these scripts has made it: it may be in use"
    else
        "${ae[@]}" build "$recipe" --flavour cuda --base-image ae/base:host --network none \
            "${contexts[@]}"

        step "registry: push, forget, pull by digest"
        "${ae[@]}" push "$recipe" --flavour cuda
        docker image rm --force \
            "$(docker image inspect --format '{{.Id}}' "ae/$recipe:cuda")" >/dev/null
        "${ae[@]}" pull "$recipe" --flavour cuda
        echo "$key" >"$home/made-$recipe"
        cat images/lock.yaml
    fi
} 8>"$home/preparing"
"${ae[@]}" doctor "$recipe" || true # its findings belong to the log, its verdict to a person

here=() # where the tests run: with the GPUs, and as the points, of what is asked for
words=("$@")
for place in "${!words[@]}"; do
    case ${words[place]} in
    --experiment | --gpus) here+=("${words[place]}" "${words[place + 1]:-}") ;;
    --experiment=* | --gpus=*) here+=("${words[place]}") ;;
    esac
done
counted='import sys, xml.etree.ElementTree as tree
found = tree.parse(sys.argv[1]).getroot().find("testsuite").attrib
wrong, skipped = int(found["failures"]) + int(found["errors"]), int(found["skipped"])
passed = int(found["tests"]) - wrong - skipped
print(f"{passed} passed, {wrong} failed, {skipped} skipped")'
tests=0
tree=$AE_RESULTS/shell/$recipe/tests-$$ # which the container sees as $AE_OUT/tests-$$
: >"$out/gpu-tests.txt"
for kind in correct timed; do
    tested="not run by this call"
    if [[ " ${with_tests[*]} " = *" $kind "* ]]; then
        step "GPU tests: $kind"
        options='-m "gpu and timed"'
        if [ "$kind" = correct ]; then
            options='-m "gpu and not timed"'
            python3 -c 'import xdist' 2>/dev/null && options+=' -n 4 --dist worksteal'
        fi
        mkdir -p "$tree/tests"
        cp -R conftest.py pyproject.toml images "$tree"
        cp tests/allowed_skips.txt "$tree/tests"
        options+=" -q --durations=9 -p no:cacheprovider --junit-xml=junit.xml ${test_folders[*]}"
        echo "cd \$AE_OUT/tests-$$ && python -m pytest $options" >"$tree/commands"
        code=0
        # shellcheck disable=SC2016 # for the inner shell
        attended sh -c 'commands=$1; shift; exec "$@" <"$commands"' - "$tree/commands" \
            "${ae[@]}" shell "$recipe" --engine docker "${here[@]}" || code=$?
        tested=$(python3 -c "$counted" "$tree/junit.xml" || echo "no test was run")
        rm -rf "$tree"
        [ "$kind $code" != "timed 5" ] || code=0 # the image has none
        [ "$code" = 0 ] || tests=$code tested="$tested, exit code $code: no number of this run holds"
    fi
    echo "GPU tests in the image's container, $kind: $tested" | tee -a "$out/gpu-tests.txt"
done
AE_ABOUT=$(cat "$out/gpu-tests.txt") # goes into each run, and with it among the kept results
export AE_ABOUT

step "run"
code=0
began=yes
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
began=

step "verdicts"
for run in "${made[@]}"; do "${ae[@]}" check "$recipe" "$run" || true; done
"${ae[@]}" clean --dry-run
step "done, exit code of the run: $code, of the tests: $tests"
exit "$((code ? code : tests))"
