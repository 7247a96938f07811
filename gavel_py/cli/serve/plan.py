"""gavel serve plan: whole replicas of services on a fixed set of GPUs, at constant rates or over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click

import gavel_py as gp
from gavel_py.cli import estimates
from gavel_py.cli.inputs import (
    FILE,
    INPUT,
    INPUT_OR_TEXT,
    ONE_POLICY,
    PROFILE,
    SECONDS,
    SEED,
    Command,
    Duration,
    Output,
    argument,
    cluster_from,
    detailed,
    find_profile,
    main_option,
    option,
    policies_of,
    takes_options,
    warnings_shown,
)
from gavel_py.cli.output import counted, csv_text, emit, json_text, number
from gavel_py.cli.serve.simulate import share_text
from gavel_py.cli.services import FLOOR, RATES, numbers_of, replica_text, serving_profile, with_rates
from gavel_py.cli.tables import table_text, wrapped
from gavel_py.cli.usage import refuse
from gavel_py.errors import together

SHORT = 0.02
"""Attainment by which a replay may fall short of the promise without a note."""

MEANING = {"max_min": "Least served fraction", "weighted_rate": "Weighted requests/s served", "min_cost": "Price per hour"}


@dataclass(frozen=True)
class ServePlanOptions(Output):
    """The options, as typed."""

    services_file: Path = argument("SERVICES", type=INPUT)
    cluster: str = main_option(
        "Input", "-c", type=INPUT_OR_TEXT, required=True, metavar="FILE|SPEC", help="Cluster file, or GPUs as in v100:16,p100:8/4."
    )
    rates: str = main_option("Input", **RATES)
    objective: Literal["max_min", "weighted_rate", "min_cost"] = main_option(
        "Policy", default="max_min", show_default=True, help="Objective of the plan."
    )
    floor: tuple[str, ...] = main_option("Policy", **{**FLOOR, "help": "Least served fraction of a service; may be repeated."})
    quota: tuple[str, ...] = main_option("Policy", metavar="TENANT=GPUS", help="Maximum number of GPUs of a tenant's services.")
    budget: float | None = main_option(
        "Policy", type=click.FloatRange(0), metavar="PRICE", help="Maximum price per hour of the GPUs in use."
    )
    price: tuple[str, ...] = main_option(
        "Input", metavar="TYPE=PRICE", help="Price of a GPU-hour, where the cluster does not state it."
    )
    renames: tuple[str, ...] = option("Input", "--map-accelerator", metavar="OLD=NEW", help="Rename an accelerator of the cluster.")
    training: Path | None = option(
        "Training jobs", type=INPUT, metavar="JOBS", help="Training jobs for the remaining GPUs; replicas get prices."
    )
    profile: str | None = option("Training jobs", **PROFILE, help="Speeds of these jobs by job type [gavel-osdi20].")
    estimate: str | None = option("Training jobs", **estimates.ESTIMATE)
    confidence: estimates.Confidence = option("Training jobs", **estimates.CONFIDENCE)
    extrapolate: bool = option("Training jobs", **estimates.EXTRAPOLATE)
    policy_specs: tuple[str, ...] = option("Training jobs", "--policy", "-p", **ONE_POLICY)
    settings: tuple[str, ...] = option("Training jobs", "--set", metavar="OPTION=VALUE", help="Set an option of the policy.")
    constraint_files: tuple[Path, ...] = option(
        "Training jobs", "--constraints", type=INPUT, metavar="FILE", help="YAML or JSON file of constraints on the policy."
    )
    intervals: int | None = main_option(
        "Policy",
        type=click.IntRange(min=1),
        metavar="N",
        help="Plan each of N intervals of the services' traces, for weighted_rate.",
    )
    load_seconds: float = option(
        "Policy", type=Duration(0), default=30.0, show_default=True, metavar="S", help="Time to load a model."
    )
    times: float = option(
        "Input", type=click.FloatRange(0, min_open=True), default=1.0, metavar="X", help="Multiply all rates by X [1]."
    )
    seed: int = option("Replay", **SEED, help="Seed of the requests with which the plan is replayed.")
    seeds: int = option(
        "Replay",
        type=click.IntRange(min=0),
        default=5,
        show_default=True,
        metavar="N",
        help="Number of traces for the replay; 0: none.",
    )
    plot: Path | None = option("Output", type=FILE, metavar="FILE", help="With --intervals: draw GPUs by service, as .svg or .png.")
    time_limit_seconds: float | None = option(
        "Policy", "--time-limit", type=SECONDS, metavar="S", help="Stop after this time with the best plan."
    )


@click.command("plan", cls=Command)
@takes_options(ServePlanOptions)
def command(request: ServePlanOptions) -> None:
    """Plan replicas of models on a fixed set of GPUs.

    The plan has the replicas of each model on each type of GPU, and the requests that each of them serves. Replicas are whole,
    and requests of one size may be divided among them. The answer states how far from the best one it may be, and the attainment
    in a simulation of requests on these replicas.

    \b
    gavel serve plan services.yaml -c cluster.yaml
    gavel serve plan services.yaml -c h100:16,l40s:32 --rates rates.csv --floor chat=0.9 --quota research=8
    gavel serve plan services.yaml -c h100:16 --intervals 24 --load-seconds 60 --plot gpus.svg
    """
    _check(request)
    with warnings_shown():
        with together() as attempt:
            services = attempt(lambda: gp.read_services(request.services_file))
            named = attempt(lambda: cluster_from(request.cluster, request.renames))
            cluster = attempt(lambda: detailed(named, request.price, "--price", "TYPE=PRICE", "price_per_hour"))
            profile = attempt(lambda: serving_profile(request.rates))
        profile = with_rates(services, profile)
        if request.intervals is not None:
            traces = _traces(request, services)
            schedule = _schedule(request, services, cluster, profile, traces)
            _emit_schedule(request, schedule, gp.replayed_schedule(schedule, traces, seed=request.seed) if request.seeds else None)
        else:
            traced = request.times != 1 and any(each.trace for each in services)
            refuse((traced, "--times multiplies rates; with a trace, give --intervals 1 too, or a rate instead"))
            scaled = [each.model_copy(update={"rate": each.rate * request.times}) if each.rate else each for each in services]
            plan = _plan(request, scaled, cluster, profile)
            _emit_plan(request, plan, gp.replayed_plan(plan, seed=request.seed, traces=request.seeds) if request.seeds else None)


def _check(request: ServePlanOptions) -> None:
    estimates.check_options(request.estimate, request.confidence)
    over_time = request.intervals is not None
    refuse(
        (
            request.training is None
            and (
                any((request.profile, request.policy_specs, request.settings, request.constraint_files, request.extrapolate))
                or request.estimate is not None
            ),
            "--profile, --policy, --set, --constraints, --estimate and --extrapolate are about training jobs; "
            "give --training JOBS with them",
        ),
        (not over_time and request.plot is not None, "--plot draws GPUs over time; give --intervals N with it"),
        (
            over_time and (request.training or request.floor or request.budget is not None),
            "--training, --floor and --budget are for a single plan; leave them out with --intervals",
        ),
        (
            over_time and request.objective == "min_cost",
            "--intervals plans for the most weighted requests on these GPUs; leave out --objective min_cost",
        ),
    )
    if request.plot is not None:
        gp.check_plot(request.plot)


def _plan(request: ServePlanOptions, services: list[gp.Service], cluster: gp.Cluster, profile: gp.ServingProfile) -> gp.ServingPlan:
    policy, *others = policies_of(request.policy_specs, request.settings, request.constraint_files)
    refuse((others, "the training jobs have one --policy"))
    plan = gp.plan_serving(
        services,
        cluster,
        profile,
        request.objective,
        floors=numbers_of(request.floor, "--floor", FLOOR["metavar"]),
        budget_per_hour=request.budget,
        quotas=numbers_of(request.quota, "--quota", "TENANT=GPUS"),
        time_limit_seconds=request.time_limit_seconds,
    )
    plan.verify()
    if request.training is None:
        return plan
    jobs, measured = gp.JobSet.from_file(request.training), find_profile(request.profile, None)
    speeds = estimates.with_estimates(measured, request.estimate, request.confidence)
    speeds = estimates.with_gangs(speeds, jobs) if request.extrapolate else speeds
    known = cluster.known_to(speeds, allow_unknown_types=True)
    return gp.beside_training(plan, gp.AllocationProblem.from_jobs(jobs, known, speeds), policy)


def _traces(request: ServePlanOptions, services: tuple[gp.Service, ...]) -> dict[str, gp.RequestTrace]:
    """Return the requests of each service, multiplied by --times."""
    missing = [service for service in services if service.trace is None]
    gp.InputError.raise_any([gp.Fault(service.where, "trace", "is required with --intervals") for service in missing])
    traces = {each.name: gp.RequestTrace.from_file(str(each.trace), service=each.name) for each in services}
    traces = {name: trace.of(name) if len(trace.services) > 1 else trace for name, trace in traces.items()}
    return {name: trace if request.times == 1 else trace.times_as_many(request.times) for name, trace in traces.items()}


def _schedule(
    request: ServePlanOptions,
    services: tuple[gp.Service, ...],
    cluster: gp.Cluster,
    profile: gp.ServingProfile,
    traces: dict[str, gp.RequestTrace],
) -> gp.ServingSchedule:
    count = request.intervals or 1
    curve = gp.demand_curve(traces, count)
    seconds = max(trace.duration_seconds for trace in traces.values()) / count
    return gp.plan_over_time(
        services,
        cluster,
        profile,
        curve,
        interval_seconds=seconds,
        load_seconds=request.load_seconds,
        quotas=numbers_of(request.quota, "--quota", "TENANT=GPUS"),
        compare=True,
        time_limit_seconds=request.time_limit_seconds or 60.0,
    )


def _emit_plan(request: ServePlanOptions, plan: gp.ServingPlan, replay: gp.PlanReplay | None) -> None:
    if request.form == "json":
        emit(json_text(_with_replay(plan.to_dict(), replay)), request.out)
    elif request.form == "csv":
        emit(_csv(plan.to_columns()), request.out)
    else:
        emit("\n".join(_plan_texts(plan, replay)), request.out)


def _emit_schedule(request: ServePlanOptions, schedule: gp.ServingSchedule, replay: gp.PlanReplay | None) -> None:
    if request.plot is not None:
        _draw(schedule, request.plot)
    if request.form == "json":
        emit(json_text(_with_replay(schedule.to_dict(), replay)), request.out)
    elif request.form == "csv":
        emit(_csv(schedule.to_columns()), request.out)
    else:
        emit("\n".join(_schedule_texts(schedule, replay)), request.out)


def _with_replay(document: dict[str, Any], replay: gp.PlanReplay | None) -> dict[str, Any]:
    return document | ({} if replay is None else {"replay": replay.to_dict()})


def _csv(columns: Mapping[str, Any]) -> str:
    return csv_text(list(columns), zip(*(values.tolist() for values in columns.values()), strict=True))


def _plan_texts(plan: gp.ServingPlan, replay: gp.PlanReplay | None) -> Iterator[str]:
    state = "proven optimal" if plan.status == "optimal" else f"at most {plan.gap:.1%} from the best, bound {number(plan.bound)}"
    price = (
        ""
        if plan.price_per_hour is None or plan.objective == "min_cost"
        else f" The GPUs in use cost {number(plan.price_per_hour)} per hour."
    )
    yield wrapped([f"{MEANING[plan.objective]} {number(plan.value)}, {state}.{price}"], indent="")
    rows = [
        [row["service"], replica_text(row), str(row["replicas"]), str(row["num_gpus"] * row["replicas"])] for row in plan.replicas
    ]
    titles = ["service", "replica", "replicas", "GPUs"]
    if replay is not None:
        titles, rows = [*titles, "in use"], [[*row, f"{part:.0%}"] for row, part in zip(rows, replay.utilization, strict=True)]
    yield table_text("Replicas", titles, rows, text_columns=2)
    if replay is None:
        served = [[each.name, f"{plan.served[each.name]:.1%}"] for each in plan.services]
        yield table_text("Served fractions", ["service", "served"], served)
    else:
        yield from _replay_texts(replay)
    gpus = [[name, str(used), str(plan.gpus_free[name])] for name, used in plan.gpus_used.items()]
    yield table_text("GPUs", ["type", "in use", "free"], gpus)
    yield wrapped(plan.explain().splitlines()[1:], indent="  ")


def _replay_texts(replay: gp.PlanReplay) -> Iterator[str]:
    found = replay.attainment
    spread = "" if found.half_width is None else f" ± {found.half_width:.4f}"
    traces = f"{counted(found.count, 'trace')} of about {sum(replay.requests) / len(replay.requests):,.0f} requests"
    columns = replay.to_columns()
    rows = [
        [name, number(rate), f"{part:.1%}", *map(share_text, shares)]
        for name, rate, part, *shares in zip(*(values.tolist() for values in columns.values()), strict=True)
    ]
    yield table_text("Services", ["service", "requests/s", "served", "promised", "found", "least found"], rows)
    sentences = [f"Attainment {replay.promised_attainment:.4f} promised, {found.mean:.4f}{spread} found on {traces}."]
    short = columns["service"][columns["promised"] - columns["found"] > SHORT].tolist()
    if short:
        sentences.append(
            f"Fewer requests of {', '.join(short)} are in time than promised: they arrive in bursts, which average rates "
            "do not reflect. Add replicas (min_replicas) or lower rate_factor."
        )
    yield wrapped(sentences, indent="")


def _schedule_texts(schedule: gp.ServingSchedule, replay: gp.PlanReplay | None) -> Iterator[str]:
    outcomes = {"this plan": schedule.outcome, **schedule.compared}
    rows = [
        [name, f"{each.served_requests / schedule.requests:.2%}" if schedule.requests else "-", str(each.loads)]
        for name, each in outcomes.items()
    ]
    count = len({row["interval"] for row in schedule.intervals})
    every = f"{counted(count, 'interval')} of {schedule.interval_seconds:.0f} s, {number(schedule.load_seconds)} s to load a model"
    yield table_text(every, ["plan", "requests served", "loads"], rows)
    if replay is not None:
        yield from _replay_texts(replay)
    rows = [
        [
            str(row["interval"]),
            row["service"],
            number(row["requests_per_second"]),
            f"{row['served_fraction']:.1%}",
            str(row["loads"]),
            ", ".join(f"{value} {name.removeprefix('gpus_')}" for name, value in row.items() if name.startswith("gpus_") and value),
        ]
        for row in schedule.intervals
    ]
    yield table_text("Intervals", ["interval", "service", "requests/s", "served", "loads", "GPUs"], rows)


def _draw(schedule: gp.ServingSchedule, path: Path) -> None:
    count = 1 + max(row["interval"] for row in schedule.intervals)
    gpus: dict[tuple[str, str], list[float]] = {}
    for row in schedule.intervals:
        for name, value in row.items():
            if name.startswith("gpus_"):
                key = row["service"], name.removeprefix("gpus_")
                gpus.setdefault(key, [0.0] * count)[row["interval"]] = float(value)
    starts = [at * schedule.interval_seconds for at in range(count)]
    gp.plot_serving_gpus(starts, gpus, path, end_seconds=count * schedule.interval_seconds)
