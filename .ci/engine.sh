#!/usr/bin/env bash
# A real, private Docker Engine for the tests, on a bare Debian 12 machine, as root.
#
#   .ci/engine.sh start   install Docker and podman if needed, start the daemon, make the base image
#   .ci/engine.sh stop    stop that daemon (and no other)
#   .ci/engine.sh remove  stop it and delete its folder, images and all
#   .ci/engine.sh env     print the line that points the tests at it: eval "$(.ci/engine.sh env)"
#
# Every step is skipped when it is done already. AE_CI_ENGINE is the daemon's folder; each checkout
# has one of its own unless it is given. Nothing outside it is touched but the packages and one base
# image for all: own socket, data, exec root, pid file, bridge and CDI folder, so that another daemon
# is not disturbed.
set -euo pipefail

hash_of() { printf %s "$1" | sha256sum | cut -c1-8; }

HOME_DIR=${AE_CI_ENGINE:-/tmp/ae-ci-$(hash_of "$(cd "$(dirname "$0")/.." && pwd -P)")}
CACHE=${AE_CI_CACHE:-/var/cache/ae-ci}
SOCKET=$HOME_DIR/docker.sock
PID_FILE=$HOME_DIR/dockerd.pid
# Of its own: a daemon that has no bridge removes docker0 under everybody else.
BRIDGE=ae-ci-$(hash_of "$HOME_DIR")
BASE_IMAGE=ae/base:cpu
DEBIAN_IMAGE=debian:bookworm-slim
BASE_PACKAGES=python3,python3-venv,python3-pip,ca-certificates
APT=(apt-get -qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)

say() { echo "engine: $*" >&2; }

install_docker() {
    if [ -x /usr/sbin/dockerd ] && [ -x /usr/libexec/docker/cli-plugins/docker-buildx ] &&
        [ -x /usr/bin/docker ] && dpkg -s runc iptables iproute2 mmdebstrap docker-registry openssh-server openssl >/dev/null 2>&1; then
        return
    fi
    say "installing Docker from Debian 13's packages (they need only glibc 2.34)"
    # Priority 100: nothing is ever upgraded to Debian 13 unless it is asked for with -t.
    cat >/etc/apt/sources.list.d/ae-trixie.sources <<SOURCES
Types: deb
URIs: http://deb.debian.org/debian
Suites: trixie
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
SOURCES
    printf 'Package: *\nPin: release n=trixie\nPin-Priority: 100\n' >/etc/apt/preferences.d/ae-trixie
    export DEBIAN_FRONTEND=noninteractive
    # Packages must not start daemons of their own here.
    local policy=/usr/sbin/policy-rc.d made_policy=no
    if [ ! -e $policy ]; then
        printf '#!/bin/sh\nexit 101\n' >$policy
        chmod +x $policy
        made_policy=yes
    fi
    "${APT[@]}" update
    # Name by name, without -t trixie: only these come from Debian 13. Debian 13's tini and runc
    # would bring its libc along, so they come from Debian 12.
    "${APT[@]}" install -y --no-install-recommends --no-remove tini runc iptables iproute2 mmdebstrap \
        docker-registry openssh-server openssl >&2
    "${APT[@]}" install -y --no-install-recommends --no-remove docker.io/trixie docker-cli/trixie \
        docker-buildx/trixie docker-compose/trixie containerd/trixie >&2
    if [ $made_policy = yes ]; then rm -f $policy; fi
}

install_podman() {
    local wanted=(podman crun uidmap slirp4netns fuse-overlayfs) # Debian 12's own; there is no daemon
    if dpkg -s "${wanted[@]}" >/dev/null 2>&1; then return; fi
    say "installing podman from Debian 12"
    export DEBIAN_FRONTEND=noninteractive
    "${APT[@]}" update
    "${APT[@]}" install -y --no-install-recommends --no-remove "${wanted[@]}" >&2
}

