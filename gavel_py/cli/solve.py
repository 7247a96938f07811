"""gavel solve: the allocation of a job set under one or more policies."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

import gavel_py as gp
from gavel_py.cli import allocation_text, estimates, inputs, page
from gavel_py.cli.accounting import tenants_header, tenants_rows, with_accounts
from gavel_py.cli.output import counted, csv_text, emit, json_text, number, time_text, unit_of, unused_text
from gavel_py.cli.rounds import run_rounds
from gavel_py.cli.rounds_text import delivery_text, rounds_text
from gavel_py.cli.services import ServicesOptions, beside_services, rest_of, services_entry, services_table, services_text, verdict
from gavel_py.cli.tables import parts_text, table_text
from gavel_py.cli.usage import refuse
from gavel_py.cli.what_if import WhatIf, changed, changes_of, compared, priced, what_if_text

if TYPE_CHECKING:
    from gavel_py.cli.what_if import Changes

TOP = 10
"""Default number of groups of equal jobs listed."""


@dataclass(frozen=True)
class SolveOptions(ServicesOptions, inputs.ProblemOptions):
    """The options, as typed."""

    num_rounds: int = inputs.option(
        "Rounds",
        "--rounds",
        type=click.IntRange(0, inputs.MAX_ROUNDS),
        default=0,
        metavar="N",
        help="Also place the first N rounds.",
    )
    merge_tolerance: float = inputs.option(
        "Policy",
        type=click.FloatRange(0, 1, max_open=True),
        default=0.0,
        metavar="PART",
        help="Treat jobs as equal whose speeds differ by at most this fraction, 0.02 for 2 %; states the possible loss [0].",
    )
    time_limit_seconds: float | None = inputs.option(
        "Policy",
        "--time-limit",
        type=inputs.Duration(min=0, min_open=True),
        metavar="S",
        help="Stop after this time with the best allocation known, and state how far from optimal it may be [no limit].",
    )
    what_if: tuple[str, ...] = inputs.main_option(
        "What if",
        metavar="CHANGE",
        help="Also solve with other GPUs (v100+8,k80=0) or nodes (v100+2nodes, down:n0+n3), and compare; may be repeated.",
    )
    price: tuple[str, ...] = inputs.option(
        "What if", metavar="TYPE=PRICE", help="Price of a GPU-hour of a type, also of one that --what-if adds."
    )
    write_program: str | None = inputs.option(
        "Output", metavar="FILE", help="Also write the program, one row per job, as .mps or .lp for other solvers."
    )
    html: Path | None = inputs.main_option(
        "Output", type=inputs.FILE, metavar="FILE", help="Also write the answer as an HTML page for people."
    )
    sensitivity: bool = inputs.option("What if", help="With --estimate: also show which estimate would change the answer most.")
    workflows: bool = inputs.option(
        "Policy",
        "--workflows",
        help="Schedule jobs with dependencies up to the end of the last one, with a lower bound on that time.",
    )
    given_options: dict[str, Any] = inputs.declared_options("solve")
    top: int | None = inputs.option(
        "Output", type=click.IntRange(min=1), metavar="N", help=f"Show the N worst-off jobs, equal ones in one row [{TOP}]."
    )
    all_jobs: bool = inputs.option("Output", "--all", help="Show each job, and each node.")
    by: Literal["tenant", "type", "node"] | None = inputs.main_option(
        "Output", help="Show tenants or job types instead of jobs, or with --rounds what runs on each node; tenant also with --csv."
    )
    wide: bool = inputs.option("Output", help="Show all columns with complete names, whatever the width.")


@click.command("solve", cls=inputs.Command)
@inputs.takes_options(SolveOptions)
def command(request: SolveOptions) -> None:
    """Divide the GPU time of a cluster among jobs.

    JOBS is a .csv, .json, .jsonl or Gavel .trace file, or "-", standard input. Several --policy are compared side by side.

    \b
    gavel solve jobs.csv -c v100:16,p100:8/4
    gavel solve jobs.csv -c cluster.yaml -p max_min_fairness -p max_min_fairness,agnostic=true
    gavel solve jobs.csv -c cluster.yaml --services services.yaml --rounds 3
    gavel solve jobs.csv -c cluster.yaml --what-if v100+8 --what-if v100=0,k80+16
    """
    changes = {text: changes_of(text) for text in request.what_if}
    _check(request)
    if request.html is not None:
        gp.check_report(request.html)
    if request.workflows:
        with inputs.warnings_shown():
            emit(_workflows(request), request.out)
        return
    inputs.check_pairs(request.rounds)

    def build(some: inputs.Inputs) -> gp.AllocationProblem:
        return some.problem(sharing=request.rounds.sharing)

    with inputs.warnings_shown():
        policies = inputs.policies_of(request.policy_specs, request.settings, request.constraint_files)
        started = time.perf_counter()
        loaded, new = priced(inputs.load(request), changes, request.price)
        read = time.perf_counter()
        problem = build(loaded)
        built = time.perf_counter()
        inputs.import_solver(policies)
        seconds = {"read": read - started, "build": built - read, "import": time.perf_counter() - built}
        if request.write_program is not None:
            gp.write_program(problem, request.write_program, policies[0])
        if request.services is not None:
            results = [_beside_services(request, loaded, each, changes, new, seconds) for each in policies]
            loaded = rest_of(loaded, results[0].plan)
        else:
            others = {text: changed(problem, loaded, text, parts, new, build) for text, parts in changes.items()}
            solvers = [_solver(request, each) for each in policies]
            results = [
                _result(request, loaded, problem, solver, seconds, {text: (other, solver) for text, other in others.items()})
                for solver in solvers
            ]
        if request.html is not None:
            _write_page(request.html, request, loaded, results[0])
    if request.form == "json":
        emit(json_text(results[0].document if len(results) == 1 else [each.document for each in results]), request.out)
    elif request.form == "csv":
        emit(_tenants_csv(results) if request.by == "tenant" else _csv(results), request.out)
    else:
        emit(_report(request, loaded, results), request.out)
    if request.write_program is not None:
        click.echo(f"The program is in {request.write_program}", err=True)


def _write_page(path: Path, request: SolveOptions, loaded: inputs.Inputs, result: Result) -> None:
    estimated = [each.change for each in result.what_ifs if each.estimates]
    tables = page.PageTables(
        None if result.plan is None else services_table(result.plan),
        None if result.comparison is None else page.what_ifs_table(result.comparison, estimated),
        [] if result.plan is None else [verdict(result.plan)],
    )
    options = request.rounds.changed(time_limit_seconds=request.time_limit_seconds)
    shown = replace(loaded, options=options), result.policy, result.screen(loaded.jobs), result.rounds
    page.write_page(path, *shown, tables, request.now)


ALLOCATION_ONLY = (
    *("policy_specs", "settings", "constraint_files", "num_rounds", "merge_tolerance", "time_limit_seconds", "what_if"),
    *("write_program", "html", "by", "wide", "services"),
)
"""Options that have no effect with --workflows, which uses no policy."""


def _workflows(request: SolveOptions) -> str:
    """Return the schedule of --workflows, as JSON, CSV or a table."""
    given = [name for name in ALLOCATION_ONLY if getattr(request, name)]
    given += [
        *(name for name in ("sharing", *request.rounds.of_sharing) if name in request.rounds.model_fields_set),
        *(off for name, off in inputs.FLAGS.items() if not getattr(request.rounds, name)),
    ]
    names = {"policy_specs": "policy", "settings": "set", "constraint_files": "constraints", "num_rounds": "rounds"}
    others = [names.get(name, name).removesuffix("_seconds").replace("_", "-") for name in given]
    text = "--workflows makes one schedule up to the end of all jobs, without a policy; leave out"
    refuse((others, f"{text} {' and '.join(f'--{name}' for name in others)}"))
    loaded = inputs.load(request)
    schedule = gp.schedule_workflows(loaded.jobs, loaded.cluster, loaded.profile)
    if request.form == "json":
        return json_text(schedule.to_dict() | loaded.unused)
    columns = schedule.to_columns()
    rows = list(zip(*(values.tolist() for values in columns.values()), strict=True))
    if request.form == "csv":
        return csv_text(list(columns), rows)
    shown = len(rows) if request.all_jobs else request.top or TOP
    waits = {job.job_id: ", ".join(job.depends_on) for job in loaded.jobs}
    unit, length = unit_of([schedule.makespans[schedule.rule]])
    end = f"The last of {counted(len(rows), 'job')} ends after {time_text(schedule.makespans[schedule.rule])} (by {schedule.rule})."
    bound = f"Proven: no schedule ends before {time_text(schedule.bound_seconds)}; gap {schedule.gap:.2%}."
    table = table_text(
        f"Jobs in the order of their starts: {min(shown, len(rows))} of {len(rows)}",
        ["job", "waits for", "GPUs", "nodes", f"start, {unit}", f"end, {unit}"],
        [
            [job_id, waits[job_id], name, nodes.replace("|", ", "), number(start / length), number(end_seconds / length)]
            for job_id, name, start, end_seconds, nodes in rows[:shown]
        ],
        text_columns=4,
    )
    return parts_text([f"{end}\n{bound}\n", table, unused_text(loaded.cluster.left_out)])


def _check(request: SolveOptions) -> None:
    """Raise `UsageError` for options that contradict each other or have no effect."""
    several = len(request.policy_specs) > 1
    refuse(
        (
            request.what_if and request.num_rounds,
            "--rounds places jobs on the nodes of this cluster, but --what-if solves for other clusters; leave out one of them",
        ),
        (request.all_jobs and request.top, "--all shows every job and --top N some of them; leave out one of them"),
        (request.by and request.top, f"--by {request.by} shows sums and --top N single jobs; leave out one of them"),
        (
            request.by == "node" and not request.num_rounds,
            "--by node shows what runs on each node in a round; give --rounds N with it",
        ),
        (
            request.write_program and several,
            "--write-program writes the program of one policy, and several are compared; give one --policy",
        ),
        (
            request.services and request.write_program,
            "--write-program writes the program of the jobs on all GPUs, and --services takes some of them; leave out one of them",
        ),
        (
            request.services and request.merge_tolerance,
            "--merge-tolerance makes answers inexact, and --services compares them; leave out one of them",
        ),
        (request.html and several, "--html is the page of one policy, and several are compared; give one --policy"),
        (
            several and (request.by not in (None, "tenant") or request.top),
            "--top and --by type or node show the answer of one policy, and several are compared; give one --policy",
        ),
        (
            request.form and (request.by or request.top or request.wide) and (request.form, request.by) != ("csv", "tenant"),
            f"--by, --top and --output are for tables, and --{request.form} has all jobs; leave them out",
        ),
    )
    if request.sensitivity and not request.workflows:
        refuse(
            (request.estimate is None, "--sensitivity is about estimated speeds; add --estimate"),
            (request.rounds.sharing, "--sensitivity varies speeds of jobs that are alone on their GPUs; leave out --sharing"),
            (
                request.form == "csv",
                "--csv has a row for each job, and --sensitivity is about speeds; leave out one of them, or use --json",
            ),
        )


@dataclass(frozen=True)
class Result:
    """The allocation of one policy, with its first rounds (--rounds), changed clusters (--what-if) and services (--services)."""

    policy: gp.Policy
    problem: gp.AllocationProblem
    allocation: gp.Allocation
    rounds: list[gp.Round]
    delivery: gp.DeliveryReport | None
    document: dict[str, Any]
    what_ifs: tuple[WhatIf, ...] = ()
    sensitivity: gp.Sensitivity | None = None
    comparison: gp.ClusterComparison | None = None
    exceeded: tuple[str, ...] = ()
    plan: gp.JointPlan | None = None

    @property
    def label(self) -> str:
        """The policy with its options."""
        return self.policy.label

    def screen(self, jobs: gp.JobSet) -> allocation_text.Screen:
        """Return what the screens of an allocation show."""
        return allocation_text.Screen(self.label, jobs, self.problem, self.allocation, sum(self.document["seconds"].values()))


def _solver(request: SolveOptions, policy: gp.Policy) -> gp.Solver:
    return gp.Solver(policy, merge_tolerance=request.merge_tolerance, time_limit_seconds=request.time_limit_seconds)


def _beside_services(
    request: SolveOptions,
    loaded: inputs.Inputs,
    policy: gp.Policy,
    changes: Mapping[str, Changes],
    new: Mapping[str, gp.AcceleratorType],
    seconds: dict[str, float],
) -> Result:
    """Return the answer of a policy beside --services, and for each --what-if that beside its own replicas."""
    plan = beside_services(request, loaded, policy, time_limit_seconds=request.time_limit_seconds)
    others: dict[str, tuple[gp.AllocationProblem, gp.Solver]] = {}
    for text, parts in changes.items():
        found, here = plan, loaded.cluster.accelerator_names
        off_nodes = f"--what-if {text}: replicas of --services are on nodes; change these, as in "
        refuse(
            *(
                (each.unit == "GPUs" and gp.same_accelerator(each[0], here), f"{off_nodes}{''.join(map(str, each[:3]))}nodes")
                for each in parts
                if isinstance(each, gp.GpuChange)
            )
        )

        def build(some: inputs.Inputs) -> gp.AllocationProblem:
            nonlocal found
            found = beside_services(request, some, policy, time_limit_seconds=request.time_limit_seconds)
            return found.problem

        other = changed(plan.problem, loaded, text, parts, new, build)
        others[text] = other, _solver(request, found.policy)
    return _result(request, rest_of(loaded, plan), plan.problem, _solver(request, plan.policy), seconds, others, plan)


def _result(
    request: SolveOptions,
    loaded: inputs.Inputs,
    problem: gp.AllocationProblem,
    solver: gp.Solver,
    seconds: dict[str, float],
    others: Mapping[str, tuple[gp.AllocationProblem, gp.Solver]],
    plan: gp.JointPlan | None = None,
) -> Result:
    """Return the answer for a problem; others: {--what-if: its problem, and the solver}; plan: with services, which has it."""
    policy, allocation = solver.policy, solver.solve(problem) if plan is None else plan.training
    document = with_accounts(allocation.to_dict(), allocation) | services_entry(plan)
    document["seconds"] |= seconds
    document |= loaded.unused | estimates.json_entry(loaded.estimates(problem, allocation))
    document |= {"unknown_gpu_memory": unknown} if (unknown := _unknown_memory(loaded, problem, allocation)) else {}
    found = _sensitivity(request, loaded, policy) if request.sensitivity else None
    document |= {} if found is None else {"sensitivity": found.to_dict()}
    if not request.num_rounds:
        what_ifs = tuple(WhatIf.solved(change, *other, loaded) for change, other in others.items())
        document |= {"rounds": []}
        comparison = compared(problem, allocation, what_ifs, solver)
        if comparison is not None:
            document |= {"what_if": [each.to_dict(allocation) for each in what_ifs], "comparison": comparison.to_dict()}
            for each, level in zip((document, *document["what_if"]), comparison.next_levels, strict=False):
                each["next_level"] = level.value
        return Result(policy, problem, allocation, [], None, document, what_ifs, found, comparison, plan=plan)
    scheduler, rounds = run_rounds(
        loaded, policy, request.num_rounds, request.rounds.changed(time_limit_seconds=request.time_limit_seconds)
    )
    delivery = scheduler.delivery()
    document |= {"rounds": [round_.to_dict() for round_ in rounds], "delivery": delivery.to_dict()}
    document |= {"limit_rounds": limits} if (limits := scheduler.limit_rounds) else {}
    return Result(policy, problem, allocation, rounds, delivery, document, (), found, None, scheduler.exceeded_notes, plan)


def _unknown_memory(loaded: inputs.Inputs, problem: gp.AllocationProblem, allocation: gp.Allocation) -> list[dict[str, Any]]:
    held = estimates.held_gpus(loaded.estimates(problem) or (), loaded.jobs, allocation)
    return estimates.unknown_memory(loaded.profile, loaded.cluster, held)


def _sensitivity(request: SolveOptions, loaded: inputs.Inputs, policy: gp.Policy) -> gp.Sensitivity:
    """Return the sensitivity of a policy's answer to estimates."""
    assert isinstance(loaded.profile, gp.EstimatedProfile)  # noqa: S101
    options: dict[str, Any] = {
        "merge_tolerance": request.merge_tolerance,
        "time_limit_seconds": request.time_limit_seconds,
        **{name: getattr(loaded.options, name) for name in inputs.FLAGS},
    }
    return gp.sensitivity(loaded.jobs, loaded.cluster, loaded.profile, policy, **options)


