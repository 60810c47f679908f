#!/usr/bin/env bash
# Compiles the collector on a GPU host whose CUDA and PyTorch an image borrows (docs/airgap.md), for
# that host's own GPUs, into the folder that becomes the build context `extra`:
#
#   on_host.sh EXTRA
#
# A build sees nothing of the host's CUDA, so the image brings the result along. What is there
# already is kept. The Sanitizer is that of EXTRA where it has one, else the host's.
set -euo pipefail
extra=$(realpath -m "$1")
built=$extra/accel_trace_built
if [ -f "$built/whole" ]; then exit 0; fi
cd "$(dirname "$0")/../.."
export PYTHONPATH=images/common/src:images/collector/src${PYTHONPATH:+:$PYTHONPATH}
export ACCEL_TRACE_TOOLKIT=$extra/nvidia/cu13${ACCEL_TRACE_TOOLKIT:+:$ACCEL_TRACE_TOOLKIT}
archs=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | tr -d . | sort -u | paste -sd,)
python3 -m accel_trace.build --arch "$archs" --out "$built"
export ACCEL_TRACE_CACHE=$built/hooks
python3 -m accel_trace.handlers.torch_native
python3 -c 'import torch; from accel_trace.uvm import managed; managed.build(torch.version.cuda)'
find "$built" "$extra/.accel_trace_built.lock" -name '*.lock' -delete
sanitizer=$extra/nvidia/cu13/compute-sanitizer/libsanitizer-public.so
# Beside the library, which knows it by its path here: in the image EXTRA has another name.
if [ -f "$sanitizer" ]; then ln -sr "$sanitizer" "$built/"; fi
touch "$built/whole"
