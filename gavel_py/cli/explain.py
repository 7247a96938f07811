"""gavel explain: the reasons for the allocation of a job, and the effect of one more GPU."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import click

import gavel_py as gp
from gavel_py.cli import estimates, inputs
from gavel_py.cli.accounting import has_its_share, has_prices, hourly, late_text, tenant_text
from gavel_py.cli.allocation_text import percent, refused_counts
from gavel_py.cli.inputs import (
    GAIN_NOTE,
    ONE_POLICY,
    Command,
    declared_option,
    load,
    main_option,
    option,
    policies_of,
    takes_options,
    warnings_shown,
)
from gavel_py.cli.output import SAME_VALUE, counted, emit, gang_text, json_text, money, number, time_text, unused_text
from gavel_py.cli.tables import Columns, columns_text, line_width, listed, table_text, wrapped
from gavel_py.cli.usage import refuse

MIN_TIME = 5e-4
"""Smallest time fraction that is printed as more than 0.0%."""

MAX_PARTNERS = 10
"""Maximum number of partners listed, by time; the JSON output has all of them."""


@dataclass(frozen=True)
class ExplainOptions(inputs.ProblemOptions):
    """The options, as typed."""

    policy_specs: tuple[str, ...] = main_option("Policy", "--policy", "-p", **ONE_POLICY)
    as_csv: bool = option("--csv", hidden=True)


@click.command("explain", cls=Command)
@click.argument("job_id", metavar="JOB_ID")
@takes_options(ExplainOptions)
@click.option("--sharing", **declared_option("solve", "sharing"))
@click.option("--with", "partner", metavar="JOB_ID", help="With --sharing: why it does or does not share GPUs with this job.")
def command(request: ExplainOptions, job_id: str, sharing: bool, partner: str | None) -> None:
    """Explain why a job gets what it gets.

    Shows what limits the job, what one more GPU of each type would change, and which jobs hold the GPUs that it could use. The
    limits are read off the proof of the allocation; for one more GPU, the problem is solved again. JOBS may be "-", standard input.

    \b
    gavel explain vision-003 jobs.csv -c cluster.yaml
    gavel explain vision-003 jobs.csv -c cluster.yaml -p fifo --json
    gavel explain vision-003 jobs.csv -c cluster.yaml --sharing --with language-011
    """
    refuse(
        (request.form == "csv", "an explanation is not a table; leave out --csv, or use --json"),
        (partner is not None and not sharing, "--with explains whether two jobs share GPUs; add --sharing"),
    )
    with warnings_shown():
        policy, *others = policies_of(request.policy_specs, request.settings, request.constraint_files)
        refuse((others, "a job is explained under one --policy at a time"))
        loaded = load(request)
        problem = loaded.problem(sharing=sharing)
        explanation = gp.explain(problem, job_id, policy, partner=partner)
        job = next(job for job in loaded.jobs if job.job_id == job_id)
        row = problem.job_ids.index(job_id)
        estimated = estimates.estimates_of(loaded.profile, {row: job}, problem)
        required = Required.of(problem, policy, explanation)
        if estimates.has_estimates(loaded.profile):
            by_id = {job.job_id: job for job in loaded.jobs}
            pairs = [(job, by_id[each.job_id], each.accelerator) for each in explanation.partners]
            of_pairs = loaded.profile.pair_estimates_of(pairs)
            estimated = [*(estimated or ()), *(each for each in of_pairs if each.entry.job_type == job.job_type)]
    if request.form == "json":
        entries = workflow_entry(problem, row) | estimates.json_entry(estimated)
        entries |= {} if required is None else {"with_deadlines": asdict(required)}
        emit(json_text(explanation.to_dict() | entries), request.out)
    else:
        plain = _deadline(explanation, required)
        plain += _plain(explanation, priced=has_prices(loaded.cluster)) if explanation.excluded is None else ""
        plain += _workflow(loaded.jobs, problem, row) if explanation.excluded is None else ""
        plain += "".join(_wrapped(line, "") for line in refused_counts(problem, {row: job}))
        details = _report(explanation, policy.label, sharing=sharing, partner=partner)
        parts = [
            plain,
            *details,
            _estimates(None if explanation.excluded else estimated, job, estimates.value_text(loaded.profile)),
            unused_text(loaded.cluster.left_out),
        ]
        emit("\n".join(part for part in parts if part), request.out)


@dataclass(frozen=True)
class Required:
    """What `deadline` as a further constraint on the policy would change.

    met: number of deadlines that are met then, None if the constraint cannot be imposed; conflict: those that cannot all be met.
    """

    met: int | None = None
    conflict: tuple[str, ...] = ()

    @classmethod
    def of(cls, problem: gp.AllocationProblem, policy: gp.Policy, explanation: gp.Explanation) -> Required | None:
        """Solve again with the constraint, if the job has a deadline and any is missed."""
        if explanation.deadline is None or not explanation.deadlines["missed"]:
            return None
        try:
            allocation = gp.solve(problem, replace(policy, constraints=(*policy.constraints, gp.Deadline())))
        except gp.ConflictError as error:
            return cls(None, error.constraints)
        except gp.GavelError:  # the policy takes no such constraint, steps are unknown, or the solver has failed
            return cls()
        return cls(allocation.forecast().deadlines.met)


def _deadline(explanation: gp.Explanation, required: Required | None) -> str:
    """Return a sentence on the deadline of the job, and on all of them with the constraint; "" without a deadline."""
    if explanation.deadline is None:
        return ""
    late, due = explanation.late, sum(explanation.deadlines.values())
    if late is None:
        unknown, idle = "has a deadline, but its total_steps is unknown", "waits, and without GPU time misses its deadline"
        own = unknown if explanation.throughput else idle
    else:
        own = f"misses its deadline by {late_text(late)} at this speed" if late else "meets its deadline at this speed"
    if required is not None and required.met is not None:
        rest = f"with `deadline` as a constraint {required.met} of {due} are met"
    elif required is not None and required.conflict:
        rest = f"with `deadline` as a constraint not all can be met: {listed(required.conflict, 2 * line_width())}"
    else:
        rest = f"{explanation.deadlines['met']} of {due} are met"
    return _wrapped(f"{explanation.job_id} {own}; {rest}.", "")


def _report(explanation: gp.Explanation, label: str, *, sharing: bool, partner: str | None) -> Iterator[str]:
    """Yield the paragraphs of an explanation; partner: a job for which to explain whether the two share GPUs."""
    if explanation.excluded is not None:
        yield _wrapped(f"{explanation.job_id} gets no time under {label}: {explanation.excluded}", "")
        return
    yield _share(explanation, label)
    if sharing:
        yield _partners(explanation)
    if partner is not None:
        answers = "".join(_wrapped(each.text, "- ") for each in explanation.together)
        yield f"Does it share GPUs with {partner}?\n\n{answers}"
    reasons = [reason.text for reason in explanation.bindings] or ["nothing: more time for it would not raise the objective"]
    yield "What limits it\n\n" + "".join(_wrapped(reason, "- ") for reason in reasons)
    yield _more_gpus(explanation)
    if explanation.holders:
        yield _holders(explanation)


def _estimates(found: Sequence[gp.Estimate] | None, job: gp.Job, value: str) -> str:
    """Return a line on the speeds of a job that are estimates, with their intervals; "" without --estimate."""
    if found is None:
        return ""
    if not found:
        return _wrapped("All of its speeds were measured.", "")
    places = [
        f"{each.entry.num_gpus} " * job.is_elastic
        + each.entry.accelerator
        + (f" beside {each.entry.partner}" if each.entry.partner else "")
        for each in found
    ]
    figures = [f"{number(each.steps_per_second)} ({estimates.interval_text(each)})" for each in found]
    speeds = ", ".join(f"{place} {figure}" for place, figure in zip(places, figures, strict=True))
    return _wrapped(f"Estimated {found[0].unit} of {job.job_id}, with 80 % interval: {speeds}. {value}".rstrip(), "")


def _plain(explanation: gp.Explanation, *, priced: bool) -> str:
    """Return sentences on what the job gets, what would give it more, its end, its cost, and the share of its tenant.

    priced: whether any price is known.
    """
    runs = sum(explanation.time_fractions.values())
    if runs < MIN_TIME:
        lines = [f"{explanation.job_id} waits for GPU time."]
    else:
        share = "" if explanation.vs_fair_share is None else percent(explanation.vs_fair_share)
        fair = share and f", and gets {share}{'' if share.endswith('times') else ' of'} its fair share"
        lines = [f"{explanation.job_id} runs {'all' if runs >= 1 - MIN_TIME else f'{runs:.1%}'} of the time{fair}."]
    lines += [*_scarce(explanation), *_later(explanation, priced=priced)]
    if explanation.tenant is not None:
        lines.append(f"{tenant_text(explanation.tenant)}.")
        if runs < MIN_TIME and has_its_share(explanation.tenant):
            lines.append("Its tenant has its share; within it, other jobs are served first.")
    return "".join(_wrapped(line, "") for line in lines)


def _workflow(jobs: gp.JobSet, problem: gp.AllocationProblem, row: int) -> str:
    """Return sentences on the workflow of a job, and on the jobs that wait for it."""
    job_id, lines = problem.job_ids[row], []
    tasks = int(problem.ready_tasks[row])
    if tasks > 1:
        name = next(job.workflow for job in jobs if job.job_id == job_id)
        lines.append(f"It is one of {tasks} jobs of workflow {name} that are ready, which share one weight.")
    waiting = [job.job_id for job in jobs if job_id in job.parents]
    if waiting:
        path = time_text(float(problem.path_seconds[row])) if problem.path_seconds[row] else ""
        text = f"{_joined(waiting[:MAX_PARTNERS])} {'waits' if len(waiting) == 1 else 'wait'} for it"
        lines.append(text + (f"; the longest path of jobs that do takes {path} on their fastest types." if path else "."))
    latest = float(problem.latest_end_seconds[row])
    if not math.isnan(latest):
        lines.append(
            f"They can meet their deadlines if it ends within {time_text(latest)}." if latest > 0 else "They will be late."
        )
    return "".join(_wrapped(line, "") for line in lines)


def workflow_entry(problem: gp.AllocationProblem, row: int) -> dict[str, dict[str, float | None]]:
    """Return the fields of a job's workflow that policies read, as an entry of the JSON output; empty if it has none."""
    values = {name: float(getattr(problem, name)[row]) for name in WORKFLOW}
    columns = {name: None if math.isnan(value) else value for name, value in values.items()}
    return {"workflow": columns} if list(columns.values()) != [1.0, 0.0, 0.0, None] else {}


