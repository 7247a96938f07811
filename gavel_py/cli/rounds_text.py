"""Rounds as text: the nodes and GPUs of each job, the time that rounds deliver, and the jobs that are furthest behind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import gavel_py as gp
from gavel_py.cli.output import counted, number, size_text, time_text
from gavel_py.cli.tables import (
    Column,
    cell_width,
    folded,
    folded_names,
    gpus_text,
    line_width,
    listed,
    shortened,
    styled,
    table_text,
    width,
    wrapped,
)

SAME = "= stays where it was"

MAX_JOBS = 5
"""Maximum number of jobs listed with a deficit; the JSON output has all of them."""

MAX_NODES, MAX_LINES = 6, 12
"""Maximum numbers of nodes shown for the first round, and of rounds summarised in a line; --all shows all of them."""

TOLERANCE = 1e-3
"""Rounding error of times in GPU-seconds and of deficits in rounds."""


def table_of_rounds(jobs: gp.JobSet, rounds: list[gp.Round]) -> str:
    """Return tables of jobs x rounds that fit the terminal; "=" marks a job that keeps its GPUs."""
    if not jobs:
        return "No jobs.\n"
    held = [[round_.assignments.get(job.job_id) for round_ in rounds] for job in jobs]
    cells = [["." if each is None else " with ".join([gpus_text(each.gpus), *each.shared_with]) for each in row] for row in held]
    widths = [max(len("round 00"), *(len(row[k]) for row in cells)) for k in range(len(rounds))]
    longest = max(len("job"), *(cell_width(job.job_id) for job in jobs))
    first = min(longest, line_width() // 3) + len("  GPUs") + 6
    tables = []
    for group in _groups(widths, width() - first):
        columns = ["job", "GPUs", *(f"round {rounds[k].index}" for k in group)]
        rows = []
        for job, row in zip(jobs, cells, strict=True):
            # GPUs are printed in the first round of a table and where they change.
            stays = [k != group[0] and row[k] == row[k - 1] and job.job_id in rounds[k].kept for k in group]
            rows.append([job.job_id, size_text(job), *("=" if s else row[k] for s, k in zip(stays, group, strict=True))])
        aligned = [Column(columns[0], "name"), *(Column(name, "text") for name in columns[1:])]
        tables.append(table_text(f"GPUs of each job (node:GPU; {SAME})", aligned, rows))
    return "\n".join(tables)


def rounds_text(
    cluster: gp.Cluster, rounds: Sequence[gp.Round], all_nodes: str, *, details: bool = False, down: Sequence[str] = ()
) -> str:
    """Return a line for each node in the first round, and a line for each further round; details: whether to show all of them.

    all_nodes: how to see all nodes; down: nodes that are down, which have no line.
    """
    if not rounds:
        return ""
    first, *later = rounds
    cluster = gp.Cluster(node for node in cluster.nodes if node.name not in down) if down else cluster
    nodes = _nodes(cluster, first)
    by_type = {node.accelerator: node for node in reversed(nodes)}  # the first group of each
    shown = nodes if details or len(nodes) <= MAX_NODES else list(by_type.values())[::-1][:MAX_NODES]
    some = "" if len(shown) == len(nodes) else f"; {all_nodes}"
    title = styled(
        f"Round {first.index}, {time_text(first.end_seconds - first.start_seconds)}: {_busy(cluster, first)}{some}", "title"
    )
    lines = []
    names = [" ".join(folded_names(node.names)) for node in shown]
    first_width = min(max(map(cell_width, names), default=0), max(12, line_width() // 3))
    for node, name in zip(shown, names, strict=True):
        label = shortened(name, first_width)
        label += " " * (first_width - cell_width(label))
        if details:
            first_line, *more = folded(", ".join(node.jobs), max(12, width() - first_width - 4))
            lines += [f"  {label}  {first_line}", *(" " * (first_width + 4) + each for each in more)]
        else:
            lines.append(f"  {label}  {listed(node.jobs, line_width() - first_width - 4)}")
    text = wrapped([title]) + "".join(f"{line}\n" for line in lines)
    last = len(later) if details else MAX_LINES
    lines = [
        f"Round {each.index}: {len(each.started)} start or move, {len(each.kept)} stay, {len(each.preempted)} stop; "
        f"{_busy(cluster, each)}"
        for each in later[:last]
    ]
    if len(later) > last:
        lines.append(f"{len(later) - last} more rounds: --all")
    return text + wrapped(lines)


@dataclass(frozen=True)
class Nodes:
    """Nodes of one GPU type on which the same jobs run. jobs: these jobs, and the number of free GPUs."""

    accelerator: str
    names: list[str]
    jobs: list[str]


def _nodes(cluster: gp.Cluster, round_: gp.Round) -> list[Nodes]:
    """Return the nodes in a round; nodes with the same jobs are grouped."""
    held: dict[str, dict[str, float]] = {node.name: {} for node in cluster.nodes}
    used: dict[str, set[int]] = {node.name: set() for node in cluster.nodes}
    for job_id, assignment in round_.assignments.items():
        for node_name, index in assignment.gpus:
            held[node_name][job_id] = held[node_name].get(job_id, 0) + assignment.gpu_part
            used[node_name].add(index)
    alike: dict[tuple[str, ...], Nodes] = {}
    for node in cluster.nodes:
        jobs = [job_id if gpus == 1 else f"{job_id} x{gpus:g}" for job_id, gpus in held[node.name].items()]
        free = node.num_gpus - len(used[node.name])
        if free:
            jobs.append(f"{free} of {counted(node.num_gpus, 'GPU')} free")
        found = alike.setdefault((node.accelerator, *jobs), Nodes(node.accelerator, [], jobs or ["no GPUs"]))
        found.names.append(node.name)
    return list(alike.values())


def _busy(cluster: gp.Cluster, round_: gp.Round) -> str:
    busy = len({gpu for assignment in round_.assignments.values() for gpu in assignment.gpus})
    return f"{counted(len(round_.assignments), 'job')} on {busy} of {counted(cluster.num_gpus, 'GPU')}"


def _groups(widths: list[int], room: int) -> list[list[int]]:
    """Return groups of column indices with widths that fit `room` characters, at least one column each."""
    groups: list[list[int]] = [[]]
    for index, column_width in enumerate(widths):
        if groups[-1] and sum(widths[i] + 3 for i in groups[-1]) + column_width + 3 > room:
            groups.append([])
        groups[-1].append(index)
    return groups


def delivery_text(delivery: gp.DeliveryReport, rounds: Sequence[gp.Round]) -> str:
    """Return sentences on the time that the allocation promises and the time that whole rounds deliver, in GPU-hours."""
    promised, deficit = delivery.promised_gpu_seconds / 3600, delivery.undelivered_gpu_seconds / 3600
    ahead, idle = delivery.ahead_gpu_seconds / 3600, delivery.backfilled_gpu_seconds / 3600
    if not promised and not idle:
        return ""
    many = f"{len(rounds)} rounds" if len(rounds) != 1 else "1 round"
    if not promised:
        return wrapped([f"No time is promised; jobs got {idle:.4g} GPU-hours in {many}."], indent="")
    text = f"The allocation promises jobs {promised:.4g} GPU-hours in {many}; {promised - deficit:.4g} were delivered"
    lines = [f"{text}."]
    if deficit * 3600 > TOLERANCE:
        lines = [f"{text}, {deficit:.4g} ({delivery.undelivered_share:.2%}) follow in later rounds."]
        least, behind = delivery.least_undelivered_gpu_seconds / 3600, ceil(10 * delivery.most_rounds_behind - TOLERANCE) / 10
        text = f"no job is more than {behind:.1f} rounds behind."
        if least * 3600 > TOLERANCE:
            part = f"{least:.4g} ({delivery.least_undelivered_share:.2%})"
            lines.append(f"A round is all or nothing for a job, so at least {part} had to wait; {text}")
        else:
            lines.append(text.capitalize())
    lines += _tenants_line(delivery)
    extra = [(idle, "on GPUs that would have been idle"), (ahead, "to jobs ahead of their own share")]
    given = [f"{hours:.4g} GPU-hours {how}" for hours, how in extra if hours * 3600 > TOLERANCE]
    if given:
        lines.append(f"Beyond that: {' and '.join(given)}.")
    misplaced = delivery.misplaced_gpu_seconds / 3600
    if misplaced:
        lines.append(f"Delivered on slower placements than promised (spread or consolidated): {misplaced:.4g} GPU-hours.")
    return wrapped(lines, indent="")


def _tenants_line(delivery: gp.DeliveryReport) -> Iterator[str]:
    """Yield a sentence on the time that is owed to tenants, if there are several."""
    top = [each for each in delivery.tenants.values() if each.parent is None]
    if len(top) < 2:
        return
    short, least = delivery.tenant_undelivered_gpu_seconds, delivery.least_tenant_undelivered_gpu_seconds
    if short <= TOLERANCE:
        yield "Each tenant has received what it was promised."
        return
    behind = ceil(10 * max(each.rounds_behind for each in top) - TOLERANCE) / 10
    had_to = f", of which whole gangs leave at least {least / 3600:.4g} in any case" if least > TOLERANCE else ""
    yield f"Tenants are owed {short / 3600:.4g} of it{had_to}; none is more than {behind:.1f} rounds behind."


def tenants_by_round(
    jobs: Iterable[gp.Job], rounds: Sequence[gp.Round], tenants: Mapping[str, gp.scheduling.TenantDelivery]
) -> dict[str, list[float]]:
    """Return {tenant: its GPUs in each round}, with those of the tenants below; jobs that share GPUs have equal parts of them."""
    tenant_of, found = {job.job_id: job.tenant for job in jobs}, {name: [0.0] * len(rounds) for name in tenants}
    for k, round_ in enumerate(rounds):
        for job_id, held in round_.assignments.items():
            name: str | None = tenant_of[job_id]
            while name:
                found[name][k] += held.gpu_share
                name = tenants[name].parent
    return found


def top_tenants(jobs: Iterable[gp.Job], tenants: Mapping[str, gp.scheduling.TenantDelivery | gp.TenantShare]) -> dict[str, str]:
    """Return {job_id: the tenant at the top above it}, of the jobs with tenants in a report."""

    def top(name: str) -> str:
        above = tenants[name].parent
        return name if above is None else top(above)

    return {job.job_id: top(job.tenant) for job in jobs if job.tenant in tenants}


def tenants_in_rounds(
    gpus: Mapping[str, Sequence[float]],
    rounds: Sequence[gp.Round],
    tenants: Mapping[str, gp.scheduling.TenantDelivery],
    most: int | None,
) -> str:
    """Return a table of the GPUs of the tenants at the top in the first rounds, "" if there are not several.

    gpus: from `tenants_by_round`; most: maximum number of tenants.
    """
    top = [each for each in tenants.values() if each.parent is None]
    if len(top) < 2:
        return ""
    shown, seconds = top[:most], sum(each.end_seconds - each.start_seconds for each in rounds)
    cells = [[number(value) for value in gpus[each.tenant]] for each in shown]
    heads = [str(each.index) for each in rounds]
    first = max(len("tenant"), *(cell_width(each.tenant) for each in shown))
    fit = (line_width() - first - len("promised") - 8) // (2 + max(len(text) for row in [heads, *cells] for text in row))
    some = min(len(rounds), max(1, fit)) if fit < len(rounds) else len(rounds)
    more = ["…"] * (some < len(rounds))
    rows = [
        [each.tenant, number(each.promised_gpu_seconds / seconds), *row[:some], *more]
        for each, row in zip(shown, cells, strict=True)
    ]
    left = f", the first {len(shown)} of {len(top)}" if len(shown) < len(top) else ""
    columns = [Column("tenant", "name"), Column("promised"), *map(Column, [*heads[:some], *more])]
    return table_text(f"GPUs of tenants, promised on average and held in each round{left}", columns, rows)


def late_jobs_text(delivery: gp.DeliveryReport, jobs: Iterable[gp.Job]) -> str:
    """Return why jobs wait, and a table of the jobs that are furthest behind, in GPU-seconds if one of them is elastic."""
    hours = {reason: seconds / 3600 for reason, seconds in delivery.undelivered_by_reason.items() if seconds > TOLERANCE}
    reasons = "; ".join(f"{reason} ({hours[reason]:.4g})" for reason in sorted(hours, key=lambda reason: -hours[reason]))
    why = wrapped([f"Reasons for waiting, in GPU-hours: {reasons}."], indent="") if hours else ""
    short = sorted((job for job in delivery.jobs.values() if job.undelivered_seconds > 0), key=lambda job: -job.undelivered_seconds)
    if not short:
        return why
    rows, shown = [], short[:MAX_JOBS]
    names = {job.job_id for job in shown}
    sizes = {job.job_id: size_text(job) for job in jobs if job.job_id in names}
    is_elastic = any(job.is_elastic for job in jobs if job.job_id in names)
    for job in shown:
        seconds = (job.promised_seconds, job.delivered_seconds, job.undelivered_seconds)
        times = [f"{each * (job.num_gpus if is_elastic else 1):.0f}" for each in seconds]
        rows.append([job.job_id, str(job.why or ""), sizes[job.job_id], *times])
    columns = [
        Column("job", "name"),
        Column("mostly because", "prose", 1),
        Column("GPUs"),
        *(Column(f"{name}, {'GPU-s' if is_elastic else 's'}") for name in ("due", "got", "behind")),
    ]
    more = f", the first {MAX_JOBS} of {len(short)}" if len(short) > MAX_JOBS else ""
    return why + "\n" + table_text(f"Jobs furthest behind{more}", columns, rows)
