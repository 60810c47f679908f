#!/usr/bin/env bash
# Compiles the programs on a GPU host whose CUDA an image borrows (docs/airgap.md), into the folder
# that becomes the build context `extra`:
#
#   on_host.sh EXTRA
#
# Darknet's, too, where AE_DARKNET_DIR names the folder of its source, the build context `darknet`;
# one that does not compile is a warning. What is there already is kept.
set -euo pipefail
extra=$(realpath -m "$1")
built=$extra/programs_built
darknet=${AE_DARKNET_DIR:+$(realpath "$AE_DARKNET_DIR")}
cd "$(dirname "$0")/../.."
sources=images/common/src:images/collector/src:images/valueexpert/src
export PYTHONPATH=$sources${PYTHONPATH:+:$PYTHONPATH}
export ACCEL_TRACE_TOOLKIT=$extra/nvidia/cu13${ACCEL_TRACE_TOOLKIT:+:$ACCEL_TRACE_TOOLKIT}
if [ ! -f "$built/whole" ]; then
    python3 -m valueexpert.build "$built"
    touch "$built/whole"
fi
if [ -n "$darknet" ] && [ ! -f "$built/debian-darknet/yolov3-tiny.cfg" ]; then
    python3 -m valueexpert.darknet "$darknet"/*.orig.tar.xz "$built" || true
fi
