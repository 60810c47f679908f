#!/usr/bin/env bash
# Compiles the collector on a GPU host whose CUDA and PyTorch an image borrows (docs/airgap.md), for
# that host's own GPUs, into the folder that becomes the build context `extra`:
#
#   on_host.sh EXTRA
#
# A build sees nothing of the host's CUDA, so the image brings the result along. What is there already
# is kept.
set -euo pipefail
cd "$(dirname "$0")/../.."
built=$(realpath -m "$1")/accel_trace_built
if [ -f "$built/whole" ]; then exit 0; fi
export PYTHONPATH=images/common/src:images/collector/src${PYTHONPATH:+:$PYTHONPATH}
archs=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | tr -d . | sort -u | paste -sd,)
python3 -m accel_trace.build --arch "$archs" --out "$built"
export ACCEL_TRACE_CACHE=$built/hooks
python3 -m accel_trace.handlers.torch_native
python3 -c 'import torch; from accel_trace.uvm import managed; managed.build(torch.version.cuda)'
find "$built" "$(dirname "$built")/.accel_trace_built.lock" -name '*.lock' -delete
touch "$built/whole"
