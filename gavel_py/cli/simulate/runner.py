"""The simulation of one policy, with progress bar, interruption by Ctrl-C, and saved states.

`PolicyRun` advances the simulation and writes its output files. With `interruptible`, the first Ctrl-C ends a simulation after the
current round, or a sweep after the current cells, and a second Ctrl-C stops it immediately. `StateFile` saves the state at
intervals; another process can continue from it (`saved_note`).
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import click

import gavel_py as gp
from gavel_py.cli.output import REDRAW_SECONDS, progress_bar, time_text
from gavel_py.cli.simulate.files import Outputs, is_parquet
from gavel_py.cli.simulate.learning import SimulationCase
from gavel_py.cli.simulate.options import Scenario, SimulateOptions, seconds_of
from gavel_py.cli.simulate.results import PolicyResult, settings_of
from gavel_py.cli.usage import refuse
from gavel_py.errors import Fault, InputError, faults_among

MESSAGE = b"\nFinishing this round; press Ctrl-C again to stop immediately.\n"


@dataclass
class Interrupt:
    """Whether a first SIGINT has been received."""

    requested: bool = False


@contextmanager
def interruptible(message: bytes = MESSAGE) -> Iterator[Interrupt]:
    """Handle SIGINT: the first signal prints a message and sets `requested`, a second one raises `KeyboardInterrupt`."""
    interrupt = Interrupt()

    def handle(number: int, frame: FrameType | None) -> None:
        if interrupt.requested:
            signal.default_int_handler(number, frame)
        interrupt.requested = True
        with suppress(OSError):
            os.write(2, message)  # a signal handler must not use a stream that the interrupted code may be writing to

    if threading.current_thread() is not threading.main_thread():
        yield interrupt  # only the main thread can install handlers
        return
    before = signal.signal(signal.SIGINT, handle)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)


ShowRun = Callable[["PolicyRun"], None]
"""Updates the progress bar after a step."""


@contextmanager
def progress(label: str, num_jobs: int, until_seconds: float, wanted: bool) -> Iterator[ShowRun]:
    """Show a progress bar on standard error if that is a terminal and the bar is wanted."""
    if not (wanted and sys.stderr.isatty()):
        yield lambda run: None  # noqa: ARG005
        return
    started = time.monotonic()

    def state(run: PolicyRun) -> tuple[float, str]:
        now, left = run.simulation.now, run.left
        done = min(1.0, max(left / num_jobs if num_jobs else 1.0, now / until_seconds if until_seconds else 1.0))
        return done, _progress_text(run, num_jobs, time.monotonic() - started, done)

    with progress_bar(label, REDRAW_SECONDS) as show:
        yield lambda run: show(partial(state, run), False)


def _progress_text(run: PolicyRun, num_jobs: int, seconds: float, done: float) -> str:
    """Return simulated time, jobs, rounds per second, and the estimated time until the end."""
    submitted = run.left + run.simulation.active
    parts = [
        time_text(run.simulation.now),
        f"{run.left:,} of {submitted:,} {'job' if submitted == 1 else 'jobs'} done, {max(0, num_jobs - submitted):,} to come",
        f"{run.rounds / seconds:,.0f} rounds/s" if seconds > 0 else "",
        f"ends in {time_text(seconds * (1 - done) / done)}" if done > 0 else "",
    ]
    return " · ".join(each for each in parts if each)


class PolicyRun:
    """The simulation of one policy.

    outputs: files for jobs and rounds, set before `simulate`; complete: false after an interrupt; rounds, left: numbers of rounds
    simulated and of jobs that have left the system so far.
    """

    def __init__(self, request: SimulateOptions, scenario: Scenario, case: SimulationCase) -> None:
        self.policy, self.label, self.learner, self.elastic = case.policy, case.label, case.learner, case.elastic
        self.outputs: Outputs | None = None
        self.complete = True
        self.until_seconds = math.inf if request.until_seconds is None else request.until_seconds
        trace = scenario.trace_of(case.elastic)
        self.simulation = gp.Simulation(
            trace,
            scenario.cluster,
            scenario.profile,
            self.policy,
            options=request.rounds.changed(round_seconds=1.0, by_events=True) if request.events else request.rounds,
            node_failures=scenario.node_failures,
            maintenance=scenario.maintenance,
            learn=self.learner,
            **self._hooks(request),
            **{name: getattr(request.simulation, name) for name in request.simulation.model_fields_set},
        )
        _check_sizes(trace.jobs, scenario, request, case)
        self.recorder = None if request.run_out is None else gp.RunRecorder(self.simulation, stays=True)
        self.rounds = self.left = 0
        self._records: dict[str, gp.JobRecord] = {}

    def note(self) -> dict[str, Any]:
        """Return the state of the run besides the simulation, as plain data."""
        return {"rounds": self.rounds, "left": self.left, "kept": [record.to_dict() for record in self._records.values()]}

    def _hooks(self, request: SimulateOptions) -> dict[str, Any]:
        """Return what the simulation calls: rounds as such only where they are written, or have a length."""
        if request.events and request.timeline_out is None:
            return {"on_gangs": self._gangs}
        return {"on_round": self._round, "on_starts": self._starts}

    def resume(self, path: Path, scenario: Scenario, request: SimulateOptions, note: Mapping[str, Any]) -> None:
        """Restore a saved state; note: the value that `note` returned."""
        simulation = gp.Simulation.load(
            path,
            scenario.trace,
            scenario.profile,
            policy=self.policy,
            learn=self.learner,
            **self._hooks(request),
        )
        if simulation.cluster != self.simulation.cluster:
            raise gp.InputError(f"{path}: was written with another cluster; continue with the one that the simulation had")
        self.simulation, self.rounds, self.left = simulation, note["rounds"], note["left"]
        records = (gp.JobRecord.from_dict(each) for each in note["kept"])
        self._records = {record.job_id: record for record in records}

    def simulate(self, show: ShowRun, interrupt: Interrupt, state_file: StateFile, *, keep: bool) -> gp.SimulationResult:
        """Simulate until the end of the trace, --until, or an interrupt.

        keep: whether the result has the records of all measured jobs, or only of those still in the system. In the latter case,
        records of jobs that leave are written to the files and dropped, so that memory does not grow with the trace.
        """
        simulation = self.simulation
        more = True
        while more and simulation.now < self.until_seconds:
            if interrupt.requested:
                self.complete = False
                state_file.save(self)  # before the rows of unfinished jobs are written to the files
                break
            more = simulation.step()
            for job_id in list(simulation.records):
                record = simulation.records.pop(job_id)
                self.left += 1
                self._write(record)
                if keep and record.measured:
                    self._records[record.job_id] = record
            if self.recorder is not None:
                self.recorder.step()
            show(self)
            state_file.after_step(self)
        result = simulation.result()
        for record in result.jobs.values():
            self._write(record)
        return dataclasses.replace(result, jobs=self._records | dict(result.jobs))

    def _write(self, record: gp.JobRecord) -> None:
        if self.recorder is not None:
            self.recorder.job(record)
        if self.outputs is not None:
            self.outputs.job(self.label, record)

    def _round(self, round_: gp.Round) -> None:
        self.rounds += 1
        if self.recorder is not None:
            self.recorder.round(round_)
        if self.outputs is not None:
            self.outputs.round(self.label, round_, self.simulation)

    def _gangs(self, seconds: float, changed: Mapping[str, tuple[str, Mapping[str, int]] | None]) -> None:
        self.rounds += 1
        if self.recorder is not None:
            self.recorder.gangs(seconds, changed)

    def _starts(self, seconds: float, assignments: Mapping[str, gp.Assignment]) -> None:
        if self.recorder is not None:
            self.recorder.starts(seconds, assignments)


def _check_sizes(jobs: Sequence[gp.Job], scenario: Scenario, request: SimulateOptions, case: SimulationCase) -> None:
    """Raise `InputError` for elastic jobs that the policy or the options do not support, since the simulation would fail later."""
    examples = [next((job for job in jobs if job.is_elastic), None), next((job for job in jobs if job.num_gpus < 1), None)]
    if examples[0] is None or case.learner is not None:
        return
    options = gp.SchedulerOptions(by_events=request.events, mechanism=request.rounds.mechanism, sharing=request.rounds.sharing)
    scheduler = gp.RoundScheduler(scenario.cluster, scenario.profile, case.policy, options=options)
    scheduler.submit_all([job.without_dependencies() for job in examples if job is not None])


MAY_DIFFER = ("until_seconds",)
"""Settings that may change when a simulation is continued."""

DEFAULT_EVERY = "10min"


def check_state_options(request: SimulateOptions) -> None:
    """Raise `UsageError` for incompatible options for saved states."""
    has_state = request.save_state or request.continue_from
    refuse(
        (
            request.state_every is not None and request.save_state is None,
            "--state-every sets how often --save-state FILE is written; give both",
        ),
        (
            request.elastic and (request.learn is not None or has_state),
            "--elastic compares two runs of each policy; omit --learn, --save-state and --continue",
        ),
        (
            request.run_out is not None and request.continue_from is not None,
            "--run-out records a run from its beginning, which --continue does not have; give only one of them",
        ),
    )
    text = "a Parquet file cannot be continued by another process; write a .csv, or omit --save-state and --continue"
    tables = [path for path in (request.jobs_out, request.timeline_out) if path is not None]
    refuse(*((has_state and is_parquet(path), f"{path}: {text}") for path in tables))


def saved_results(note: Mapping[str, Any], cases: Sequence[SimulationCase]) -> list[PolicyResult]:
    """Return the results that were complete when the state was saved."""
    found = []
    for case, each in zip(cases, note["played"], strict=False):
        result, ended, in_rounds = gp.SimulationResult.from_dict(each["result"]), each["ended_seconds"], each["in_rounds"]
        if case.learner is not None:
            case.learner.resume(each["learned"])
        played = PolicyResult(case.policy, result, ended, in_rounds=in_rounds, complete=True, learner=case.learner)
        found.append(dataclasses.replace(played, mechanism=case.mechanism))
    return found


def saved_note(path: Path, request: SimulateOptions, policies: Sequence[gp.Policy]) -> Mapping[str, Any]:
    """Return the note that `StateFile` saved with the simulation. Raises `InputError` if it was saved with other options."""
    found = gp.Simulation.saved_note(path)
    note: Mapping[str, Any] = found if isinstance(found, dict) else {}
    text = "was not written by gavel simulate --save-state; load it with Simulation.load"
    InputError.raise_any(faults_among(str(path), ("asked" not in note, "", text)))
    then, now = note["asked"], _settings(request, policies)
    changed = {
        name: f"was {then.get(name)!r} when the state was saved, but is {value!r} now; continue with the same options"
        for name, value in now.items()
        if then.get(name) != value
    }
    files = [name for name, given in (("jobs", request.jobs_out), ("timeline", request.timeline_out)) if given is not None]
    text = "must be the same as when the state was saved, so that the files can be continued"
    if sorted(files) != sorted(note["files"]):
        changed["--jobs-out and --timeline-out"] = text
    InputError.raise_any([Fault(str(path), name, problem) for name, problem in changed.items()])
    return note


class StateFile:
    """The file of --save-state, if given; results: results of the completed policies; saved: whether the file was written."""

    def __init__(self, request: SimulateOptions, policies: Sequence[gp.Policy]) -> None:
        self.path = request.save_state
        self._settings = _settings(request, policies)
        self._seconds, self._rounds = _interval(request.state_every or DEFAULT_EVERY)
        self._saved_at, self._saved_round = time.monotonic(), 0
        self.results: Sequence[PolicyResult] = ()
        self.saved = False

    def after_step(self, run: PolicyRun) -> None:
        """Save the state if the interval of --state-every has passed."""
        if self.path is None:
            return
        if self._rounds is not None:
            if run.rounds // self._rounds != self._saved_round:
                self._saved_round = run.rounds // self._rounds
                self.save(run)
        elif self._seconds is not None and time.monotonic() - self._saved_at >= self._seconds:
            self.save(run)

    def save(self, run: PolicyRun) -> None:
        """Save the state."""
        if self.path is None:
            return
        note = {
            "asked": self._settings,
            "played": [
                {
                    "result": each.result.to_dict(),
                    "ended_seconds": each.ended_seconds,
                    "in_rounds": each.in_rounds,
                    "learned": None if each.learner is None else each.learner.to_dict(),
                }
                for each in self.results
            ],
            "run": run.note(),
            "files": {} if run.outputs is None else run.outputs.sizes,
        }
        run.simulation.save(self.path, note=note)
        self._saved_at, self.saved = time.monotonic(), True


def _settings(request: SimulateOptions, policies: Sequence[gp.Policy]) -> dict[str, Any]:
    """Return the settings that must be the same when the simulation is continued."""
    settings = {name: value for name, value in settings_of(request).items() if name not in MAY_DIFFER}
    return settings | {"cluster": request.cluster, "policy": [policy.label for policy in policies]}


def _interval(text: str) -> tuple[float | None, int | None]:
    """Return the interval of --state-every, such as 10min or 500rounds, as seconds or as rounds."""
    rounds = re.fullmatch(r"\s*([1-9][0-9]*)\s*rounds?\s*", text)
    if rounds is not None:
        return None, int(rounds[1])
    seconds = seconds_of(text)
    if seconds is None or seconds < 0:
        raise click.UsageError(
            f"--state-every {text!r} is neither a time, as in 90s or 10min, nor a number of rounds, as in 500rounds"
        )
    return seconds, None
