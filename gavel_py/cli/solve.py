"""gavel solve: the allocation of a job set under one or more policies.

--what-if also solves with other numbers of GPUs (`WhatIf`); the normalisers are those of the unchanged cluster in all allocations.
"""

from __future__ import annotations

import json
import re
import textwrap
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

import gavel_py as gp
from gavel_py.cli import inputs
from gavel_py.cli.output import counted, csv_text, emit, gang_text, number, table_text, unused_text, width
from gavel_py.cli.rounds import delivery_text, play, rounds_text
from gavel_py.errors import decimal_hint, nearest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FORM = "TYPE+N, TYPE-N or TYPE=N, several with ',' between them"

MAX_JOBS = 3
"""Limit of the jobs listed that gain, and of those that lose; the JSON output has all of them."""

NOTE = "v: a job's throughput over that of an equal share of the cluster as it is, in all rows"

TOLERANCE = 1e-6
"""Change of v below which it counts as unchanged."""


Parts = tuple[tuple[str, str, int], ...]
"""(accelerator type, "+", "-" or "=", GPUs) of a --what-if."""


def _parts(text: str) -> Iterator[tuple[str, str, int]]:
    seen: set[str] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\S.*?)\s*([+=-])\s*([+-]?[^+=-]*?)\s*", part)
        if match is None:
            raise click.UsageError(f"--what-if {text!r} is not of the form {FORM}")
        name, sign, count = match[1], match[2], match[3]
        if not re.fullmatch(r"0|[1-9][0-9]{0,8}", count):
            problem = f"must be a whole number of at least 0, found {count!r}{decimal_hint(count)}"
            raise click.UsageError(f"--what-if {text!r}: the GPUs of {name} {problem}")
        if name in seen:
            raise click.UsageError(f"--what-if {text!r} names {name!r} twice")
        seen.add(name)
        yield name, sign, int(count)


def _changed(problem: gp.AllocationProblem, text: str, parts: Parts) -> gp.AllocationProblem:
    """Return the problem with other numbers of GPUs, with the same normalisers and eligibility of jobs; text: the --what-if."""
    gpus = dict(zip(problem.accelerator_types, problem.capacities.tolist(), strict=True))
    spelled = {name.casefold(): name for name in gpus}
    for typed, sign, count in parts:
        name = typed if typed in gpus else spelled.get(typed.casefold(), typed)
        if name not in gpus:
            problem_text = f"{name!r} is not an accelerator type of this cluster{nearest(name, gpus)}"
            raise click.UsageError(f"--what-if {text!r}: {problem_text}")
        before = gpus[name]
        gpus[name] = {"+": before + count, "-": before - count, "=": float(count)}[sign]
        if gpus[name] < 0:
            raise click.UsageError(f"--what-if {text!r}: takes {count} GPUs of {name} away, and there are {before:g}")
    return problem.with_capacities(list(gpus.values()))


@dataclass(frozen=True)
class WhatIf:
    """The problem and the allocation of one --what-if; change: as typed."""

    change: str
    problem: gp.AllocationProblem
    allocation: gp.Allocation

    @classmethod
    def solved(cls, change: str, problem: gp.AllocationProblem, solver: gp.Solver) -> WhatIf:
        """Solve the changed problem. The message of an `InputError` names the --what-if."""
        try:
            return cls(change, problem, solver.solve(problem))
        except gp.InputError as error:
            raise gp.InputError(f"with --what-if {change}:", *error.faults) from error

    def to_dict(self, before: gp.Allocation) -> dict[str, Any]:
        """Return change, GPUs by type, change of the objective from the allocation `before`, and the allocation as plain data."""
        gpus = dict(zip(self.problem.accelerator_types, self.problem.capacities.tolist(), strict=True))
        now, then = before.objective_value, self.allocation.objective_value
        change = None if now is None or then is None else then - now
        return {"change": self.change, "gpus": gpus, "objective_change": change, "allocation": self.allocation.to_dict()}


