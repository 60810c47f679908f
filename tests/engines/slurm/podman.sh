#!/bin/bash
#SBATCH --job-name=ae-run-point-1
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=96
#SBATCH --mem=0
#SBATCH --time=14
#SBATCH --gres=gpu:h200:2
#SBATCH --exclusive
#SBATCH --export=NIL
#SBATCH --signal=B:TERM@60
#SBATCH --no-requeue
#SBATCH --open-mode=append
#SBATCH --chdir=/r/points/.slurm/ae-run-point-1
#SBATCH --output=/r/points/.slurm/ae-run-point-1/slurm.log
# The point of key f00 in podman
cd /r/points/.slurm/ae-run-point-1 || exit 3
rm -rf out end.json late inside gpus   # started again by Slurm: it is a new measurement
mkdir out || exit 3
head -c 65536 /dev/zero >reserve || exit 3   # so that the end can be written on a full disk
scratch=$(mktemp -d) && chmod 1777 "$scratch" || exit 3
( while kill -0 $$ 2>/dev/null; do echo 30 >heartbeat; sleep 30; done ) &
beat=$!
child= again= term=false refused=

finish() {  # with the exit code, or null and why nothing was run in $refused
    kill $beat
    rm -rf reserve "$scratch"
    find out -type f -exec sync {} +
    printf '{"code": %s, "refused": "%s", "stopped": %s, "late": %s, "limit": %s, "oom": %d,
"job": %d, "restarts": %d, "node": "%s", "cpus": %d, "memory": "%s", "started": %s, "ended": %s}\n' \
        "$1" "$refused" $term "$([ -e late ] && echo true || echo false)" \
        "$([ $SECONDS -ge 715 ] && echo true || echo false)" $(($(kills) - before)) \
        "$SLURM_JOB_ID" "${SLURM_RESTART_COUNT:-0}" "$SLURMD_NODENAME" "$SLURM_CPUS_ON_NODE" \
        "${SLURM_MEM_PER_NODE:-all}" "$started" "$(date +%s.%N)" >end.part &&
        sync end.part && mv end.part end.json && sync .
    exit "$2"
}
refuse() { refused=$1; finish null 3; }
kills() { awk '$1 == "oom_kill" {n = $2} END {print n + 0}' /proc/vmstat; }
tell() { kill -TERM -- "-$child"; sleep 10; kill -KILL -- "-$child"; }
before=$(kills) started=$(date +%s.%N)
trap 'term=true again=1; [ "$child" ] && tell 2>/dev/null &' TERM

# Of a node that is the job's alone it may have more GPUs than the point is to see.
IFS=, read -ra mine <<<"$CUDA_VISIBLE_DEVICES"
export CUDA_VISIBLE_DEVICES=$(IFS=,; echo "${mine[*]:0:2}") CUDA_DEVICE_ORDER=PCI_BUS_ID
if [ 2 -gt 0 ]; then
    case "$CUDA_VISIBLE_DEVICES $SLURM_SHARDS_ON_NODE $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" in
    *MIG*) refuse "Slurm gave a MIG slice, which is no whole GPU" ;;
    *" "*[0-9]*) refuse "Slurm gave a share of a GPU (shard or mps)" ;;
    esac
    nvidia-smi --query-gpu=uuid,name --format=csv,noheader --id="$CUDA_VISIBLE_DEVICES" >gpus
    mapfile -t uuids < <(cut -d, -f1 gpus)
    [ ${#uuids[@]} -eq 2 ] || refuse "nvidia-smi shows ${#uuids[@]} of the 2 GPUs that were asked for"
fi
( flock 9; podman image exists sha256:1234 || podman load --quiet --input /cache/slurm/x.img >&2 ) \
    9>"/tmp/.ae-podman-$UID" || refuse "podman cannot load the image"
trap 'podman rm --force --time 0 ae-run-point-1 >/dev/null 2>&1' EXIT
who=(--user "$(id -u):$(id -g)")
[ "$UID" = 0 ] || who+=(--userns keep-id)
most=$(cat /proc/sys/kernel/pid_max) own=$(ulimit -Hu) files=$(ulimit -Hn)
[ "$own" = unlimited ] || [ "$own" -gt "$most" ] || most=$own
limits=(--ulimit "nofile=$files:$files" --ulimit "nproc=$most:$most")
# In the job's own control group it has the job's limits, and ends with the job; runc cannot.
[ "$(podman info --format '{{.Host.OCIRuntime.Name}}')" = crun ] && limits+=(--cgroups disabled)
box=(podman run --rm --init --interactive --pull never --log-driver none --http-proxy=false --name ae-run-point-1 "${who[@]}" "${limits[@]}" --entrypoint '' --cap-drop ALL --security-opt no-new-privileges --read-only --network none --tmpfs /ae/home:rw,exec,nosuid,nodev,mode=1777 --tmpfs /tmp:rw,exec,nosuid,nodev,mode=1777 --mount type=bind,source=/data/x,target=/data,readonly --mount type=bind,source=/r/points/.slurm/ae-run-point-1/out,target=/ae/out "${uuids[@]/#/--device=nvidia.com/gpu=}" --env AE_OUT=/ae/out --env AE_POINT=point --env HOME=/ae/home --env USER=ae --env LOGNAME=ae --env CUDA_DEVICE_ORDER=PCI_BUS_ID --env NVIDIA_VISIBLE_DEVICES=void --env 'K=a,b c' sha256:1234)
if [ 2 -gt 0 ] && [ "all" ]; then
    "${box[@]}" sh -c 'nvidia-smi -L' >inside 2>&1 </dev/null
    given=$(printf '%s\n' "${uuids[@]}" | sort)
    seen=$(sed -nE 's/^GPU [0-9]+: .*\(UUID: (.*)\)$/\1/p' inside | sort)
    [ all = some ] && seen=$(comm -12 <(echo "$given") <(echo "$seen"))
    said=$(tail -n 1 inside | tr -cd 'A-Za-z0-9 .,:;=/_()-' | cut -c 1-200)
    [ "$given" = "$seen" ] || refuse "inside the container nvidia-smi lists ${seen//$'\n'/ }, not ${given//$'\n'/ }: $said"
fi

[ $term = true ] && finish 143 143
started=$(date +%s.%N)
cd out
setsid "${box[@]}" python3 -m w --out /ae/out 'a b' 'it'"'"'s' '@box@ $HOME' </dev/null >../stdout 2>../stderr &
child=$!
cd ..
( sleep 600; touch late; tell ) 2>/dev/null &
alarm=$!
code=
while again=; wait $child; got=$?; [ $got = 127 ] && [ "$code" ] || code=$got; [ "$again" ]; do :; done
kill $alarm 2>/dev/null
kill -KILL -- "-$child" 2>/dev/null   # what it left behind
finish "$code" "$code"