WORKFLOW = ("ready_tasks", "workflow_seconds", "path_seconds", "latest_end_seconds")

GAINS = {
    **dict.fromkeys(("max_min_fairness", "water_filling"), "raise what the worst-off jobs get"),
    "hierarchical": "raise what the worst-off tenant gets",
    "min_makespan": "bring the end of the last job forward",
    "finish_time_fairness": "lower the largest finish-time ratio",
    "max_total_throughput": "raise the total throughput",
}
"""{policy: the meaning of a better objective}, for policies whose objective is meaningful in relative terms."""


def _scarce(explanation: gp.Explanation) -> Iterator[str]:
    """Yield a sentence on the fully used types that would make the job faster, and on the gain by one more GPU of each."""
    taken = [
        each for each in explanation.bindings if each.kind == "gpus" and explanation.utilization.get(each.name, 0) > 1 - SAME_VALUE
    ]
    if not taken:
        return
    counts = {each.name: explanation.capacities[each.name] for each in taken}
    every = "All " if 1 not in counts.values() else ""
    names = _joined(f"{'' if every or count == 1 else 'all '}{_gpus_of(name, count)}" for name, count in counts.items())
    text = every + names + (" is in use" if list(counts.values()) == [1] else " are in use")
    text = text[0].upper() + text[1:]
    what, objective = GAINS.get(explanation.policy), explanation.objective
    gains = [(each.name, each.price / abs(objective)) for each in taken if objective and each.price is not None]
    if what is None or not gains:
        yield f"{text}."
    elif not any(gain > SAME_VALUE for _, gain in gains):
        yield f"{text}; one more alone would change nothing."
    else:
        first, *others = (f"{f' {name}' if len(taken) > 1 else ''}{{}} by at most {percent(gain)}" for name, gain in gains)
        parts = [f"one more{first.format(f' would {what}')}", *(f"one more{each.format('')}" for each in others)]
        yield f"{text}; {_joined(parts)}."


