"""gavel rounds: the placements in the first rounds, and the time that these deliver."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click

import gavel_py as gp
from gavel_py.cli import allocation_text, estimates, inputs
from gavel_py.cli.accounting import (
    MAX_TENANTS,
    Outlook,
    cost_of_gpus,
    gpus_of_rounds,
    has_prices,
    hourly,
    tenants_header,
    tenants_of_rounds,
    tenants_rows,
    tenants_table,
)
from gavel_py.cli.output import counted, csv_text, emit, json_text, unused_text
from gavel_py.cli.rounds_text import (
    delivery_text,
    late_jobs_text,
    rounds_text,
    table_of_rounds,
    tenants_by_round,
    tenants_in_rounds,
    top_tenants,
)
from gavel_py.cli.services import ServicesOptions, beside_services, held_line, rest_of, services_entry
from gavel_py.cli.tables import (
    folded_names,
    parts_text,
    wrapped,
)
from gavel_py.cli.usage import refuse

ROUNDS = 10
"""Default number of rounds."""

FEW_JOBS = 10
"""Maximum number of jobs for which `gavel rounds` shows the GPUs of each job in each round without --all."""


@dataclass(frozen=True)
class RoundsOptions(ServicesOptions, inputs.ProblemOptions):
    """The options, as typed."""

    policy_specs: tuple[str, ...] = inputs.main_option("Policy", "--policy", "-p", **inputs.ONE_POLICY)
    num_rounds: int | None = inputs.main_option(
        "Rounds", "--rounds", "-n", type=click.IntRange(1, inputs.MAX_ROUNDS), metavar="N", help=f"Number of rounds [{ROUNDS}]."
    )
    until_done: bool = inputs.main_option("Rounds", help="Instead, forecast when each job with known steps starts and ends.")
    down: tuple[str, ...] = inputs.option(
        "Input", metavar="NODE[,NODE...]", help="Nodes that are down; may be given several times."
    )
    plot: Path | None = inputs.option("Output", type=inputs.FILE, metavar="FILE", help="Also draw the rounds, as .svg or .png.")
    given_options: dict[str, Any] = inputs.declared_options("rounds")
    by: Literal["tenant"] | None = inputs.main_option("Output", help="Show only the tenants, as a table or with --csv.")
    all_jobs: bool = inputs.option(
        "Output", "--all", help=f"Show the GPUs of each job in each round, also of more than {FEW_JOBS} jobs, and all tenants."
    )

    def label(self, policy: gp.Policy) -> str:
        """Return the policy and the mechanism, as in `run_label`."""
        return inputs.run_label(policy, str(self.rounds.mechanism))

    def title(self, policy: gp.Policy) -> str:
        """Return a line on the mechanism, empty for the default."""
        if self.rounds.mechanism == inputs.DEFAULT_MECHANISM:
            return ""
        return f"Rounds under {self.label(policy)}{', without a policy' if self.rounds.mechanism == inputs.DIRECT else ''}."

    def head(self, policy: gp.Policy) -> dict[str, Any]:
        """Return the first entries of the JSON output."""
        name = None if self.rounds.mechanism == inputs.DIRECT else policy.name
        settings = {"mechanism": self.rounds.mechanism, "round_seconds": self.rounds.round_seconds, "down": self.down_nodes}
        return {"policy": name, "options": policy.changed_options, **settings}

    @property
    def down_nodes(self) -> list[str]:
        """The names of --down, each once."""
        return list(dict.fromkeys(name.strip() for text in self.down for name in text.split(",") if name.strip()))


@click.command("rounds", cls=inputs.Command)
@inputs.takes_options(RoundsOptions)
def command(request: RoundsOptions) -> None:
    """Place jobs on GPUs for a number of rounds.

    Shows the placements, and how much of the promised time they deliver. The jobs stay the same: none makes progress, arrives
    or leaves. With --until-done, jobs make progress and leave, the policy decides again each time, and no others arrive. JOBS may
    be "-", standard input.

    \b
    gavel rounds jobs.csv -c cluster.yaml -n 3
    gavel rounds jobs.csv -c cluster.yaml --down v100-a-0,k80-b-1
    gavel rounds jobs.csv -c cluster.yaml --until-done
    """
    inputs.check_pairs(request.rounds)
    _check(request)
    inputs.check_mechanism(str(request.rounds.mechanism), request.policy_specs)
    if request.plot is not None:
        gp.check_plot(request.plot)
    with inputs.warnings_shown():
        policy, *others = inputs.policies_of(request.policy_specs, request.settings, request.constraint_files)
        refuse((others, "rounds are shown for one --policy at a time"))
        loaded = inputs.load(request)
        up = [node for node in loaded.cluster.nodes if node.name not in request.down_nodes]
        plan = None if request.services is None else beside_services(request, loaded, policy, up)
        loaded, policy = rest_of(loaded, plan), policy if plan is None else plan.policy
        if request.rounds.sharing:
            loaded.problem(sharing=True)  # raises now if the profile knows no pairs
        if request.until_done:
            text = _until_done(request, loaded, policy, plan)
        else:
            scheduler, rounds = run_rounds(loaded, policy, request.num_rounds or ROUNDS, request.rounds, request.down_nodes)
            text = SimulatedRounds(request, loaded, policy, scheduler, rounds, plan).shown()
    emit(text, request.out)


def _check(request: RoundsOptions) -> None:
    """Raise `UsageError` for options that contradict each other."""
    refuse(
        (
            request.until_done and request.num_rounds is not None,
            "--until-done runs until all jobs with known steps are done; leave out --rounds",
        ),
        (request.until_done and request.plot is not None, "--plot draws a number of rounds; leave out --until-done"),
        (request.by and request.form == "json", "--by is for tables and --csv, and --json has everything; leave it out"),
    )


def _until_done(request: RoundsOptions, loaded: inputs.Inputs, policy: gp.Policy, plan: gp.JointPlan | None) -> str:
    """Return the forecast of --until-done as text, JSON or CSV."""
    problem = loaded.problem(sharing=request.rounds.sharing)  # raises faults of the jobs before the simulation
    deadlines = zip(problem.job_ids, problem.deadlines_seconds.tolist(), strict=True)
    due = {job_id: seconds for job_id, seconds in deadlines if seconds == seconds}
    here = loaded.jobs, loaded.cluster, loaded.profile
    found = Outlook.simulated(*here, policy, request.down_nodes, due, options=request.rounds)
    if request.form == "json":
        return json_text({**request.head(policy), **found.to_dict(), **services_entry(plan), **loaded.unused})
    if request.form == "csv":
        return (
            csv_text(
                tenants_header(loaded.cluster.accelerator_names), tenants_rows(found.tenants, loaded.cluster.accelerator_names)
            )
            if request.by
            else found.csv()
        )
    every = bool(request.all_jobs or request.by)
    priced, most = has_prices(loaded.cluster), None if every else MAX_TENANTS
    tenants = tenants_table("Tenants until then", found.tenants, has_prices=priced, most=most)
    if request.by:
        return tenants or "No job names a tenant.\n"
    decided = f"{request.label(policy)} {'applied' if request.rounds.mechanism == inputs.DIRECT else 'solved'} again"
    lines = (*found.lines(decided), held_line(plan), down_text(loaded.cluster, request.down_nodes))
    head_text = wrapped([line for line in lines if line])
    table = found.jobs_text(None if request.all_jobs else FEW_JOBS)
    return parts_text((head_text, table, tenants, unused_text(loaded.cluster.left_out)))


@dataclass(frozen=True)
class SimulatedRounds:
    """The first rounds of a fixed job set, and the time that they deliver."""

    request: RoundsOptions
    loaded: inputs.Inputs
    policy: gp.Policy
    scheduler: gp.RoundScheduler
    rounds: list[gp.Round]
    plan: gp.JointPlan | None

    @property
    def left_out(self) -> dict[str, str]:
        """{job_id: reason} of the jobs that have finished, can never start or can run nowhere."""
        present = {*(job.job_id for job in self.scheduler.jobs), *self.scheduler.blocked}
        gone = [job.job_id for job in self.loaded.jobs if job.job_id not in present]
        excluded = self.loaded.problem().excluded if gone else {}
        reasons = dict(self.rounds[-1].excluded) if self.rounds else {}
        return reasons | {job_id: excluded[job_id] for job_id in gone}

    def shown(self) -> str:
        """Return the rounds as text, JSON or CSV, and draw them."""
        request, delivery = self.request, self.scheduler.delivery()
        if request.plot is not None:
            more: dict[str, Any] = {
                "round_seconds": request.rounds.round_seconds,
                "delivery": delivery,
                "policy": request.label(self.policy),
            }
            workflows = {job.job_id: job.workflow for job in self.loaded.jobs if job.workflow}
            tops = top_tenants(self.loaded.jobs, delivery.tenants)
            gp.plot_rounds(self.rounds, self.scheduler.cluster, request.plot, **more, workflows=workflows, tenants=tops)
            click.echo(f"The chart of the rounds is in {request.plot}", err=True)
        if request.form == "csv" and not request.by:
            return csv_text(["round", "start_seconds", "job_id", "state", "accelerator", "node", "gpu"], _csv_rows(self.rounds))
        cluster, gpus = self.scheduler.cluster, gpus_of_rounds(self.loaded.jobs, self.scheduler.cluster, self.rounds)
        problem = None if request.rounds.sharing or not any(job.tenant for job in self.loaded.jobs) else self.loaded.problem()
        tenants = tenants_of_rounds(self.loaded.jobs, cluster, self.rounds, gpus, delivery, self.policy, problem)
        cost = cost_of_gpus(cluster, gpus) if has_prices(cluster) else None
        if request.form == "json":
            return json_text(self._document(delivery) | {"tenants": [each.to_dict() for each in tenants], "cost_per_hour": cost})
        if request.form == "csv":
            return csv_text(tenants_header(cluster.accelerator_names), tenants_rows(tenants, cluster.accelerator_names))
        return self._text(delivery, tenants, cost)

    def _document(self, delivery: gp.DeliveryReport) -> dict[str, Any]:
        allocation = self.scheduler.allocation
        return {
            **self.request.head(self.policy),
            "constraints": [] if allocation is None else [outcome.to_dict() for outcome in allocation.constraints],
            "rounds": [round_.to_dict() for round_ in self.rounds],
            **({"fallback_rounds": fallbacks} if (fallbacks := self.scheduler.fallback_rounds) else {}),
            **({"limit_rounds": limits} if (limits := self.scheduler.limit_rounds) else {}),
            "delivery": delivery.to_dict(),
            **({"tenant_gpus": gpus} if (gpus := tenants_by_round(self.loaded.jobs, self.rounds, delivery.tenants)) else {}),
            **({"blocked": blocked} if (blocked := self.scheduler.blocked) else {}),
            **({"left_out": left_out} if (left_out := self.left_out) else {}),
            **estimates.json_entry(self.loaded.estimates(allocation=allocation)),
            **services_entry(self.plan),
            **self.loaded.unused,
        }

    def _text(self, delivery: gp.DeliveryReport, tenants: Sequence[gp.TenantShare], cost: float | None) -> str:
        request, loaded, rounds, allocation = self.request, self.loaded, self.rounds, self.scheduler.allocation
        title, priced = f"Tenants over {counted(len(rounds), 'round')}", has_prices(self.scheduler.cluster)
        every = bool(request.all_jobs or request.by)
        table = tenants_table(title, tenants, has_prices=priced, most=None if every else MAX_TENANTS)
        by_round = tenants_by_round(loaded.jobs, rounds, delivery.tenants)
        table = parts_text((table, tenants_in_rounds(by_round, rounds, delivery.tenants, None if every else MAX_TENANTS)))
        if request.by:
            return table or "No job names a tenant.\n"
        if request.all_jobs or len(loaded.jobs) <= FEW_JOBS:
            shown = table_of_rounds(loaded.jobs, rounds)
        else:
            shown = rounds_text(loaded.cluster, rounds, "each job: --all", down=request.down_nodes)
        money_text = f"Cost of the GPUs in use, on average over these rounds: {hourly(cost)}." if priced else ""
        delivered = delivery_text(delivery, rounds) + late_jobs_text(delivery, loaded.jobs)
        limits = self.scheduler.limit_rounds, self.scheduler.exceeded_notes
        constraints = "" if allocation is None else allocation_text.constraints_text([(self.policy.label, allocation)], *limits)
        lines = [request.title(self.policy), held_line(self.plan), down_text(loaded.cluster, request.down_nodes)]
        down, cost_text = (wrapped(found) if (found := [line for line in each if line]) else "" for each in (lines, [money_text]))
        reasons = {job_id: f"waits for {', '.join(waits)}" for job_id, waits in self.scheduler.blocked.items()}
        blocked = allocation_text.left_out_text("Blocked", reasons, all_of_them=request.all_jobs)
        blocked += allocation_text.left_out_text("Left out", self.left_out, all_of_them=request.all_jobs)
        estimated, unused = estimates.count_text(loaded.estimates(allocation=allocation)), unused_text(loaded.cluster.left_out)
        notes = wrapped([text, *dict.fromkeys(rounds[-1].notes)]) if (text := self.scheduler.fallback_text) else ""
        return parts_text((down + shown, blocked, notes, cost_text + delivered, table, constraints, estimated, unused))


def down_text(cluster: gp.Cluster, down: Sequence[str]) -> str:
    """Return a line on the nodes that are down and their number of GPUs."""
    gpus = sum(node.num_gpus for node in cluster.nodes if node.name in down)
    return f"Down: {', '.join(folded_names(down))}, with {counted(gpus, 'GPU')}." if down else ""


def run_rounds(
    loaded: inputs.Inputs, policy: gp.Policy, num_rounds: int, options: gp.SchedulerOptions, down: Sequence[str] = ()
) -> tuple[gp.RoundScheduler, list[gp.Round]]:
    """Return a scheduler to which all jobs were submitted, and its first rounds.

    down: nodes that are down. Raises `UnknownNameError` if there is no such node.
    """
    scheduler = gp.RoundScheduler(loaded.cluster, loaded.profile, policy, options=options)
    for name in down:
        scheduler.node_down(name)
    scheduler.submit_all(list(loaded.jobs))
    if any(job.depends_on for job in loaded.jobs):
        problem = loaded.problem()
        for job_id, steps in zip(problem.job_ids, problem.steps_remaining.tolist(), strict=True):
            if steps == 0:  # so that jobs which wait for it are ready or cancelled
                scheduler.complete(job_id)
    return scheduler, [scheduler.next_round() for _ in range(num_rounds)]


def _csv_rows(rounds: Iterable[gp.Round]) -> Iterable[list[object]]:
    for round_ in rounds:
        kept = set(round_.kept)
        for job_id, assignment in round_.assignments.items():
            state = "kept" if job_id in kept else "started"
            for node, index in assignment.gpus:
                yield [round_.index, round_.start_seconds, job_id, state, assignment.accelerator, node, index]
