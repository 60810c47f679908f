#!/bin/sh
# The end of a RUN step, bound into it from the build context (it is in no image):
#
#   RUN --mount=type=bind,source=base,target=/base ...; sh /base/settle.sh [FOLDER...]
#
# Compiles the Python modules that the step has put into the folders: what is compiled holds its
# source's hash and not its time, and is not checked again at every start. Takes out what the step
# leaves behind that nobody runs. Gives every file that the step wrote the same time; files that
# came with a time of their own keep it.
#
# A layer's digest then depends on what is in it and not on when it was made: two builds, also of
# two commits, share the layers that are equal. What lower layers hold is left alone, because
# removing it would add a mark with the present time.
set -eu

STAMP=2024-01-01T00:00:00Z # any fixed time in the past

# What this step has changed. /dev is made when the step's container is, so it is just older.
changed() {
    place=$1
    shift
    find "$place" -xdev -newercm /dev "$@"
}

# Packages carry files for newer Pythons: 1 says that some did not compile.
for folder in "$@"; do
    [ -d "$folder" ] || continue
    changed "$folder" -name '*.py' | LC_ALL=C sort |
        python3 -m compileall -qq --invalidation-mode unchecked-hash -i - || test $? -eq 1
done

# Package lists, caches and temporary files of this step.
for place in /var/lib/apt/lists /var/cache/apt /root /tmp /var/tmp; do
    if [ -d "$place" ]; then changed "$place" -mindepth 1 -depth \( ! -type d -o -empty \) -delete; fi
done
# Logs, and what ldconfig knows of inodes: emptied, because a lower layer may hold them as well.
for place in /var/log /var/cache/ldconfig; do
    if [ -d "$place" ]; then changed "$place" -type f -exec truncate --size=0 {} +; fi
done

# Third field of /etc/shadow: the day on which an account's password was last set.
if [ -e /etc/shadow ] && [ "$(changed /etc/shadow)" ]; then
    sed -E -i 's/^([^:]*:[!*]*):[0-9]*:/\1::/' /etc/shadow
fi

find / -xdev -newercm /dev -newermm /dev -exec touch --no-dereference --date="$STAMP" {} +
# Changed by the builder itself before /dev was there, for its mounts.
touch --date="$STAMP" /etc /run
