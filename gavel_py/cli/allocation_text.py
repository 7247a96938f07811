"""Text output of an allocation: what was solved, the use of each GPU type, and the jobs, in groups of equal ones.

Two numbers describe a job: *speed* is its throughput relative to running all the time on the cluster's mix of GPUs, and *vs. fair
share* is its speed relative to that on its weighted slice of the cluster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import gavel_py as gp
from gavel_py.cli.accounting import deadlines_line, forecast_lines, tenants_line, tenants_table
from gavel_py.cli.output import SAME_VALUE, counted, declared_columns, metric_row, money, number, price_text, size_text, time_text
from gavel_py.cli.tables import (
    Column,
    Columns,
    ComparisonRow,
    bar,
    columns_text,
    comparison_text,
    line_width,
    listed,
    shortened,
    styled,
    table_text,
    wrapped,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NOTE = "speed 1: always on the cluster's mix of GPUs; vs. fair share 1: as on its slice"

SPREAD = "*"
"""Marks time fractions that are at least partly spread over more nodes than necessary."""

MAX_STAGES = 10
"""Maximum number of lexicographic stages listed; the JSON output has all of them."""

MAX_REASONS = 3
"""Maximum number of reasons listed for jobs left out (--all lists all), and for numbers of GPUs that jobs cannot have."""

MAX_TYPES, MAX_TYPE = 2, 12
"""Maximum number of GPU types listed for a job, and maximum width of their names; --wide has a column for each."""

MAX_MISSES = 5
"""Maximum number of jobs listed that miss a constraint; the JSON output has all of them."""


@dataclass(frozen=True)
class Screen:
    """An allocation to show.

    Attributes:
        label: The policy with its options.
        jobs: The jobs, in the order of the problem.
        problem: The problem that was solved.
        allocation: The allocation.
        seconds: Time of reading and solving.
    """

    label: str
    jobs: gp.JobSet
    problem: gp.AllocationProblem
    allocation: gp.Allocation
    seconds: float

    @cached_property
    def served(self) -> list[int]:
        """Rows of the jobs that can run."""
        excluded = self.allocation.excluded
        return [i for i, job_id in enumerate(self.allocation.job_ids) if job_id not in excluded]

    @cached_property
    def forecast(self) -> gp.Forecast:
        """When jobs end and what they cost."""
        return self.allocation.forecast()

    @property
    def has_prices(self) -> bool:
        """Whether the price of some accelerator type is known."""
        return any(price == price for price in self.problem.prices_per_hour.tolist())


def solved_text(problem: gp.AllocationProblem, label: str) -> str:
    """Return what was solved: the jobs, the GPUs of each type, and the policy."""
    counts = [f"{count:g} {name}" for name, count in zip(problem.accelerator_types, problem.capacities.tolist(), strict=True)]
    total = problem.capacities.sum()
    gpus = f"{total:,g} {'GPU' if total == 1 else 'GPUs'}"
    types = f" ({', '.join(counts)})" if len(counts) > 1 else f" of type {problem.accelerator_types[0]}" if counts else ""
    jobs = f"{problem.num_jobs:,} {'job' if problem.num_jobs == 1 else 'jobs'}"
    return f"{jobs} on {gpus}{types}{f', policy {label}' if label else ''}"


def head_text(screen: Screen, more_tenants: str) -> str:
    """Return sentences on the problem and the answer; more_tenants: how to see everything on tenants."""
    allocation = screen.allocation
    lines = [styled(solved_text(screen.problem, screen.label), "title"), objective_text(screen)]
    if screen.forecast.deadlines.all:
        lines.append(deadlines_line(allocation.job_ids, screen.forecast))
    idle = [allocation.job_ids[i] for i in screen.served if not allocation.time_fractions[i].any()]
    if idle:
        start = f"{counted(len(idle), 'job')} without GPU time: "
        lines.append(styled(start + listed(idle, line_width() - len(start)), "warn"))
    lines.append(_limit_text(screen))
    served = {i: screen.jobs[i] for i in screen.served} if screen.problem.counts is not None else {}
    lines += [styled(line, "warn") for line in refused_counts(screen.problem, served)]
    lines += forecast_lines(allocation, screen.problem, screen.served)
    return wrapped(filter(None, [*lines, tenants_line(allocation.tenants(), more_tenants)])) + details_text(screen)


def refused_counts(problem: gp.AllocationProblem, jobs: Mapping[int, gp.Job]) -> Iterator[str]:
    """Yield the numbers of GPUs in `gpu_counts` that elastic jobs cannot have, by reason; jobs: {row: job}."""
    reasons = "the profile has no speed there; --estimate fills it in", "no GPU type can hold that many"
    found: list[dict[tuple[int, ...], list[str]]] = [{}, {}]
    for i, job in jobs.items():
        if problem.counts is not None and job.gpu_counts is not None:
            unmeasured, too_large = problem.counts.refused(i, job.gpu_counts)
            most = _most_gpus(problem, job)
            too_large += [number for number in unmeasured if number > most]
            unmeasured = [number for number in unmeasured if number <= most]
            for by_numbers, numbers in zip(found, (unmeasured, sorted(too_large)), strict=True):
                by_numbers.setdefault(tuple(numbers), []).append(job.job_id)
    texts = [
        f"{listed(ids, line_width() // 2)} cannot run on {' or '.join(map(str, numbers))} {'GPU' if numbers == (1,) else 'GPUs'}: "
        f"{reason}."
        for by_numbers, reason in zip(found, reasons, strict=True)
        for numbers, ids in by_numbers.items()
        if numbers
    ]
    yield from texts[:MAX_REASONS]
    if len(texts) > MAX_REASONS:
        yield f"{len(texts) - MAX_REASONS} more combinations of jobs and numbers of GPUs are not possible."


def _most_gpus(problem: gp.AllocationProblem, job: gp.Job) -> float:
    """Return the number of GPUs of the largest type that a job may use."""
    gpus = zip(problem.accelerator_types, problem.capacities.tolist(), strict=True)
    return max((count for name, count in gpus if job.allows(name)), default=0)


def _limit_text(screen: Screen) -> str:
    """Return which jobs limit max-min fairness; "" if there are none."""
    allocation, limited = screen.allocation, gp.limiting_jobs(screen.allocation, screen.problem)
    if not limited:
        return ""
    names = listed([allocation.job_ids[i] for i in limited], 40)
    have = "has all that it" if len(limited) == 1 else "have all that they"
    return f"{names} {have} can use, which limits the guarantee for all; -p water_filling shares the rest fairly among the others."


def details_text(screen: Screen) -> str:
    """Return the objective, its bound, the stages of a lexicographic objective, and how the answer was found."""
    allocation = screen.allocation
    value, bound = allocation.objective_value, allocation.objective_bound
    objective = "" if value is None else f"objective {value:z.6g}, proven bound {bound:z.6g}; "
    found = f"{screen.label}: {objective}{counted(len(screen.served), 'job')}, {screen.seconds:.2f} s"
    return wrapped([found]) + stages_text(allocation) + route_text(screen)


def stages_text(allocation: gp.Allocation) -> str:
    """Return a line for each stage of a lexicographic objective."""
    lines = [f"  {stage.name}: {stage.value:z.6g}, proven bound {stage.bound:z.6g}" for stage in allocation.stages[:MAX_STAGES]]
    more = len(allocation.stages) - len(lines)
    return wrapped([*lines, *([f"  ... and {more} more"] if more else [])])


def route_text(screen: Screen) -> str:
    """Return lines on the bound of the loss by merging, the notes of the policy, and the faster routes that failed."""
    route, gap = screen.allocation.route, screen.allocation.gap
    lines = []
    if route is not None and route.reduction == "merged" and gap is not None:
        lines = [f"{screen.label}: jobs of nearly equal speed were merged, which costs at most {gap:.2%} of the objective"]
    lines += [f"{screen.label}: {note}" for note in screen.allocation.notes]
    failed = () if route is None else route.failed
    lines += [f"{screen.label}: a faster route gave no proven answer, so another one was used ({text})" for text in failed]
    return wrapped(lines)


def percent(part: float) -> str:
    """Return a part of 1 in per cent, or a large one as "2.5 times".

    >>> percent(0.67), percent(2.5)
    ('67 %', '2.5 times')
    """
    return f"{part:.3g} times" if part >= 2 else f"{100 * part:.3g} %"


Meaning = Callable[[float, Screen], str]
"""Returns the meaning of an objective value, as the end of a sentence."""


def objective_text(screen: Screen) -> str:
    """Return a sentence on the objective value, or on why there is none."""
    allocation = screen.allocation
    value = allocation.objective_value
    if allocation.status is gp.AllocationStatus.EMPTY:
        return _nothing_text(list(allocation.excluded.items()))
    if value is None:
        stated = allocation.status is gp.AllocationStatus.FORMULA
        return (
            f"No objective: {'a formula defines the time of each job' if stated else 'jobs are served in the order of the policy'}."
        )
    is_soft = any(outcome.penalty is not None for outcome in allocation.constraints)
    meaning = None if is_soft or math.isinf(value) else MEANINGS.get(allocation.policy)
    text = f"the objective is {value:z.6g}" if meaning is None else meaning(value, screen)
    if allocation.status is gp.AllocationStatus.TIME_LIMIT:
        return f"{styled('Time limit reached', 'warn')}, at most {allocation.gap or 0:.2%} from optimal: {text}."
    return f"{styled('Proven optimal', 'good')}: {text}."


def _nothing_text(excluded: Sequence[tuple[str, str]]) -> str:
    """Return why nothing is allocated; excluded: the jobs that cannot run, each with the reason."""
    if not excluded:
        return "There is nothing to allocate: no job can run."
    job_id, reason = excluded[0]
    of = f"none of {len(excluded):,} jobs can run; {job_id}" if len(excluded) > 1 else f"{job_id} cannot run"
    return f"There is nothing to allocate: {of}: {reason}."


def _worst_off(value: float, screen: Screen) -> str:
    """Return the level of max-min fairness, relative to shares if the worst-off job could use all of its share.

    The policy counts shares by weight, whether jobs can use them or not. A fair share is at most all the time of a job, so the
    policy need not maximise the least fair share if a job is limited in this way.
    """
    problem, served = screen.problem, screen.served
    worst, fair = float(screen.allocation.vs_fair_share[served].min(initial=math.inf)), problem.fair_share[served]
    total, gpus = float(problem.weights[served].sum()), float(problem.share_capacities.sum()) or 1.0
    if math.isclose(worst, value * total / gpus, rel_tol=SAME_VALUE) and not screen.allocation.options.get("caution"):
        by_weight = problem.weights[served] * gpus / (problem.num_gpus[served] * total)
        share = "fair share" if (by_weight <= fair * (1 + SAME_VALUE)).all() else "share by weight"
        return f"the worst-off job gets {percent(worst)} of its {share}"
    work = f"the worst-off job {_work(value, screen)} per unit of weight{_equal(screen)}"
    caution = screen.allocation.options.get("caution")
    if caution and not problem.uncertainty.any():
        return f"{work}; no speed is an estimate, so caution changes nothing"
    return work + (f", even if its costliest estimate is {number(caution)} standard deviations too high" if caution else "")


def _tenants(value: float, screen: Screen) -> str:
    """Return what the worst-off tenant at the top has, or after the time limit what every tenant has at least."""
    allocation, tree = screen.allocation, screen.allocation.options.get("tenants", {})
    if not allocation.tenants():
        return f"all jobs together {_work(value, screen, several=True)}{_equal(screen)}"
    top = " at the top" if any("tenants" in details for details in tree.get("tenants", {}).values()) else ""
    work = f"{_work(value, screen)} per unit of weight{_equal(screen)}"
    if allocation.status is gp.AllocationStatus.TIME_LIMIT:
        return f"every tenant{top} {work}, or more"
    return f"the worst-off tenant{top} {work}"


def _work(value: float, screen: Screen, *, several: bool = False) -> str:
    if screen.allocation.options.get("agnostic"):
        return f"{'have' if several else 'has'} the time of {_gpus(value)}"
    return f"{'do' if several else 'does'} the work of {_gpus(value, 'average ')}"


def _equal(screen: Screen) -> str:
    return ", with all GPU types treated as equal" if screen.allocation.options.get("agnostic") else ""


def _gpus(value: float, what: str = "") -> str:
    return f"{number(value)} {what}{'GPU' if number(value) == '1' else 'GPUs'}"


def _makespan(value: float, screen: Screen) -> str:
    excluded = screen.allocation.excluded
    if not any(job.depends_on and job.job_id in excluded for job in screen.jobs):
        return f"the last job ends after {time_text(value)}"
    text = f"the jobs that are ready and the paths of jobs that wait for them end after {time_text(value)}"
    return f"{text}; dependencies can only make this later, as --workflows shows"


def _lateness(value: float, screen: Screen) -> str:  # noqa: ARG001
    if value <= 0:
        return f"every job ends at least {time_text(-value)} before its deadline"
    return f"no job ends more than {time_text(value)} after its deadline"


def _total(value: float, screen: Screen) -> str:
    if screen.allocation.options.get("normalized", True):
        return f"the speeds of all jobs add up to {number(value)}"
    return f"all jobs together do {number(value)} steps/s"


def _welfare(value: float, screen: Screen) -> str:
    if screen.allocation.options.get("strategy_proof"):
        return f"the objective is {value:z.6g}, before time is taken from jobs"
    weights = screen.problem.weights[screen.served]
    by_weight = "" if (weights == weights[0]).all() else ", by weight"
    return f"the geometric mean of the speeds is {number(math.exp(value / weights.sum()))}{by_weight}"


MEANINGS: Mapping[str, Meaning] = {
    "max_min_fairness": _worst_off,
    "water_filling": _worst_off,
    "hierarchical": _tenants,
    "min_makespan": _makespan,
    "finish_time_fairness": lambda value, _: f"no job takes more than {number(value)} times its fair finish time",
    "min_lateness": _lateness,
    "max_total_throughput": _total,
    "nash_welfare": _welfare,
    "max_progress_rate": lambda value, _: f"all jobs together do {number(3600 * value)} jobs' worth of work an hour, by weight",
    "throughput_per_dollar": lambda value, _: f"steps/s per hourly price of the GPU type add up to {number(value)}",
    "min_cost": lambda value, _: f"the GPUs cost {number(value)} an hour",
}


def use_text(allocation: gp.Allocation, problem: gp.AllocationProblem) -> str:
    """Return a table with the use of each GPU type as bars, and the gain of the objective by one more GPU."""
    prices = allocation.shadow_prices
    used = allocation.utilization.tolist()
    at_most = ", at most" if allocation.shadow_prices_at_most else ""
    columns: Columns = [
        ("GPU type", allocation.accelerator_types),
        (Column("GPUs used", "text", 2), map(bar, used)),
        ("", map("{:.1%}".format, used)),
        ("of", map("{:g}".format, problem.capacities)),
        (
            Column(f"objective per extra GPU{at_most}", optional=1),
            () if prices is None else [price_text(each, allocation.objective_value) for each in prices],
        ),
    ]
    return columns_text("", columns)


@dataclass(frozen=True)
class EqualJobs:
    """Equal jobs with equal answers. rows: their rows, in the order of the problem."""

    rows: NDArray[np.int64]

    @property
    def first(self) -> int:
        """The row that represents the group."""
        return int(self.rows[0])


def groups_of(screen: Screen, *, apart: bool) -> list[EqualJobs]:
    """Return the jobs that can run in groups of equal rows and answers, worst off first, those without time last."""
    import numpy as np

    problem, allocation = screen.problem, screen.allocation
    served = np.array(screen.served, dtype=np.int64)
    if not len(served):
        return []
    texts: dict[tuple[str, str], int] = {}
    named = [texts.setdefault((job.job_type, job.tenant), len(texts)) for job in screen.jobs]
    due = np.nan_to_num(screen.forecast.deadline, nan=-1.0)
    answers = [
        due[:, None],
        allocation.time_fractions,
        *([] if allocation.spread_fractions is None else [allocation.spread_fractions]),
    ]
    columns = [problem.throughputs, problem.num_gpus[:, None], problem.weights[:, None], np.array(named)[:, None]]
    if problem.counts is not None:
        columns += [problem.counts.kinds[:, None], np.round(allocation.gpus, 9)]
    table = np.column_stack([*columns, *(np.round(each, 9) for each in answers)])[served]
    if apart:
        table = np.arange(len(served))[:, None]
    numbers = np.unique(table, axis=0, return_inverse=True)[1].ravel()
    order = np.argsort(numbers, kind="stable")
    groups = [EqualJobs(served[part]) for part in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1)]
    has_time, share = allocation.time_fractions.sum(axis=1) > 0, allocation.vs_fair_share
    key = {group.first: (not has_time[group.first], round(float(share[group.first]), 6), -len(group.rows)) for group in groups}
    return sorted(groups, key=lambda group: (*key[group.first], group.first))


def jobs_text(screen: Screen, top: int | None, *, wide: bool = False) -> str:
    """Return a table of the jobs; top: number of groups of equal jobs to list, None for one row per job."""
    groups = groups_of(screen, apart=top is None)
    if not groups:
        return ""
    shown = groups[: len(groups) if top is None else top]
    listed_jobs, jobs = sum(len(group.rows) for group in shown), len(screen.served)
    more = f"; {jobs - listed_jobs:,} more: --all" if listed_jobs < jobs else ""
    spread = screen.allocation.spread_fractions
    star = f"; {SPREAD}: on more nodes than needed" if spread is not None and spread[[g.first for g in shown]].any() else ""
    has_time = [bool(screen.allocation.time_fractions[group.first].any()) for group in groups]
    what = "Jobs with GPU time" if all(has_time[: len(shown)]) and not all(has_time) else "Jobs"
    title = f"{what}, worst off first: {listed_jobs:,} of {jobs:,}{more}{star}"
    return columns_text(title, job_columns(screen, shown, wide=wide), wide=wide) + wrapped([NOTE], indent="")


def job_columns(screen: Screen, groups: Sequence[EqualJobs], *, wide: bool, without: Iterable[str] = ()) -> Columns:
    """Return the columns of a table of jobs; without: figures of the allocation that are left out."""
    allocation, weights, rows = screen.allocation, screen.problem.weights, [group.first for group in groups]
    jobs, forecast = [screen.jobs[i] for i in rows], screen.forecast
    shares = [[_share(allocation, i, j) for j in range(len(allocation.accelerator_types))] for i in rows]
    times = [_times(allocation, i, parts) for i, parts in zip(rows, shares, strict=True)]
    by_type = zip([f"on {name}" for name in allocation.accelerator_types], zip(*shares, strict=True), strict=True)
    left_out = {"end_seconds": all(map(math.isnan, forecast.end_seconds[rows])), "cost_per_hour": not screen.has_prices}
    left_out |= dict.fromkeys(("deadline", "late"), not forecast.deadlines.all)
    return [
        ("job", [job.job_id for job in jobs]),
        (Column("like it", "text"), [f"+{len(group.rows) - 1}" if len(group.rows) > 1 else "" for group in groups]),
        (Column("job type", "name", 2), [job.job_type for job in jobs]),
        (Column("tenant", "name", 5), [job.tenant for job in jobs] if wide else ()),
        *(by_type if wide else [(Column("time on GPUs", "text"), times)]),
        ("GPUs", map(size_text, jobs)),
        (Column("weight", optional=3), map(number, weights[rows]) if wide or (weights != 1).any() else ()),
        *declared_columns(allocation.COLUMNS, lambda name: getattr(allocation, name)[rows].tolist(), dict.fromkeys(without, True)),
        *declared_columns(forecast.COLUMNS, lambda name: getattr(forecast, name)[rows].tolist(), left_out),
    ]


def _times(allocation: gp.Allocation, i: int, shares: Sequence[str]) -> str:
    """Return the types on which a job has time with their shares, largest first; for elastic jobs, by number of GPUs."""
    names = [shortened(name, MAX_TYPE) for name in allocation.accelerator_types]
    counts = () if allocation.counts is None else allocation.counts.of(i)
    if counts:
        texts = [f"{time:.1%} {count} {names[j]}" for j, count, time in sorted(counts, key=lambda each: -each[2])]
    else:
        used = (j for j in range(len(names)) if allocation.time_fractions[i, j] > 0)
        texts = [f"{shares[j]} {names[j]}" for j in sorted(used, key=lambda j: -allocation.time_fractions[i, j])]
    more = [f"{len(texts) - MAX_TYPES} more"] if len(texts) > MAX_TYPES else []
    return ", ".join([*texts[:MAX_TYPES], *more]) or "none"


def _share(allocation: gp.Allocation, i: int, j: int) -> str:
    counts = () if allocation.counts is None else allocation.counts.of(i)
    if counts:
        return ", ".join(f"{time:.1%} on {count}" for column, count, time in counts if column == j and time > SAME_VALUE) or "."
    part, spread = allocation.time_fractions[i, j], allocation.spread_fractions
    return "." if part == 0 else f"{part:.1%}{SPREAD if spread is not None and spread[i, j] > 0 else ''}"


def by_text(screen: Screen, by: str, *, wide: bool = False) -> str:
    """Return a table of the tenants, or of the jobs of each job type; by: "tenant" or "type"."""
    return _tenants_text(screen, wide=wide) if by == "tenant" else _types_text(screen, wide=wide)


def _tenants_text(screen: Screen, *, wide: bool) -> str:
    tenants = screen.allocation.tenants()
    if not tenants:
        return "No job names a tenant.\n"
    return tenants_table("Tenants (GPUs on average)", tenants, has_prices=screen.has_prices, wide=wide)


def _types_text(screen: Screen, *, wide: bool) -> str:
    allocation, gpus = screen.allocation, screen.allocation.gpus
    members: dict[str, list[int]] = {}
    for i in screen.served:
        members.setdefault(screen.jobs[i].job_type, []).append(i)
    if not members:
        return ""
    columns = [Column("job type", "name"), Column("jobs"), Column("GPUs wanted")]
    columns += [Column(f"{name} held") for name in allocation.accelerator_types]
    columns += [Column("speed, mean"), Column("vs. fair share, mean"), Column("vs. fair share, least")]
    rows = []
    for name, found in sorted(members.items(), key=lambda item: -len(item[1])):
        held, speed, share = gpus[found].sum(axis=0), allocation.normalized_throughputs[found], allocation.vs_fair_share[found]
        wanted = sum(screen.jobs[i].gpu_range[1] if screen.jobs[i].is_elastic else screen.jobs[i].num_gpus for i in found)
        counts = [f"{len(found):,}", number(wanted), *(number(each) for each in held)]
        rows.append([name or "(none)", *counts, number(speed.mean()), f"{share.mean():.2f}", f"{share.min():.2f}"])
    return table_text("Jobs by job type (GPUs held on average)", columns, rows, wide=wide)


def left_out_text(heading: str, reasons: Mapping[str, str], *, all_of_them: bool = True) -> str:
    """Return the jobs that cannot run anywhere, by reason."""
    if not reasons:
        return ""
    jobs: dict[str, list[str]] = {}
    for job_id, reason in reasons.items():
        jobs.setdefault(reason, []).append(job_id)
    shown = list(jobs.items())[: len(jobs) if all_of_them else MAX_REASONS]
    lines = [f"  {', '.join(ids) if all_of_them else listed(ids, line_width() // 2)}: {reason}" for reason, ids in shown]
    rest = sum(map(len, jobs.values())) - sum(len(ids) for _, ids in shown)
    return styled(f"{heading}:\n", "warn") + wrapped([*lines, *([f"  ... and {counted(rest, 'job')} more: --all"] if rest else [])])


def compared_text(screens: Sequence[Screen], *, wide: bool) -> str:
    """Return a comparison of policies on the same jobs."""
    head = styled(solved_text(screens[0].problem, ""), "title")
    labels = [screen.label for screen in screens]
    return wrapped([head]) + comparison_text("Policies compared", labels, _metrics(screens), wide=wide)


def _metrics(screens: Sequence[Screen]) -> Iterator[ComparisonRow]:
    def of(figure: Callable[[gp.Allocation, list[int]], Any]) -> list[float | None]:
        values = (figure(screen.allocation, screen.served) if screen.served else None for screen in screens)
        return [None if value is None else float(value) for value in values]

    def of_metric(name: str, label: str = "") -> ComparisonRow:
        return metric_row(gp.METRICS[name], [each[name] for each in metrics], label=label)

    metrics, deadlines = [screen.allocation.metrics() for screen in screens], [screen.forecast.deadlines for screen in screens]
    yield ComparisonRow(
        "worst-off job, vs. fair share", of(lambda a, rows: a.vs_fair_share[rows].min()), lambda v: f"{v:.3f}", "most"
    )
    yield of_metric("total_normalized_throughput")
    if due := deadlines[0].all:
        yield ComparisonRow("deadlines met", [each.met for each in deadlines], lambda v: f"{v:.0f} of {due}", "most")
    yield ComparisonRow("jobs without GPU time", of(lambda a, rows: (~a.time_fractions[rows].any(axis=1)).sum()), "{:.0f}".format)
    if screens[0].has_prices:
        yield ComparisonRow("cost per hour", [each["cost_per_hour"] for each in metrics], money)
    yield of_metric("utilization", "GPUs used")
    yield of_metric("objective")


def constraints_text(
    allocations: Iterable[tuple[str, gp.Allocation]], on_average: Container[str] = (), exceeded: Sequence[str] = ()
) -> str:
    """Return a table with the outcome of each constraint, with a column for the policy if there are several; "" without
    constraints.

    allocations: (label of the policy, allocation) pairs; on_average: the constraints that rounds keep on average only;
    exceeded: notes on those that rounds exceed.
    """
    outcomes = [(label, allocation.objective_value, each) for label, allocation in allocations for each in allocation.constraints]
    if not outcomes:
        return ""
    has_policies = len({label for label, *_ in outcomes}) > 1
    columns = [*([Column("policy", "name")] if has_policies else []), Column("constraint", "prose"), Column("kept", "text")]
    columns += [Column("missed by"), Column("loses", optional=1), Column("worth of a unit", optional=2)]
    rows, notes = [], []
    for label, objective, each in outcomes:
        price = price_text(each.price, objective)
        first = [*([label] if has_policies else []), each.constraint]
        violation, lost = (None, None) if each.kept else (each.missed_by, (each.penalty or 0.0) * each.missed_by)
        kept = "on average" if each.constraint in on_average else "yes"
        rows.append([*first, kept if each.kept else styled("no", "bad"), number(violation), number(lost), price])
        worst = sorted(each.jobs.items(), key=lambda item: -item[1])
        if worst:
            more = f" and {len(worst) - MAX_MISSES} more" if len(worst) > MAX_MISSES else ""
            jobs = ", ".join(f"{job} ({part:.1%})" for job, part in worst[:MAX_MISSES])
            notes.append(f"{': '.join(first)}: missed by {jobs}{more}")
    return table_text("Constraints", columns, rows) + wrapped([*notes, *exceeded])
