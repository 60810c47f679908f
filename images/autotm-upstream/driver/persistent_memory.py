"""Intel Optane memory in the two modes of the paper: says what would have to be done, and refuses.

    python3 -m persistent_memory --mode 1LM
    python3 -m persistent_memory --mode 1LM --yes-destroy-data-on 0x0000

1LM is App Direct: the modules are a device, with a file system that programs map (fsdax). 2LM is
Memory Mode: the modules are the memory, and DRAM is its cache. Changing between them ERASES what
the modules hold, and needs a reboot. Intel ended Optane in 2022; such hosts are rare. This script
never changes a host: with everything in place and the region named it prints the commands for an
administrator, and exits 0. Otherwise it exits 77 with the reason.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

CANNOT = 77
# Each line with what it does. REGION is the region's id as `ipmctl show -region` prints it.
STEPS = {
    "1LM": (
        (
            "ipmctl create -f -goal PersistentMemoryType=AppDirect",
            "ERASES all regions; then reboot",
        ),
        ("ndctl create-namespace --mode=fsdax --region=REGION", "ERASES the region"),
        ("mkfs.ext4 /dev/pmem1", "a file system on it"),
        ("mount -o dax /dev/pmem1 /mnt/public", "where AutoTM's pool lies"),
    ),
    "2LM": (
        ("umount /mnt/public", "nothing may use the region"),
        ("ndctl destroy-namespace --force REGION", "ERASES the region"),
        ("ipmctl create -f -goal MemoryMode=100", "ERASES all regions; then reboot"),
    ),
}


def refusal(mode: str, region: str, devices: Path, mounts: Path) -> str:  # noqa: PLR0911 in turn
    """Why nothing is printed; empty when everything is in place."""
    if not region or region == "none":
        return (
            f"mode {mode} erases persistent memory; name the region to lose: "
            "--yes-destroy-data-on REGION"
        )
    if not region.replace("region", "").removeprefix("0x").isalnum():
        return f"'{region}' is no region's id; see `ipmctl show -region`"
    if not any(devices.glob("pmem*")) and not any(devices.glob("dax*")):
        return "this host has no persistent memory: there is no /dev/pmem* and no /dev/dax*"
    used = [line.split()[1] for line in mounts.read_text().splitlines() if "/pmem" in line]
    if used:
        return f"persistent memory is mounted at {', '.join(used)}: unmount it, after a copy"
    for program in ("ipmctl", "ndctl"):
        if shutil.which(program) is None:
            return f"there is no {program} on this host"
    known = subprocess.run(
        ["ipmctl", "show", "-region"], capture_output=True, text=True, check=False
    )
    if region not in known.stdout:
        return f"there is no region {region} on this host; see `ipmctl show -region`"
    return ""


def main() -> int:
    """Refuse, or print the commands."""
    parser = argparse.ArgumentParser(
        prog="persistent_memory", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--mode", choices=sorted(STEPS), required=True)
    parser.add_argument("--yes-destroy-data-on", metavar="REGION", default="")
    parser.add_argument("--devices", type=Path, default=Path("/dev"))
    parser.add_argument("--mounts", type=Path, default=Path("/proc/mounts"))
    words = parser.parse_args()
    region = words.yes_destroy_data_on
    why = refusal(words.mode, region, words.devices, words.mounts)
    if why:
        print(why, file=sys.stderr)
        return CANNOT
    print(f"An administrator would now run, for mode {words.mode} (nothing was run):")
    for command, effect in STEPS[words.mode]:
        print(f"  {command.replace('REGION', region)}    # {effect}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
