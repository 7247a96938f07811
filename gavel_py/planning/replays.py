"""The fleet for jobs or a trace: candidates by hourly demand, then paired replays of the trace by successive halving.

Hourly demand gives the mix of types, not the waits: one replay is noise, and the value of a node per dollar ranks wrongly. So
candidates come from plans at five budgets, from fleets of few types and from neighbours of the best ones; all are replayed on the
same arrivals, first on the busiest part of the trace, and the best few on the whole of it and on resampled ones.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import Fault, GavelError, InputError, refuse
from gavel_py.optimization.solving.highs import InfeasibleError
from gavel_py.planning.catalog import Catalog
from gavel_py.planning.chance import HourCoverage, most_work
from gavel_py.planning.fleet import FleetLimits, FleetMarket
from gavel_py.policies import Policy
from gavel_py.problem.accelerators import same_accelerator
from gavel_py.problem.arrays import Floats
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.nodes import Node
from gavel_py.problem.problem import AllocationProblem
from gavel_py.report.measures import SampleMean, counted, estimate
from gavel_py.report.metrics import METRICS
from gavel_py.throughput_profiles import ThroughputProfile
from gavel_py.workloads.job_types import assign_job_types, lacks_type
from gavel_py.workloads.submission import Submission
from gavel_py.workloads.trace import Trace

if TYPE_CHECKING:
    from gavel_py.sweeps import Progress

BUDGETS = (0.5, 0.65, 0.8, 0.9, 1.0)
"""Parts of the budget at which plans by hourly demand give candidates."""

RUNGS = ((8, 4, 4), (2, 4, 0), (1, 1, 0))
"""Steps of successive halving: (the trace's time over that of the replayed part, fleets that remain, neighbours that are added)."""

FIRST = 24
"""Candidates at most at first."""

STEP = 0.12
"""Part of the nodes of a type by which a neighbour differs."""

BINS, CLASSES = 168, 12
"""Intervals and classes of demand to which a trace is reduced for candidates."""

FEW_JOBS, MANY, FEW = 2_000, 8, 4
"""Resampled traces: many of a trace with few jobs, few of one with many."""

DAY, WEEK = 86400.0, 604800.0

UNIT_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": DAY}
MEASURES = {"wait": "queueing", "completion": "jct"}

Fleet = tuple[int, ...]
"""Nodes of each type."""

Demand = tuple[Floats, Floats, tuple[Floats, Floats]]
"""Hourly demand of a trace: GPUs of each class, relative speeds of classes, and hours with the GPUs of all classes."""


@dataclass(frozen=True)
class FleetTarget:
    """The service that a fleet for jobs should give.

    Attributes:
        metric: The metric of runs by which fleets are compared (`METRICS`); less is better.
        most: Its largest value that is good enough; None for as little as the budget allows.
        text: The target as written.
    """

    metric: str
    most: float | None
    text: str

    @classmethod
    def parsed(cls, text: str) -> FleetTarget:
        """Return the target in a text.

        Args:
            text: "wait p95 <= 2h", "wait mean", "completion" and the like, or "deadlines = all".

        Raises:
            InputError: The text has another form.
        """
        form = r"\s*(wait|completion)(?:\s+(mean|median|p95|p99))?(?:\s*<=\s*([0-9]+(?:\.[0-9]*)?)\s*(s|min|h|d))?\s*"
        found = re.fullmatch(form, text)
        if re.fullmatch(r"\s*deadlines\s*=\s*all\s*", text):
            return cls("late", 0.0, text.strip())
        metric = f"{found[2] or 'mean'}_{MEASURES[found[1]]}_seconds" if found else ""
        rule = 'must be wait or completion, mean or p95, and a time, as in "wait p95 <= 2h", or "deadlines = all"'
        refuse("target", (metric not in METRICS, "", f"{rule}; found {text!r}"))
        most = float(found[3]) * UNIT_SECONDS[found[4]] if found and found[3] else None
        return cls(metric, most, text.strip())

    def excess(self, value: float) -> float:
        """Return by how much a value misses the target, 0 if it is good enough, the value itself without a limit.

        Args:
            value: Of the metric.
        """
        return value if self.most is None else max(0.0, value - self.most)


@dataclass(frozen=True, eq=False)
class ReplayedFleet:
    """A fleet with its cost and what replays found.

    Attributes:
        nodes: Of each type.
        usd_per_hour: Cost per hour.
        usd_now: To be paid for new nodes, less what retired ones bring.
        value: The metric on the whole trace, in seconds or late jobs; infinite if no job ends, or if only resampled
            traces were replayed.
        resampled: The same on each resampled trace.
    """

    nodes: Fleet
    usd_per_hour: float
    usd_now: float
    value: float
    resampled: tuple[float, ...] = ()

    def less_than(self, other: ReplayedFleet) -> SampleMean | None:
        """Return by how much its metric is below that of another fleet on the same resampled traces, with a 95 % interval.

        Args:
            other: The fleet.
        """
        return estimate([theirs - own for own, theirs in zip(self.resampled, other.resampled, strict=False)])


@dataclass(frozen=True, eq=False)
class TracePlan:
    """What to buy, keep and retire for jobs or a trace.

    Attributes:
        market: Types with prices, nodes that are there, and limits.
        target: What was asked for.
        chosen: The fleet: the cheapest one that meets the target on the whole trace, or the best one within the budget.
        today: The fleet that is there; None without one, or if jobs cannot run on it.
        front: Fleets that no other one beats in both cost and metric, by cost.
        next_nodes: {accelerator type: (with one node more, with one fewer)}; None if that fleet is not possible.
        cautious: The chosen fleet with cautious and with optimistic speeds, of a profile with estimates; else empty.
        replays: Number of replays.
        demand: (T,) hours, and the GPUs that jobs would hold there if each began at once on its fastest type.
        assumptions: What was assumed about the trace.
    """

    market: FleetMarket
    target: FleetTarget
    chosen: ReplayedFleet
    today: ReplayedFleet | None
    front: Sequence[ReplayedFleet]
    next_nodes: Mapping[str, tuple[ReplayedFleet | None, ReplayedFleet | None]]
    cautious: tuple[float, ...]
    replays: int
    demand: tuple[Floats, Floats]
    assumptions: Sequence[str] = ()

    @property
    def types(self) -> tuple[str, ...]:
        """The accelerator types."""
        return tuple(self.market.catalog.names)

    @property
    def is_met(self) -> bool:
        """Whether the chosen fleet meets the target on the whole trace."""
        return self.target.most is None or self.chosen.value <= self.target.most

    @property
    def kept(self) -> NDArray[np.int64]:
        """(J,) nodes that are kept."""
        return np.minimum(self.chosen.nodes, self.market.have)

    @property
    def bought(self) -> NDArray[np.int64]:
        """(J,) nodes that are bought or rented."""
        return np.array(self.chosen.nodes) - self.kept

    @property
    def retired(self) -> NDArray[np.int64]:
        """(J,) nodes that are not kept."""
        return self.market.have - self.kept

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data."""

        def plain(fleet: ReplayedFleet | None) -> dict[str, Any] | None:
            if fleet is None:
                return None
            gain = self.chosen.less_than(fleet)
            more = {} if gain is None else {"chosen_is_less_by": gain.mean, "half_width": gain.half_width, "replays": gain.count}
            value, *resampled = (each if math.isfinite(each) else None for each in (fleet.value, *fleet.resampled))
            own = {"usd_per_hour": fleet.usd_per_hour, "usd_now": fleet.usd_now, self.target.metric: value}
            return {"nodes": dict(zip(self.types, fleet.nodes, strict=True)), **own, "resampled": resampled, **more}

        return {
            "target": self.target.text,
            "is_met": self.is_met,
            "keep": dict(zip(self.types, self.kept.tolist(), strict=True)),
            "buy": dict(zip(self.types, self.bought.tolist(), strict=True)),
            "retire": dict(zip(self.types, self.retired.tolist(), strict=True)),
            "plan": plain(self.chosen),
            "today": plain(self.today),
            "front": [plain(each) for each in self.front],
            "next_nodes": {
                name: {"one_more": plain(more), "one_fewer": plain(fewer)} for name, (more, fewer) in self.next_nodes.items()
            },
            "with_cautious_and_optimistic_speeds": [each if math.isfinite(each) else None for each in self.cautious],
            "replays": self.replays,
            "assumptions": list(self.assumptions),
        }


def plan_from_trace(
    trace: Trace,
    catalog: Catalog,
    profile: ThroughputProfile,
    target: FleetTarget | str = "completion",
    *,
    policy: str | Policy = "max_min_fairness",
    existing: Cluster | None = None,
    limits: FleetLimits | None = None,
    round_seconds: float | None = 360.0,
    **replaying: Any,
) -> TracePlan:
    """Return what to buy, keep and retire for jobs, by replays of their trace on candidates.

    Args:
        trace: Jobs with their arrivals; jobs without type or steps get them as in a simulation, the same for all fleets.
        catalog: Prices and supply of nodes.
        profile: Speeds by job type; types of the catalog that it lacks cannot be bought. With estimates, the chosen fleet is
            also replayed with cautious and optimistic speeds.
        target: What the fleet should reach at least cost, or what the budget should make small.
        policy: The policy of the replays.
        existing: Nodes that are there.
        limits: Budgets, power and racks.
        round_seconds: Length of rounds in replays; None for event-driven mode, for ordered policies.
        **replaying: seed [0] of resampled traces; resamples, their number [8, or 4 of more than 2,000 jobs]; results, a file that
            keeps replays, so that the same call continues; workers, processes [all cores], or executor, as
            for `sweep`; on_progress, called with the text of a step and its `Progress`.

    Raises:
        InputError: The trace has no jobs that end, no type of the catalog has speeds, a job can run on none of them, or no fleet
            is within the limits.
    """
    goal = FleetTarget.parsed(target) if isinstance(target, str) else target
    known = {name: same_accelerator(name, profile.accelerators) for name in catalog.names}
    sold = Catalog(tuple(each for each in catalog.entries if known[each.accelerator]))
    text = f"none of the types is in profile {profile.name!r}: {', '.join(known)}; add speeds, or estimate them (--estimate)"
    refuse("catalog", (not sold.entries, "", text))
    sold = sold.named({name: there for name, there in known.items() if there})
    have = np.zeros(len(sold.entries), dtype=np.int64) if existing is None else sold.nodes_in(existing)
    if any(map(lacks_type, trace)):
        trace, profile = assign_job_types(trace, profile, accelerators=sold.names, extrapolate=True)
    endless = [each for each in trace if lacks_type(each)]
    if endless:
        gpus = sum(each.job.num_gpus for each in endless)
        text = f"Jobs without steps and duration never end, so they are left out, with the {gpus:g} GPUs that they would hold"
        trace = trace.changed((each for each in trace if not lacks_type(each)), f"{text}: {counted(len(endless), 'job')}.")
    refuse("trace", (not len(trace), "", "has no jobs that end"))
    market = FleetMarket(sold, have, limits or FleetLimits())
    runner = _Replays(trace, market, profile, goal, policy, existing, round_seconds, **replaying)
    return runner.plan(known)


def _unseen(text: str, progress: Progress) -> None:
    """Show no progress."""


@dataclass
class _Replays:
    """Replays of a trace on fleets, each once."""

    trace: Trace
    market: FleetMarket
    profile: ThroughputProfile
    target: FleetTarget
    policy: str | Policy
    existing: Cluster | None
    round_seconds: float | None
    seed: int = 0
    resamples: int | None = None
    results: str | Path | None = None
    workers: int | None = None
    executor: Executor | None = None
    on_progress: Callable[[str, Progress], None] = _unseen
    found: dict[tuple[Fleet, str], float] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The resampled traces."""
        usual = MANY if len(self.trace) <= FEW_JOBS else FEW
        return [f"resampled {n}" for n in range(usual if self.resamples is None else self.resamples)]

    def plan(self, known: Mapping[str, str | None]) -> TracePlan:
        """Return the plan of the best fleet found."""
        today: Fleet = tuple(self.market.have.tolist())
        fleets = self.candidates()
        if not fleets:
            raise InputError(Fault("limits", "", "no fleet within them can run all jobs"))
        best = fleets
        for parts, most, further in RUNGS:
            name, part = ("trace", self.trace) if parts == 1 else (f"1/{parts}", busiest(self.trace, self.work, parts))
            self.replay(best, {name: part}, f"{counted(len(best), 'fleet')} on {'the trace' if parts == 1 else f'1/{parts} of it'}")
            best = self.with_neighbours(self.in_order(best, name)[:most], most + further)
        whole = [fleet for fleet, name in self.found if name == "trace"]
        chosen = min(whole, key=lambda fleet: self.rank(fleet, "trace"))
        small = len(self.trace) <= FEW_JOBS
        for _ in range(8 if small else 2):  # a step to a neighbour, as long as one is better on the whole trace
            near = [each for each in self.with_neighbours([chosen], 12 if small else 6) if (each, "trace") not in self.found]
            self.replay(near, {"trace": self.trace}, f"{counted(len(near), 'neighbour')} on the trace")
            better = min([chosen, *near], key=lambda fleet: self.rank(fleet, "trace"))
            if better == chosen:
                break
            chosen = better
        has_today = any(today) and self.runs_all(today)
        resampled = {name: drawn(self.trace, self.seed, n) for n, name in enumerate(self.names)}
        steps = {
            name: (self.stepped(chosen, j, 1), self.stepped(chosen, j, -1)) for j, name in enumerate(self.market.catalog.names)
        }
        front = self.front({fleet for fleet, name in self.found if name == "trace"})
        stepped = [each for pair in steps.values() for each in pair if each is not None]
        compared = dict.fromkeys([chosen, *([today] if has_today else []), *self.nearest(front, chosen), *stepped])
        self.replay([today] if has_today else [], {"trace": self.trace}, "today's fleet on the trace")
        text = f"{counted(len(compared), 'fleet')} on {counted(len(self.names), 'resampled trace')}"
        self.replay(list(compared), resampled, text)
        return TracePlan(
            self.market,
            self.target,
            self.replayed(chosen),
            self.replayed(today) if has_today else None,
            [self.replayed(each) for each in front],
            {name: tuple(self.replayed(each) if each else None for each in pair) for name, pair in steps.items()},  # type: ignore[misc]
            self.by_confidence(chosen),
            len(self.found),
            self.fluid[2],
            [
                *self.trace.report.assumptions,
                *(f"{name} is in the catalog, but has no speeds." for name, there in known.items() if there is None),
            ],
        )

    @cached_property
    def gangs(self) -> tuple[NDArray[np.int64], Floats, Floats]:
        """The (N,) gang of each job, and of each gang its GPUs and (J,) steps/s on the types, 0 where it cannot run."""
        jobs = self.trace.jobs
        largest = max(job.num_gpus for job in jobs)
        enough = tuple(max(1, math.ceil(largest / size)) for size in self.market.sizes)
        problem = AllocationProblem.from_jobs(jobs, self.cluster(enough), self.profile)
        found = dict(zip(problem.accelerator_types, problem.throughputs.T, strict=True))
        table = np.column_stack([problem.num_gpus, *(found[name] for name in self.market.catalog.names)])
        rows, gang_of = np.unique(table, axis=0, return_inverse=True)
        return gang_of.ravel(), rows[:, 0], rows[:, 1:]

    @property
    def work(self) -> Floats:
        """(N,) GPU-seconds of each job on its fastest type."""
        gang_of, sizes, speeds = self.gangs
        steps = np.array([each.job.total_steps or 0.0 for each in self.trace])
        fastest = speeds.max(axis=1)[gang_of]
        return np.where(fastest > 0, steps * sizes[gang_of] / np.maximum(fastest, 1e-300), 0.0)

    @cached_property
    def fluid(self) -> Demand:
        """Demand of the trace (`fluid_demand`)."""
        return fluid_demand(self.trace, self.work, *self.gangs)

    def runs_all(self, fleet: Fleet) -> bool:
        """Return whether each job can run on some type of a fleet."""
        _, sizes, speeds = self.gangs
        return bool(((speeds > 0) & (np.array(fleet) * self.market.sizes >= sizes[:, None])).any(axis=1).all())

    def split(self, fleet: Sequence[int]) -> Floats:
        """Return the (2J,) kept and new nodes of a fleet."""
        kept = np.minimum(fleet, self.market.have)
        return np.concatenate([kept, np.array(fleet) - kept]).astype(float)

    def is_open(self, fleet: Sequence[int]) -> bool:
        """Return whether a fleet is within supply and limits, and can run all jobs."""
        open_, nodes = self.market.purchases(), self.split(fleet)
        within = (nodes <= open_.most).all() and (open_.rows @ nodes <= open_.limits * (1 + 1e-9) + 1e-9).all()
        return bool(min(fleet) >= 0 and within and self.runs_all(tuple(fleet)))

    def cost(self, fleet: Fleet) -> float:
        """Return the cost of a fleet per hour."""
        return float(self.market.purchases().costs @ self.split(fleet))

    def value(self, fleet: Fleet, name: str) -> float:
        return self.found.get((fleet, name), math.inf)

    def rank(self, fleet: Fleet, name: str) -> tuple[float, float, float]:
        """Return the key by which fleets are ordered, the best first."""
        value = self.value(fleet, name)
        return self.target.excess(value), self.cost(fleet), value

    def in_order(self, fleets: Sequence[Fleet], name: str) -> list[Fleet]:
        """Return fleets, the best first: in turns by a replay, and by the work of the whole trace that they serve.

        In a replay of a part, queues are short, and many fleets are equal.
        """
        demand, speeds, _ = self.fluid
        covered = HourCoverage(speeds)
        served = {fleet: covered.work(demand, np.array(fleet) * self.market.sizes)[0] for fleet in fleets}
        orders = sorted(fleets, key=partial(self.rank, name=name)), sorted(fleets, key=lambda fleet: -served[fleet])
        return list(dict.fromkeys(fleet for turn in zip(*orders, strict=True) for fleet in turn))

    def front(self, fleets: Iterable[Fleet]) -> list[Fleet]:
        """Return the fleets that no other one beats in cost and metric on the whole trace, by cost."""
        best, kept = math.inf, []
        for fleet in sorted(fleets, key=lambda each: (self.cost(each), self.value(each, "trace"))):
            if self.value(fleet, "trace") < best:
                best = self.value(fleet, "trace")
                kept.append(fleet)
        return kept

    def nearest(self, front: Sequence[Fleet], chosen: Fleet) -> list[Fleet]:
        """Return the fleets of a front that cost a little less and a little more than the chosen one."""
        at = front.index(chosen)
        return [*front[max(0, at - 1) : at], *front[at + 1 : at + 2]]

    def replayed(self, fleet: Fleet) -> ReplayedFleet:
        """Return a fleet with what has been found about it."""
        values, start, _ = self.market.used()["budget_usd"]
        resampled = tuple(self.found[fleet, name] for name in self.names if (fleet, name) in self.found)
        return ReplayedFleet(
            fleet, self.cost(fleet), start + float(values @ self.split(fleet)), self.value(fleet, "trace"), resampled
        )

    def candidates(self) -> list[Fleet]:
        """Return the first candidates: today's fleet, plans by hourly demand at five budgets, fleets of one type, all open."""
        demand, speeds, _ = self.fluid
        open_ = self.market.purchases().at_most(demand, speeds)
        fleets: dict[Fleet, None] = {}

        def add(nodes: Floats) -> None:
            fleet = tuple(int(each) for each in np.round(nodes).reshape(2, -1).sum(axis=0))
            if self.is_open(fleet):
                fleets.setdefault(fleet)

        add(self.split(self.market.have.tolist()))
        names = list(range(len(self.market.have)))
        for part in BUDGETS:
            for types in [names, *([[j] for j in names] if part == 1.0 else [])]:
                try:
                    add(most_work(demand, speeds, self.budgeted(open_, part, types)))
                except InfeasibleError:
                    continue
        most, full = FIRST, list(fleets)
        return self.with_neighbours(full[::-1], most) if full else []

    def budgeted(self, open_: Any, part: float, types: Sequence[int]) -> Any:
        """Return the purchases at a part of the budget, with new nodes of some types only.

        Without any budget, it is a part of the cost of all nodes that demand could use.
        """
        limits = [name for name, (_, _, limit) in self.market.used().items() if limit is not None]
        parts = np.array([part if name.startswith("budget") else 1.0 for name in limits])
        new = np.isin(np.arange(len(self.market.have)), types)
        most = np.where(np.concatenate([np.ones_like(new), new]), open_.most, 0.0)
        if any(name.startswith("budget") for name in limits):
            return replace(open_, most=most, limits=open_.limits * parts)
        rows, total = np.vstack([open_.rows, open_.costs]), float(open_.costs @ open_.most) / 2
        return replace(open_, most=most, rows=rows, limits=np.append(open_.limits, part * total))

    def stepped(self, fleet: Fleet, j: int, by: int) -> Fleet | None:
        """Return a fleet with more or fewer nodes of a type, whatever the budget; None if it is not possible."""
        changed = tuple(each + by * (n == j) for n, each in enumerate(fleet))
        nodes = self.split(changed)
        supply = self.market.purchases(is_limited=False).most
        return changed if changed[j] >= 0 and (nodes <= supply).all() and self.runs_all(changed) else None

    def with_neighbours(self, fleets: Sequence[Fleet], most: int) -> list[Fleet]:
        """Return fleets and as many open neighbours of each in turn as fit, those first that hourly demand prefers.

        A neighbour has nodes of a type more, fewer, or exchanged for another at equal cost. What the next node of a type serves per
        dollar only gives the order, and each kind of change its turn, since this value alone ranks types wrongly.
        """
        kept = dict.fromkeys(fleets[:most])
        turns = [list(self.neighbours(fleet)) for fleet in fleets]
        for near in (near for turn in zip_longest(*turns) for near in turn if near is not None):
            if len(kept) < most and self.is_open(near):
                kept.setdefault(near)
        return list(kept)

    def neighbours(self, fleet: Fleet) -> Iterator[Fleet]:
        """Yield a fleet with more nodes of a type, exchanged ones, and fewer, in turns and each by work served per dollar."""
        demand, speeds, _ = self.fluid
        costs = np.maximum(self.market.costs(), 1e-9)
        worth = HourCoverage(speeds).work(demand, np.array(fleet) * self.market.sizes)[1] * self.market.sizes / costs
        step = [max(1, round(each * STEP)) for each in fleet]
        types = range(len(fleet))

        def changed(less: int | None, more: int | None) -> Fleet:
            nodes = list(fleet)
            if less is not None and more is not None:
                added = max(1, int(step[less] * costs[less] / costs[more]))
                nodes[more] += added
                nodes[less] -= min(fleet[less], math.ceil(added * costs[more] / costs[less]))
            elif less is not None:
                nodes[less] -= min(step[less], fleet[less])
            elif more is not None:
                nodes[more] += step[more]
            return tuple(nodes)

        swaps = sorted(((j, k) for j in types for k in types if j != k), key=lambda pair: worth[pair[0]] - worth[pair[1]])
        by_worth = sorted(types, key=lambda j: worth[j])
        kinds = [
            [changed(None, k) for k in by_worth[::-1]],
            [changed(*pair) for pair in swaps],
            [changed(j, None) for j in by_worth],
        ]
        yield from (near for turn in zip_longest(*kinds) for near in turn if near is not None)

    def cluster(self, fleet: Fleet) -> Cluster:
        """Return the nodes of a fleet: those that are kept, and new ones like the first of their type."""
        nodes: list[Node] = []
        there = [] if self.existing is None else list(self.existing.nodes)
        for entry, count in zip(self.market.catalog.entries, fleet, strict=True):
            own = [node for node in there if same_accelerator(node.accelerator, [entry.accelerator])][:count]
            model = own[0] if own else Node(name="new", accelerator=entry.accelerator, num_gpus=entry.num_gpus)
            new = [model.model_copy(update={"name": f"{entry.accelerator}-{n}"}) for n in range(len(own), count)]
            named = [node.model_copy(update={"name": f"{entry.accelerator}-{n}"}) for n, node in enumerate(own)]
            nodes += [node.model_copy(update={"accelerator": entry.accelerator, "rack": None}) for node in (*named, *new)]
        return self.market.catalog.priced(Cluster(nodes))

    def replay(
        self, fleets: Sequence[Fleet], traces: Mapping[str, Trace], text: str, profile: ThroughputProfile | None = None
    ) -> None:
        """Replay traces on fleets, as far as this has not been done, and note the metric of each replay."""
        missing = [fleet for fleet in fleets if any((fleet, name) not in self.found for name in traces)]
        if not missing:
            return
        from gavel_py.sweeps import sweep

        spec = {
            "policies": [self.policy],
            "traces": [{"file": trace, "name": name} for name, trace in traces.items()],
            "clusters": [{"cluster": self.cluster(fleet), "name": ",".join(map(str, fleet))} for fleet in missing],
            "round_seconds": [self.round_seconds],
            **speeds_of(profile or self.profile),
            **({} if self.results is None else {"results": str(self.results)}),
        }
        for row in sweep(spec, executor=self.executor, workers=self.workers, on_progress=partial(self.on_progress, text)):
            if row["status"] != "done":
                raise GavelError(f"a replay failed: {row['error']}")
            value = row.get(self.target.metric)
            none = "no job of the trace has a deadline, so it cannot be a target"
            refuse("target", (value is None and row["trace"] == "trace" and row["finished"], "", none))
            fleet = tuple(int(each) for each in str(row["cluster"]).split(","))
            self.found[fleet, str(row["trace"])] = math.inf if value is None and row["finished"] == 0 else float(value or 0.0)

    def by_confidence(self, fleet: Fleet) -> tuple[float, ...]:
        """Return the metric with cautious and with optimistic speeds, of a profile with estimates; else nothing."""
        estimated: Any = self.profile
        if not hasattr(estimated, "estimates_of"):
            return ()
        values = []
        for name, confidence in (("cautious", 0.9), ("optimistic", "optimistic")):
            other = estimated.measured.with_estimates(estimated.method, confidence=confidence)
            self.replay([fleet], {name: self.trace}, f"the plan with {name} speeds", other)
            values.append(self.found[fleet, name])
        return tuple(values)


def speeds_of(profile: Any) -> dict[str, Any]:
    """Return the keys of a sweep for the speeds of a profile, so that kept replays on other estimates are told apart."""
    if not hasattr(profile, "estimates_of") or not isinstance(profile.method, str):
        return {"profile": profile}
    return {"profile": profile.measured, "estimate": profile.method} | (
        {} if profile.confidence is None else {"confidence": profile.confidence}
    )


def fluid_demand(trace: Trace, work: Floats, gang_of: NDArray[np.int64], sizes: Floats, speeds: Floats) -> Demand:
    """Return (H, I) demand of a trace in `BINS` intervals, (I, J) relative speeds of its classes, and hours with sums.

    Each job asks for its GPUs of its fastest type from its arrival on for as long as it would run there alone; jobs with similar
    relative speeds form a class. work: (N,) GPU-seconds of each job there; gang_of: (N,) its gang; sizes, speeds: GPUs and (J,)
    steps/s of each gang.
    """
    relative_speeds = speeds / np.maximum(speeds.max(axis=1), 1e-300)[:, None]
    classes = _merged(relative_speeds)
    weights = np.bincount(gang_of, work, len(sizes)) + 1e-12
    members = [classes == n for n in range(int(classes.max()) + 1)]
    relative = np.array([np.average(relative_speeds[own], axis=0, weights=weights[own]) for own in members])
    starts = np.array([each.job.arrival_seconds for each in trace])
    ends = starts + work / sizes[gang_of]
    edges = np.linspace(starts.min(), max(starts.max(), float(np.quantile(ends, 0.9)), starts.min() + 1.0), BINS + 1)
    demand = np.zeros((BINS, len(members)))
    for n in range(BINS):
        inside = np.clip(np.minimum(ends, edges[n + 1]) - np.maximum(starts, edges[n]), 0.0, None) / (edges[n + 1] - edges[n])
        np.add.at(demand[n], classes[gang_of], sizes[gang_of] * inside)
    return demand, relative, ((edges[:-1] - edges[0]) / 3600, demand.sum(axis=1))


def _merged(table: Floats) -> NDArray[np.int64]:
    """Return the class of each row: rows that are equal in rounded logarithms, coarser until there are at most `CLASSES`."""
    logs = np.log2(np.maximum(table, 2.0**-10))
    for width in (0.25, 0.5, 1.0, 2.0, 4.0, 20.0):
        _, classes = np.unique(np.round(logs / width), axis=0, return_inverse=True)
        if classes.max() < CLASSES:
            break
    return np.asarray(classes).ravel()


def busiest(trace: Trace, work: Floats, parts: int) -> Trace:
    """Return the part of a trace, of this fraction of its time, in which most work arrives; of jobs that arrive at once, a sample.

    work: (N,) of each job.
    """
    arrivals = np.array([each.job.arrival_seconds for each in trace])
    length = (arrivals[-1] - arrivals[0]) / parts
    if not length:
        return trace.sample(max(1, len(trace) // parts))
    sums = np.concatenate([[0.0], np.cumsum(work)])
    ends = np.searchsorted(arrivals, arrivals + length, side="right")
    first = int(np.argmax(sums[ends] - sums[:-1]))
    return trace.window(first=first, last=int(ends[first]))


def drawn(trace: Trace, seed: int, number: int) -> Trace:
    """Return a resampled trace: weeks, days if there are less than four weeks, or jobs that arrive at once, drawn again."""
    rng = np.random.default_rng([seed, number])
    arrivals = np.array([each.job.arrival_seconds for each in trace])
    start, span = float(arrivals[0]), float(arrivals[-1] - arrivals[0])
    block = next((length for length in (WEEK, DAY) if span >= 4 * length), span / 8)
    blocks = math.ceil(span / block) if block else 0
    chosen = rng.integers(0, blocks, blocks).tolist() if blocks else []
    picked: list[Submission] = []
    for place, source in enumerate(chosen):
        low = start + source * block
        for each in trace[int(np.searchsorted(arrivals, low)) : int(np.searchsorted(arrivals, low + block))]:
            picked.append(each.moved(each.job.arrival_seconds + (place - source) * block))
    if not blocks:
        picked = [trace[int(n)] for n in rng.integers(0, len(trace), len(trace))]
    renamed = [replace(each, job=each.job.model_copy(update={"job_id": f"{n}-{each.job.job_id}"})) for n, each in enumerate(picked)]
    return Trace(renamed).complete() if renamed else trace