def _joined(texts: Iterable[str]) -> str:
    *first, last = texts
    return f"{', '.join(first)} and {last}" if first else last


def _gpus_of(name: str, count: float) -> str:
    """Return text such as "32 v100s" or "the only v100"."""
    if count == 1:
        return f"the only {name}"
    return f"{count:g} {name}s" if name[-1].isdigit() else f"{count:g} GPUs of type {name}"


def _later(explanation: gp.Explanation, *, priced: bool) -> Iterator[str]:
    """Yield a sentence on the end of the job, and one on its cost if any price is known."""
    end, cost, until = explanation.end_seconds, explanation.cost_per_hour, explanation.cost_until_done
    if end is not None:
        yield f"At this speed it ends in {time_text(end)}: a forecast without new arrivals; sooner if others leave."
    if priced and cost is None:
        yield "The cost of its GPUs is unknown, since a price is."
    elif cost:
        yield f"Its GPUs cost {hourly(cost)}{'' if until is None else f', {money(until)} until it is done'}."


def _share(explanation: gp.Explanation, label: str) -> str:
    size = explanation.num_gpus
    gang = f"{gang_text(size)} of a GPU" if size < 1 else counted(int(size), "GPU")
    gang = gang if explanation.gpu_counts is None else "elastic"
    share = "" if explanation.vs_fair_share is None else f", {explanation.vs_fair_share:.3g} times its fair share"
    speed = f"{number(explanation.throughput)} steps/s, speed {number(explanation.normalized_throughput)}{share}"
    times = [f"{part:.1%} on {name}" for name, part in explanation.time_fractions.items() if part >= MIN_TIME]
    if explanation.gpu_counts is not None:
        parts = [(part, f"{n} {name}") for name, counts in explanation.gpu_counts.items() for n, part in counts.items()]
        times = [f"{part:.1%} on {what}" for part, what in parts if part >= MIN_TIME]
    waits = 1 - sum(explanation.time_fractions.values())
    if waits >= MIN_TIME:
        times.append(f"{waits:.1%} waiting")
    lines = [f"{explanation.job_id} ({gang}) under {label}: {speed}", f"Its time: {', '.join(times)}"]
    if explanation.equal_jobs:
        lines.append(f"{counted(explanation.equal_jobs, 'other job')} like it, with the same result")
    lines += explanation.notes
    if not explanation.certain:
        lines.append("Other allocations that are just as good may give it more or less")
    return "".join(_wrapped(line, "") for line in lines)


