"""Playing a trace under one policy: round after round, with files that grow and a bar that tells how far it is."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import gavel_py as gp
from gavel_py.cli.simulate.files import Outputs
from gavel_py.cli.simulate.interrupt import Interrupt
from gavel_py.cli.simulate.options import Request
from gavel_py.cli.simulate.progress import Show
from gavel_py.cli.simulate.scenario import Scenario

__all__ = ["Run"]


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
            seed=request.seed,
            mechanism=request.mechanism,
            restart_seconds=request.restart_seconds,
            min_run_seconds=request.min_run_seconds,
            on_round=self._round,
        )
        self._rounds = self._left = 0

    def play(self, show: Show, interrupt: Interrupt, *, keep: bool) -> gp.SimulationResult:
        """Play on to the end, the time given, or an interrupt; keep: whether the jobs of the result are all, or those still active.

        A job that leaves is written and forgotten, so that memory does not grow with the trace.
        """
        simulation, kept = self.simulation, dict[str, gp.JobRecord]()
        more = True
        while more and simulation.now < self.until_seconds:
            if interrupt.asked:
                self.complete = False
                break
            more = simulation.step()
            for record in self._written():
                if keep:
                    kept[record.job_id] = record
            show(simulation, self._left, self._rounds)
        result = simulation.result()
        for record in result.jobs.values():
            self._write(record)
        return dataclasses.replace(result, jobs=kept | dict(result.jobs))

    def _written(self) -> Iterator[gp.JobRecord]:
        """Take the records of the jobs that have left, and write them."""
        records = self.simulation.records
        for job_id in list(records):
            record = records.pop(job_id)
            self._left += 1
            self._write(record)
            yield record

    def _write(self, record: gp.JobRecord) -> None:
        if self.outputs is not None:
            self.outputs.job(self.policy.label, record)

    def _round(self, begun: gp.Round) -> None:
        self._rounds += 1
        if self.outputs is not None:
            self.outputs.round(self.policy.label, begun, self.simulation.active)
