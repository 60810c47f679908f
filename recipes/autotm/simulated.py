"""Figures of the native lane: simulated iterations, by policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import nan, prod
from typing import Any

import pandas as pd

from ae.figures.draw import PALETTE, NoData, Plot, bars, new_panels
from ae.figures.summary import in_order, pool

SPREAD = "simulated: one value each, which does not scatter"
COLOURS = {
    "NUMA": PALETTE["grey"], "Static": PALETTE["sky"], "Synchronous": PALETTE["blue"],
    "Asynchronous": PALETTE["green"], "Ours": PALETTE["vermilion"],
    "OursOffload": PALETTE["orange"], "OursRecompute": PALETTE["purple"],
    "OursHalfDuplex": PALETTE["black"], "OursOutside": PALETTE["sky"],
    "Managed": PALETTE["grey"], "bound": PALETTE["olive"],
}  # fmt: skip
RATIOS = {"p1d0": "1:0", "p8d1": "8:1", "p4d1": "4:1", "p1d1": "1:1", "p0d1": "0:1"}
COSTS = PALETTE["orange"]
NAMES = {
    "OursOffload": "Ours (offload)", "OursRecompute": "Ours (recompute)",
    "OursHalfDuplex": "Ours (half duplex)", "OursOutside": "Ours (addresses outside)",
    "Managed": "managed memory", "bound": "no limit",
}  # fmt: skip

PLANNERS = {  # and their lines, the lowest ones last
    "Managed": "-", "Synchronous": "-", "Asynchronous": "-", "OursOffload": "-",
    "OursRecompute": "-", "OursHalfDuplex": "--", "OursOutside": "--", "Ours": "-",
}  # fmt: skip
NETWORKS = {
    "inception": "Inception v4", "resnet200": "ResNet-200", "densenet264": "DenseNet-264",
    "vgg19": "VGG-19", "vgg416": "VGG-416", "gpt2medium": "GPT-2 medium", "unet": "U-Net",
    "perceptron": "Perceptron",
}  # fmt: skip


def network(label: str) -> str:
    """A network and its batch in words: vgg19_64 is "VGG-19, batch 64"."""
    name, _, batch = label.rpartition("_")
    return f"{NETWORKS.get(name, name)}, batch {int(batch):,}"


def rates(label: str) -> str:
    """What is read and written of slow memory: r20w4 is "20 and 4 GB/s"."""
    return f"{label[1:].replace('w', ' and ')} GB/s"


def _times(frame: pd.DataFrame, experiment: str, keys: list[str]) -> dict[tuple[str, ...], Any]:
    """The row of every combination of labels among an experiment's iteration times."""
    part = frame[frame["experiment"] == experiment]
    there = [key for key in keys if key in part]
    found = pool(part, "iteration_time", there)
    if found.empty:
        raise NoData(f"no iteration time of the experiment {experiment}")
    rows = {tuple(str(row.get(key, "")) for key in keys): row for row in found.to_dict("records")}
    return dict(sorted(rows.items(), key=lambda item: _by_batch(item[0][0])))


def _by_batch(net: str) -> tuple[str, int, str]:
    """An order in which a network's smaller batches come first."""
    return net.rstrip("0123456789"), len(net), net


def _table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    if not rows:
        raise NoData("no two policies were run on the same network")
    return pd.DataFrame(rows)


def _row(value: float, base: Mapping[str, Any], **labels: str | float) -> dict[str, Any]:
    return {**labels, "value": value, "n": base["n"], "evidence": base["evidence"]}


def speedup(frame: pd.DataFrame) -> Plot:
    """Figure 7: all-PMM time over the time at each ratio; dashed, all DRAM."""
    times = _times(frame, "ratios", ["host_net", "ratio", "variant"])
    rows, marks = [], dict[str, float]()
    for (net, ratio, variant), row in times.items():
        base = times.get((net, "any", "PMM"))
        if base and ratio in ("p8d1", "p4d1", "p1d1"):
            name = f"{RATIOS[ratio]} {variant}"
            rows.append(
                _row(base["median"] / row["median"], row, net=net, bar=name, policy=variant)
            )
        if base and variant == "DRAM":
            marks[net] = base["median"] / row["median"]
    return _bars(
        _table(rows),
        "Speed-up over all slow memory, by ratio slow:fast (dashed: all DRAM)",
        "speed-up",
        marks,
    )


