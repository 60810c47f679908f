#!/usr/bin/env bash
# A real, private Slurm for the tests, on a bare Debian 12 machine, as root: one slurmctld, three
# slurmd of this host, six GPUs that are none.
#
#   .ci/slurm.sh start   install Slurm if needed, start the daemons, wait until the nodes are idle
#   .ci/slurm.sh stop    stop those daemons (and no others)
#   .ci/slurm.sh remove  stop them and delete the cluster's folder
#   .ci/slurm.sh env     print the lines that point the tests at it: eval "$(.ci/slurm.sh env)"
#
# AE_CI_SLURM is the folder of the cluster; each checkout has one of its own unless it is given.
# Nothing outside it is touched but the packages and the control groups of its jobs. With
# AE_CI_SLURM_PLAIN=1 (.ci/slurm13.sh) Slurm is there, and has no control groups and no pyxis.
set -euo pipefail

hash_of() { printf %s "$1" | sha256sum | cut -c1-8; }

HERE=$(cd "$(dirname "$0")" && pwd -P)
S=${AE_CI_SLURM:-/tmp/ae-slurm-$(hash_of "$(dirname "$HERE")")}
PORT=$((20000 + 16#$(hash_of "$S" | cut -c1-3) * 8)) # 20000 to 52768, eight for each folder
FIRST_JOB=$((16#$(hash_of "$S" | cut -c1-3) * 10000 + 1)) # clusters share the control groups of jobs
NODES=(n1 n2 n3)
PLAIN=${AE_CI_SLURM_PLAIN:-}
TRACKED=cgroup TASKS=cgroup
if [ "$PLAIN" ]; then TRACKED=linuxproc TASKS=none; fi
export SLURM_CONF=$S/etc/slurm.conf
APT=(apt-get -qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)

say() { echo "slurm: $*" >&2; }

install_slurm() {
    # libslurm-dev and gcc: for the stand-in of pyxis.
    local wanted=(slurm-wlm munge libslurm-dev gcc libc6-dev)
    if dpkg -s "${wanted[@]}" >/dev/null 2>&1; then return; fi
    say "installing Slurm from Debian 12"
    export DEBIAN_FRONTEND=noninteractive
    # Packages must not start daemons of their own here.
    local policy=/usr/sbin/policy-rc.d made_policy=no
    if [ ! -e $policy ]; then
        printf '#!/bin/sh\nexit 101\n' >$policy
        chmod +x $policy
        made_policy=yes
    fi
    "${APT[@]}" update
    "${APT[@]}" install -y --no-install-recommends --no-remove "${wanted[@]}" >&2
    if [ $made_policy = yes ]; then rm -f $policy; fi
}

write_config() {
    local host
    host=$(hostname -s)
    mkdir -p "$S"/{etc,state,log,run,dev,bin,tmp} "${NODES[@]/#/$S/spool/}"
    if [ ! -s "$S/etc/munge.key" ]; then
        (umask 077 && head -c 1024 /dev/urandom >"$S/etc/munge.key")
    fi
    # NVIDIA's major number and no driver: opening one that a job may use says ENXIO, another EPERM.
    for number in 0 1; do
        [ -e "$S/dev/nvidia$number" ] || mknod -m 666 "$S/dev/nvidia$number" c 195 $number
    done
    cat >"$S/etc/slurm.conf" <<CONF
ClusterName=ae
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$PORT
AuthType=auth/munge
AuthInfo=socket=$S/run/munge.socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$S/state
SlurmctldPidFile=$S/run/slurmctld.pid
SlurmdPidFile=$S/run/slurmd.%n.pid
SlurmdSpoolDir=$S/spool/%n
SlurmctldLogFile=$S/log/slurmctld.log
SlurmdLogFile=$S/log/slurmd.%n.log
ProctrackType=proctrack/$TRACKED
TaskPlugin=task/$TASKS
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=0,batch_sched_delay=0
ReturnToService=2
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
GresTypes=gpu
FirstJobId=$FIRST_JOB
MinJobAge=8
KillWait=3
MessageTimeout=3
SlurmdTimeout=15
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PlugStackConfig=$S/etc/plugstack.conf
TaskProlog=$S/etc/prolog.sh
NodeName=n[1-3] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((PORT + 1))-$((PORT + 3))] CPUs=4 RealMemory=4000 Gres=gpu:h200:2 State=UNKNOWN
PartitionName=gpu Nodes=n[1-3] Default=YES MaxTime=60 DefaultTime=5 PriorityTier=10 PreemptMode=OFF State=UP
PartitionName=short Nodes=n[1-3] MaxTime=1 DefaultTime=1 PriorityTier=10 PreemptMode=OFF State=UP
PartitionName=scavenge Nodes=n[1-3] MaxTime=60 DefaultTime=5 PriorityTier=1 PreemptMode=REQUEUE GraceTime=1 State=UP
CONF
    echo "AutoDetect=off
NodeName=n[1-3] Name=gpu Type=h200 File=$S/dev/nvidia[0-1]" >"$S/etc/gres.conf"
    : >"$S/etc/plugstack.conf"
    if [ "$PLAIN" ]; then
        echo "CgroupPlugin=disabled" >"$S/etc/cgroup.conf"
    else
        echo "CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
ConstrainDevices=yes
ConstrainRAMSpace=yes" >"$S/etc/cgroup.conf"
        make_pyxis
    fi
    # What jobs find besides Debian's programs: an nvidia-smi that lists what they may open, and a
    # folder for what a job leaves that is killed.
    chmod 1777 "$S/tmp"
    echo "#!/bin/sh
echo export PATH=$S/bin:/usr/bin:/bin
echo export TMPDIR=$S/tmp" >"$S/etc/prolog.sh"
    cat >"$S/bin/nvidia-smi" <<SH
#!/bin/bash
query= only=
for word; do
    case \$word in
    --query-gpu=*) query=\${word#*=} ;;
    --id=*) only=,\${word#*=}, ;;
    --query-compute-apps=*) exit ;;
    esac
done
seen=0
for number in 0 1; do
    (: <"$S/dev/nvidia\$number") 2>&1 | grep -q "not permitted" && continue
    one=\$seen uuid=GPU-\$SLURMD_NODENAME-\$number seen=\$((seen + 1))
    case \$only in '' | *,\$one,*) ;; *) continue ;; esac
    case \$query in
    '') echo "GPU \$one: NVIDIA H200 (UUID: \$uuid)" ;;
    uuid,name) echo "\$uuid, NVIDIA H200" ;;
    *) echo "\$one, \$uuid, NVIDIA H200, 143771, 143000, 9.0, 580.65.06" ;;
    esac