def what_if_text(label: str, now: gp.Allocation, what_ifs: Iterable[WhatIf]) -> str:
    """Return tables of objective and v for each cluster, utilisation, shadow prices, and the jobs that gain and lose most."""
    then = {what_if.change: what_if.allocation for what_if in what_ifs}
    clusters = {"as it is": now} | then
    columns, by_type = ["cluster", "objective", "total v", "least v"], ["cluster", *now.accelerator_types]
    rows = [[name, *_outcome(allocation)] for name, allocation in clusters.items()]
    used = [[name, *(f"{part:.1%}" for part in allocation.utilization)] for name, allocation in clusters.items()]
    prices = [[name, *map(number, each.shadow_prices)] for name, each in clusters.items() if each.shadow_prices is not None]
    parts = [
        table_text(f"What if, under {label}", columns, rows) + textwrap.fill(NOTE, width()) + "\n",
        table_text("GPUs used", by_type, used),
        *([table_text("Objective per extra GPU", by_type, prices)] if prices else []),
        *(_jobs(name, now, allocation) for name, allocation in then.items()),
    ]
    return "\n".join(parts)


def _outcome(allocation: gp.Allocation) -> list[str]:
    served = [i for i, job_id in enumerate(allocation.job_ids) if job_id not in allocation.excluded]
    v = allocation.normalized_throughputs[served]
    return [number(allocation.objective_value), number(v.sum()), number(v.min() if len(v) else 0.0)]


def _jobs(name: str, now: gp.Allocation, then: gp.Allocation) -> str:
    """Return a table of the jobs that gain and lose most, and the jobs that are newly excluded."""
    before, after = now.normalized_throughputs, then.normalized_throughputs
    change = after - before
    gain, lose = _largest(change), _largest(-change)
    shown = [*gain[:MAX_JOBS].tolist(), *lose[:MAX_JOBS][::-1].tolist()]
    title = f"{name}: {len(gain)} of {len(change)} jobs gain, {len(lose)} lose"
    fresh = {job_id: reason for job_id, reason in then.excluded.items() if job_id not in now.excluded}
    left_out = _left_out("Left out then", fresh)
    if not shown:
        return f"{title}\n{left_out}"
    rows = [[now.job_ids[i], number(before[i]), number(after[i]), f"{change[i]:+.4g}"] for i in shown]
    return table_text(f"{title}; most of all", ["job", "v now", "v then", "change"], rows) + left_out


