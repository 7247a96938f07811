"""Teams, money and time on screens: tables and sentences of tenants' shares, of what GPUs cost, and of when jobs end."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gavel_py as gp
from gavel_py.cli.output import number, time_text
from gavel_py.cli.tables import Column, line_width, listed, shortened, table_text

MAX_TENANTS = 10
"""Limit of the tenants listed where a screen is not about tenants; --all, JSON and CSV have all of them."""

MAX_NAME = 24
"""Width to which names of tenants are cut in sentences."""

FIGURES = (
    *("weight", "share", "throughput_share", "gpu_share", "jobs", "running", "waiting", "cost_per_hour"),
    *("promised_gpu_seconds", "delivered_gpu_seconds", "finished", "mean_jct_seconds", "cost"),
)
"""Attributes of `gp.TenantShare` with a single number, in the order of columns."""


def money(value: float | None) -> str:
    """Return an amount as text, "unknown" for None."""
    return "unknown" if value is None else f"{value:,.2f}"


def leaves_of(tenants: Sequence[gp.TenantShare]) -> list[gp.TenantShare]:
    """Return the tenants without others below them, those with the most GPUs first."""
    parents = {each.parent for each in tenants}
    return sorted((each for each in tenants if each.tenant not in parents), key=lambda each: -each.gpu_share)


def tenants_line(tenants: Sequence[gp.TenantShare], more: str) -> str:
    """Return a sentence on the part of the GPUs that each tenant has, and its share, "" without tenants; more: how to see all."""
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
    """Return what a tenant has, beside its share, as a sentence."""
    work = "" if tenant.throughput_share is None else f" and {_part(tenant.throughput_share)} of the throughput"
    cost = "" if tenant.cost_per_hour is None else f"; its GPUs cost {money(tenant.cost_per_hour)} an hour"
    has = f"Tenant {_name(tenant)} has {_part(tenant.gpu_share)} of the cluster's GPUs{work}"
    return f"{has}; its share is {_part(tenant.share)}{cost}"


def tenants_table(
    title: str, tenants: Sequence[gp.TenantShare], *, has_prices: bool, most: int | None = None, wide: bool = False
) -> str:
    """Return a table of tenants, each below its parent; most: limit of the rows; "" without tenants."""
    shown = tenants[:most]
    if not shown:
        return ""
    titles = ["tenant", "weight", "share", "GPUs got", "throughput got", "jobs", "running", "waiting", "finished", "mean time"]
    titles += ["GPU-h due", "GPU-h got", "cost", "cost per hour", *(f"{name} GPUs" for name in shown[0].gpus)]
    columns = [Column(title, "name" if title == "tenant" else "number") for title in titles]
    has_weights = any(each.weight != 1 for each in tenants)
    rows = [_row(each, _depth(each, tenants), has_prices=has_prices, has_weights=has_weights) for each in shown]
    kept = [i for i in range(len(columns)) if any(row[i] for row in rows)]
    more = f", the first {len(shown)} of {len(tenants)}" if len(shown) < len(tenants) else ""
    return table_text(title + more, [columns[i] for i in kept], [[row[i] for i in kept] for row in rows], wide=wide)


def _row(each: gp.TenantShare, depth: int, *, has_prices: bool, has_weights: bool) -> list[str]:
    hours = [
        "" if seconds is None else number(seconds / 3600) for seconds in (each.promised_gpu_seconds, each.delivered_gpu_seconds)
    ]
    is_simulated = each.finished is not None
    return [
        "  " * depth + (each.tenant or "(none)"),
        number(each.weight) if has_weights else "",
        f"{each.share:.1%}",
        f"{each.gpu_share:.1%}",
        "" if each.throughput_share is None else f"{each.throughput_share:.1%}",
        *(f"{count:,}" for count in (each.jobs, each.running, each.waiting)),
        f"{each.finished:,}" if is_simulated else "",
        "" if not is_simulated else "-" if each.mean_jct_seconds is None else time_text(each.mean_jct_seconds),
        *hours,
        money(each.cost) if has_prices and is_simulated else "",
        money(each.cost_per_hour) if has_prices else "",
        *map(number, each.gpus.values()),
    ]


def _depth(tenant: gp.TenantShare, tenants: Iterable[gp.TenantShare]) -> int:
    parents, depth, name = {each.tenant: each.parent for each in tenants}, 0, tenant.parent
    while name is not None:
        depth, name = depth + 1, parents[name]
    return depth


def tenants_header(types: Sequence[str]) -> list[str]:
    """Return the columns of tenants in CSV files."""
    return ["tenant", "parent", *FIGURES, *(f"{name}_gpus" for name in types), *(f"{name}_share" for name in types)]


def tenants_rows(tenants: Iterable[gp.TenantShare]) -> list[list[object]]:
    """Return the lines of tenants in CSV files."""
    return [
        [
            each.tenant,
            each.parent or "",
            *("" if (value := getattr(each, name)) is None else value for name in FIGURES),
            *each.gpus.values(),
            *each.gpu_shares.values(),
        ]
        for each in tenants
    ]


def forecast_lines(allocation: gp.Allocation, problem: gp.AllocationProblem, served: Sequence[int]) -> list[str]:
    """Return sentences on cost and end of the jobs in these rows: none on cost without prices, none on time without steps."""
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


def _cost_text(allocation: gp.Allocation, problem: gp.AllocationProblem, found: gp.Forecast) -> str:
    hour, end = found.total_cost_per_hour, found.total_cost_until_done
    if hour is None:
        used = zip(allocation.accelerator_types, problem.prices_per_hour.tolist(), allocation.utilization.tolist(), strict=True)
        unpriced = [name for name, price, part in used if math.isnan(price) and part > 0]
        return f"Cost of the GPUs in use: unknown, since the price of {listed(unpriced, line_width() // 2)} is."
    return f"The GPUs in use cost {money(hour)} an hour; until all jobs are done: {money(end)}."


def with_accounts(document: dict[str, Any], allocation: gp.Allocation) -> dict[str, Any]:
    """Return the JSON document of an allocation with its tenants, and with cost and times of each job."""
    found = allocation.forecast()
    columns = {name: getattr(found, name).tolist() for name in gp.Forecast.__dataclass_fields__}
    jobs = [
        job | {name: None if math.isnan(values[i]) else values[i] for name, values in columns.items()}
        for i, job in enumerate(document["jobs"])
    ]
    cost = {"per_hour": found.total_cost_per_hour, "until_done": found.total_cost_until_done}
    tenants = [each.to_dict() for each in allocation.tenants()]
    return document | {"jobs": jobs, "tenants": tenants, "cost": cost if found.has_prices else None}


def tenants_of_rounds(
    jobs: Iterable[gp.Job], cluster: gp.Cluster, rounds: Sequence[gp.Round], delivery: gp.DeliveryReport, policy: gp.Policy
) -> tuple[gp.TenantShare, ...]:
    """Return what the tenants of these jobs were promised and got in rounds of a job set that stays as it is."""
    import numpy as np

    listed_jobs, types = list(jobs), cluster.accelerator_names
    row_of, column_of = {job.job_id: i for i, job in enumerate(listed_jobs)}, {name: j for j, name in enumerate(types)}
    seconds = np.zeros((len(listed_jobs), len(types)))
    for round_ in rounds:
        for job_id, held in round_.assignments.items():
            seconds[row_of[job_id], column_of[held.accelerator]] += held.gpu_share * (round_.end_seconds - round_.start_seconds)
    gpus = seconds / (sum(each.end_seconds - each.start_seconds for each in rounds) or 1.0)
    accounts = [delivery.jobs.get(job.job_id) for job in listed_jobs]
    promised = np.array([0.0 if each is None else each.promised_seconds * each.num_gpus for each in accounts])
    short = np.array([0.0 if each is None else each.shortfall_seconds * each.num_gpus for each in accounts])
    last: Mapping[str, Any] = rounds[-1].assignments if rounds else {}
    excluded = rounds[-1].excluded if rounds else {}
    return gp.tenant_shares(
        [job.tenant for job in listed_jobs],
        gpus,
        cluster.capacities,
        accelerator_types=types,
        is_running=np.array([job.job_id in last for job in listed_jobs], dtype=bool),
        can_run=np.array([job.job_id not in excluded for job in listed_jobs], dtype=bool),
        tree=gp.TenantTree.of(policy.changed_options.get("tenants")),
        arrival_seconds=np.array([job.arrival_seconds for job in listed_jobs]),
        prices_per_hour=cluster.prices_per_hour,
        promised_gpu_seconds=promised,
        delivered_gpu_seconds=promised - short,
    )
