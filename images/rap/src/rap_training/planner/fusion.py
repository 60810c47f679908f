"""placeholder until merge"""
from dataclasses import dataclass
@dataclass
class FusionNode:
    name: str
    kind: str
    input: str | None
@dataclass
class Group:
    kind: str
    level: int
    members: tuple
@dataclass
class Fusion:
    groups: tuple
    objective: float = 0
def fuse(nodes, *, solver="highs", time_limit_s=30.0):
    level = {}
    groups = {}
    for n in nodes:
        level[n.name] = level[n.input] + 1 if n.input else 0
        groups.setdefault((level[n.name], n.kind), []).append(n.name)
    return Fusion(tuple(Group(k, l, tuple(m)) for (l, k), m in sorted(groups.items())))