def _largest(change: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the indices of positive changes, the largest first."""
    order: NDArray[np.int64] = (-change).argsort(kind="stable")
    return order[change[order] > TOLERANCE]


def _left_out(heading: str, reasons: Mapping[str, str]) -> str:
    return f"{heading}:\n" + "".join(f"  {job_id}: {reason}\n" for job_id, reason in reasons.items()) if reasons else ""


SPREAD = "*"
"""Marks time fractions that are at least partly spread over more nodes than necessary."""

MAX_STAGES = 10
"""Limit of the lexicographic stages listed; the JSON output has all of them."""


@dataclass(frozen=True)
class Request(inputs.Request):
    """The options, as typed."""

    num_rounds: int = inputs.option(
        "--rounds", type=click.IntRange(0, inputs.MAX_ROUNDS), default=0, metavar="N", help="Also place the first N rounds."
    )
    merge_tolerance: float = inputs.option(
        type=click.FloatRange(0, 1, max_open=True),
        default=0.0,
        metavar="PART",
        help="Treat jobs as equal whose speeds differ by at most this part, 0.02 for 2 %; the loss is bounded and told [0].",
    )
    time_limit_seconds: float | None = inputs.option(
        type=click.FloatRange(min=0, min_open=True),
        metavar="SECONDS",
        help="Return the best allocation known after this time, and how far from optimal it may be [no limit].",
    )
    what_if: tuple[str, ...] = inputs.option(
        metavar="CHANGE",
        help="Also solve with other numbers of GPUs, v100+8, k80-4 or v100=40,k80=0, and compare; may be given several times.",
    )
    sharing: bool = inputs.option(**inputs.SHARING)
    min_gain: float | None = inputs.option(**inputs.MIN_GAIN)


@click.command("solve")
@inputs.takes_options(Request)
def command(request: Request) -> None:
    """Solve the allocation of a job set on a cluster, and show who gets what.

    JOBS is a .csv, .json, .jsonl or Gavel .trace file. Several --policy are compared side by side.

    \b
    gavel solve jobs.csv -c v100:16,p100:8/4
    gavel solve jobs.csv -c cluster.yaml -p max_min_fairness -p max_min_fairness,agnostic=true
    gavel solve jobs.csv -c cluster.yaml -p min_makespan --rounds 3 --json
    gavel solve jobs.csv -c cluster.yaml --what-if v100+8 --what-if v100=0,k80+16
    """
    changes = {text: tuple(_parts(text)) for text in request.what_if}
    if changes and request.num_rounds:
        raise click.UsageError("--rounds places jobs on nodes, and --what-if knows numbers of GPUs only; leave out one of them")
    gain, limit = inputs.min_gain_of(request.sharing, request.min_gain), request.time_limit_seconds
    with inputs.warnings_shown():
        policies = inputs.policies_of(request.policy_specs, request.settings, request.constraint_files)
        started = time.perf_counter()
        loaded = inputs.load(request)
        read = time.perf_counter()
        problem = loaded.problem(sharing=request.sharing, min_gain=gain)
        built = time.perf_counter()
        inputs.import_solver(policies)
        seconds = {"read": read - started, "build": built - read, "import": time.perf_counter() - built}
        others = {text: _changed(problem, text, parts) for text, parts in changes.items()}
        solvers = [gp.Solver(each, merge_tolerance=request.merge_tolerance, time_limit_seconds=limit) for each in policies]
        results = [_result(request, loaded, problem, solver, seconds, others) for solver in solvers]
    if request.form == "json":
        documents = [result.document for result in results]
        emit(json.dumps(documents[0] if len(documents) == 1 else documents, indent=2, allow_nan=False), request.out)
    elif request.form == "csv":
        emit(_csv(results), request.out)
    else:
        emit(_report(loaded, results, sharing=request.sharing), request.out)


@dataclass(frozen=True)
class Result:
    """The allocation of one policy, with its first rounds (--rounds) and changed clusters (--what-if)."""

    label: str
    allocation: gp.Allocation
    rounds: list[gp.Round]
    delivery: gp.DeliveryReport | None
    document: dict[str, Any]
    what_ifs: tuple[WhatIf, ...] = ()


def _result(
    request: Request,
    loaded: inputs.Inputs,
    problem: gp.AllocationProblem,
    solver: gp.Solver,
    seconds: dict[str, float],
    others: dict[str, gp.AllocationProblem],
) -> Result:
    policy, allocation = solver.policy, solver.solve(problem)
    document = allocation.to_dict()
    document["seconds"] |= seconds
    document |= loaded.unused
    if not request.num_rounds:
        what_ifs = tuple(WhatIf.solved(change, other, solver) for change, other in others.items())
        document |= {"rounds": []} | ({"what_if": [each.to_dict(allocation) for each in what_ifs]} if what_ifs else {})
        return Result(policy.label, allocation, [], None, document, what_ifs)
    options = {name: getattr(request, name) for name in ("round_seconds", "sharing", "time_limit_seconds")}
    scheduler, rounds = play(loaded, policy, request.num_rounds, **options, min_gain=request.min_gain or 1.0)
    delivery = scheduler.delivery()
    document |= {"rounds": [round_.to_dict() for round_ in rounds], "delivery": delivery.to_dict()}
    return Result(policy.label, allocation, rounds, delivery, document)


def _csv(results: list[Result]) -> str:
    """Return a CSV table with a row for each --what-if, policy and job: time fractions, throughput, and reason of an exclusion."""
    what_if = ["what_if"] if results[0].what_ifs else []
    types = results[0].allocation.accelerator_types
    rows: list[list[object]] = []
    for result in results:
        for change, allocation in [("", result.allocation), *((each.change, each.allocation) for each in result.what_ifs)]:
            rows += _csv_lines([*([change] if what_if else []), result.label], allocation)
    return csv_text([*what_if, "policy", "job_id", *types, "throughput", "normalized_throughput", "excluded"], rows)


def _csv_lines(first: list[str], allocation: gp.Allocation) -> Iterable[list[object]]:
    for job_id, fractions, throughput, normalized in zip(
        allocation.job_ids,
        allocation.time_fractions.tolist(),
        allocation.throughputs.tolist(),
        allocation.normalized_throughputs.tolist(),
        strict=True,
    ):
        yield [*first, job_id, *fractions, throughput, normalized, allocation.excluded.get(job_id, "")]


def _report(loaded: inputs.Inputs, results: list[Result], *, sharing: bool) -> str:
    parts = [_jobs_table(loaded, results[0].allocation)] if len(results) == 1 and not results[0].what_ifs else []
    for result in results:
        if result.delivery is not None:
            heading = [f"Rounds under {result.label}"] if len(results) > 1 else []
            parts += [*heading, rounds_text(loaded.jobs, result.rounds), delivery_text(result.delivery)]
    sizes = {job.job_id: job.num_gpus for job in loaded.jobs}
    for result in results if sharing else ():
        parts.append(inputs.sharing_text(result.label if len(results) > 1 else "", result.allocation, sizes))
    parts.append(_left_out("Left out", results[0].allocation.excluded))
    parts.append((_summary(results[0]) if len(results) == 1 else _comparison(results)) + unused_text(loaded.cluster.left_out))
    parts.append(inputs.constraints_text((result.label, result.allocation) for result in results))
    parts += [what_if_text(result.label, result.allocation, result.what_ifs) for result in results if result.what_ifs]
    return "\n".join(part for part in parts if part)


def _jobs_table(loaded: inputs.Inputs, allocation: gp.Allocation) -> str:
    jobs = {job.job_id: job for job in loaded.jobs}
    columns = ["job", "job type", "GPUs", *(f"on {name}" for name in allocation.accelerator_types), "steps/s", "x equal"]
    rows = []
    for i, job_id in enumerate(allocation.job_ids):
        fractions = [_share(allocation, i, j) for j in range(len(allocation.accelerator_types))]
        speed = [number(allocation.throughputs[i]), number(allocation.normalized_throughputs[i])]
        rows.append([job_id, jobs[job_id].job_type, gang_text(jobs[job_id].num_gpus), *fractions, *speed])
    title = f"Time of each job on each accelerator type ({allocation.policy})"
    spread = allocation.spread_fractions
    note = f"{SPREAD} for all or some of it on more nodes than the gang needs (spread_fractions in the JSON)\n"
    table = table_text(title, columns, rows, text_columns=2)
    return table if spread is None or not (spread > 0).any() else table + note


def _share(allocation: gp.Allocation, i: int, j: int) -> str:
    part, spread = allocation.time_fractions[i, j], allocation.spread_fractions
    return "." if part == 0 else f"{part:.1%}{SPREAD if spread is not None and spread[i, j] > 0 else ''}"


def _summary(result: Result) -> str:
    allocation = result.allocation
    prices = allocation.shadow_prices
    rows = [
        [name, f"{used:.1%}", "-" if prices is None else number(prices[j])]
        for j, (name, used) in enumerate(zip(allocation.accelerator_types, allocation.utilization, strict=True))
    ]
    table = table_text("", ["accelerator", "GPUs used", "objective per extra GPU"], rows)
    stated = allocation.status is gp.AllocationStatus.FORMULA
    objective = f"no objective ({'a formula states it' if stated else 'jobs are served in order'})"
    if allocation.objective_value is not None:
        objective = f"objective {allocation.objective_value:.6g}, proven bound {allocation.objective_bound:.6g}"
    served = len(allocation.job_ids) - len(allocation.excluded)
    seconds = sum(result.document["seconds"].values())
    summary = f"{result.label}: {objective}; {counted(served, 'job')}, {seconds:.2f} s\n"
    return f"{table}\n{summary}{stages_text(allocation)}{_route_text(result)}"


def stages_text(allocation: gp.Allocation) -> str:
    """Return a line for each stage of a lexicographic objective."""
    lines = [f"  {stage.name}: {stage.value:.6g}, proven bound {stage.bound:.6g}\n" for stage in allocation.stages[:MAX_STAGES]]
    more = len(allocation.stages) - len(lines)
    return "".join(lines) + (f"  ... and {more} more\n" if more else "")


def _route_text(result: Result) -> str:
    """Return lines with the bound on the loss by merging, the notes of the policy, and the faster routes that failed."""
    route, gap = result.allocation.route, result.allocation.gap
    lines = []
    if route is not None and route.reduction == "merged" and gap is not None:
        lines = [f"{result.label}: jobs of nearly equal speed were merged, which costs at most {gap:.2%} of the objective"]
    lines += [f"{result.label}: {note}" for note in result.allocation.notes]
    failed = () if route is None else route.failed
    lines += [f"{result.label}: a quicker route gave no proven answer and another was taken ({text})" for text in failed]
    return "".join(f"{line}\n" for line in lines)


def _comparison(results: list[Result]) -> str:
    types = results[0].allocation.accelerator_types
    columns = ["policy", "objective", "total v", "least v", *(f"{name} used" for name in types), "seconds"]
    rows = []
    for result in results:
        allocation = result.allocation
        used = [f"{part:.1%}" for part in allocation.utilization]
        rows.append([result.label, *_outcome(allocation), *used, f"{allocation.seconds['solve']:.2f}"])
    note = "v: a job's throughput over that of an equal share of the cluster; objectives are each policy's own and do not compare\n"
    return table_text("Policies compared", columns, rows) + note + "".join(_route_text(result) for result in results)