def _allocations(results: Iterable[Result]) -> Iterator[tuple[list[str], gp.Allocation]]:
    """Yield the first columns of CSV lines (the --what-if, if any are given, and the policy), and each allocation."""
    for result in results:
        for change, allocation in [("", result.allocation), *((each.change, each.allocation) for each in result.what_ifs)]:
            yield [*([change] if result.what_ifs else []), result.label], allocation


def _tenants_csv(results: list[Result]) -> str:
    """Return a CSV table with a row for each --what-if, policy and tenant."""
    header = [*(["what_if"] if results[0].what_ifs else []), "policy"]
    types = list(dict.fromkeys(name for _, allocation in _allocations(results) for name in allocation.accelerator_types))
    rows = [[*first, *row] for first, allocation in _allocations(results) for row in tenants_rows(allocation.tenants(), types)]
    return csv_text([*header, *tenants_header(types)], rows)


def _csv(results: list[Result]) -> str:
    """Return a CSV table with a row for each --what-if, policy and job: time fractions, throughput, and reason of an exclusion."""
    what_if = ["what_if"] if results[0].what_ifs else []
    tables = [(first, allocation.to_columns()) for first, allocation in _allocations(results)]
    names = list(dict.fromkeys(name for _, columns in tables for name in columns))  # a --what-if may have further types
    none = [""] * len(results[0].allocation.job_ids)
    rows = [
        [*first, *("" if cell != cell else cell for cell in row)]  # NaN: unknown
        for first, columns in tables
        for row in zip(*(columns[name].tolist() if name in columns else none for name in names), strict=True)
    ]
    return csv_text([*what_if, "policy", *names], rows)


