"""gavel plan: what to buy, keep and retire, for jobs or for hourly demand."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import click

import gavel_py as gp
from gavel_py.cli import estimates, remember_jobs
from gavel_py.cli.inputs import (
    FILE,
    INPUT,
    INPUT_OR_TEXT,
    ONE_POLICY,
    PROFILE,
    SECONDS,
    SEED,
    STORE,
    TRACE,
    Command,
    argument,
    assignments,
    cluster_from,
    find_profile,
    main_option,
    option,
    policies_of,
    takes_options,
    warnings_shown,
)
from gavel_py.cli.output import counted, emit, json_text, money
from gavel_py.cli.tables import Column, table_text, wrapped
from gavel_py.cli.usage import check_value, refuse
from gavel_py.errors import together

COUNTS = click.IntRange(min=0)
AMOUNT = click.FloatRange(0)
NODE_COLUMNS = ("have", "plan", "change", "$/h of a node")

MAX_FRONT = 7
"""Fleets listed that no other one beats in cost and service; the JSON output has all of them."""


@dataclass(frozen=True)
class OfJobs:
    """Options with a file of jobs, as typed."""

    jobs: Path | None = argument("[JOBS]", type=TRACE, required=False)
    target: str | None = main_option(
        "Policy", metavar="TEXT", help='With JOBS: "wait p95 <= 2h", "deadlines = all", "wait" or "completion" [completion].'
    )
    policy: str = main_option("Policy", "-p", **ONE_POLICY, default="max_min_fairness")
    events: bool = option("Policy", help="Replay in event-driven mode, for ordered policies, as gavel simulate --events.")
    profile: str | None = main_option("Input", **PROFILE, help="Speeds by job type [gavel-osdi20].")
    store: str | None = option("Input", **STORE)
    estimate: str | None = main_option("Input", **estimates.ESTIMATE)
    extrapolate: bool = option("Input", **estimates.EXTRAPOLATE)
    resamples: int | None = option("Replay", type=COUNTS, metavar="N", help="Resampled traces for intervals [8; 4 of many jobs].")
    seed: int = option("Replay", **SEED, help="Seed of the resampled traces.")
    results: Path | None = option("Run", type=FILE, metavar="FILE", help="Keep replays in this .sqlite file, to continue.")
    workers: int | None = option("Run", type=click.IntRange(min=1), metavar="N", help="Processes [all cores].")


@dataclass(frozen=True)
class OfDemand:
    """Options with hourly demand, as typed."""

    demand: Path | None = main_option("Input", type=INPUT, metavar="FILE", help="CSV of hours and GPUs by type, instead of JOBS.")
    speeds: Path | None = option(
        "Input", type=INPUT, metavar="FILE", help="CSV of class,<type>,...: speed of demand on other types, 1 for its own."
    )
    serve: str | None = main_option(
        "Policy", metavar="KIND=SHARE", help="joint=95%, each=95% or work=95% of the hours or GPU-hours [joint=95%]."
    )
    held_back: int = option(
        "Replay",
        type=COUNTS,
        default=3,
        show_default=True,
        metavar="N",
        help="Months at the end that check plans on the hours before.",
    )
    time_limit: float | None = option(
        "Run", "--time-limit", type=SECONDS, metavar="S", help="Seconds for each fleet; take the best by then."
    )


@dataclass(frozen=True)
class FleetPlanOptions(OfDemand, OfJobs):
    """All options, as typed. Fields of the last base class come first, in --help too."""

    catalog: Path = main_option("Input", type=INPUT, required=True, metavar="FILE", help="Prices and supply of nodes, as CSV.")
    have: str | None = main_option(
        "Input", "--cluster", "--have", "-c", type=INPUT_OR_TEXT, metavar="FILE|SPEC", help="Nodes that are there [none]."
    )
    budget: str | None = main_option("Policy", metavar="USD[/h]", help="Most to pay for new nodes, or per hour for all of them.")
    most: tuple[str, ...] = option("Policy", "--max", metavar="TYPE=NODES", help="Most new nodes of a type.")
    power_kw: float | None = option("Policy", type=AMOUNT, metavar="KW", help="Most power of all nodes.")
    racks: float | None = option("Policy", type=AMOUNT, metavar="N", help="Most racks for all nodes.")
    usd_per_kwh: float = option("Policy", type=AMOUNT, default=0.0, show_default=True, metavar="USD", help="Price of energy.")
    html: Path | None = main_option("Output", type=FILE, metavar="FILE", help="Write the plan with its charts to this .html file.")
    as_json: bool = main_option("Output", "--json", help="Print JSON and nothing else.")
    out: Path | None = main_option("Output", "-o", type=FILE, metavar="FILE", help="Write to this file instead of the terminal.")


@click.command("plan", cls=Command)
@takes_options(FleetPlanOptions)
def command(request: FleetPlanOptions) -> None:
    """Plan what to buy, keep and retire.

    From JOBS, jobs or a trace: the cheapest fleet that reaches a target, or the best one within a budget, by paired replays, with
    what one node more or fewer is worth. From --demand: a fleet of least cost that serves hourly demand, how near to the best one
    it is proven to be, and what such fleets serve in months that they were not planned on.

    \b
    gavel plan jobs.csv -c have.yaml --catalog gpus.csv --budget 250000 --target "wait p95 <= 2h"
    gavel plan --demand hourly.csv --catalog gpus.csv
    gavel plan --demand hourly.csv --catalog gpus.csv --have cluster.yaml --serve joint=99% --max h800=219
    gavel plan --demand hourly.csv --catalog gpus.csv --budget 30000/h
    """
    refuse(
        ((request.jobs is None) == (request.demand is None), "give either a file of JOBS or --demand FILE"),
        (request.demand and request.target, "--target is for JOBS; with --demand, give --serve"),
        (request.jobs and (request.serve or request.speeds), "--serve and --speeds are for --demand; with JOBS, give --target"),
        *((True, f"--{name.replace('_', '-')} has no effect with {given}") for given, name in _unused(request)),
    )
    if request.html is not None:
        gp.check_report(request.html)
    with warnings_shown():
        with together() as attempt:
            limits = attempt(lambda: limits_of(request))
            catalog = attempt(lambda: gp.read_catalog(request.catalog).limited(_nodes(request.most)))
            have = attempt(lambda: cluster_from(request.have, ()) if request.have else None)
            make = attempt(lambda: _of_demand(request) if request.demand else _of_jobs(request))
        plan = make(catalog, existing=have, limits=limits)
    has_budget = request.budget is not None and request.serve is None
    text = "\n".join(_replayed_texts(plan) if isinstance(plan, gp.TracePlan) else _served_texts(plan, has_budget=has_budget))
    if request.html is not None:
        gp.write_plan_page(plan, request.html, text)
    emit(json_text(plan.to_dict()) if request.as_json else text, request.out)


def _unused(request: FleetPlanOptions) -> Iterator[tuple[str, str]]:
    """Yield the options, as typed, that are for the other kind of input, each with the kind that was given."""
    source, default = click.get_current_context().get_parameter_source, click.core.ParameterSource.DEFAULT
    given, other = ("--demand", OfJobs) if request.demand else ("JOBS", OfDemand)
    yield from ((given, each.name) for each in fields(other) if source(each.name) is not default)


def _of_demand(request: FleetPlanOptions) -> Callable[..., gp.FleetPlan]:
    """Read hourly demand and its options, and return the function that plans for it."""
    with together() as attempt:
        demand = attempt(lambda: gp.read_demand(request.demand or ""))
        service = attempt(lambda: gp.FleetService.parsed(request.serve) if request.serve else None)
        speeds = attempt(lambda: None if request.speeds is None else gp.read_relative_throughputs(request.speeds))

    def make(catalog: gp.Catalog, **more: Any) -> gp.FleetPlan:
        plan = gp.plan_fleet(demand, catalog, service, relative_throughputs=speeds, time_limit=request.time_limit, **more)
        plan = gp.in_other_words(plan, time_limit=request.time_limit)
        return gp.walk_forward(plan, request.held_back, time_limit=request.time_limit)

    return make


def _of_jobs(request: FleetPlanOptions) -> Callable[..., gp.TracePlan]:
    """Read jobs and their options, and return the function that plans for them."""
    with together() as attempt:
        trace = attempt(lambda: gp.read_trace(request.jobs or ""))
        measured = attempt(lambda: find_profile(request.profile, request.store))
        target = attempt(lambda: gp.FleetTarget.parsed(request.target or "completion"))
        policies = attempt(lambda: policies_of([request.policy], (), ()))
    remember_jobs(each.job for each in trace)
    profile = estimates.of_types(measured, request.estimate, None)
    if request.extrapolate and request.estimate is None:
        profile = gp.extend_profile(profile, (each.job for each in trace if each.job.job_type))

    shown: set[str] = set()

    def show(text: str, progress: gp.Progress) -> None:
        if not progress.left and text not in shown:
            shown.add(text)
            click.echo(f"replayed {text}", err=True)

    return partial(
        gp.plan_from_trace,
        trace,
        profile=profile,
        target=target,
        policy=policies[0],
        round_seconds=None if request.events else 360.0,
        resamples=request.resamples,
        seed=request.seed,
        results=request.results,
        workers=request.workers,
        on_progress=show,
    )


def limits_of(request: FleetPlanOptions) -> gp.FleetLimits:
    """Return the limits of --budget, --power-kw and --racks."""
    found = re.fullmatch(r"((?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]*)?)(/h)?", request.budget or "0")
    check_value(request.budget or "", found, "is not an amount in US dollars, as in 250000, or per hour, as in 30000/h")
    amount = float(found[1].replace(",", "")) if found and request.budget else None
    name = "budget_usd_per_hour" if found and found[2] else "budget_usd"
    others: dict[str, Any] = {"power_kw": request.power_kw, "racks": request.racks, "usd_per_kwh": request.usd_per_kwh}
    return gp.FleetLimits(**others | {name: amount})


def _nodes(texts: tuple[str, ...]) -> Mapping[str, int]:
    typed = assignments(texts, "--max", "TYPE=NODES")
    for name, value in typed.items():
        check_value(f"{name}={value}", re.fullmatch("[0-9]{1,9}", value), "is not of the form TYPE=NODES, with a whole number")
    return {name: int(value) for name, value in typed.items()}


def changes_text(plan: Any) -> str:
    """Return what to do in a few words, as in "Buy 2 of h100; retire 3 of k80 (nodes)"."""
    named = list(zip(plan.types, plan.bought.tolist(), plan.retired.tolist(), plan.market.catalog.entries, strict=True))
    buy = [f"{new} of {name}" for name, new, _, entry in named if new and entry.rent_usd is None]
    rent = [f"{new} of {name}" for name, new, _, entry in named if new and entry.rent_usd is not None]
    retire = [f"{old} of {name}" for name, _, old, _ in named if old]
    parts = [f"{word} {', '.join(nodes)}" for word, nodes in (("buy", buy), ("rent", rent), ("retire", retire)) if nodes]
    text = f"{'; '.join(parts)} (nodes)" if parts else "keep all nodes" if plan.market.have.any() else "buy nothing"
    return text[0].upper() + text[1:]


def paid_text(usd: float) -> str:
    """Return what is to be paid now, or what retired nodes bring."""
    return f" {money(usd)} $ are to be paid now." if usd > 0 else f" Retired nodes bring {money(-usd)} $." if usd < 0 else ""


@dataclass(frozen=True)
class _Replayed:
    """The text of a plan by replays; size, unit: of its metric."""

    plan: gp.TracePlan
    size: float
    unit: str

    @classmethod
    def of(cls, plan: gp.TracePlan) -> _Replayed:
        values = [each.value for each in (plan.chosen, plan.today, *plan.front) if each and math.isfinite(each.value)]
        if plan.target.metric == "late":
            return cls(plan, 1.0, "late jobs")
        return cls(plan, 3600.0, "h") if max(values, default=0.0) >= 3600 else cls(plan, 60.0, "min")

    def shown(self, value: float) -> str:
        return f"{value / self.size:.4g} {self.unit}" if math.isfinite(value) else "no job ends"

    def less(self, fleet: gp.ReplayedFleet | None) -> str:
        """Return how much less the plan has than another fleet, with its interval."""
        gain = None if fleet is None else self.plan.chosen.less_than(fleet)
        if gain is None:
            return "-"
        return f"{gain.mean / self.size:.3g}" + ("" if gain.half_width is None else f" ± {gain.half_width / self.size:.2g}")

    def goal(self) -> str:
        """Return whether the target is met, and on how many resampled traces."""
        plan, target = self.plan, self.plan.target
        if target.most is None:
            return ""
        met = sum(target.excess(value) == 0 for value in plan.chosen.resampled)
        found = f", and on {met} of {len(plan.chosen.resampled)} resampled ones" if plan.chosen.resampled else ""
        return f" The target is {'met' if plan.is_met else 'not met within the limits'} there{found}."

    def sentences(self) -> Iterator[str]:
        plan, chosen = self.plan, self.plan.chosen
        today = f", {self.shown(plan.today.value)} today" if plan.today else ""
        yield f"{changes_text(plan)}: {money(chosen.usd_per_hour)} $/h.{paid_text(chosen.usd_now)}"
        yield f"{plan.target.text}: {self.shown(chosen.value)} on the trace{today}.{self.goal()}"
        if plan.today and chosen.resampled and plan.today.resampled:
            on = counted(len(chosen.resampled), "resampled trace")
            yield f"Worth: {self.less(plan.today)} {self.unit} less than today, on the same {on} (95 % interval)."
        if plan.cautious:
            yield f"With cautious and with optimistic speeds: {' and '.join(map(self.shown, plan.cautious))}."

    def tables(self) -> Iterator[str]:
        plan = self.plan
        counts = zip(plan.types, plan.market.have.tolist(), plan.chosen.nodes, plan.market.costs().tolist(), strict=True)
        nodes = [
            [name, f"{have:,}", f"{nodes:,}", f"{nodes - have:+,}", money(cost), *map(self.less, plan.next_nodes[name])]
            for name, have, nodes, cost in counts
        ]
        yield table_text("Nodes", [Column("type", "name"), *map(Column, (*NODE_COLUMNS, "one more", "one fewer"))], nodes)
        front = [
            [money(each.usd_per_hour), money(each.usd_now), " ".join(map(str, each.nodes)), self.shown(each.value), self.less(each)]
            for each in plan.front[-MAX_FRONT:]
        ]
        heads = ("$/h", "$ now", "nodes", plan.target.text.partition("<")[0].strip(), "plan less")
        yield table_text(f"Cost over service, {plan.replays:,} replays", [*map(Column, heads)], front)


def _replayed_texts(plan: gp.TracePlan) -> Iterator[str]:
    text = _Replayed.of(plan)
    yield wrapped(text.sentences(), indent="")
    yield from text.tables()
    note = f"one more, one fewer, plan less: {text.unit} that the plan has less than that fleet on the same resampled traces"
    yield wrapped([note, *(f"Assumed: {each}" for each in plan.assumptions)], indent="")


def _served_texts(plan: gp.FleetPlan, *, has_budget: bool) -> Iterator[str]:
    """Yield the texts of a plan for hourly demand; has_budget: whether a budget alone says how much is served."""
    proven = "proven to be the least" if plan.gap < 5e-7 else f"at most {plan.gap:.2g} of it above the least possible"
    paid = paid_text(plan.use_of("budget_usd"))
    missed = round((1 - plan.shares["joint"]) * len(plan.demand))
    yield wrapped(
        [
            f"{changes_text(plan)}: {money(plan.usd_per_hour)} $/h, {proven}.{paid}",
            f"{'Within the budget' if has_budget else f'Asked for {plan.service}'}: all demand is served in "
            f"{plan.shares['joint']:.2%} of {counted(len(plan.demand), 'hour')} "
            f"({missed:,} missed), {plan.shares['work']:.2%} of the GPU-hours.",
            *_held_back_text(plan),
        ],
        indent="",
    )
    new = plan.market.costs()
    rows = [
        [
            name,
            f"{plan.market.have[j]:,}",
            f"{plan.nodes[j]:,}",
            f"{plan.nodes[j] - plan.market.have[j]:+,}",
            money(float(new[j])),
            f"{plan.share_with(name, 1):.2%}",
            f"{plan.share_with(name, -1):.2%}" if plan.nodes[j] else "-",
        ]
        for j, name in enumerate(plan.types)
    ]
    yield table_text("Nodes", [Column("type", "name"), *map(Column, (*NODE_COLUMNS, "one more", "one fewer"))], rows)
    worst = ", ".join(f"{name} ({lack:,.0f})" for name, lack in plan.worst)
    words = [
        f"{text} costs {money(each.usd_per_hour)} $/h ({each.shares['joint']:.1%} jointly)" for text, each in plan.others.items()
    ]
    yield wrapped(
        [
            f"one more, one fewer: {plan.service.kind} service with one node more or fewer of the type",
            *([f"Worst hours, and the GPUs that they lack: {worst}"] if worst else []),
            *([f"In other words: {'; '.join(words)}"] if words else []),
        ],
        indent="",
    )


def _held_back_text(plan: gp.FleetPlan) -> Iterator[str]:
    if not plan.held_back:
        yield "No hours were held back to check it; give more hours, or --held-back."
        return
    served = ", ".join(f"{each.served:.1%}" for each in plan.held_back)
    length = counted(len(plan.held_back[0].demand), "hour")
    worst = max((lack for each in plan.held_back for lack in each.worst), key=lambda found: found[1], default=None)
    text = f"Worst of them: hour {worst[0]}, which lacks {worst[1]:,.0f} GPUs." if worst else "None of them lacks GPUs."
    blocks = f"{counted(len(plan.held_back), 'block')} of {length}"
    yield f"Planned on the hours before, {blocks} got {served}; {plan.service.share:.1%} was promised. {text}"
