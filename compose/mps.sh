#!/bin/sh
# Runs an MPS control daemon in the foreground and has it quit when asked to stop.
#
#   mps.sh           run; 3: the driver's program, the folders or the GPU are not there
#   mps.sh status    0 when the daemon answers
#
# Needs CUDA_MPS_PIPE_DIRECTORY and CUDA_MPS_LOG_DIRECTORY, folders of its own below one parent.
set -eu
control=${AE_MPS_CONTROL:-nvidia-cuda-mps-control}

fail() {
    echo "mps: $1" >&2
    exit 3
}

if [ "${1:-}" = status ]; then
    echo get_server_list | timeout 8 "$control" >/dev/null
    exit
fi

pipe=${CUDA_MPS_PIPE_DIRECTORY:-} log=${CUDA_MPS_LOG_DIRECTORY:-}
[ -n "$pipe" ] && [ -n "$log" ] || fail "set CUDA_MPS_PIPE_DIRECTORY and CUDA_MPS_LOG_DIRECTORY"
[ "$pipe" != /tmp/nvidia-mps ] || fail "/tmp/nvidia-mps is everybody's: name a folder of your own"
command -v "$control" >/dev/null || fail "there is no $control: start it with a GPU and the driver's programs (NVIDIA Container Toolkit)"
ls /dev/nvidia[0-9]* >/dev/null 2>&1 || fail "there is no GPU in this container"
(umask 077 && mkdir -p "$pipe" "$log") || fail "cannot make $pipe and $log: who owns the folder above?"
chmod 700 "$pipe" "$log" || fail "$pipe and $log belong to somebody else"
if [ -e "$pipe/control" ] && sh "$0" status 2>/dev/null; then
    fail "a daemon answers at $pipe already"
fi

stop() {
    echo quit | timeout 15 "$control" || true
    wait "$daemon" || true
    exit 0
}
"$control" -f &
daemon=$!
trap stop TERM INT
wait "$daemon"
