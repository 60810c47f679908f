#!/bin/sh
# Fetches one commit of a git repository, without its history: fetch-commit [--submodules] URL COMMIT FOLDER
# Only a whole commit name will do: a tag can be moved. A CA bundle may lie at /run/secrets/ca.
set -eu
submodules=no
if [ "$1" = --submodules ]; then
    submodules=yes
    shift
fi
url=$1 commit=$2 folder=$3
if [ "${#commit}" -ne 40 ]; then
    echo "fetch-commit: $commit is not a whole commit name" >&2
    exit 1
fi
if [ -s /run/secrets/ca ]; then
    export GIT_SSL_CAINFO=/run/secrets/ca
fi
git init --quiet "$folder"
cd "$folder"
git remote add origin "$url"
for attempt in 1 2 3; do
    git fetch --quiet --depth 1 origin "$commit" && break
    [ "$attempt" -lt 3 ] || exit 1
    sleep "${attempt}0"
done
git -c advice.detachedHead=false checkout --quiet FETCH_HEAD
[ "$(git rev-parse HEAD)" = "$commit" ]
if [ "$submodules" = yes ]; then
    git submodule --quiet update --init --recursive --depth 1 --jobs 8
fi