def _partners(explanation: gp.Explanation) -> str:
    if not explanation.partners:
        return "It shares GPUs with no other job.\n"
    listed = explanation.partners[:MAX_PARTNERS]
    rows = [[each.job_id, each.accelerator, f"{each.time_fraction:.1%}", f"{each.gain:.2f}"] for each in listed]
    more = len(explanation.partners) - len(listed)
    table = table_text("Jobs that share its GPUs", ["job", "on", "time", "gain"], rows, text_columns=2)
    return table + (f"and {counted(more, 'other')}\n" if more else "") + GAIN_NOTE


def _more_gpus(explanation: gp.Explanation) -> str:
    solved = [more for more in explanation.one_more_gpu if not more.failed]
    with_objective = [] if explanation.objective is None else solved
    columns: Columns = [
        ("type", [more.accelerator for more in solved]),
        ("steps/s", [("" if more.certain else "~") + number(more.throughput) for more in solved]),
        ("change", [_change(more.throughput_change, explanation.throughput) for more in solved]),
        ("objective", [number(more.objective) for more in with_objective]),
        ("its change", [_change(more.objective_change, explanation.objective) for more in with_objective]),
    ]
    notes = [f"{more.accelerator}: {reason}" for more in explanation.one_more_gpu if (reason := more.failed or more.closed)]
    if not all(more.certain for more in solved):
        notes.append("~: other allocations that are just as good may give it more or less")
    return columns_text("What one more GPU would change", columns) + "".join(_wrapped(note, "") for note in notes)


def _change(change: float | None, before: float | None) -> str:
    if change is None or before is None:
        return "-"
    return "0" if abs(change) <= SAME_VALUE * abs(before) else f"{change:+.4g}"


def _holders(explanation: gp.Explanation) -> str:
    types = list(explanation.others.gpus)
    held = [(holder.job_id, holder.gpus) for holder in explanation.holders]
    if explanation.others.jobs:
        held.append((f"{counted(explanation.others.jobs, 'other')}", explanation.others.gpus))
    rows = [[name, *("." if gpus[t] < SAME_VALUE else number(gpus[t]) for t in types)] for name, gpus in held]
    return table_text("Jobs that hold GPUs that it could use (on average)", ["job", *types], rows)


def _wrapped(text: str, bullet: str) -> str:
    return wrapped([bullet + text], indent=" " * len(bullet))
