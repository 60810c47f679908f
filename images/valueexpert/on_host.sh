#!/usr/bin/env bash
# Compiles the programs on a GPU host whose CUDA an image borrows (docs/airgap.md), into the folder
# that becomes the build context `extra`:
#
#   on_host.sh EXTRA
#
# Darknet's, too, where AE_DARKNET_DIR names the folder of its source, the build context `darknet`.
# What is there already is kept.
set -euo pipefail
built=$(realpath -m "$1")/programs_built
if [ -f "$built/whole" ]; then exit 0; fi
cd "$(dirname "$0")/../.."
export PYTHONPATH=images/common/src:images/collector/src:images/valueexpert/src${PYTHONPATH:+:$PYTHONPATH}
export ACCEL_TRACE_TOOLKIT=$(realpath -m "$1")/nvidia/cu13${ACCEL_TRACE_TOOLKIT:+:$ACCEL_TRACE_TOOLKIT}
python3 -m valueexpert.build "$built"
if [ -n "${AE_DARKNET_DIR:-}" ]; then
    python3 -m valueexpert.darknet "$AE_DARKNET_DIR"/*.orig.tar.xz "$built"
fi
touch "$built/whole"
