# The point of key @key@ in @runtime@
cd @folder@ || exit 3
rm -rf out end.json late inside gpus   # started again by Slurm: it is a new measurement
mkdir out || exit 3
head -c 65536 /dev/zero >reserve || exit 3   # so that the end can be written on a full disk
scratch=$(mktemp -d) && chmod 1777 "$scratch" || exit 3
( while kill -0 $$ 2>/dev/null; do echo @beat@ >heartbeat; sleep @beat@; done ) &
beat=$!
child= again= term=false refused=

finish() {  # with the exit code, or null and why nothing was run in $refused
    kill $beat
    rm -rf reserve "$scratch"
    find out -type f -exec sync {} +
    printf '{"code": %s, "refused": "%s", "stopped": %s, "late": %s, "limit": %s, "oom": %d,
"job": %d, "restarts": %d, "node": "%s", "cpus": %d, "memory": "%s", "started": %s, "ended": %s}\n' \
        "$1" "$refused" $term "$([ -e late ] && echo true || echo false)" \
        "$([ $SECONDS -ge @limit@ ] && echo true || echo false)" $(($(kills) - before)) \
        "$SLURM_JOB_ID" "${SLURM_RESTART_COUNT:-0}" "$SLURMD_NODENAME" "$SLURM_CPUS_ON_NODE" \
        "${SLURM_MEM_PER_NODE:-all}" "$started" "$(date +%s.%N)" >end.part &&
        sync end.part && mv end.part end.json && sync .
    exit "$2"
}
refuse() { refused=$1; finish null 3; }
kills() { awk '$1 == "oom_kill" {n = $2} END {print n + 0}' /proc/vmstat; }
tell() { kill -TERM -- "-$child"; sleep @grace@; kill -KILL -- "-$child"; }
before=$(kills) started=$(date +%s.%N)
trap 'term=true again=1; [ "$child" ] && tell 2>/dev/null &' TERM

# Of a node that is the job's alone it may have more GPUs than the point is to see.
IFS=, read -ra mine <<<"$CUDA_VISIBLE_DEVICES"
export CUDA_VISIBLE_DEVICES=$(IFS=,; echo "${mine[*]:0:@count@}") CUDA_DEVICE_ORDER=PCI_BUS_ID
if [ @count@ -gt 0 ]; then
    case "$CUDA_VISIBLE_DEVICES $SLURM_SHARDS_ON_NODE $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" in
    *MIG*) refuse "Slurm gave a MIG slice, which is no whole GPU" ;;
    *" "*[0-9]*) refuse "Slurm gave a share of a GPU (shard or mps)" ;;
    esac
    nvidia-smi --query-gpu=uuid,name --format=csv,noheader --id="$CUDA_VISIBLE_DEVICES" >gpus
    mapfile -t uuids < <(cut -d, -f1 gpus)
    [ ${#uuids[@]} -eq @count@ ] || refuse "nvidia-smi shows ${#uuids[@]} of the @count@ GPUs that were asked for"
fi
@before@
box=(@box@)
if [ @count@ -gt 0 ] && [ "@exact@" ]; then
    "${box[@]}" sh -c 'nvidia-smi -L' >inside 2>&1 </dev/null
    given=$(printf '%s\n' "${uuids[@]}" | sort)
    seen=$(sed -nE 's/^GPU [0-9]+: .*\(UUID: (.*)\)$/\1/p' inside | sort)
    [ @exact@ = some ] && seen=$(comm -12 <(echo "$given") <(echo "$seen"))
    said=$(tail -n 1 inside | tr -cd 'A-Za-z0-9 .,:;=/_()-' | cut -c 1-200)
    [ "$given" = "$seen" ] || refuse "inside the container nvidia-smi lists ${seen//$'\n'/ }, not ${given//$'\n'/ }: $said"
fi

[ $term = true ] && finish 143 143
started=$(date +%s.%N)
cd out
setsid "${box[@]}" @argv@ </dev/null >../stdout 2>../stderr &
child=$!
cd ..
( sleep @deadline@; touch late; tell ) 2>/dev/null &
alarm=$!
code=
while again=; wait $child; got=$?; [ $got = 127 ] && [ "$code" ] || code=$got; [ "$again" ]; do :; done
kill $alarm 2>/dev/null
kill -KILL -- "-$child" 2>/dev/null   # what it left behind
finish "$code" "$code"
