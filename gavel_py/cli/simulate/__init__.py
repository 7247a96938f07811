"""gavel simulate: the simulation of a trace on a cluster under one or more policies."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import partial

import click

import gavel_py as gp
from gavel_py.cli import INTERRUPTED
from gavel_py.cli.inputs import Command, check_mechanism, import_solver, policies_of, takes_options, warnings_shown
from gavel_py.cli.output import emit
from gavel_py.cli.simulate import runner
from gavel_py.cli.simulate.files import Outputs, write_run_file, write_tenants_file
from gavel_py.cli.simulate.learning import SimulationCase, cases_of
from gavel_py.cli.simulate.options import Scenario, SimulateOptions, load
from gavel_py.cli.simulate.results import PolicyResult, compared, csv_of, json_of, needs_jobs, text_of
from gavel_py.cli.trace.files import report_text
from gavel_py.cli.usage import refuse
from gavel_py.errors import GavelError, together


@click.command("simulate", cls=Command)
@takes_options(SimulateOptions)
@click.pass_context
def command(context: click.Context, request: SimulateOptions) -> None:
    """Simulate a trace under one or more policies.

    TRACE is a file in any format that `gavel trace formats` lists, or "-", standard input. Several --policy are compared; with
    isolated among them, the finish-time fairness of the others is shown. Ctrl-C ends the simulation and shows the results so far.

    \b
    gavel simulate jobs.csv -c v100:16,p100:8/4 -p max_min_fairness -p fifo -p isolated
    gavel simulate philly.csv -c cluster.yaml -p fifo --events --jobs-out finished.csv
    gavel simulate philly.csv -c cluster.yaml --save-state philly.state --continue philly.state
    """
    _check(request)
    check_mechanism(str(request.rounds.mechanism), request.policy_specs)
    with warnings_shown():
        scenario, policies = load(request, policies_of(request.policy_specs, request.settings, request.constraint_files))
        path = request.continue_from
        saved = None if path is None else runner.saved_note(path, request, policies)
        state_file = runner.StateFile(request, policies)
        cases = cases_of(policies, scenario.start, request.learn, scenario.cluster, str(request.rounds.mechanism))
        if request.elastic:
            cases = [dataclasses.replace(case, elastic=elastic) for case in cases for elastic in (False, True)]
        results: list[PolicyResult] = [] if saved is None else runner.saved_results(saved, cases)
        with together() as attempt:
            runs = [attempt(partial(runner.PolicyRun, request, scenario, case)) for case in cases]
        runs = runs[len(results) :]
        import_solver(policies)
        if path is not None and saved is not None:
            runs[0].resume(path, scenario, request, saved["run"])
        if request.run_out is not None:
            gp.write_runs(request.run_out, [])  # raises now instead of after the simulation if the file cannot be written
        failure: GavelError | None = None
        with runner.interruptible() as interrupt:
            try:
                _simulate(request, scenario, runs, interrupt, results, state_file, None if saved is None else saved["files"])
            except KeyboardInterrupt:
                pass  # a second Ctrl-C: the complete results are printed
            except GavelError as error:
                failure = error
    _write(request, scenario, results)
    if results or failure is None:
        _print(request, scenario, compared(results), cases[len(results) :])
    if failure is not None:
        raise failure
    if interrupt.requested:
        if state_file.saved:
            click.echo(f"The state is in {state_file.path}; continue with --continue {state_file.path}.", err=True)
        context.exit(INTERRUPTED)


def _check(request: SimulateOptions) -> None:
    has_length = "round_seconds" in request.rounds.model_fields_set
    refuse(
        (request.events and has_length, "--events has no rounds; omit --round-seconds"),
        (request.events and request.rounds.solve_seconds, "--events decides at every event; omit --solve-seconds"),
        (
            request.events and request.simulation.starts_between_rounds,
            "--events starts jobs at any time; omit --starts-between-rounds",
        ),
    )
    tables = [path for path in (request.jobs_out, request.timeline_out, request.tenants_out) if path is not None]
    for path in tables:
        gp.check_table(path)
    if request.run_out is not None and request.run_out.suffix.lower() != ".json":
        raise gp.InputError(gp.Fault(str(request.run_out), "", "must end in .json, the format of runs"))
    runner.check_state_options(request)


def _simulate(
    request: SimulateOptions,
    scenario: Scenario,
    runs: list[runner.PolicyRun],
    interrupt: runner.Interrupt,
    results: list[PolicyResult],
    state_file: runner.StateFile,
    sizes: Mapping[str, int] | None,
) -> None:
    """Run the simulations in order and append their results; each is removed from `runs` to free its memory."""
    total, until = len(results) + len(runs), math.inf if request.until_seconds is None else request.until_seconds
    keep = needs_jobs([*(result.policy for result in results), *(run.policy for run in runs)])
    num_jobs = len(scenario.trace) if request.measure_jobs is None else request.measure_jobs[1]
    with Outputs(request.jobs_out, request.timeline_out, runs[0].simulation.cluster.accelerator_names, sizes) as outputs:
        while runs and not interrupt.requested:
            run = runs.pop(0)
            run.outputs, state_file.results = outputs, tuple(results)
            place = f" ({total - len(runs)} of {total})" if total > 1 else ""
            with runner.progress(run.label + place, num_jobs, until, request.with_progress) as show:
                result = run.simulate(show, interrupt, state_file, keep=keep)
            found = PolicyResult(
                run.policy,
                result,
                run.simulation.now,
                in_rounds=not request.events,
                complete=run.complete,
                mechanism=str(request.rounds.mechanism),
            )
            results.append(dataclasses.replace(found, recorder=run.recorder, learner=run.learner, elastic=run.elastic))


def _write(request: SimulateOptions, scenario: Scenario, results: Sequence[PolicyResult]) -> None:
    """Write the files that hold results of whole simulations."""
    if request.run_out is not None:
        write_run_file(request.run_out, request, results)
    if request.tenants_out is not None:
        tenants = [([each.label], each.result.summary.tenants) for each in results]
        write_tenants_file(request.tenants_out, {"policy": "text"}, scenario.cluster.accelerator_names, tenants)


def _print(
    request: SimulateOptions, scenario: Scenario, results: Sequence[PolicyResult], not_run: Sequence[SimulationCase]
) -> None:
    if request.form == "json":
        emit(json_of(request, scenario, results, not_run), request.out)
    elif request.form == "csv":
        click.echo(report_text(scenario.trace.report), err=True)
        emit(csv_of(results), request.out)
    else:
        emit(text_of(scenario, results, not_run), request.out)
