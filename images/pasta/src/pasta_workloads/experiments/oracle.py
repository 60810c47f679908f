"""Table V from shapes alone, for every model and mode. Needs no GPU; evidence static."""

from __future__ import annotations

from reprokit.progress import Progress
from reprokit.records import RecordWriter

from pasta_workloads.config import Config
from pasta_workloads.models.sizes import PUBLISHED
from pasta_workloads.oracle.choices import ASSUMPTIONS, usual
from pasta_workloads.oracle.statistics import MIB, STATS, behind, counts, statistics, table_row
from pasta_workloads.oracle.tables import row

ASSUMED = {
    "paper": "cuBLAS as the paper's numbers tell",
    "plain": "no GEMM touches cuBLAS's workspace",
}
_CAVEATS = {
    "whisper": "the paper counts 192 launches more, of the loading: see whisper_paper",
    PUBLISHED: "with the loading of the weights, and of attention only what it writes",
    "gpt2": "sorting in the embedding's gradient counts as one launch",
}


def run(config: Config, out: RecordWriter) -> None:
    """Write the oracle's row of every model and mode asked for; always the paper's sizes."""
    progress = Progress(len(config.models) * len(config.modes))
    for model in config.models:
        for mode in config.modes:
            write_oracle(model, mode, "full", out, {"model": model, "mode": mode})
            progress.step(f"{model} {mode}")


def write_oracle(
    model: str, mode: str, size: str, out: RecordWriter, labels: dict[str, str]
) -> None:
    """Write launches, im2col launches, working sets with their range, and the operators' bound.

    `working_set_oracle_low` and `_high` are over what cuBLAS may choose (oracle.choices).
    """
    kernels = row(model, mode, usual(mode), size)
    note = "; ".join(filter(None, (ASSUMED[usual(mode)], _CAVEATS.get(model))))

    def write(metric: str, unit: str, value: float, more: dict[str, str], words: str) -> None:
        out.write(metric, unit, [value], labels | more, evidence="static", note=words)

    write("kernels_oracle", "launches", len(kernels), {}, note)
    by_name = counts(kernels)
    write("im2col_oracle", "launches", by_name.get("im2col", 0), {}, "convolutions by batch")
    for name, count in by_name.items():
        write("kernel_launches_oracle", "launches", count, {"kernel": name}, note)
    rows = {name: table_row(row(model, mode, name, size)) for name in ASSUMPTIONS}
    bounds = statistics([kernel.bound / MIB for kernel in kernels])
    for stat in STATS:
        where = {"stat": stat}
        words = note
        if stat != "mean":
            who = " or ".join(f"{k.name} of {k.operator}" for k in behind(kernels, stat))
            words = f"{who}; {note}"
        write("working_set_oracle", "MiB", rows[usual(mode)][stat], where, words)
        values = [found[stat] for found in rows.values()]
        write("working_set_oracle_low", "MiB", min(values), where, "least of what cuBLAS may do")
        write("working_set_oracle_high", "MiB", max(values), where, "most of what cuBLAS may do")
        write("working_set_bound", "MiB", bounds[stat], where, "operators' arguments and results")
