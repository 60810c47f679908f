"""What looking costs: the time of a run under the tool over that alone, and over empty patches."""

from __future__ import annotations

from math import isnan, nan
from pathlib import Path
from typing import Any

import pandas as pd

from ae.figures.draw import PALETTE, NoData, Plot, bars, new_panels
from ae.figures.summary import join_evidence, pool, ratio_interval
from ae.recipe.code import load_code

_native = load_code(Path(__file__).parent, "native")
TITLES, BESIDE, LEGEND_INCHES = _native.TITLES, _native.BESIDE, _native.LEGEND_INCHES
multiples = _native.multiples
LOOKS = {  # level: marker, colour, words
    "empty": ("x", "#222222", "patches that do nothing"),
    "coarse": ("o", PALETTE["sky"], "coarse: copies and fills"),
    "coarse_full": ("P", PALETTE["blue"], "coarse, at full size"),
    "every": ("^", PALETTE["green"], "fine, one run in ten at most"),
    "blocks": ("s", PALETTE["orange"], "fine, one block in ten"),
    "fine": ("D", PALETTE["vermilion"], "fine"),
}
GOALS = {"coarse": 1.5, "every": 3.0, "fine": 7.35}  # times as long as alone
PANELS = {"native": "over the program alone", "empty": "over patches that do nothing"}
OPERATORS = {
    "clip_grad": "clip_grad_norm_, nothing clipped", "slice_backward": "backward of x[:, :-1]",
    "constant_pad": "pad with zeros", "kv_cache": "KV cache of zeros, filled",
    "moe_combine": "MoE: index_add into zeros", "cross_entropy_backward": "cross_entropy backward",
    "zeros_accumulate": "control: sum into zeros",
    "replication_pad_backward": "ReplicationPad2d backward",
    "max_pool_backward": "max_pool2d backward",
    "adaptive_pool_backward": "adaptive_avg_pool2d backward",
    "embedding": "embedding, padding_idx", "embedding_backward": "embedding backward",
    "adam_first_step": "Adam's first step", "deepwave": "deepwave's propagator",
}  # fmt: skip
TRAINING, MEDIAN = "training step", "median of the minis"
PROGRAMS = {"before": "Darknet's program", "after": "the same, after"}
CLOSE = 0.15  # of a promise


def _over(pooled: list[dict[str, Any]], base: str) -> list[dict[str, Any]]:
    """Every level's time over that of the level `base`, and the median over the minis."""
    keys = ("experiment", "mini", "variant")
    bases = {tuple(r[key] for key in keys): r for r in pooled if r["level"] == base}
    found: list[dict[str, Any]] = []
    for row in pooled:
        own = bases.get(tuple(row[key] for key in keys))
        full = row["experiment"] == "slowdown_full"  # its patches are another's, too
        level = {"coarse": "coarse_full"}.get(row["level"], "") if full else row["level"]
        if own is None or level not in LOOKS or level == base:
            continue
        ratio = ratio_interval(row["samples"], own["samples"])
        found.append({
            "program": _program(row), "level": level, "over": base, "slowdown": ratio.value,
            "low": ratio.low, "high": ratio.high, "n": row["n"], "evidence": row["evidence"],
        })  # fmt: skip
    for level in LOOKS:
        minis = [r for r in found if r["level"] == level and r["program"] in TITLES.values()]
        if len(minis) > 1:
            middle = float(pd.Series([r["slowdown"] for r in minis]).median())
            found.append(minis[0] | {"program": MEDIAN, "slowdown": middle, "low": middle,
                                     "high": middle, "n": min(r["n"] for r in minis)})  # fmt: skip
    return found


def _program(row: dict[str, Any]) -> str:
    if row["experiment"] == "programs":
        return PROGRAMS[row["variant"]]
    return TITLES.get(row["mini"], TRAINING)


