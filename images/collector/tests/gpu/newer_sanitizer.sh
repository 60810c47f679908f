#!/bin/sh
# Do newer Sanitizers run on this host's driver, and do they see copies by tensor map? One command:
#   images/collector/tests/gpu/newer_sanitizer.sh [VERSION or FOLDER...]    (default: 13.5.25)
# A version is fetched from PyPI; where nothing can be fetched, name the folder into which its wheel
# was unpacked: `pip download --no-deps -d W nvidia-cuda-sanitizer-api==13.5.25; unzip -d FOLDER W/*.whl`.
# The last line for each answers: YES, NO or COULD NOT TELL, and why. Exit code 0 only where all do.
set -u
cd "$(dirname "$0")/../../../.." || exit 1
export PYTHONPATH="images/common/src:images/collector/src${PYTHONPATH:+:$PYTHONPATH}"
unset ACCEL_TRACE_BUILT
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
status=0
answer() { echo "$1: $2"; case $2 in YES*) ;; *) status=1 ;; esac; }
[ $# -gt 0 ] || set -- 13.5.25
arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -1 | tr -d .)
[ -n "$arch" ] || { answer "$*" "COULD NOT TELL: this machine has no NVIDIA GPU"; exit 1; }
for wanted in "$@"; do
  folder=$wanted
  if [ ! -d "$folder" ]; then
    folder=$out/$wanted
    python -m pip install -q --no-deps --target "$folder" "nvidia-cuda-sanitizer-api==$wanted" ||
      { answer "$wanted" "COULD NOT TELL: it cannot be fetched; name a folder"; continue; }
  fi
  export ACCEL_TRACE_TOOLKIT="$folder/nvidia/cu13"
  name=$(echo "$wanted" | tr / _)
  library=$(python -m accel_trace.build --arch "$arch" --out "$out/$name-built") ||
    { answer "$wanted" "COULD NOT TELL: the collector does not build with it"; continue; }
  grep -q '"AT_TENSOR": true' "$library/build.json" ||
    { answer "$wanted" "NO: its header has no patch for tensor maps"; continue; }
  python -m accel_trace probe --library "$library" ||
    { answer "$wanted" "NO: it does not run on this driver (above)"; continue; }
  for tool in access_counts working_set; do
    python -m accel_trace run --no-probe --library "$library" --tool $tool \
      --out "$out/$name-$tool" -- python -c "
import torch
a, b = (torch.randn(2048, 2048, device='cuda', dtype=torch.bfloat16) for _ in range(2))
print(float((a @ b).float().abs().mean()))
" >"$out/said" 2>&1 || {
      tail -3 "$out/said"; answer "$wanted" "NO: a program fails under it and $tool"; continue 2
    }
    grep "by tensor map\|not counted\|not seen\|by descriptor" "$out/$name-$tool/report.txt" | head -5
  done
  if python - "$out/$name" <<'PY'
import sys
from accel_trace.session import Session
said = {"access_counts": "copied by tensor map", "working_set": "is seen by patches"}
sys.exit(not all(
    any(text in note.text for process in Session(f"{sys.argv[1]}-{tool}").processes
        for note in process.notes) for tool, text in said.items()))
PY
  then answer "$wanted" "YES: it runs, and a bf16 product's copies by tensor map reach its patches"
  else answer "$wanted" "NO: it runs, and a bf16 product's copies by tensor map reach no patch"
  fi
done
exit $status