def _report(request: SolveOptions, loaded: inputs.Inputs, results: list[Result]) -> str:
    screens = [result.screen(loaded.jobs) for result in results]
    parts = (
        _answer(request, loaded, results[0], screens[0])
        if len(results) == 1
        else [allocation_text.compared_text(screens, wide=request.wide)]
    )
    for screen in screens if len(results) > 1 and request.by == "tenant" else ():
        parts.append(f"Under {screen.label}\n" + allocation_text.by_text(screen, "tenant", wide=request.wide))
    for result in results if len(results) > 1 else ():
        if result.plan is not None:
            parts += [f"Under {result.label}\n" + "\n".join(services_text(result.plan, wide=request.wide))]
        if result.delivery is not None:
            parts += [
                f"Under {result.label}\n"
                + rounds_text(rest_of(loaded, result.plan).cluster, result.rounds, "all nodes: --all", details=request.all_jobs)
            ]
            parts.append(delivery_text(result.delivery, result.rounds) if len(result.rounds) > 1 else "")
    sizes = {job.job_id: job.num_gpus for job in loaded.jobs}
    for result in results if request.rounds.sharing else ():
        parts.append(inputs.sharing_text(result.label if len(results) > 1 else "", result.allocation, sizes))
    excluded = results[0].allocation.excluded
    parts.append(allocation_text.left_out_text("Left out", excluded, all_of_them=request.all_jobs))
    on_average = {name for result in results for name in result.document.get("limit_rounds", {})}
    exceeded = [f"{each.label}: {note}" if len(results) > 1 else note for each in results for note in each.exceeded]
    parts.append(allocation_text.constraints_text(((each.label, each.allocation) for each in results), on_average, exceeded))
    parts += [
        what_if_text(result.label, result.allocation, result.what_ifs, result.comparison) for result in results if result.comparison
    ]
    parts += _estimates_parts(loaded, results)
    routes = "".join(map(allocation_text.route_text, screens)) if len(results) > 1 else ""
    parts.append(routes + unused_text(loaded.cluster.left_out))
    return parts_text(parts)