def slowdown(frame: pd.DataFrame) -> Plot:
    """A row for each program, a mark for each level; dotted lines are our goals."""
    keys = ["experiment", "mini", "variant", "level"]
    pooled = pool(frame, "run_time", keys).to_dict("records")
    table = pd.DataFrame([row for base in PANELS for row in _over(pooled, base)])
    if table.empty or "native" not in set(table["over"]):
        raise NoData("no run was timed both alone and under the tool; it is measured on a GPU")
    programs = list(dict.fromkeys(table["program"]))
    programs.sort(key=[*TITLES.values(), MEDIAN, TRAINING, *PROGRAMS.values()].index)
    figure, axes = new_panels(2, len(programs), title="Time under the tool")
    for axis, (base, words) in zip(axes, PANELS.items(), strict=True):
        for level, (marker, colour, label) in LOOKS.items():
            own = table[(table["level"] == level) & (table["over"] == base)]
            if level not in set(table["level"]):
                continue
            rows = [programs.index(program) for program in own["program"]]
            axis.hlines(rows, own["low"], own["high"], color=colour, linewidth=1.2, zorder=3)
            axis.scatter(own["slowdown"], rows, marker=marker, s=30, color=colour, label=label,
                         zorder=3)  # fmt: skip
            if base == "native" and level in GOALS:
                axis.axvline(GOALS[level], color=colour, linewidth=1.2, linestyle="dotted",
                             label=f"goal: {GOALS[level]:g}x")  # fmt: skip
        axis.axvline(1, color="#222222", linewidth=0.8, linestyle=(0, (4, 3)))
        ends = table[table["over"] == base][["low", "high", "slowdown"]]
        multiples(axis, min(0.8, float(ends.min().min()) / 1.2), float(ends.max().max()) * 1.3)
        axis.set_yticks(range(len(programs)), labels=programs)
        axis.set_ylim(len(programs) - 0.45, -0.55)
        axis.tick_params(axis="y", length=0)
        axis.set_title(words)
        axis.set_xlabel("times as long")
        axis.grid(True)
    axes[1].legend(*axes[0].get_legend_handles_labels(), loc="center left",
                   bbox_to_anchor=BESIDE, fontsize=7)  # fmt: skip
    figure.set_figwidth(figure.get_figwidth() + LEGEND_INCHES)
    spread = "marks: ratio of medians; whiskers: its interval"
    return Plot(figure=figure, table=table, spread=spread)


def foretold(frame: pd.DataFrame) -> Plot:
    """The gain that the findings of `before` promise against the measured one, a row a mini."""
    keys = ["mini", "variant"]
    own = {
        name: {r["mini"]: r for r in pool(frame, metric, keys).to_dict("records")
               if r["variant"] == "after"}
        for name, metric in (("promised", "gain_promised"), ("measured", "gain"))
    }  # fmt: skip
    minis = [mini for mini in TITLES if all(mini in rows for rows in own.values())]
    if not minis:
        raise NoData("no gain was both promised and measured; it is measured on a GPU")
    table = pd.DataFrame([
        {"mini": mini, "promised": own["promised"][mini]["median"],
         "measured": own["measured"][mini]["median"], "low": own["measured"][mini]["low"],
         "high": own["measured"][mini]["high"], "n": own["measured"][mini]["n"],
         "evidence": join_evidence(*(rows[mini]["evidence"] for rows in own.values()))}
        for mini in minis
    ])  # fmt: skip
    table["off"] = (table["promised"] - table["measured"]).abs() / table["measured"]
    figure, (axis,) = new_panels(1, len(minis), title="Gain of all GPU time, promised and measured")
    rows = range(len(minis))
    axis.barh(rows, 2 * CLOSE * table["measured"], left=(1 - CLOSE) * table["measured"],
              height=0.6, color=PALETTE["green"], alpha=0.25,
              label=f"within {CLOSE:.0%} of the measured gain")  # fmt: skip
    axis.scatter(table["measured"], rows, marker="x", color="#222222", s=30, zorder=3,
                 label="measured: time before over after")  # fmt: skip
    axis.scatter(table["promised"], rows, marker="D", color=PALETTE["orange"], s=26, zorder=3,
                 label="promised by the findings,\nfrom before alone")  # fmt: skip
    both = table[["promised", "measured"]]
    multiples(axis, min(0.8, float(both.min().min()) / 1.2), float(both.max().max()) * 1.3)
    axis.axvline(1, color="#222222", linewidth=0.8, linestyle=(0, (4, 3)))
    axis.set_yticks(rows, labels=[f"{TITLES[m]}  {off:.0%}" for m, off in
                                  zip(minis, table["off"], strict=True)])  # fmt: skip
    axis.set_ylim(len(minis) - 0.45, -0.55)
    axis.tick_params(axis="y", length=0)
    axis.set_xlabel(f"gain; beside the names how far off, median {table['off'].median():.0%}")
    axis.grid(True)
    axis.legend(loc="center left", bbox_to_anchor=BESIDE, fontsize=7)
    figure.set_figwidth(figure.get_figwidth() + LEGEND_INCHES)
    return Plot(figure=figure, table=table, spread="marks: medians over processes")


