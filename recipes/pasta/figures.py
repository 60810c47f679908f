"""The figures of the PASTA recipe: from the record table to matplotlib figures.

They draw both lanes: ours, and the authors' own code, most of whose logs give one number per run.
Each stands in the module of its kind beside this one. Sizes are MiB.
"""

from __future__ import annotations

from pathlib import Path

from ae.recipe.code import load_code

_HERE = Path(__file__).parent
_table_v, _bubbles, _overheads, _memories = (
    load_code(_HERE, name) for name in ("table_v", "bubbles", "overheads", "memories")
)

working_sets, table_v = _table_v.working_sets, _table_v.table_v  # Table V
table_v_bf16 = _table_v.table_v_bf16
kernels = _bubbles.kernels  # Figure 7
overhead, overhead_small = _overheads.overhead, _overheads.overhead_small  # Figure 9
inferred = _overheads.inferred
extrapolation, breakdown = _overheads.extrapolation, _overheads.breakdown  # Figures 9, 10
uvm = _memories.uvm  # Figures 11, 12
hotness = _memories.hotness  # Figure 13
memory = _memories.memory  # Figures 14, 15
