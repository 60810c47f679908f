#!/usr/bin/env bash
# The launcher on a second Slurm: 24.11 of Debian 13, with Apptainer 1.4.5, in a root of its own, as an
# ordinary user. Not a part of CI; docs/slurm.md says when it was last run, and what came of it.
# Needs Debian 12, root, mmdebstrap, the .venv of `make setup` and the engine of .ci/engine.sh.
#
#   .ci/slurm13.sh test [WORDS]  make the root if it is not there (2 min, 1 GB), run the tests there
#   .ci/slurm13.sh remove        delete it
#
# AE_CI_SLURM13 is its folder. The daemons, and what they start, end with the command.
set -euo pipefail

ROOT=$(cd "$(dirname "$0")/.." && pwd -P)
S=${AE_CI_SLURM13:-/tmp/ae-slurm13}
BIN=${AE_CI_BIN:-$ROOT/.venv/bin}
PACKAGES=slurm-wlm,munge,apptainer/sid,squashfs-tools,squashfuse,fuse3,fuse2fs,uidmap,python3,procps
PACKAGES+=,git,ca-certificates
NEEDED=(docker jinja2 matplotlib numpy pandas pydantic pyyaml typer pytest pytest-timeout packaging)

say() { echo "slurm13: $*" >&2; }

make_root() {
    mkdir -p "$S"
    if [ ! -e "$S/root/.whole" ]; then
        say "making the root"
        rm -rf "$S/root"
        printf 'deb http://deb.debian.org/debian %s main\n' trixie sid >"$S/sources.list"
        mmdebstrap --quiet --variant=minbase --aptopt='Acquire::Check-Valid-Until "false"' \
            --aptopt='APT::Default-Release "trixie"' \
            --include=$PACKAGES trixie "$S/root" "$S/sources.list"
        chroot "$S/root" useradd --uid 2000 --create-home ann
        mkdir -p "$S/root"/{python,ae,old,cluster}
        echo /python >"$S/root/usr/lib/python3/dist-packages/ae.pth" # also for what a test starts
        touch "$S/root/.whole"
    fi
    if [ ! -d "$S/python" ]; then
        say "its Python packages"
        "$BIN/uv" pip install --quiet --target "$S/python.part" --python-version 3.13 \
            --python-platform x86_64-manylinux_2_28 --only-binary :all: \
            --constraint "$ROOT/requirements-dev.txt" "${NEEDED[@]}"
        mv "$S/python.part" "$S/python"
    fi
    # For the one who makes a SIF of an image: the engine's socket, and its client.
    touch "$S/root"/{docker.sock,usr/bin/docker}
}

enter() { # in name spaces that end with this command; apptainer looks for the mount that / is on
    cd "$S/root"
    mount --bind . .
    cd "$S/root"
    mount -t proc proc proc
    mount --rbind /sys sys
    mount --rbind /dev dev
    [ -e var/fuse ] || mknod -m 666 var/fuse c 10 229
    mount --bind var/fuse dev/fuse
    mount --bind "$S/python" python
    mount --bind -o ro "$ROOT" ae
    mount --bind "${DOCKER_HOST#unix://}" docker.sock
    mount --bind "$(command -v docker)" usr/bin/docker
    pivot_root . old
    umount --lazy /old
    exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 bash /ae/.ci/slurm13.sh inside "$@"
}

inside() {
    export AE_CI_SLURM=/cluster AE_CI_SLURM_PLAIN=1
    mkdir -p /run/lock
    rm -rf /cluster/* /tmp/*
    chmod 1777 /tmp
    bash /ae/.ci/slurm.sh start
    eval "$(bash /ae/.ci/slurm.sh env)"
    cd /ae
    local ann=(setpriv --reuid 2000 --regid 2000 --groups "$(stat -c %g /docker.sock)"
        env HOME=/home/ann USER=ann PYTHONDONTWRITEBYTECODE=1 DOCKER_HOST=unix:///docker.sock)
    say "a SIF of the base image, as \`ae run\` makes it"
    local sif
    sif=$("${ann[@]}" python3 -c '
from pathlib import Path
from ae.engines.slurm.images import Images
from tests.engines.acts import Lines, base_image
image, images = base_image(Path("/")), Images("apptainer", None)
if not images.has(image):
    images.make(image, Lines())
print(images.about(image)[0])')
    say "$(sinfo --version), $(apptainer --version), $sif"
    ann+=(AE_REVISION=none AE_TEST_SLURM_RUNTIME=apptainer AE_TEST_IMAGE="$sif")
    local tests=(tests/engines/test_contract.py tests/real/slurm/test_slurm_launcher.py
        tests/real/test_background.py)
    # What Slurm does not do here, without control groups: limit memory, confine a job to its GPUs.
    "${ann[@]}" python3 -m pytest -p no:cacheprovider -q -m slurm -k "not doctor and not memory_is_limited" "${tests[@]}" "$@"
}

case "${1:-}" in
test)
    [ "$(id -u)" = 0 ] || { say "needs root"; exit 1; }
    make_root
    eval "$("$ROOT/.ci/engine.sh" env)" && export DOCKER_HOST
    exec unshare --mount --propagation private --pid --fork --kill-child bash "$0" enter "${@:2}"
    ;;
enter | inside) "$1" "${@:2}" ;;
remove) rm -rf --one-file-system "$S" ;;
*)
    sed -n '2,9p' "$0" >&2
    exit 2
    ;;
esac
