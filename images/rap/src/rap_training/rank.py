"""One rank: a process with its GPU, its tables, and every variant that it takes part in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from reprokit.records import output_folder

from rap_training.backends import backend
from rap_training.bound import Bound, bound
from rap_training.config import Config
from rap_training.data.columns import RawBatch
from rap_training.feed import Feed
from rap_training.inputs import load_plan, place_plan, raw_batches
from rap_training.joining import device_of, join
from rap_training.launches import Backend, Call
from rap_training.memory import Buffers
from rap_training.plan.graph import Plan
from rap_training.planner.fusion import Fusion
from rap_training.planner.latency import LatencyModel, shapes
from rap_training.planner.placement import Placement
from rap_training.sharing import probes, rap
from rap_training.sharing.captured import captured, together
from rap_training.sharing.gated import gated
from rap_training.sharing.green import green_stream
from rap_training.sharing.lanes import Lane, StreamLane, lanes
from rap_training.sharing.preparation import SLOTS, Preparation, Side, Steps, in_lanes
from rap_training.sharing.process import Remote
from rap_training.sharing.shared import Ends
from rap_training.sharing.variants import VARIANTS, Variant
from rap_training.sharing.workers import FromWorkers, Workers, most_workers
from rap_training.train.adapter import AnyTrainer, TorchRecAdapter
from rap_training.train.dlrm import Trainer
from rap_training.train.model import Model
from rap_training.work import Work, data_parallel, locality

Tell = Callable[..., None]  # tell(kind, **what): a message to the parent


class CannotRun(RuntimeError):
    """A variant that this machine cannot run, with the reason."""


class Rank:
    """What a rank has, made when it is first needed and kept for all variants."""

    def __init__(self, config: Config, rank: int, tell: Tell, ends: Ends | None = None) -> None:
        """Joins the other ranks; they must all be made alike, in the same order."""
        self.config, self.rank, self.world = config, rank, config.gpus
        self.tell, self._ends = tell, ends
        self.labels = config.labels  # of records, with those that tell its plan from others
        self.plan = load_plan(config)
        self.batches = raw_batches(self.plan, config)
        # What the variant cpu is tuned on: not what is measured, unless a file has no more rows.
        self.tuning: list[RawBatch] = []
        self._notes: list[str] = []
        self.plans: dict[str, rap.RapPlan] = {}  # of variants gated by stages
        self.runs_as: dict[str, Variant] = {}  # what a variant is run as, by its name
        self.workers: Workers | None = None  # of the variant cpu
        if any(VARIANTS[name].place == "workers" for name in config.variants) and ends is None:
            most = min(max(config.workers), most_workers(self.world))
            self.tuning = raw_batches(self.plan, config, first=config.batches)
            self.workers = Workers(
                self.work(self.unsearched), self.batches, most, tuning=self.tuning
            )
        self.device = device_of(config, rank)
        if self.workers and self.device.type == "cuda":
            self.workers.pin()
        torch.backends.cuda.matmul.allow_tf32 = config.matmul == "tf32"
        self.collectives, self.beside = join(config, rank, self.device)
        self.generated = output_folder(config.out) / "generated"
        self.backend: Backend = backend(self.device, self.generated)
        self._lanes: dict[bool, tuple[Lane, Lane]] = {}
        self._buffers: dict[tuple[int, ...], Buffers] = {}
        self._feeds: dict[tuple[int, ...], Feed] = {}
        self._made: dict[tuple[str, tuple[int, ...]], Bound] = {}

    # What all variants share.

    @cached_property
    def placement(self) -> Placement:
        """Tables to ranks."""
        return place_plan(self.plan, self.config)

    @property
    def home(self) -> tuple[int, ...]:
        """The rank that owns each table."""
        return self.placement.gpu_of

    @cached_property
    def trainer(self) -> AnyTrainer:
        """The one trainer of this rank."""
        model = Model(
            rows=tuple(output.rows for output in self.plan.sparse),
            dense_width=self.plan.dense_width,
            over=self.plan.over_arch,
        )
        buffers = self.buffers(self.unsearched)
        if self.config.trainer == "torchrec":
            return TorchRecAdapter(model, buffers, self.collectives, seed=self.config.seed)
        return Trainer(
            model, buffers, self.collectives, seed=self.config.seed,
            graphs=self.config.trainer == "graph" and self.device.type == "cuda",
        )  # fmt: skip

    @property
    def unsearched(self) -> tuple[int, ...]:
        """The mapping where none is searched: ids are made where a table lies, as in the artifact.

        TorchRec sends ids to their tables itself, so for it every rank makes its own rows.
        """
        own = self.config.trainer == "torchrec" and self.world > 1
        return data_parallel(len(self.home)) if own else locality(self.home)

    def work(self, mapping: Sequence[int]) -> Work:
        """This rank's preprocessing under a mapping."""
        return Work(
            plan=self.plan, rank=self.rank, world=self.world, batch=self.config.batch,
            home=self.home, mapping=tuple(mapping),
        )  # fmt: skip

    def buffers(self, mapping: Sequence[int]) -> Buffers:
        """The memory for a mapping."""
        key = tuple(mapping)
        if key not in self._buffers:
            self._buffers[key] = Buffers.allocate(self.work(key), self.device, SLOTS)
        return self._buffers[key]

    def feed(self, mapping: Sequence[int]) -> Feed:
        """The batches for a mapping."""
        key = tuple(mapping)
        if key not in self._feeds:
            self._feeds[key] = Feed(self.work(key), self.batches, self.device, self.config.loader)
        return self._feeds[key]

    def lanes(self, priority: bool) -> tuple[Lane, Lane]:
        """The training lane and the one beside it."""
        if priority not in self._lanes:
            self._lanes[priority] = lanes(self.device, priority=int(priority))
        return self._lanes[priority]

    def use(self, plan: Plan) -> None:
        """Go on with another plan and another trainer; what was made for the last is dropped."""
        if plan.columns != self.plan.columns:
            self.batches = raw_batches(plan, self.config)
        self.plan = plan
        self._buffers.clear()
        self._feeds.clear()
        self._made.clear()
        self.runs_as.clear()
        for name in ("placement", "trainer", "stage_probes", "costs", "searched"):
            self.__dict__.pop(name, None)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def tell_fact(self, name: str, value: str) -> None:
        """Of the plan in use: named by the labels that tell it from others."""
        own = [f"{key}_{self.labels[key]}" for key in self.labels if key not in self.config.labels]
        self.tell("fact", name="_".join([name, *own]), value=value)

    # What RAP measures and plans.

    @cached_property
    def latency(self) -> LatencyModel:
        """The predictor, trained on this GPU's own kernels."""
        rows = sorted({self.config.batch, self.config.batch * self.world})
        asked = self._shapes(rows)
        self.tell("progress", words=f"measuring {len(asked)} kernels for the predictor")
        found = probes.measure_latencies(asked, self.backend, self.device)
        return LatencyModel(found, seed=self.config.seed)

    @cached_property
    def stage_probes(self) -> list[probes.StageProbe]:
        """Capacity of every training stage."""
        self.tell("progress", words="probing the capacity of training stages")
        buffers = self.buffers(self.unsearched)
        steps = self._steps(buffers, self._bound("none", buffers).calls)
        for number in range(SLOTS):
            steps.all(number)
        self.trainer.bind(buffers)
        return probes.stage_probes(self.trainer, self.backend, self.lanes(True), self.collectives)

    @cached_property
    def costs(self) -> rap.Costs:
        """All that the plan rests on, of all ranks."""
        stages = [probe.cost() for probe in self.stage_probes]
        empty, rate = probes.exchange_costs(self.collectives, self.device)
        everyone = self.collectives.gather(stages)
        return rap.Costs(
            latency=self.latency, stages=tuple(map(tuple, everyone)), exchange_us=empty,
            bytes_per_us=rate,
        )  # fmt: skip

    @cached_property
    def searched(self) -> tuple[int, ...]:
        """RAP's mapping: found by rank 0, the same for all."""
        costs, found = self.costs, tuple[int, ...]()
        if self.rank == 0:
            found, words = rap.search_mapping(self.work(locality(self.home)), costs)
            self.tell_fact("mapping_is", words)
        return tuple(self.collectives.broadcast(list(found)))

    def mapping(self, variant: Variant) -> tuple[int, ...]:
        """The mapping of a variant. One rank computes everything, whatever the mapping."""
        if self.world == 1:
            return locality(self.home)
        if variant.mapping == "data_parallel":
            return data_parallel(len(self.home))
        if variant.place in ("none", "workers"):
            return self.unsearched
        if self.config.trainer == "torchrec":
            raise CannotRun(
                f"{variant.name} maps features to ranks, and on several ranks TorchRec takes "
                "own rows only; fix: --trainer graph, or --gpus 1"
            )
        return self.searched

    # Variants.

    def preparation(self, variant: Variant) -> Preparation:
        """The variant, ready to be measured. Raises CannotRun with the reason."""
        if self.device.type == "cpu" and (variant.place == "process" or variant.green):
            raise CannotRun(f"{variant.name} shares a GPU, and this point runs on the CPU")
        train, side = self.lanes(variant.priority)
        mapping = self.mapping(variant)
        buffers = self.buffers(mapping)
        if variant.place == "workers":
            assert self.workers
            if self.workers.work != buffers.work:
                raise CannotRun(f"{variant.name}'s processes were started for another plan")
            return FromWorkers(self.workers, 1, buffers, train, side)
        if variant.place == "process":
            assert self._ends
            return Remote(variant.name, buffers, self._ends, train, self.collectives)
        if variant.place == "stages":
            calls, parts = gated(self, variant, buffers, side)
            return Side(self._steps(buffers, calls, beside=True), train, side, parts)
        if variant.green:
            side = self._green_lane()
        beside = variant.place == "side"
        synchronise = self._synchronise if variant.synchronise else None
        in_step = self.one_graph(variant)
        lane = None if in_step else side if beside else train
        calls = self._calls_of(variant, buffers, lane)
        steps = self._steps(buffers, calls, beside=beside, synchronise=synchronise)
        return in_lanes(variant, steps, train, side, one_graph=in_step)

    def one_graph(self, variant: Variant) -> bool:
        """Whether preprocessing and training step are one CUDA graph: not where ranks must meet."""
        whole = self.device.type == "cuda" and self.world == 1 and self.config.trainer == "graph"
        return whole and variant.graph and variant.place in ("serial", "line")

    def may_branch(self, variant: Variant) -> bool:
        """Whether launches of its graph can run side by side: on a GPU, where any rank has several.

        The same on all ranks, which must all ask.
        """
        if self.device.type == "cpu" or not variant.graph:
            return False
        found = self._bound(variant.fusion, self.buffers(self.mapping(variant)))
        return self.collectives.largest(len(found.needs), self.device) > 1

    def run_as(self, name: str) -> Variant:
        """The variant, or what it was found to be run as."""
        return self.runs_as.get(name, VARIANTS[name])

    def steps_alone(self, variant: Variant) -> Steps:
        """The preprocessing of a variant, to be run by itself."""
        buffers = self.buffers(self.mapping(variant))
        return self._steps(buffers, self._calls_of(variant, buffers, self.lanes(False)[0]))

    def close(self) -> None:
        """End workers and preprocessor, and leave the other ranks in peace."""
        if self.workers:
            self.workers.close()
        if self._ends:
            self._ends.to_preprocessor.put(None)
        if dist.is_initialized():
            dist.destroy_process_group()

    def _shapes(self, rows: Sequence[int]) -> Sequence[Any]:
        asked = shapes(rows, seed=self.config.seed)
        return probes.few(asked, 8) if self.device.type == "cpu" else asked

    def _calls_of(
        self, variant: Variant, buffers: Buffers, lane: Lane | None
    ) -> Sequence[Sequence[Call]]:
        """The launches of a variant, slot by slot; its graphs are made here if there is a lane."""
        found = self._bound(variant.fusion, buffers)
        if not variant.graph:
            return found.calls
        needs = found.needs if variant.branches else None
        calls = [[together(part, needs, self.device)] for part in found.calls]
        return [[captured(part, lane)] for part in calls] if lane else calls

    def _bound(self, fusion: str, buffers: Buffers) -> Bound:
        """Of one way to fuse; made once, for all variants that share it."""
        key = (fusion, buffers.work.mapping)
        if key not in self._made:
            self._made[key] = bound(self.backend, fusion, buffers, self.config, self.tell_note)
        return self._made[key]

    def _steps(
        self, buffers: Buffers, calls: Sequence[Sequence[Call]], *, beside: bool = False,
        synchronise: Call | None = None,
    ) -> Steps:  # fmt: skip
        return Steps(
            self.feed(buffers.work.mapping), buffers, calls,
            self.beside if beside else self.collectives, synchronise=synchronise,
        )  # fmt: skip

    def tell_note(self, fusion: Fusion) -> None:
        """What the solver has to say, as that it ran out of time; once."""
        if fusion.note and fusion.solver != "asap" and fusion.note not in self._notes:
            self._notes.append(fusion.note)
            self.tell("progress", words=f"fusion: {fusion.note}")
            self.tell("fact", name="fusion_notes", value=list(self._notes))

    def _synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _green_lane(self) -> Lane:
        stream, sms = green_stream(self.device, self.config.green_sms)
        self.tell("fact", name="green_sms", value=sms)
        return StreamLane(stream)
