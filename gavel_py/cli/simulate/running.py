"""Playing a trace under one policy: round after round, with files that grow and a bar that tells how far it is."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import gavel_py as gp
from gavel_py.cli.sharing import min_gain_of
from gavel_py.cli.simulate.files import Outputs
from gavel_py.cli.simulate.interrupt import Interrupt
from gavel_py.cli.simulate.options import Request
from gavel_py.cli.simulate.progress import Show
from gavel_py.cli.simulate.scenario import Scenario

__all__ = ["Run"]


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
