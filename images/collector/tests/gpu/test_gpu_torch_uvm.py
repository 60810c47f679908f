"""Managed memory on a real GPU: the pool and its limit, prefetching, advice and its replay.

Never more managed memory than the card has free: the limit is part of what is tested.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from accel_trace.uvm import managed, microbench  # noqa: E402
from accel_trace.uvm.advice import Advice  # noqa: E402
from accel_trace.uvm.managed import ManagedError, managed_pool  # noqa: E402
from accel_trace.uvm.runtime import HOST, Runtime  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.torch, pytest.mark.timeout(600)]
MIB = 1 << 20


@pytest.fixture(autouse=True)
def _limited(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(managed.ALLOW, raising=False)
    yield
    torch.cuda.synchronize()


def test_a_models_memory_is_managed_and_pooled() -> None:
    with managed_pool() as memory:
        before = memory.pieces()
        model = torch.nn.Linear(1024, 1024).cuda()
        x = torch.randn(256, 1024, device="cuda", requires_grad=True)
        loss = model(x).square().mean()
        loss.backward()
        torch.cuda.synchronize()
        grown = memory.pieces()
        addresses = [p.data_ptr() for p in model.parameters()]
        addresses += [x.data_ptr(), x.grad.data_ptr(), model.weight.grad.data_ptr()]
        assert all(memory.inside(address) for address in addresses)
        for _ in range(20):  # blocks are reused: no new segment
            model(x)
        assert memory.pieces() == grown > before
    outside = torch.ones(1024, device="cuda")
    assert not memory.inside(outside.data_ptr())


def test_results_in_managed_memory_are_the_same() -> None:
    torch.manual_seed(0)
    a = torch.randn(256, 256, device="cuda")
    plain = a @ a
    with managed_pool():
        b = a.clone()
        product = b @ b
    assert torch.equal(plain, product)


def test_more_than_the_card_has_free_is_refused() -> None:
    free, total = torch.cuda.mem_get_info()
    with pytest.raises(ManagedError, match="use a smaller batch"), managed_pool():
        torch.empty(free + MIB, dtype=torch.uint8, device="cuda")
    assert free <= total
    with managed_pool() as memory:  # and afterwards all is as before
        x = torch.ones(MIB, device="cuda")
        assert memory.inside(x.data_ptr())
    assert x.sum().item() == MIB


def test_prefetching_moves_the_range() -> None:
    card = Runtime()
    stream = card.stream()
    with managed_pool():
        x = torch.ones(8 * MIB, dtype=torch.uint8, device="cuda")
    size = x.numel()
    for place in (HOST, 0):
        card.prefetch(x.data_ptr(), size, place, stream)
        card.synchronize()
        assert card.last_prefetch(x.data_ptr(), size) == place
    assert x.sum().item() == size
    card.destroy(stream)


_PROGRAM = """
import json, os, sys, torch
from dataclasses import asdict
from pathlib import Path
from accel_trace.uvm.advice import Advice
from accel_trace.uvm.managed import managed_pool
from accel_trace.uvm.replay import Replay
from accel_trace.uvm.runtime import HOST, Runtime
torch.backends.cudnn.enabled = False
policy, file = sys.argv[1:3]
advice = Advice.load(Path(file)) if policy != "profile" else None
torch.manual_seed(0)
with managed_pool() as memory, Replay(
    memory, advice, policy if advice else "none"
) as replay:
    layers = torch.nn.Sequential(*[torch.nn.Linear(1536, 1536) for _ in range(4)]).cuda()
    x = torch.randn(1024, 1536, device="cuda")
    card = Runtime()
    stream = card.stream()
    pieces = [memory.piece(n) for n in range(memory.pieces())]
    for piece in pieces:
        card.prefetch(*piece, HOST, stream)
    card.synchronize()
    with torch.no_grad(), replay.active() as report:
        y = layers(x)
    torch.cuda.synchronize()
    weights = [layer.weight for layer in layers]
    places = [card.last_prefetch(w.data_ptr(), w.numel() * 4) for w in weights]
    print(json.dumps(asdict(report) | {"places": places, "sum": y.double().sum().item()}))
"""


def _replay(policy: str, advice: Path, program: Path) -> dict[str, object]:
    said = subprocess.run(
        [sys.executable, str(program), policy, str(advice)], capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    found = json.loads(said.stdout.splitlines()[-1])
    assert isinstance(found, dict)
    return found


def test_advice_of_a_recorded_run_is_replayed(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    out = tmp_path / "out"
    said = subprocess.run(
        [sys.executable, "-m", "accel_trace", "run", "--tool", "uvm_advisor", "--out", str(out),
         "--", sys.executable, str(program), "profile", "-"],
        env=os.environ.copy(), capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    (path,) = out.glob("advice*.json")
    advice = Advice.load(path)
    linear = [group for group in advice.groups if group.operator == "aten::linear"]
    assert len(linear) == 4
    weight = 1536 * 1536 * 4
    for group in linear:  # each reads its own weight, and what the layer before it made
        sizes = [advice.tensors[number] for number in group.tensors]
        assert weight in [size // 512 * 512 for size in sizes]
        assert group.objects
    results = {policy: _replay(policy, path, program) for policy in ("none", "object", "tensor")}
    for policy, found in results.items():
        assert found["mismatches"] == found["strangers"] == 0, found
        assert found["groups"] == len(advice.groups)
        assert found["sum"] == results["none"]["sum"]
        if not found["gone"]:
            assert found["asked_bytes"] == advice.asked(policy)
    assert results["none"]["places"] == [HOST] * 4
    assert results["tensor"]["places"] == [0] * 4
    assert results["object"]["places"] == [0] * 4
    object_bytes, tensor_bytes = (results[p]["asked_bytes"] for p in ("object", "tensor"))
    assert isinstance(object_bytes, int)
    assert isinstance(tensor_bytes, int)
    assert object_bytes > tensor_bytes > 0


@pytest.mark.parametrize("prefetch", [False, True])
def test_the_microbenchmark_counts_what_moved(prefetch: bool) -> None:
    call = [sys.executable, "-m", "accel_trace.uvm.microbench", "--mib", "64", "--stride", "65536"]
    said = subprocess.run(
        [*call, *(["--prefetch"] if prefetch else [])], capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    found = json.loads(said.stdout)
    assert found["touches"] == 64 * MIB // 65536
    assert found["seconds"] > 0
    if found["moved_in"] is None:
        assert "are not counted" in said.stderr  # the reason is told, and the time is there
    elif prefetch:
        assert found["moved_in"] >= 64 * MIB
    else:
        assert 4096 * found["touches"] <= found["moved_in"] <= 64 * MIB + 2 * MIB


def test_the_microbenchmark_in_this_process_leaves_memory_usable() -> None:
    result = microbench.touch(4 * MIB, 4096)
    assert result.touches == 1024
    assert torch.ones(3, device="cuda").sum().item() == 3
