"""The second process of a pair: one rank's preprocessing on the same GPU."""

from __future__ import annotations

from typing import Any

from rap_training.backends import backend
from rap_training.bound import bound
from rap_training.config import Config
from rap_training.feed import Feed
from rap_training.inputs import load_plan, raw_batches
from rap_training.joining import device_of
from rap_training.memory import Buffers
from rap_training.sharing.preparation import SLOTS, Steps
from rap_training.sharing.process import serve
from rap_training.sharing.shared import Ends
from rap_training.sharing.variants import VARIANTS
from rap_training.train.collectives import Collectives
from rap_training.work import Work


def preprocessor(config: Config, rank: int, ends: Ends) -> None:
    """The second process of a pair: the preprocessing of `rank` on the same GPU."""
    plan = load_plan(config)
    batches = raw_batches(plan, config)
    device = device_of(config, rank)
    there = backend(device)

    def make_steps(request: Any) -> Steps:
        variant = VARIANTS[request.variant]
        work = Work(
            plan=plan, rank=rank, world=config.gpus, batch=config.batch, home=request.home,
            mapping=request.mapping,
        )  # fmt: skip
        buffers = Buffers.allocate(work, device, SLOTS, results=request.results)
        calls = bound(there, variant.fusion, buffers, config, note=lambda _: None).calls
        feed = Feed(work, batches, device, config.loader)
        return Steps(feed, buffers, calls, Collectives(rank=rank, world=1))

    serve(make_steps, ends, device)