write_config() {
    mkdir -p "$HOME_DIR/cdi" "$HOME_DIR/data" "$HOME_DIR/exec"
    cat >"$HOME_DIR/daemon.json" <<JSON
{"features": {"cdi": true}, "cdi-spec-dirs": ["$HOME_DIR/cdi"], "bridge": "$BRIDGE"}
JSON
    # GPUs that are none, of which a container sees what a launcher looks at: a node each (it is
    # /dev/null) and a program that lists the nodes. Number 2 is granted and brings nothing along.
    cat >"$HOME_DIR/nvidia-smi" <<'SH'
#!/bin/sh
[ "$1" = -L ] || exit 9
for node in /dev/nvidia[0-9]*; do
    number=${node#/dev/nvidia}
    [ -e "$node" ] && echo "GPU $number: Fake (UUID: GPU-fake-$number)"
done
SH
    chmod 755 "$HOME_DIR/nvidia-smi"
    local zero='{"path": "/dev/nvidia0", "hostPath": "/dev/null"}'
    local one='{"path": "/dev/nvidia1", "hostPath": "/dev/null"}'
    cat >"$HOME_DIR/cdi/fake-gpu.json.new" <<JSON
{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "containerEdits": {"mounts": [
  {"hostPath": "$HOME_DIR/nvidia-smi", "containerPath": "/usr/bin/nvidia-smi", "options": ["ro", "bind"]}
]}, "devices": [
  {"name": "0", "containerEdits": {"env": ["AE_FAKE_GPU=0"], "deviceNodes": [$zero]}},
  {"name": "1", "containerEdits": {"env": ["AE_FAKE_GPU=1"], "deviceNodes": [$one]}},
  {"name": "GPU-fake-1", "containerEdits": {"env": ["AE_FAKE_GPU=1"], "deviceNodes": [$one]}},
  {"name": "2", "containerEdits": {"env": ["AE_FAKE_GPU=2"]}},
  {"name": "all", "containerEdits": {"env": ["AE_FAKE_GPU=all"], "deviceNodes": [$zero, $one]}}
]}
JSON
    mv "$HOME_DIR/cdi/fake-gpu.json.new" "$HOME_DIR/cdi/fake-gpu.json"
}

docker_() { /usr/bin/docker -H "unix://$SOCKET" "$@"; }

alive() { [ -s "$PID_FILE" ] && kill -0 "$(cat "$PID_FILE")" 2>/dev/null && docker_ version >/dev/null 2>&1; }

# The first network of 10.231.0.0/16 that no interface has, beginning where the folder's name says.
make_bridge() {
    if [ -e "/sys/class/net/$BRIDGE" ]; then return; fi
    local first n
    first=$((16#$(hash_of "$HOME_DIR" | cut -c1-2)))
    for n in $(seq "$first" 255) $(seq 0 $((first - 1))); do
        if ip -4 -oneline address | grep -qF " 10.231.$n.1/24 "; then continue; fi
        ip link add "$BRIDGE" type bridge
        ip address add "10.231.$n.1/24" dev "$BRIDGE"
        ip link set "$BRIDGE" up
        return
    done
    say "every network of 10.231.0.0/16 is in use"
    return 1
}

start_daemon() {
    write_config
    if alive; then return; fi
    make_bridge
    say "starting dockerd at unix://$SOCKET"
    rm -f "$PID_FILE"
    setsid /usr/sbin/dockerd --config-file "$HOME_DIR/daemon.json" --data-root "$HOME_DIR/data" \
        --exec-root "$HOME_DIR/exec" -H "unix://$SOCKET" -p "$PID_FILE" \
        >"$HOME_DIR/dockerd.log" 2>&1 </dev/null &
    for _ in $(seq 300); do
        if alive; then
            tidy
            return
        fi
        sleep 0.1
    done
    tail -n 20 "$HOME_DIR/dockerd.log" >&2
    say "dockerd did not answer within 30 s"
    return 1
}

# What earlier runs left: images that lost their name to a newer build, and build cache nobody needs.
tidy() {
    docker_ image prune --force >/dev/null
    docker_ builder prune --force --keep-storage 6GB >/dev/null
}

make_base() {
    if docker_ image inspect $BASE_IMAGE $DEBIAN_IMAGE >/dev/null 2>&1; then return; fi
    mkdir -p "$CACHE"
    local tar=$CACHE/base-bookworm-1.tar
    if [ ! -s "$tar" ]; then
        say "making the base image from Debian's own packages"
        mmdebstrap --quiet --format=tar --variant=minbase --include=$BASE_PACKAGES \
            --aptopt='Acquire::Retries "3"' \
            --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
            bookworm "$tar.part" http://deb.debian.org/debian
        mv "$tar.part" "$tar"
    fi
    docker_ import --change 'CMD ["python3"]' --change 'LABEL ae.image=base' \
        --change 'LABEL ae.flavour=cpu' "$tar" $BASE_IMAGE >/dev/null
    # Docker Hub may be out of reach: this stands for what our own base is built from.
    docker_ image inspect $DEBIAN_IMAGE >/dev/null 2>&1 || docker_ tag $BASE_IMAGE $DEBIAN_IMAGE
}

stop_daemon() {
    if [ ! -s "$PID_FILE" ]; then return; fi
    local pid
    pid=$(cat "$PID_FILE")
    kill "$pid" 2>/dev/null || return 0
    for _ in $(seq 200); do
        if ! kill -0 "$pid" 2>/dev/null; then
            ip link delete "$BRIDGE" 2>/dev/null || true
            return 0
        fi
        sleep 0.1
    done
    say "dockerd (pid $pid) is still there after 20 s"
    return 1
}

# A dockerd leaves mounts behind in its folder.
remove_all() {
    stop_daemon
    local mounted
    while read -r mounted; do umount --lazy "$mounted"; done < \
        <(awk -v home="$HOME_DIR/" 'index($2, home) == 1 {print $2}' /proc/self/mounts | sort -r)
    rm -rf --one-file-system "$HOME_DIR"
}

case "${1:-}" in
start)
    [ "$(id -u)" = 0 ] || { say "needs root"; exit 1; }
    mkdir -p "$HOME_DIR" "$CACHE"
    exec 9>"$CACHE/lock"
    flock 9 # two starts at once, of any folder: the second finds packages and base image done
    install_docker 9>&-
    install_podman 9>&-
    start_daemon 9>&-
    make_base 9>&-
    say "ready: $(docker_ version --format 'Docker Engine {{.Server.Version}}') at unix://$SOCKET"
    ;;
stop) stop_daemon ;;
remove) remove_all ;;
env) echo "export AE_TEST_DOCKER_HOST=unix://$SOCKET DOCKER_HOST=unix://$SOCKET" ;;
*)
    sed -n '2,11p' "$0" >&2
    exit 2
    ;;
esac
