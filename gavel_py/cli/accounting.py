"""Text on tenants, cost and time: tables and sentences on the shares of tenants, the cost of GPUs, and the end of jobs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

import gavel_py as gp
from gavel_py.cli.output import SAME_VALUE, counted, csv_text, declared_columns, money, number, size_text, time_text
from gavel_py.cli.tables import Column, Columns, columns_text, line_width, listed, shortened, styled

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_TENANTS = 10
"""Maximum number of tenants listed in output on other subjects; --all, JSON and CSV have all of them."""

MAX_NAME = 24
"""Maximum width of tenant names in sentences."""


def hourly(value: float | None) -> str:
    """Return a cost per hour as text, "unknown" for None."""
    return "unknown" if value is None else f"{money(value)} an hour"


def leaves_of(tenants: Sequence[gp.TenantShare]) -> list[gp.TenantShare]:
    """Return the tenants without sub-tenants, those with the most GPUs first."""
    parents = {each.parent for each in tenants}
    return sorted((each for each in tenants if each.tenant not in parents), key=lambda each: -each.gpu_share)


def tenants_line(tenants: Sequence[gp.TenantShare], more: str) -> str:
    """Return a sentence with the GPUs and the share of each tenant, "" without tenants; more: how to see all of them."""
    found = leaves_of(tenants)
    if not found:
        return ""
    start, end = "Tenants' GPUs (share): ", f"; {more}" if more else ""
    texts = [f"{_name(each)} {each.gpu_share:.1%} ({each.share:.1%})" for each in found]
    return start + listed(texts, 2 * line_width() - len(start + end) - 8) + end


def _name(tenant: gp.TenantShare) -> str:
    return shortened(tenant.tenant, MAX_NAME) or "(none)"


def _part(part: float) -> str:
    return f"{100 * part:.3g} %"


def tenant_text(tenant: gp.TenantShare) -> str:
    """Return a sentence that compares what a tenant has with its share."""
    work = "" if tenant.throughput_share is None else f" and {_part(tenant.throughput_share)} of the throughput"
    cost = "" if tenant.cost_per_hour is None else f"; its GPUs cost {money(tenant.cost_per_hour)} an hour"
    has = f"Tenant {_name(tenant)} has {_part(tenant.gpu_share)} of the cluster's GPUs{work}"
    return f"{has}; its share is {_part(tenant.share)}{cost}"


def has_its_share(tenant: gp.TenantShare) -> bool:
    """Return whether a tenant has its share of the throughput, or of the GPUs if the throughput is unknown."""
    has = tenant.gpu_share if tenant.throughput_share is None else tenant.throughput_share
    return has >= tenant.share * (1 - SAME_VALUE)


def tenants_table(
    title: str, tenants: Sequence[gp.TenantShare], *, has_prices: bool, most: int | None = None, wide: bool = False
) -> str:
    """Return a table of tenants, each below its parent, "" without tenants; most: maximum number of rows."""
    shown = tenants[:most]
    if not shown:
        return ""
    is_simulated = shown[0].finished is not None
    left_out = {
        "weight": all(each.weight == 1 for each in tenants),
        "mean_jct_seconds": not is_simulated,
        "cost": not (is_simulated and has_prices),
        "cost_per_hour": not has_prices,
    }
    depths = _depths(tenants)
    columns: Columns = [
        ("tenant", ["  " * depths[each.tenant] + (each.tenant or "(none)") for each in shown]),
        *declared_columns(gp.TenantShare.COLUMNS, lambda name: (getattr(each, name) for each in shown), left_out),
        *((f"{name} GPUs", [number(each.gpus[name]) for each in shown]) for name in shown[0].gpus),
    ]
    more = f", the first {len(shown)} of {len(tenants)}" if len(shown) < len(tenants) else ""
    return columns_text(f"{title}{more}", columns, wide=wide)


def _depths(tenants: Iterable[gp.TenantShare]) -> dict[str, int]:
    """Return the depth of each tenant in the tree; parents come first in `tenants`."""
    depths: dict[str, int] = {}
    for each in tenants:
        depths[each.tenant] = 0 if each.parent is None else depths[each.parent] + 1
    return depths


def _names() -> list[str]:
    return [each.name for each in fields(gp.TenantShare) if each.name not in ("gpus", "gpu_shares")]


def tenants_header(types: Sequence[str]) -> list[str]:
    """Return the columns of tenants in CSV files."""
    return [*_names(), *(f"{name}_gpus" for name in types), *(f"{name}_share" for name in types)]


def tenants_rows(tenants: Iterable[gp.TenantShare], types: Sequence[str]) -> list[list[object]]:
    """Return the lines of tenants in CSV files; a cell is empty for a type that the cluster lacks."""
    return [
        [*(getattr(each, name) for name in _names()), *(of.get(name, "") for of in (each.gpus, each.gpu_shares) for name in types)]
        for each in tenants
    ]


def forecast_lines(allocation: gp.Allocation, problem: gp.AllocationProblem, served: Sequence[int]) -> list[str]:
    """Return sentences on the cost and the end of the jobs in these rows, as far as prices and steps are known."""
    import numpy as np

    found, lines = allocation.forecast(), []
    ends = found.end_seconds[served]
    known = ends[~np.isnan(ends)]
    if len(known):
        first, last = time_text(known.min()), time_text(known.max())
        waits = int((~(allocation.throughputs[served] > 0)).sum())
        rest = [f"{waits:,} {'waits' if waits == 1 else 'wait'}"] if waits else []
        rest += [f"{unknown:,} have unknown steps"] if (unknown := len(ends) - len(known) - waits) else []
        times = first if first == last else f"{first} to {last}"
        text = f"Without new arrivals, jobs end in {times} at these speeds"
        lines.append(f"{'; '.join([text, *rest])}.")
    if not np.isnan(problem.prices_per_hour).all():
        lines.append(_cost_text(allocation, problem, found))
    return lines


def deadlines_line(job_ids: Sequence[str], found: gp.Forecast) -> str:
    """Return a sentence on the deadlines that are met at the speeds of an allocation, with the late jobs, latest first."""
    counts, ids = found.deadlines, list(job_ids)
    late = {ids[i]: float(found.late[i]) for i in (found.late > 0).nonzero()[0].tolist()}
    waits = (found.deadline == found.deadline) & (found.start_seconds != found.start_seconds)
    texts = [f"{job_id} waits" for job_id, is_idle in zip(ids, waits.tolist(), strict=True) if is_idle]
    texts += [f"{job_id} by {late_text(late[job_id])}" for job_id in sorted(late, key=lambda each: -late[each])]
    return met_text("at these speeds", counts.met, counts.all, counts.unknown, texts)


def late_text(seconds: float) -> str:
    """Return the time by which a deadline is missed, in hours where it is long: 27.6 h."""
    return f"{seconds / 3600:.3g} h" if seconds >= 3600 else time_text(seconds)


def met_text(when: str, met: int, due: int, unknown: int, late: Sequence[str]) -> str:
    """Return a sentence on deadlines; when: "at these speeds"; late: each job that misses its own, and by how much."""
    rest = f"; late: {listed(late, 2 * line_width() - 60)}" if late else ""
    rest += f"; {unknown} cannot be checked, since total_steps is unknown" if unknown else ""
    return styled(f"Deadlines met {when}: {met} of {due}{rest}.", "good" if met == due else "warn")


def _cost_text(allocation: gp.Allocation, problem: gp.AllocationProblem, found: gp.Forecast) -> str:
    hour, ends = found.total_cost_per_hour, found.cost_until_done[found.cost_until_done == found.cost_until_done]
    if hour is None:
        used = zip(allocation.accelerator_types, problem.prices_per_hour.tolist(), allocation.utilization.tolist(), strict=True)
        unpriced = [name for name, price, part in used if math.isnan(price) and part > 0]
        return f"Cost of the GPUs in use: unknown, since the price of {listed(unpriced, line_width() // 2)} is."
    jobs = "all jobs" if found.total_cost_until_done is not None else f"the {counted(len(ends), 'job')} with a known end"
    until = f"until {jobs} are done: {money(float(ends.sum()))}" if len(ends) else "until all jobs are done: unknown"
    return f"The GPUs in use cost {money(hour)} an hour; {until}."


def with_accounts(document: dict[str, Any], allocation: gp.Allocation) -> dict[str, Any]:
    """Return the JSON document of an allocation with its tenants, deadlines, and with cost and times of each job."""
    found = allocation.forecast()
    columns = {name: getattr(found, name).tolist() for name in found.COLUMNS}
    jobs = [
        job | {name: None if math.isnan(values[i]) else values[i] for name, values in columns.items()}
        for i, job in enumerate(document["jobs"])
    ]
    cost = {"per_hour": found.total_cost_per_hour, "until_done": found.total_cost_until_done}
    tenants = [each.to_dict() for each in allocation.tenants()]
    accounts = {"tenants": tenants, "cost": cost if found.has_prices else None, "deadlines": deadlines_entry(found.deadlines)}
    return document | {"jobs": jobs} | accounts


def deadlines_entry(found: gp.DeadlineCounts) -> dict[str, int] | None:
    """Return the numbers of deadlines as plain data, None if there are none."""
    return found._asdict() if found.all else None


def gpus_of_rounds(jobs: Sequence[gp.Job], cluster: gp.Cluster, rounds: Sequence[gp.Round]) -> NDArray[np.float64]:
    """Return (N, K) the average GPUs of each job over rounds; shared GPUs are divided equally among their jobs."""
    import numpy as np

    types = {name: j for j, name in enumerate(cluster.accelerator_names)}
    row_of, seconds = {job.job_id: i for i, job in enumerate(jobs)}, np.zeros((len(jobs), len(types)))
    for round_ in rounds:
        for job_id, held in round_.assignments.items():
            seconds[row_of[job_id], types[held.accelerator]] += held.gpu_share * (round_.end_seconds - round_.start_seconds)
    return seconds / (sum(each.end_seconds - each.start_seconds for each in rounds) or 1.0)


def tenants_of_rounds(
    jobs: Sequence[gp.Job],
    cluster: gp.Cluster,
    rounds: Sequence[gp.Round],
    gpus: NDArray[np.float64],
    delivery: gp.DeliveryReport,
    policy: gp.Policy,
    problem: gp.AllocationProblem | None,
) -> tuple[gp.TenantShare, ...]:
    """Return the promised and received shares of the tenants in rounds of a fixed job set.

    Time of one job of a tenant makes up for another, as in the delivery report.

    gpus: from `gpus_of_rounds`; problem: the problem of the jobs, None if jobs share GPUs, since their throughputs then differ.
    """
    import numpy as np

    accounts = [delivery.jobs.get(job.job_id) for job in jobs]
    promised = np.array([0.0 if each is None else each.promised_seconds * each.num_gpus for each in accounts])
    short = np.array([0.0 if each is None else each.undelivered_seconds * each.num_gpus for each in accounts])
    last = rounds[-1]
    shares = gp.tenant_shares(
        [job.tenant for job in jobs],
        gpus,
        cluster.capacities,
        accelerator_types=cluster.accelerator_names,
        is_running=np.array([job.job_id in last.assignments for job in jobs], dtype=bool),
        can_run=np.array([job.job_id not in last.excluded for job in jobs], dtype=bool),
        tree=policy.tenant_tree,
        arrival_seconds=np.array([job.arrival_seconds for job in jobs]),
        prices_per_hour=cluster.prices_per_hour,
        promised_gpu_seconds=promised,
        delivered_gpu_seconds=promised - short,
        gpus_wanted=np.array([job.num_gpus for job in jobs], dtype=float),
        **({} if problem is None else {"work": _work(gpus, problem)}),
    )
    behind = {name: each.undelivered_gpu_seconds for name, each in delivery.tenants.items()}
    return tuple(
        replace(each, delivered_gpu_seconds=(each.promised_gpu_seconds or 0.0) - behind[each.tenant])
        if each.tenant in behind
        else each
        for each in shares
    )


def _work(gpus: NDArray[np.float64], problem: gp.AllocationProblem) -> NDArray[np.float64]:
    """Return (N,) the number of GPUs of the cluster's mix that would do the same work, at the better of both placements."""
    import numpy as np

    share, work = problem.equal_share, np.zeros(problem.num_jobs)
    np.divide((gpus * problem.throughputs).sum(axis=1), share, out=work, where=share > 0)
    return work