def losses(frame: pd.DataFrame) -> Plot:
    """Geometric mean of the loss against all DRAM at 4:1, for each pair of slow rates."""
    times = _times(frame, "sweep", ["host_net", "slow", "ratio", "variant"])
    shares: dict[tuple[str, str], list[float]] = {}
    kept: dict[tuple[str, str], Any] = {}
    for (net, slow, _, variant), row in times.items():
        base = times.get((net, slow, "any", "DRAM"))
        if base and variant != "DRAM":
            shares.setdefault((slow, variant), []).append(base["median"] / row["median"])
            kept[slow, variant] = row
    rows = [
        _row(100 * (1 - prod(found) ** (1 / len(found))), kept[key], net=key[0], bar=key[1],
             policy=key[1])
        for key, found in shares.items()
    ]  # fmt: skip
    title = "Mean loss against all DRAM at slow:fast 4:1, by reads and writes of slow memory"
    return _bars(_table(rows), title, "loss (%)", {})


def hardware_cache(frame: pd.DataFrame) -> Plot:
    """Figure 8: time with DRAM as a cache over the time of each formulation."""
    times = _times(frame, "large", ["large_net", "miss", "variant"])
    rows = []
    for (net, miss, variant), base in times.items():
        if variant != "MemoryMode":
            continue
        for policy in ("Static", "Synchronous"):
            if row := times.get((net, "", policy)):
                name = f"{policy}, misses {rates(miss)}"
                value = base["median"] / row["median"]
                rows.append(_row(value, row, net=net, bar=name, policy=policy))
    nets = {row["net"]: 1.0 for row in rows}
    return _bars(_table(rows), "Speed-up over DRAM as a hardware cache", "speed-up", nets)


def costs(frame: pd.DataFrame) -> Plot:
    """Figure 9: performance under Synchronous and cost of memory, over all DRAM."""
    times = _times(frame, "ratios", ["host_net", "ratio", "variant"])
    prices = pool(frame, "memory_cost", ["ratio"])
    if prices.empty:
        raise NoData("no memory cost: run the experiment graphs as well")
    price = {one["ratio"]: one for one in prices.to_dict("records")}
    rows = []
    for (net, ratio, variant), row in times.items():
        base = times.get((net, "any", "DRAM"))
        if variant == "Synchronous" and base and ratio in price and ratio != "p0d1":
            name = RATIOS[ratio]
            performance = base["median"] / row["median"]
            rows.append(_row(performance, row, net=net, bar=f"{name} speed", policy=variant))
            cost = price[ratio]
            rows.append(_row(cost["median"], cost, net=net, bar=f"{name} cost", policy="cost"))
    return _bars(
        _table(rows),
        "Speed under Synchronous and cost of memory, by ratio slow:fast (all DRAM: 1)",
        "over all DRAM",
        {},
    )


def _bars(table: pd.DataFrame, title: str, unit: str, marks: Mapping[str, float]) -> Plot:
    """A panel per network, the same bars in each."""
    names, nets = list(dict.fromkeys(table["bar"])), list(dict.fromkeys(table["net"]))
    policies = dict(zip(table["bar"], table["policy"], strict=True))
    figure, axes = new_panels(len(nets), len(names), title=title, across=4)
    reach = max(float(table.get("high", table["value"]).max()), *marks.values(), 0.0)
    for axis, net in zip(axes, nets, strict=True):
        own = table[table["net"] == net].set_index("bar").reindex(names)
        values = [float(value) for value in own["value"]]
        bars(
            axis,
            names,
            values,
            low=[float(value) for value in own.get("low", own["value"])],
            high=[float(value) for value in own.get("high", own["value"])],
            colours=[COLOURS.get(policies[name], COSTS) for name in names],
            texts=["no value" if pd.isna(value) else f"{value:#.3g}" for value in values],
            reach=reach,
            mark=marks.get(net),
            beyond=[marks.get(net, 0.0)] * len(names),
        )
        axis.set_title(network(net) if "_" in net else rates(net))
        axis.set_xlabel(unit)
    name = unit.replace("-", "").replace(" (%)", "_percent").replace(" ", "_")
    return Plot(figure=figure, table=table.rename(columns={"value": name}), spread=SPREAD)


