"""gavel simulate: a trace played on a cluster, under one policy or several; one file per idea."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import click
from click.core import ParameterSource

import gavel_py as gp
from gavel_py.cli.inputs import import_solver, policies_of, warnings_shown
from gavel_py.cli.output import emit
from gavel_py.cli.simulate.files import Outputs, check_files, check_run_file, write_run_file
from gavel_py.cli.simulate.options import Request, Scenario, load, simulation_options
from gavel_py.cli.simulate.results import PolicyResult, compared, csv_of, json_of, needs_jobs, text_of
from gavel_py.cli.simulate.runner import INTERRUPTED, Interrupt, Keeper, Run, check_keeping, interruptible, kept_of, progress
from gavel_py.cli.trace.files import report_text
from gavel_py.errors import GavelError, together

__all__ = ["command"]


@click.command("simulate")
@simulation_options
@click.pass_context
def command(context: click.Context, request: Request) -> None:
    """Play a trace on a cluster, and show what becomes of its jobs: completion times, queueing, utilisation, cost.

    TRACE is a file of any format that gavel trace formats lists, or "-". Several --policy are compared; with isolated among them,
    the others' finish-time fairness is told. Ctrl-C ends it with what there is.

    \b
    gavel simulate jobs.csv -c v100:16,p100:8/4 -p max_min_fairness -p fifo -p isolated
    gavel simulate philly.csv -c cluster.yaml -p fifo --events --jobs-out finished.csv
    gavel simulate philly.csv -c cluster.yaml --save-state philly.state --continue philly.state
    """
    _check(context, request)
    with warnings_shown():
        policies = policies_of(request)
        scenario = load(request)
        kept = kept_of(request, policies)
        keeper = Keeper(request, policies)
        all_played: list[PolicyResult] = [] if kept is None else kept.played(policies)
        runs = _runs(request, scenario, policies)[len(all_played) :]
        import_solver(policies)
        if kept is not None:
            kept.resume(runs[0], scenario)
        check_run_file(request)
        failure: GavelError | None = None
        with interruptible() as interrupt:
            try:
                _play(request, scenario, runs, interrupt, all_played, keeper, None if kept is None else kept.sizes)
            except KeyboardInterrupt:
                pass  # a second Ctrl-C: what is complete is told
            except GavelError as error:
                failure = error
    write_run_file(request, all_played)
    if all_played or failure is None:
        _tell(request, scenario, compared(all_played), policies[len(all_played) :])
    if failure is not None:
        raise failure
    if interrupt.asked:
        if keeper.saved:
            click.echo(f"The state is in {keeper.path}; go on with --continue {keeper.path}.", err=True)
        context.exit(INTERRUPTED)


def _check(context: click.Context, request: Request) -> None:
    if request.events and context.get_parameter_source("round_seconds") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--events does without rounds, so leave out --round-seconds")
    if request.events and request.solve_seconds:
        raise click.UsageError("--events decides on each event, so leave out --solve-seconds")
    check_files(request.out, request.jobs_out, request.timeline_out, request.run_out, request.save_state)
    check_keeping(request)


def _runs(request: Request, scenario: Scenario, policies: Sequence[gp.Policy]) -> list[Run]:
    """Set up all simulations, so that what does not go together is told before the first begins."""
    with together() as attempt:
        return [attempt(partial(Run, request, scenario, policy)) for policy in policies]


def _play(
    request: Request,
    scenario: Scenario,
    runs: list[Run],
    interrupt: Interrupt,
    all_played: list[PolicyResult],
    keeper: Keeper,
    sizes: Mapping[str, int] | None,
) -> None:
    """Play one after the other, each forgotten when it has ended."""
    total, until = len(all_played) + len(runs), math.inf if request.until_seconds is None else request.until_seconds
    keep = needs_jobs([*(played.policy for played in all_played), *(run.policy for run in runs)])
    num_jobs = len(scenario.trace) if request.measure_jobs is None else request.measure_jobs[1]
    with Outputs(request.jobs_out, request.timeline_out, runs[0].simulation.cluster.accelerator_names, sizes) as outputs:
        while runs and not interrupt.asked:
            run = runs.pop(0)
            run.outputs, keeper.played = outputs, tuple(all_played)
            place = f" ({total - len(runs)} of {total})" if total > 1 else ""
            with progress(run.policy.label + place, num_jobs, until, request.with_progress) as show:
                result = run.play(show, interrupt, keeper, keep=keep)
            now, in_rounds = run.simulation.now, not request.events
            played = PolicyResult(run.policy, result, now, in_rounds=in_rounds, complete=run.complete, recorder=run.recorder)
            all_played.append(played)


def _tell(request: Request, scenario: Scenario, all_played: Sequence[PolicyResult], not_played: Sequence[gp.Policy]) -> None:
    if request.form == "json":
        emit(json_of(request, scenario, all_played, not_played), request.out)
    elif request.form == "csv":
        click.echo(report_text(scenario.trace.report), err=True)
        emit(csv_of(all_played), request.out)
    else:
        emit(text_of(scenario, all_played, not_played), request.out)
