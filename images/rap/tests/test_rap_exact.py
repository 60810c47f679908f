"""Ids behind boxcox are the same on CPU and GPU: one arithmetic, bit by bit."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from rap_training import exact, reference
from rap_training.plan.operators import LEAST_LAM

# A GPU makes infinity of a float64 beyond float32, as Triton's interpreter does with a warning.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
LAMBDAS = (0.0, 0.25, 0.5, 1.0, 2.0, 3.7, -0.5, 1e-3, 50.0)


def values(count: int = 20_000) -> np.ndarray:
    """float32 over the whole range, near 1, whole numbers, and all that is special."""
    draw = np.random.default_rng(5)
    special = [0.0, -0.0, 1.0, -3.0, 1e-45, 1.2e-38, 3.4e38, math.inf, -math.inf, math.nan]
    near = 1 + draw.integers(-40, 40, count) * 2.0**-23
    wide = np.exp(draw.uniform(-100, 88, count))
    parts = (special, near, wide, draw.integers(0, 5000, count))
    return np.concatenate(parts).astype(np.float32)


def test_the_fixed_sequence_is_a_logarithm_and_an_exponential() -> None:
    x = values().astype(np.float64)
    x = x[np.isfinite(x) & (x > 0)]
    np.testing.assert_allclose(exact.log(x), np.log(x), rtol=5e-16, atol=0)
    y = np.random.default_rng(6).uniform(-exact.LARGEST, exact.LARGEST, 50_000)
    np.testing.assert_allclose(exact.exp(y), np.exp(y), rtol=1e-15, atol=0)
    assert exact.exp(np.array([1e9, -1e9])).tolist() == exact.exp(np.array([700.0, -700])).tolist()


@pytest.mark.parametrize("lam", LAMBDAS)
def test_boxcox_is_its_formula_rounded_once(lam: float) -> None:
    x = values()
    found, power = reference.boxcox(x, lam), float(np.float32(lam))
    wide = np.where(x > 0, x, 1).astype(np.longdouble)
    with np.errstate(all="ignore"):
        formula = np.log(wide) if power == 0 else np.expm1(power * np.log(wide)) / power
        wanted = np.where(x > 0, formula, x).astype(np.float32)
    np.testing.assert_allclose(found, wanted, rtol=2e-7, atol=1e-12)
    assert found.dtype == np.float32


@pytest.mark.parametrize("lam", [LEAST_LAM, -LEAST_LAM])
def test_the_least_lam_of_a_plan_costs_no_more_than_rounding(lam: float) -> None:
    x = values()
    x = x[np.isfinite(x) & (x > 0)]
    power = np.longdouble(np.float32(lam))
    wanted = np.expm1(power * np.log(x.astype(np.longdouble))) / power
    unit = np.spacing(np.maximum(np.abs(wanted), 1).astype(np.float32))
    assert (np.abs(reference.boxcox(x, lam) - wanted) / unit).max() < 0.6  # 0.5 is the rounding


def chain_of(lam: float):
    """A plan whose ids come out of boxcox: by a border, by bins and by a cast."""
    from rap_training.plan.graph import Column, Plan, SparseOutput
    from rap_training.plan.steps import chain, step

    columns = [Column(name=name, kind="dense") for name in ("a", "b", "c", "d")]
    box = (step("fill_null", value=1), step("boxcox", lam=lam))
    borders = tuple(sorted({round(float(b), 3) for b in np.linspace(-8, 8, 400)}))
    ends = {
        "a": (step("bucketize", borders=borders),),
        "b": (step("clamp", lo=-1e6, hi=1e6), step("cast", dtype="int64"),
              step("sigrid_hash", salt=1, modulus=2**40)),
        "c": (step("one_hot", lo=-4, hi=12, k=64), step("cast", dtype="int64")),
        "d": (),
    }  # fmt: skip
    chains = {name: chain(name, (*box, *end)) for name, end in ends.items()}
    rows = {"a": len(borders) + 1, "b": 2**40, "c": 2}
    return Plan(
        name="behind", columns=tuple(columns),
        nodes=tuple(node for nodes in chains.values() for node in nodes),
        dense=(chains["d"][-1].name,),
        sparse=tuple(SparseOutput(node=chains[n][-1].name, rows=rows[n]) for n in rows),
        over_arch=(4, 1),
    )  # fmt: skip


def outputs(plan, batch, device: str, how: str) -> dict[str, np.ndarray]:
    import torch
    from rap_training.backends import NumpyBackend
    from rap_training.feed import Feed
    from rap_training.launches import fused, unfused
    from rap_training.memory import Buffers, final_keys
    from rap_training.work import Work, locality

    home = (0,) * len(plan.sparse)
    work = Work(plan=plan, rank=0, world=1, batch=batch.row_count, home=home,
                mapping=locality(home))  # fmt: skip
    there = torch.device("cpu" if how == "numpy" else device)
    buffers = Buffers.allocate(work, there, slots=1)
    Feed(work, [batch], there, "resident").load(0, buffers, 0)
    if how == "numpy":
        calls = [NumpyBackend().bind(launch, buffers, 0) for launch in unfused(work)]
    else:
        from rap_training.kernels.backend import TritonBackend

        backend = TritonBackend(there)
        if how == "vertical":
            calls = list(backend.bind_chains(final_keys(work), buffers, 0))
        else:
            calls = [backend.bind(launch, buffers, 0) for launch in fused(work)[0]]
    for call in calls:
        call()
    return {key: buffers.value(0, key)[0].cpu().numpy() for key in final_keys(work)}


@pytest.mark.parametrize("how", ["horizontal", "vertical"])
@pytest.mark.parametrize("lam", [0.0, 0.5, 3.7, -0.5])
@pytest.mark.parametrize(
    ("device", "count"),
    [
        pytest.param("cpu", 150, id="interpreter"),
        pytest.param("cuda", 50_000, marks=pytest.mark.gpu, id="gpu"),
    ],
)
def test_ids_behind_boxcox_are_the_references(device: str, count: int, lam: float, how: str):
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    from rap_training.data.columns import RawBatch

    x = values(count)
    batch = RawBatch(
        dense={name: (x, np.ones(len(x), np.uint8)) for name in ("a", "b", "c", "d")}, sparse={},
        labels=np.zeros(len(x), np.float32),
    )  # fmt: skip
    plan = chain_of(lam)
    wanted = outputs(plan, batch, device, "numpy")
    for key, found in outputs(plan, batch, device, how).items():
        np.testing.assert_array_equal(found, wanted[key], err_msg=key)  # floats too: every bit


SOURCES = {
    "horizontal": (
        "from rap_training.kernels.horizontal import elementwise as function\n"
        "given = {'OP': 'boxcox', 'TYPE': tl.float32, 'RESULT': tl.float32, 'BLOCK': 512}\n"
    ),
    "vertical": (
        "from rap_training.generated import load\n"
        "from rap_training.kernels import vertical\n"
        "chain = ('fill_null:float32', *('clamp:float32', 'boxcox:float32') * 3)\n"
        "function = load(vertical.source([chain], 7), 'chain_of_boxcox', None).chains\n"
        "given = {'BLOCK': 512}\n"
    ),
}


@pytest.mark.parametrize("how", SOURCES)
def test_the_compiler_fuses_nothing_in_it(how: str) -> None:
    """What a GPU runs, without one: PTX with the options that launches have."""
    pytest.importorskip("triton")
    program = (
        "import sys, triton.language as tl\n"
        f"{SOURCES[how]}"
        "import triton\n"
        "from triton.backends.compiler import GPUTarget\n"
        "from triton.compiler import ASTSource\n"
        "types = {'blocks': '*i32', 'words': '*i64', 'floats': '*fp32'}\n"
        "types |= dict.fromkeys(given, 'constexpr')\n"
        "source, target = ASTSource(function, types, given), GPUTarget('cuda', 90, 32)\n"
        "made = triton.compile(source, target=target, options={'enable_fp_fusion': False})\n"
        "sys.stdout.write(made.asm['ptx'])\n"
    )
    ptx = in_a_process_without_the_interpreter(program)
    assert not re.search(r"fma|ex2|lg2|div\.full", ptx)
    assert len(re.findall(r"mul\.(?:rn\.)?f64", ptx)) >= len(exact.LOG) + len(exact.EXP)


def in_a_process_without_the_interpreter(program: str) -> str:
    import os
    import subprocess
    import sys

    environment = {key: word for key, word in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
