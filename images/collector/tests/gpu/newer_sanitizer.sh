#!/bin/sh
# Whether newer Sanitizers run on this host's driver, and whether they see copies by tensor map.
# Takes folders into which wheels of nvidia-cuda-sanitizer-api were unpacked:
#   pip download --no-deps -d wheels nvidia-cuda-sanitizer-api==13.5.25
#   unzip -d newer/13.5 wheels/nvidia_cuda_sanitizer_api-13.5.25-*.whl
#   images/collector/tests/gpu/newer_sanitizer.sh newer/13.5
set -u
cd "$(dirname "$0")/../../../.." || exit 1
export PYTHONPATH="images/common/src:images/collector/src${PYTHONPATH:+:$PYTHONPATH}"
out=$(mktemp -d)
for folder in "$@"; do
  echo "== $folder"
  export ACCEL_TRACE_TOOLKIT="$folder/nvidia/cu13"
  arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)
  python -m accel_trace build --arch "$arch" || continue
  library=$(python -m accel_trace build --arch "$arch")
  python -m accel_trace probe --library "$library" || continue
  name=$(echo "$folder" | tr / _)
  python -m accel_trace run --no-probe --library "$library" --tool working_set --out "$out/$name" \
    -- python -c "
import torch
a, b = (torch.randn(2048, 2048, device='cuda', dtype=torch.bfloat16) for _ in range(2))
print(float((a @ b).float().abs().mean()))
"
  grep -h "note:\|warning:\|descriptor\|not seen" "$out/$name/report.txt"
done
