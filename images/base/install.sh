#!/bin/sh
# What the steps of a Dockerfile have in common, bound into them from the build context (it is in no
# image). Each step ends with settle.sh.
#
#   RUN --mount=type=bind,source=base,target=/base \
#       --mount=type=bind,from=requirements,target=/requirements \
#       --mount=type=bind,from=wheels,target=/wheels \
#       --mount=type=secret,id=ca,target=/run/secrets/ca \
#       sh /base/install.sh venv; \
#       sh /base/install.sh pip requirements-cpu.txt; \
#       sh /base/settle.sh /opt/ae/venv
#
#   apt FILE               Debian packages: a name a line
#   venv                   the virtual environment /opt/ae/venv, empty but for pip
#   pip FILE [OPTION...]   Python packages by hash: from /wheels, from PyPI, and from the index that
#                          the file names at its head (# index: URL) unless /wheels has such a build
#   copy FOLDER...         to /opt/ae, readable by everybody, without what Python compiled
#
# FILE is in /requirements. /run/secrets/ca: certificates for a proxy that inspects TLS. On a base
# that borrows the host's packages (AE_BORROWED, images/airgap/airgap.py) only `copy` does anything.
set -eu

ca=/run/secrets/ca
verb=$1
shift

if [ "$verb" = copy ]; then
    mkdir -p /opt/ae
    cp -R "$@" /opt/ae/
    for folder in "$@"; do
        copied=/opt/ae/$(basename "$folder")
        find "$copied" -name __pycache__ -prune -exec rm -r {} +
        chmod -R u=rwX,go=rX "$copied"
    done
    exit
fi

if [ -n "${AE_BORROWED:-}" ]; then exit; fi

case $verb in
apt)
    if [ -s $ca ]; then
        echo "Acquire::https::CAInfo \"$ca\";" >/etc/apt/apt.conf.d/99ca
    fi
    apt-get update -qq
    grep -v '^#' "/requirements/$1" >/tmp/packages
    DEBIAN_FRONTEND=noninteractive xargs --arg-file /tmp/packages \
        apt-get install -qq --no-install-recommends
    rm -rf /var/lib/apt/lists/* /etc/apt/apt.conf.d/99ca
    ;;
venv)
    python3 -m venv /opt/ae/venv
    /opt/ae/venv/bin/pip uninstall --disable-pip-version-check --yes --quiet setuptools
    find /opt/ae/venv -name __pycache__ -prune -exec rm -r {} +
    ;;
pip)
    file=/requirements/$1
    shift
    export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
    if [ -s $ca ]; then export PIP_CERT=$ca; fi
    # PyPI has no CPU build of PyTorch. Where no folder has its wheel, PyTorch's own index is asked.
    index=$(sed -n 's/^# index: *//p' "$file")
    if [ "$index" ] && [ -z "$(find /wheels -name 'torch-*+cpu-*.whl')" ]; then
        export PIP_EXTRA_INDEX_URL="$index" PIP_RETRIES=1
    fi
    if ! /opt/ae/venv/bin/pip install --no-compile --require-hashes --find-links /wheels \
            -r "$file" "$@" 2>/tmp/errors; then
        if grep -q 'requirement torch==' /tmp/errors; then
            echo "ERROR: PyTorch's build for this flavour was not found: give a folder with its" \
                "wheel (--wheels DIR), or let the build reach its index"
        fi
        cat /tmp/errors
        exit 1
    fi
    cat /tmp/errors
    ;;
*)
    echo "ERROR: install.sh: '$verb' is not apt, venv, pip or copy" >&2
    exit 2
    ;;
esac