done
SH
    chmod 755 "$S/etc/prolog.sh" "$S/bin/nvidia-smi"
}

make_pyxis() {
    gcc -shared -fPIC -o "$S/bin/pyxis.so.new" "$HERE/pyxis.c" && mv "$S/bin/pyxis.so.new" "$S/bin/pyxis.so"
    echo "required $S/bin/pyxis.so" >"$S/etc/plugstack.conf"
}

alive() { [ -s "$S/run/$1.pid" ] && kill -0 "$(cat "$S/run/$1.pid")" 2>/dev/null; }

start_daemons() {
    # Restarted daemons need the environment that they were first given, and nothing of a person's.
    local clean=(env -i "PATH=$S/bin:/usr/sbin:/usr/bin:/sbin:/bin" "SLURM_CONF=$SLURM_CONF")
    alive munged || "${clean[@]}" munged --key-file="$S/etc/munge.key" --socket="$S/run/munge.socket" \
        --pid-file="$S/run/munged.pid" --log-file="$S/log/munged.log" --seed-file="$S/run/munge.seed" --force
    alive slurmctld || "${clean[@]}" slurmctld -f "$SLURM_CONF"
    for node in "${NODES[@]}"; do
        alive "slurmd.$node" || "${clean[@]}" slurmd -f "$SLURM_CONF" -N "$node"
    done
    for _ in $(seq 200); do
        if [ "$(sinfo -h -o %T 2>/dev/null | sort -u)" = idle ]; then return; fi
        # A controller that has lost its state gives a number twice, and drains the node for that.
        for node in $(sinfo -h -N -o '%N %T' 2>/dev/null | awk '/drain/ {print $1}' | sort -u); do
            scontrol update "NodeName=$node" State=RESUME || true
        done
        sleep 0.1
    done
    sinfo >&2 || tail -n 20 "$S/log/slurmctld.log" >&2
    say "the nodes are not idle after 20 s"
    return 1
}

stop_daemons() {
    local pids=()
    if alive slurmctld; then scancel --user=root --quiet || true; fi
    for name in "${NODES[@]/#/slurmd.}" slurmctld munged; do
        if alive "$name"; then pids+=("$(cat "$S/run/$name.pid")"); fi
    done
    [ ${#pids[@]} -eq 0 ] || kill "${pids[@]}"
    for _ in $(seq 100); do
        if ! kill -0 "${pids[@]}" 2>/dev/null; then return 0; fi
        sleep 0.1
    done
}

case "${1:-}" in
start)
    [ "$(id -u)" = 0 ] || { say "needs root"; exit 1; }
    [ "$PLAIN" ] || install_slurm
    write_config
    start_daemons
    say "ready: $(sinfo --version), $(sinfo -h -o '%D nodes'| head -1), $SLURM_CONF"
    ;;
stop) stop_daemons ;;
remove)
    stop_daemons
    rm -rf --one-file-system "$S"
    # Its nodes' control groups, which are empty now; those of another cluster have the same names.
    pgrep -x slurmd >/dev/null || find /sys/fs/cgroup -depth -type d -path '*/slurm_n[123]*' -exec rmdir {} + || true
    ;;
env) echo "export AE_TEST_SLURM=$S SLURM_CONF=$SLURM_CONF" ;;
*)
    sed -n '2,12p' "$0" >&2
    exit 2
    ;;
esac