def errors(frame: pd.DataFrame) -> Plot:
    """Figure 11: 100 * (predicted / least measured time - 1), per ratio; negative is optimistic."""
    part = frame[frame["experiment"] == "errors"]
    found = pool(part, "prediction_error", ["emulated_net", "ratio", "variant"])
    if found.empty:
        raise NoData("no prediction error: run the experiment errors")
    rows = [
        _row(row["median"], row, net=row["emulated_net"], policy=row["variant"],
             bar=f"{RATIOS[row['ratio']]} {row['variant']}")
        for row in found.to_dict("records")
    ]  # fmt: skip
    table = _table(rows)
    names, nets = list(dict.fromkeys(table["bar"])), list(dict.fromkeys(table["net"]))
    figure, axes = new_panels(len(nets), len(names), title="Error of predictions, by slow:fast")
    for axis, net in zip(axes, nets, strict=True):
        own = table[table["net"] == net].set_index("bar").reindex(names)
        values = own["value"].astype(float)
        colours = [COLOURS[name.split(" ")[1]] for name in names]
        drawn = axis.barh(range(len(names)), values, color=colours)
        axis.bar_label(drawn, [f"{value:+.1f}" for value in values], padding=3, fontsize=8)
        axis.axvline(0, color="black", linewidth=0.8)
        axis.set_yticks(range(len(names)), names)
        axis.margins(x=0.15)  # for the numbers
        axis.set_title(network(net))
        axis.set_xlabel("predicted over measured time, less 1 (%)")
    axes[0].invert_yaxis()
    table = table.rename(columns={"value": "error_percent"})
    return Plot(figure=figure, table=table, spread="emulated slow memory; least of the iterations")


