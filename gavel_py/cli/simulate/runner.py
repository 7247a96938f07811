"""Playing a trace under one policy, round by round, with a progress bar, saved states and a Ctrl-C that ends it after a round.

`Run` plays the trace and lets its output files grow. `interruptible`: the first Ctrl-C ends a simulation after the current round,
or a sweep after its cells, and a second one ends it at once. `progress` shows how far a simulation is, how fast it goes, and when
it will end. `Keeper` writes the state to a file now and then, from which another process continues (`kept_of`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import click

import gavel_py as gp
from gavel_py.cli.inputs import min_gain_of
from gavel_py.cli.output import counted
from gavel_py.cli.simulate.files import Outputs, is_parquet
from gavel_py.cli.simulate.options import Request, Scenario, seconds_of, time_text
from gavel_py.cli.simulate.results import PolicyResult, settings_of
from gavel_py.errors import Fault, InputError

Show = Callable[["gp.Simulation", int, int], None]
"""Called after each step with the simulation, the jobs that have left, and the rounds played."""

INTERRUPTED = 130
"""The exit code: 128 + SIGINT, as shells have it."""

SAID = b"\nEnding after this round; press Ctrl-C again to end at once.\n"


class Interrupt:
    """Whether the user wants it to end. said: what is told when it is asked for."""

    def __init__(self, said: bytes = SAID) -> None:
        self.asked, self._said = False, said

    def note(self, number: int, frame: FrameType | None) -> None:
        """Take a signal."""
        if self.asked:
            signal.default_int_handler(number, frame)
        self.asked = True
        with contextlib.suppress(OSError):
            os.write(2, self._said)  # a handler may not use what the interrupted code may be using


@contextlib.contextmanager
def interruptible(said: bytes = SAID) -> Iterator[Interrupt]:
    """Within this, Ctrl-C is noted and no `KeyboardInterrupt`, the first time; said: what is told then."""
    interrupt = Interrupt(said)
    if threading.current_thread() is not threading.main_thread():
        yield interrupt  # signals are the main thread's
        return
    before = signal.signal(signal.SIGINT, interrupt.note)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)


PAUSE_SECONDS = 0.2
"""A terminal need not be written more often, and each time costs a few milliseconds."""


@contextmanager
def progress(label: str, num_jobs: int, until_seconds: float, wanted: bool) -> Iterator[Show]:
    """Show a bar on standard error within this, if that is a terminal and it is wanted."""
    if not (wanted and sys.stderr.isatty()):
        yield _nothing
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=20), TextColumn("{task.fields[told]}"))
    bar = Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True)
    task = bar.add_task(label, total=1.0, told="")
    began = shown = time.monotonic()

    def show(simulation: gp.Simulation, left: int, rounds: int) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown < PAUSE_SECONDS:
            return
        shown = now
        part = _part(simulation, left, num_jobs, until_seconds)
        bar.update(task, completed=part, told=told(simulation, left, num_jobs, rounds, now - began, part), refresh=True)

    with bar:
        yield show


def _nothing(simulation: gp.Simulation, left: int, rounds: int) -> None:
    """Show nothing."""


def _part(simulation: gp.Simulation, left: int, num_jobs: int, until_seconds: float) -> float:
    """How much of it is done: of the jobs, or of the time if it is to end before they are."""
    return min(1.0, max(left / num_jobs if num_jobs else 1.0, simulation.now / until_seconds if until_seconds else 1.0))


def told(simulation: gp.Simulation, left: int, num_jobs: int, rounds: int, seconds: float, part: float) -> str:
    """Return what stands beside the bar: simulated time, jobs, rounds per second, and the time until the end at this pace."""
    submitted = left + simulation.active
    parts = [
        time_text(simulation.now),
        f"{left:,} of {counted_in(submitted)} done, {max(0, num_jobs - submitted):,} to come",
        f"{rounds / seconds:,.0f} rounds/s" if seconds > 0 else "",
        f"ends in {time_text(seconds * (1 - part) / part)}" if part > 0 else "",
    ]
    return " · ".join(each for each in parts if each)


def counted_in(count: int) -> str:
    """Return "1 job", "2,000 jobs"."""
    return counted(count, "job") if count < 1000 else f"{count:,} jobs"


class Keeping(Protocol):
    """What saves the state of a run."""

    def after_step(self, run: Run) -> None:
        """Save if it is time to."""
        ...

    def save(self, run: Run) -> None:
        """Save now."""
        ...


class Run:
    """The simulation of one policy. outputs: files for what happens, if any, set before `play`; complete: no interrupt."""

    def __init__(self, request: Request, scenario: Scenario, policy: gp.Policy) -> None:
        self.policy = policy
        self.outputs: Outputs | None = None
        self.complete = True
        self.until_seconds = math.inf if request.until_seconds is None else request.until_seconds
        self.simulation = gp.Simulation(
            scenario.trace,
            scenario.cluster,
            scenario.profile,
            policy,
            round_seconds=None if request.events else request.round_seconds,
            node_failures=scenario.node_failures,
            maintenance=scenario.maintenance,
            job_failures=request.job_failures,
            estimates=request.estimates,
            measure_jobs=request.measure_jobs,
            checkpoint_seconds=request.checkpoint_seconds,
            seed=request.seed,
            mechanism=request.mechanism,
            restart_seconds=request.restart_seconds,
            min_run_seconds=request.min_run_seconds,
            solve_seconds=request.solve_seconds,
            sharing=request.sharing,
            min_gain=min_gain_of(request.sharing, request.min_gain),
            interference=request.interference,
            on_round=self._round,
        )
        self.recorder = None if request.run_out is None else gp.RunRecorder(self.simulation, stays=True)
        self.rounds = self._left = 0
        self._kept: dict[str, gp.JobRecord] = {}

    def note(self) -> dict[str, Any]:
        """Return what has to be kept beside the simulation, as plain data."""
        return {"rounds": self.rounds, "left": self._left, "kept": [record.to_dict() for record in self._kept.values()]}

    def resume(self, path: Path, scenario: Scenario, note: Mapping[str, Any]) -> None:
        """Go on from the state in this file; note: what `note` returned then."""
        simulation = gp.Simulation.load(path, scenario.trace, scenario.profile, policy=self.policy, on_round=self._round)
        if simulation.cluster != self.simulation.cluster:
            raise gp.InputError(f"{path}: was written with another cluster; go on with the one that the simulation had")
        self.simulation, self.rounds, self._left = simulation, note["rounds"], note["left"]
        records = (gp.JobRecord.from_dict(each) for each in note["kept"])
        self._kept = {record.job_id: record for record in records}

    def play(self, show: Show, interrupt: Interrupt, keeper: Keeping, *, keep: bool) -> gp.SimulationResult:
        """Play on to the end, the time given, or an interrupt; keep: whether the jobs of the result are all, or those still active.

        A job that leaves is written and forgotten, so that memory does not grow with the trace. keeper: saves the state.
        """
        simulation, kept = self.simulation, self._kept
        more = True
        while more and simulation.now < self.until_seconds:
            if interrupt.asked:
                self.complete = False
                keeper.save(self)  # before the files get the lines of the jobs that are still in the system
                break
            more = simulation.step()
            for record in self._written():
                if keep and record.measured:
                    kept[record.job_id] = record
            if self.recorder is not None:
                self.recorder.step()
            show(simulation, self._left, self.rounds)
            keeper.after_step(self)
        return self._result()

    def _result(self) -> gp.SimulationResult:
        result = self.simulation.result()
        for record in result.jobs.values():
            self._write(record)
        return dataclasses.replace(result, jobs=self._kept | dict(result.jobs))

    def _written(self) -> Iterator[gp.JobRecord]:
        """Take the records of the jobs that have left, and write them."""
        records = self.simulation.records
        for job_id in list(records):
            record = records.pop(job_id)
            self._left += 1
            self._write(record)
            yield record

    def _write(self, record: gp.JobRecord) -> None:
        if self.recorder is not None:
            self.recorder.job(record)
        if self.outputs is not None:
            self.outputs.job(self.policy.label, record)

    def _round(self, begun: gp.Round) -> None:
        self.rounds += 1
        if self.recorder is not None:
            self.recorder.round(begun)
        if self.outputs is not None:
            self.outputs.round(self.policy.label, begun, self.simulation.active)


MAY_DIFFER = ("until_seconds",)
"""Who goes on may want to go further."""

UNSAID = {"solve_seconds": 0.0}
"""What was asked for in files of earlier versions, which did not know it."""

DEFAULT_EVERY = "10min"


def check_keeping(request: Request) -> None:
    """Raise a `UsageError` for options that do not go together."""
    if request.state_every is not None and request.save_state is None:
        raise click.UsageError("--state-every says how often --save-state FILE is written, so give both")
    if request.run_out is not None and request.continue_from is not None:
        raise click.UsageError("--run-out holds a run from its beginning, which --continue does not see; leave out one of them")
    for path in (request.jobs_out, request.timeline_out):
        if path is not None and is_parquet(path) and (request.save_state or request.continue_from):
            text = (
                "a Parquet file cannot be gone on with in another process; write a .csv, or leave out --save-state and --continue"
            )
            raise click.UsageError(f"{path}: {text}")


@dataclass(frozen=True)
class Kept:
    """What a file holds beside the simulation: what was asked for, what came of the policies before, and how far this one is."""

    path: Path
    note: Mapping[str, Any]

    @property
    def sizes(self) -> Mapping[str, int]:
        """The bytes of the output files when it was saved."""
        sizes: Mapping[str, int] = self.note["files"]
        return sizes

    def played(self, policies: Sequence[gp.Policy]) -> list[PolicyResult]:
        """Return what came of the policies that were complete."""
        found = []
        for policy, each in zip(policies, self.note["played"], strict=False):
            result = gp.SimulationResult.from_dict(each["result"])
            found.append(PolicyResult(policy, result, each["ended_seconds"], in_rounds=each["in_rounds"], complete=True))
        return found

    def resume(self, run: Run, scenario: Scenario) -> None:
        """Let this run go on from there."""
        run.resume(self.path, scenario, self.note["run"])


def kept_of(request: Request, policies: Sequence[gp.Policy]) -> Kept | None:
    """Return what --continue names, None without it. Raises `InputError` if it was not written for the same command."""
    path = request.continue_from
    if path is None:
        return None
    note = gp.Simulation.saved_note(path)
    if not isinstance(note, dict) or "asked" not in note:
        raise InputError(Fault(str(path), "", "was not written by gavel simulate --save-state; load it with Simulation.load"))
    then, now = UNSAID | note["asked"], _asked(request, policies)
    faults = [
        Fault(
            str(path),
            name,
            f"was {then.get(name)!r} when the state was saved, and is {now[name]!r} now; go on with the same options",
        )
        for name in now
        if then.get(name) != now[name]
    ]
    files = [name for name, given in (("jobs", request.jobs_out), ("timeline", request.timeline_out)) if given is not None]
    if sorted(files) != sorted(note["files"]):
        text = "must be given as when the state was saved, so that they can be gone on with"
        faults.append(Fault(str(path), "--jobs-out and --timeline-out", text))
    InputError.raise_any(faults)
    return Kept(path, note)


class Keeper:
    """Writes the file of --save-state while policies are played. played: those that are complete; saved: whether it was written."""

    def __init__(self, request: Request, policies: Sequence[gp.Policy]) -> None:
        self.path = request.save_state
        self._asked = _asked(request, policies)
        seconds, rounds = _every(request.state_every or DEFAULT_EVERY)
        self._seconds, self._rounds = seconds, rounds
        self._saved_at, self._saved_round = time.monotonic(), 0
        self.played: Sequence[PolicyResult] = ()
        self.saved = False

    def after_step(self, run: Run) -> None:
        """Save if it is time to."""
        if self.path is None:
            return
        if self._rounds is not None:
            if run.rounds // self._rounds != self._saved_round:
                self._saved_round = run.rounds // self._rounds
                self.save(run)
        elif self._seconds is not None and time.monotonic() - self._saved_at >= self._seconds:
            self.save(run)

    def save(self, run: Run) -> None:
        """Write the file, if one is asked for."""
        if self.path is None:
            return
        note = {
            "asked": self._asked,
            "played": [_played_document(played) for played in self.played],
            "run": run.note(),
            "files": {} if run.outputs is None else run.outputs.sizes,
        }
        run.simulation.save(self.path, note=note)
        self._saved_at, self.saved = time.monotonic(), True


def _asked(request: Request, policies: Sequence[gp.Policy]) -> dict[str, Any]:
    settings = {name: value for name, value in settings_of(request).items() if name not in MAY_DIFFER}
    return settings | {"cluster": request.cluster, "policy": [policy.label for policy in policies]}


def _played_document(played: PolicyResult) -> dict[str, Any]:
    return {"result": played.result.to_dict(), "ended_seconds": played.ended_seconds, "in_rounds": played.in_rounds}


def _every(text: str) -> tuple[float | None, int | None]:
    """Return the seconds, or the rounds, that a text such as 10min or 500rounds stands for."""
    rounds = re.fullmatch(r"\s*([1-9][0-9]*)\s*rounds?\s*", text)
    if rounds is not None:
        return None, int(rounds[1])
    seconds = seconds_of(text)
    if seconds is None or seconds < 0:
        raise click.UsageError(
            f"--state-every {text!r} is neither a time, as in 90s or 10min, nor a number of rounds, as in 500rounds"
        )
    return seconds, None
