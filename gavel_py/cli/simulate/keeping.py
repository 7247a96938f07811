"""The state of a simulation in a file, written now and then, from which it goes on in another process."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

import gavel_py as gp
from gavel_py.cli.simulate.options import Request
from gavel_py.cli.simulate.played import Played
from gavel_py.cli.simulate.running import Run
from gavel_py.cli.simulate.scenario import Scenario
from gavel_py.cli.simulate.tables import is_parquet
from gavel_py.cli.simulate.telling import settings_of
from gavel_py.cli.simulate.times import seconds_of
from gavel_py.errors import Fault, InputError

__all__ = ["Keeper", "Kept", "check_keeping", "kept_of"]

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

    def played(self, policies: Sequence[gp.Policy]) -> list[Played]:
        """Return what came of the policies that were complete."""
        found = []
        for policy, each in zip(policies, self.note["played"], strict=False):
            result = gp.SimulationResult.from_dict(each["result"])
            found.append(Played(policy, result, each["ended_seconds"], in_rounds=each["in_rounds"], complete=True))
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
        self.played: Sequence[Played] = ()
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


def _played_document(played: Played) -> dict[str, Any]:
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
