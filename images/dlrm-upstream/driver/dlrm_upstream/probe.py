"""What a design's PyTorch sees, as one line of JSON. Runs in the design's own Python."""

from __future__ import annotations

import json

import torch

with open("/proc/self/maps", encoding="ascii", errors="replace") as maps:
    libraries = [line.split()[-1] for line in maps if "libtorch_cuda.so" in line]
seen = torch.cuda.is_available()
facts = {
    "torch": torch.__version__,
    "cuda": torch.version.cuda,
    "git": torch.version.git_version,
    "library": next(iter(libraries), ""),
    "archs": torch.cuda.get_arch_list() if seen else [],
    "gpu": torch.cuda.get_device_name(0) if seen else None,
    "capability": list(torch.cuda.get_device_capability(0)) if seen else None,
}
print(json.dumps(facts))
