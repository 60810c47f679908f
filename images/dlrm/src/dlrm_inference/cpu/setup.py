"""What a CPU's experiments share: data, tables, and variants that are proved right."""

from __future__ import annotations

import numpy as np
from reprokit.records import RecordWriter
from reprokit.skip import cannot_run

from dlrm_inference import reference
from dlrm_inference.config import Config, WrongResult
from dlrm_inference.cpu.tables import Tables
from dlrm_inference.cpu.variants import Variant, prepare, reason_not
from dlrm_inference.data import Batches, make_batches
from dlrm_inference.describe import write_dataset


def set_up(config: Config, out: RecordWriter) -> tuple[Batches, list[Variant]]:
    """Make data and tables, note what is skipped, and prove every variant's sums right."""
    if config.dtype != "float32":
        cannot_run(f"the CPU kernels sum float32 tables only, not {config.dtype}")
    names = []
    for name in config.variants:
        if reason := reason_not(name, config):
            out.skip({"variant": name, "dataset": config.dataset, "device": "cpu"}, reason)
        else:
            names.append(name)
    if not names:
        cannot_run(f"no variant can run here: {reason_not(config.variants[-1], config)}")
    batches = make_batches(config)
    write_dataset(out, config, batches)
    hot = any(name in ("l2p", "rpf_l2p") for name in names)
    tables = Tables(config, batches, hot=hot)
    if hot:
        _write_hot_cost(config, out, tables)
    variants = [prepare(name, config, tables) for name in names]
    _prove(config, tables, variants)
    return batches, variants


def _prove(config: Config, tables: Tables, variants: list[Variant]) -> None:
    """Compare each variant's sums of one batch with the reference; this also compiles it."""
    table, batch = config.tables - 1, config.batches - 1
    ids, offsets = tables.ids(table, batch), tables.offsets(table)
    expected = reference.embedding_bag(tables.weight(table), ids, offsets, mode=config.mode)
    for variant in variants:
        if not np.allclose(variant.call(table, batch), expected, rtol=1e-4, atol=1e-6):
            raise WrongResult(f"the sums of variant '{variant.name}' differ from the reference")


def labels_of(config: Config, variant: Variant) -> dict[str, str]:
    """Labels of a variant's records."""
    return {"variant": variant.name, "dataset": config.dataset, "device": "cpu", **variant.labels}


def _write_hot_cost(config: Config, out: RecordWriter, tables: Tables) -> None:
    """Write what L2P costs beside its kernel: `pin_time` a table, `remap_time` a batch (us)."""
    copies, rewrites = tables.fill_hot()
    labels = {"dataset": config.dataset, "device": "cpu", "hot_list": config.hot_list}
    for metric, samples, note in (
        ("pin_time", copies, "copying a table's hot rows together"),
        ("remap_time", rewrites, "rewriting a batch's ids"),
    ):
        out.write(metric, "us", samples, labels, evidence="emulated", note=note)