def operators(frame: pd.DataFrame) -> Plot:
    """Operators before over after, what the findings promise, and where the tool found nothing."""
    looked = {r["operator"]: r for r in pool(frame, "found", ["operator"]).to_dict("records")}
    if not looked:
        raise NoData("no operator was looked at; it needs a GPU")
    promised = {r["operator"]: r
                for r in pool(frame, "promised", ["experiment", "operator"]).to_dict("records")
                if r["experiment"] == "operators"}  # fmt: skip
    timed = pool(frame, "run_time", ["experiment", "operator", "variant"]).to_dict("records")
    times = {(r["operator"], r["variant"]): r for r in timed if r["experiment"] == "operators"}
    rows = []
    for name in (one for one in OPERATORS if one in looked):
        row = {"operator": name, "found": looked[name]["median"] == 1, "n": looked[name]["n"],
               "promised": nan, "gain": nan, "low": nan, "high": nan,
               "evidence": looked[name]["evidence"]}  # fmt: skip
        if said := promised.get(name):
            kinds = join_evidence(row["evidence"], said["evidence"])
            row |= {"promised": said["median"], "evidence": kinds}
        before, after = times.get((name, "before")), times.get((name, "after"))
        if before and after:
            ratio = ratio_interval(before["samples"], after["samples"])
            row |= {"gain": ratio.value, "low": ratio.low, "high": ratio.high, "n": after["n"]}
        rows.append(row)
    table = pd.DataFrame(rows)
    figure, (axis,) = new_panels(1, len(table), title="Operators of PyTorch, before over after")
    reach = float(table[["gain", "high", "promised"]].max().max())
    texts = [_said(row) for row in rows]
    bars(
        axis, [OPERATORS[name] for name in table["operator"]], list(table["gain"]),
        low=list(table["low"]), high=list(table["high"]), texts=texts,
        colours=[PALETTE["green" if found else "grey"] for found in table["found"]],
        reach=1.0 if isnan(reach) else reach, mark=1.0, beyond=[1.05 * reach] * len(table),
    )  # fmt: skip
    axis.scatter(table["promised"], range(len(table)), marker="D", s=26, zorder=4,
                 color=PALETTE["orange"], label="promised by the findings")  # fmt: skip
    for found, colour, words in ((True, "green", "measured; the tool finds why"),
                                 (False, "grey", "measured; the tool finds nothing")):  # fmt: skip
        if found in set(table["found"][table["gain"].notna()]):
            axis.barh([nan], [nan], color=PALETTE[colour], label=words)
    axis.set_xlabel("speed-up once the needless work is left out")
    axis.legend(loc="center left", bbox_to_anchor=BESIDE, fontsize=7)
    figure.set_figwidth(figure.get_figwidth() + LEGEND_INCHES)
    return Plot(figure=figure, table=table, spread="bars: ratios; whiskers: their interval")


def _said(row: dict[str, Any]) -> str:
    if isnan(row["gain"]):
        return "found, not changed" if row["found"] else "nothing found"
    return f"{row['gain']:.2f}x"
