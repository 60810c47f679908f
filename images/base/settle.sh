#!/bin/sh
# The end of a RUN step, bound into it from the build context (it is in no image):
#
#   RUN --mount=type=bind,source=base/settle.sh,target=/settle ...; sh /settle [FOLDER...]
#
# Compiles the Python packages in the folders that are named: the compiled modules hold their
# source's hash, so they do not depend on its time and are not checked again at every start.
#
# Takes out what a step leaves behind that nobody runs, and gives every file that the step wrote
# the same time. A layer's digest then depends on what is in it and not on when it was made, so two
# builds, also of two commits, share the layers that are equal. Files that keep the time they had
# in their package are left alone. Set-up files of /etc lose the dates that useradd writes.
set -eu

STAMP=2024-01-01T00:00:00Z # any fixed time in the past

# Packages carry files for newer Pythons, so not everything compiles.
for folder in "$@"; do
    python -m compileall -qq --invalidation-mode unchecked-hash "$folder" || true
done

rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/apt/archives/*.deb /var/cache/ldconfig/aux-cache /var/cache/debconf/*-old \
    /var/lib/dpkg/*-old /var/log/apt /var/log/*.log /var/log/lastlog /var/log/faillog \
    /root/.cache /root/.config /tmp/* /var/tmp/*

# Third field of /etc/shadow: the day on which the password was last changed.
if [ -w /etc/shadow ] && [ "$(find /etc/shadow -newercm /dev)" ]; then
    sed -E 's/^([^:]*:[!*]*):[0-9]*:/\1::/' /etc/shadow >/etc/shadow.new
    cat /etc/shadow.new >/etc/shadow
    rm -f /etc/shadow.new /etc/shadow- /etc/gshadow- /etc/passwd- /etc/group- /etc/subuid- /etc/subgid-
fi

# /dev is made when the step's container is: what changed after it was changed by this step.
find / -xdev -newercm /dev -newermm /dev -exec touch --no-dereference --date="$STAMP" {} +