def cost_of_gpus(cluster: gp.Cluster, gpus: NDArray[np.float64]) -> float | None:
    """Return the cost per hour of (N, K) GPUs; None if the price of one of them is unknown."""
    used = zip(gpus.sum(axis=0).tolist(), cluster.prices_per_hour.tolist(), strict=True)
    cost = sum(count * price for count, price in used if count > 0)
    return None if math.isnan(cost) else cost


def has_prices(cluster: gp.Cluster) -> bool:
    """Return whether the price of some accelerator type is known."""
    return any(each.price_per_hour is not None for each in cluster.accelerator_types)


ENDLESS = 1e18
"""Steps assumed for a job without known steps, so that it holds its GPUs until the end of a forecast."""

STARVED_ROUNDS = 1000
"""A forecast ends after this number of rounds in which no unfinished job with known steps gets GPUs: others keep them forever."""

MAX_FORECAST_ROUNDS = 1_000_000


@dataclass(frozen=True)
class Outlook:
    """The starts, ends and costs of jobs if no others arrive and the policy decides again whenever jobs leave.

    jobs: the jobs of the file; records: {job_id: record} from a simulation in which all of them are in the system at time 0;
    rounds: the number of rounds; due: {job_id: deadline, in seconds from now}.
    """

    COLUMNS: ClassVar[Mapping[str, Column]] = {
        "job_id": Column("job", "name"),
        "tenant": Column("tenant", "name", 3),
        "num_gpus": Column("GPUs"),
        "start_seconds": Column("starts in", "time"),
        "end_seconds": Column("ends in", "time"),
        "deadline": Column("deadline", "time", 4),
        "late": Column("late", "time", 2),
        "cost": Column("cost", "money", 1),
        "reason": Column("because", "prose", 2),
    }

    jobs: Sequence[gp.Job]
    cluster: gp.Cluster
    records: Mapping[str, gp.JobRecord]
    tenants: tuple[gp.TenantShare, ...]
    rounds: int
    due: Mapping[str, float]

    @classmethod
    def simulated(
        cls,
        jobs: Sequence[gp.Job],
        cluster: gp.Cluster,
        profile: gp.Profile,
        policy: gp.Policy,
        down: Iterable[str],
        due: Mapping[str, float],
        **options: Any,
    ) -> Outlook:
        """Simulate the jobs until those with known steps are done or no longer get GPUs.

        down: nodes that are down; due: as above; options: arguments of `gp.Simulation`.
        """
        endless = {job.job_id for job in jobs if is_endless(job)}
        if endless:
            gp.solve(gp.AllocationProblem.from_jobs(jobs, cluster, profile), policy)  # raises if the policy needs their steps
        here = [
            job.model_copy(update={"arrival_seconds": seconds, **({"total_steps": ENDLESS} if job.job_id in endless else {})})
            for seconds, job in _arrived(jobs)
        ]
        latest = 0

        def note(round_: gp.Round) -> None:
            nonlocal latest
            if not endless.issuperset(round_.assignments):
                latest = round_.index

        simulation = gp.Simulation(here, cluster, profile, policy, start_seconds=0.0, on_round=note, **options)
        for name in down:
            simulation.scheduler.node_down(name)
        rounds = 0
        while rounds < MAX_FORECAST_ROUNDS and rounds - latest <= STARVED_ROUNDS and simulation.step():
            rounds += 1
            if len(simulation.records) == len(jobs) - len(endless):
                break
        result = simulation.result()
        return cls(jobs, cluster, result.jobs, result.summary.tenants, rounds, due)

    def _end(self, job: gp.Job) -> float | None:
        return None if self._is_cancelled(job) else self.records[job.job_id].end_seconds

    def _is_cancelled(self, job: gp.Job) -> bool:
        return self.records[job.job_id].outcome is gp.Outcome.CANCELLED

    def _cost(self, job: gp.Job) -> float | None:
        return self.records[job.job_id].cost if has_prices(self.cluster) else None

    def _late(self, job: gp.Job) -> float | None:
        return self.records[job.job_id].late_seconds

    @property
    def deadlines(self) -> gp.DeadlineCounts:
        """The number of deadlines that are met and missed, and of those that cannot be checked."""
        due = [job for job in self.jobs if job.job_id in self.due]
        met, unknown = sum(self._late(job) == 0 for job in due), sum(map(is_endless, due))
        return gp.DeadlineCounts(met, len(due) - met - unknown, unknown)

    @property
    def cost(self) -> float | None:
        """The cost of all jobs until the last one with known steps is done; None if a price or this time is unknown."""
        costs = [self._cost(job) for job in self.jobs]
        unknown = any(self._end(job) is None and not (is_endless(job) or self._is_cancelled(job)) for job in self.jobs)
        return None if unknown or None in costs else sum(cost for cost in costs if cost is not None)

    def lines(self, decided: str) -> list[str]:
        """Return the forecast in sentences; decided: how jobs are chosen when jobs have left, as a clause."""
        known = [job for job in self.jobs if not is_endless(job)]
        ends = [end for job in known if (end := self._end(job)) is not None]
        count = f"{len(ends):,} of {len(known):,} jobs" if len(ends) < len(known) else f"all {len(ends):,} jobs"
        if len(ends) == len(known) == 1:
            count = "the job" if len(self.jobs) == 1 else "1 job"
        verb = "ends" if len(ends) == 1 else "end"
        times = dict.fromkeys(time_text(end) for end in (min(ends), max(ends))) if ends else ()
        when = f" {' to '.join(times)} from now" if ends else ""
        lines = [f"Forecast without new arrivals, with {decided} as jobs leave: {count} {verb}{when}."]
        if not known:
            lines = ["No job has known steps (total_steps or duration_seconds), so no end can be forecast."]
        if len(known) < len(self.jobs):
            unknown = counted(len(self.jobs) - len(known), "job")
            lines.append(f"In the system until the end, on a part of the GPUs: {unknown} without known steps.")
        if (found := self.deadlines).all:
            late = {job.job_id: self._late(job) for job in self.jobs if job.job_id in self.due and not is_endless(job)}
            missed = sorted(
                ((math.inf if each is None else each, job_id) for job_id, each in late.items() if each != 0), reverse=True
            )
            texts = [
                f"{job_id} {'without an end' if late_by == math.inf else f'by {late_text(late_by)}'}" for late_by, job_id in missed
            ]
            lines.append(met_text("in this forecast", found.met, found.all, found.unknown, texts))
        if has_prices(self.cluster):
            lines.append(f"The GPU time until then costs {money(self.cost)}.")
        return lines

    def jobs_text(self, most: int | None) -> str:
        """Return a table of the jobs in the order of their ends; most: maximum number of rows."""
        ordered = sorted(self.jobs, key=lambda job: (math.inf if (end := self._end(job)) is None else end, is_endless(job)))
        shown, more = ordered[:most], len(ordered) - len(ordered[:most])
        if not shown:
            return ""
        rows = [row | {"num_gpus": size_text(job)} for job, row in zip(shown, self._rows(shown), strict=True)]
        left_out = {"cost": not has_prices(self.cluster)} | dict.fromkeys(("deadline", "late"), not self.due)
        columns = declared_columns(self.COLUMNS, lambda name: (row[name] for row in rows), left_out)
        return columns_text(f"Jobs by their end{f', the first {len(shown)}; {more:,} more: --all' if more else ''}", columns)

    def _reason(self, job: gp.Job) -> str:
        """Return why the end of a job is unknown."""
        if self._end(job) is not None:
            return ""
        if self._is_cancelled(job):
            return "it can never start: what it waits for can no longer happen"
        return "its steps are unknown" if is_endless(job) else self.records[job.job_id].reason or "others are served first"

    def _rows(self, jobs: Iterable[gp.Job]) -> list[dict[str, Any]]:
        return [
            {
                "job_id": job.job_id,
                "tenant": job.tenant,
                "num_gpus": job.num_gpus,
                "start_seconds": self.records[job.job_id].first_start_seconds,
                "end_seconds": self._end(job),
                "deadline": self.due.get(job.job_id),
                "late": self._late(job),
                "cost": self._cost(job),
                "reason": self._reason(job),
            }
            for job in jobs
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the forecast as plain data."""
        ends = [end for job in self.jobs if (end := self._end(job)) is not None]
        return {
            "num_rounds": self.rounds,
            "end_seconds": max(ends, default=None),
            "cost": self.cost,
            "deadlines": deadlines_entry(self.deadlines),
            "jobs": self._rows(self.jobs),
            "tenants": [each.to_dict() for each in self.tenants],
        }

    def csv(self) -> str:
        """Return a CSV table with a row for each job."""
        rows = [["" if cell is None else cell for cell in row.values()] for row in self._rows(self.jobs)]
        return csv_text(list(self.COLUMNS), rows)


def _arrived(jobs: Iterable[gp.Job]) -> list[tuple[float, gp.Job]]:
    """Return (time, job) in order of arrival; jobs that arrive after time 0 are moved to just before it."""
    ordered = sorted(jobs, key=lambda job: job.arrival_seconds)
    last = max((job.arrival_seconds for job in ordered), default=0.0)
    return [(seconds if (seconds := job.arrival_seconds) < 0 else (seconds - last) * 1e-9, job) for job in ordered]


def is_endless(job: gp.Job) -> bool:
    """Return whether neither the steps nor the duration of a job is known, so that it has no end."""
    return job.total_steps is None and job.duration_seconds is None