def oversubscription(frame: pd.DataFrame) -> Plot:
    """Figure 12: managed memory's time over each planner's and over the uncapped time.

    On the card, which is the cap in GB. Bars: a fault of middling cost; whiskers: all of them.
    """
    times = _times(frame, "planner", ["net", "cap", "variant", "fault"])
    bases: dict[str, dict[float, Any]] = {}
    for (net, cap, variant, fault), row in times.items():
        if variant == "Managed" and cap.endswith("GB"):
            bases.setdefault(net, {})[float(fault)] = row
    rows = []
    for (net, cap, variant, _), row in times.items():
        uncapped = variant == "uncapped"
        if net not in bases or variant == "Managed" or not (uncapped or cap.endswith("GB")):
            continue
        found = [bases[net][fault]["median"] / row["median"] for fault in sorted(bases[net])]
        policy = "bound" if uncapped else variant
        name = NAMES.get(policy, policy)
        whiskers = {"low": found[0], "high": found[-1]}
        rows.append(_row(found[len(found) // 2], row, net=net, bar=name, policy=policy) | whiskers)
    table = _table(rows)
    nets = dict.fromkeys(table["net"], 1.0)
    title = "Speed-up over managed memory, by what a fault costs"
    spread = "bars: a fault of middling cost; lines: the cheapest, the dearest"
    return replace(_bars(table, title, "speed-up", nets), spread=spread)


def limits(frame: pd.DataFrame) -> Plot:
    """Figure 10: slowdown, share of the operands in DRAM, bytes moved, over the DRAM limit."""
    part = frame[frame["experiment"] == "limits"]
    keys = ["case_net", "limit", "dram", "variant"]
    times = _times(frame, "limits", keys)
    rows = []
    for (net, limit, dram, variant), row in times.items():
        base = times.get((net, "1", "all", "DRAM"))
        if base and variant != "DRAM":
            found = dict[str, Any]()
            here = part[(part["limit"] == limit) & (part["dram"] == dram)]
            for metric in ("inputs_in_dram", "outputs_in_dram", "moved_out", "moved_in"):
                pooled = pool(here[here["variant"] == variant], metric, ["case_net"])
                found[metric] = float(pooled["median"].iloc[0]) if len(pooled) else nan
            found |= {"slowdown": row["median"] / base["median"]}
            kept = {name: row[name] for name in ("n", "evidence")}
            rows.append({"net": net, "dram_gb": float(dram), "policy": variant} | found | kept)
    table = _table(rows)
    figure, shared = new_panels(
        3, 6, title=f"Less and less DRAM: {network(table['net'].iloc[0])}", across=3
    )
    for axis in shared:  # the panels have axes of their own
        axis.remove()
    axes = figure.subplots(1, 3)
    lines = (
        ("slowdown", (("slowdown", "-", ""),)),
        ("share in DRAM", (("inputs_in_dram", "-", "input"), ("outputs_in_dram", "--", "output"))),
        ("GB moved", (("moved_in", "-", "to DRAM"), ("moved_out", "--", "from DRAM"))),
    )
    for axis, (label, drawn) in zip(axes, lines, strict=True):
        for policy in in_order(table["policy"], list(COLOURS)):
            own = table[table["policy"] == policy]
            own = own.sort_values("dram_gb")
            if label == "GB moved" and policy == "Static":
                continue
            for column, style, word in drawn:
                axis.plot(own["dram_gb"], own[column], style, marker="o", markersize=3,
                          color=COLOURS[policy], label=f"{policy} {word}".strip())  # fmt: skip
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter("{x:g}")
        axis.set_xlabel("DRAM (GB)")
        axis.set_title(label)
        axis.set_ylim(bottom=0)
        axis.grid(True)
        axis.legend(fontsize=6.5, handlelength=4)
    return Plot(figure=figure, table=table, spread=SPREAD, over="dram_gb")


def plans(frame: pd.DataFrame) -> Plot:
    """Predicted time over the uncapped time at each share of the need, a line for each planner.

    A line ends where there is no plan; of managed memory, with a fault of middling cost.
    """
    times = _times(frame, "planner", ["net", "cap", "variant", "fault"])
    faults = sorted({float(fault) for *_, fault in times if fault})
    middle = f"{faults[len(faults) // 2]:g}" if faults else ""
    rows = []
    for (net, cap, variant, fault), row in times.items():
        base = times.get((net, "", "uncapped", ""))
        if base and variant != "uncapped" and not cap.endswith("GB") and fault in ("", middle):
            share = 100 * float(cap)
            rows.append(_row(row["median"] / base["median"], row, net=net, policy=variant,
                             share=share))  # fmt: skip
    table = _table(rows)
    nets = list(dict.fromkeys(table["net"]))
    title = "Predicted time of a step by the memory that it has"
    figure, axes = new_panels(len(nets), 9, title=title, across=4)
    for axis, net in zip(axes, nets, strict=True):
        own = table[table["net"] == net].sort_values("share")
        for policy in in_order(own["policy"], list(PLANNERS)):
            some = own[own["policy"] == policy]
            axis.plot(some["share"], some["value"], PLANNERS[policy], marker="o", markersize=3,
                      color=COLOURS[policy], label=NAMES.get(policy, policy))  # fmt: skip
        axis.set_title(network(net))
        axis.set_xlabel("memory (% of the need)")
        axis.grid(True)
    axes[0].set_yscale("log", base=2)  # of all panels
    axes[0].yaxis.set_major_formatter("{x:g}")
    for axis in axes[::4]:
        axis.set_ylabel("over uncapped time")
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, fontsize=7, loc="outside right upper")
    table = table.rename(columns={"share": "memory_percent", "value": "over_uncapped"})
    return Plot(figure=figure, table=table, spread=SPREAD)