def _estimates_parts(loaded: inputs.Inputs, results: list[Result]) -> Iterator[str]:
    """Yield the estimates on which the answers are based, under the first policy, and the sensitivity of each answer."""
    found = loaded.estimates(results[0].problem)
    in_others = any(each.estimates for each in results[0].what_ifs)
    if found or (found is not None and not in_others and results[0].screen(loaded.jobs).served):
        allocation = results[0].allocation
        held = estimates.held_gpus(found, loaded.jobs, allocation)
        held |= estimates.pair_estimates(loaded.profile, loaded.jobs, allocation)
        yield estimates.estimates_text(held, estimates.value_text(loaded.profile))
        yield estimates.memory_text(row for each in results for row in _unknown_memory(loaded, each.problem, each.allocation))
    for result in results:
        if result.sensitivity is not None:
            heading = f"Under {result.label}\n" if len(results) > 1 else ""
            yield heading + estimates.sensitivity_text(result.sensitivity)


def _answer(request: SolveOptions, loaded: inputs.Inputs, result: Result, screen: allocation_text.Screen) -> list[str]:
    """Return the parts of the output for one policy: the meaning of its answer, the use of GPUs, the jobs, and any rounds."""
    wide = request.wide
    more = "" if request.by == "tenant" else "more: --by tenant"
    parts = [allocation_text.head_text(screen, more), allocation_text.use_text(result.allocation, result.problem)]
    if request.by in ("tenant", "type"):
        parts.append(allocation_text.by_text(screen, request.by, wide=wide))
    elif request.by is None and not result.what_ifs:
        parts.append(allocation_text.jobs_text(screen, None if request.all_jobs else request.top or TOP, wide=wide))
    if result.plan is not None:
        parts.extend(services_text(result.plan, wide=wide))
    if result.delivery is not None:
        details = request.all_jobs or request.by == "node"
        parts.append(rounds_text(loaded.cluster, result.rounds, "all nodes: --by node", details=details))
        parts.append(delivery_text(result.delivery, result.rounds) if len(result.rounds) > 1 else "")
    return parts
