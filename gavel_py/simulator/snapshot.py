"""The state of a simulation as plain data, and back: what is made of it goes on as the one that wrote it would.

Of the trace it holds no more than how many jobs have been taken, and a mark of them; the trace itself is handed in again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gavel_py.errors import Fault, GavelError, InputError
from gavel_py.io.snapshots import Kind
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.job import Job
from gavel_py.simulator.arrivals import Arrivals
from gavel_py.simulator.job_progress import Work
from gavel_py.simulator.measuring import Measuring
from gavel_py.simulator.node_events import NodeEvents
from gavel_py.simulator.results import JobRecord, Tally
from gavel_py.simulator.round_execution import SimulationState
from gavel_py.simulator.running_gangs import Holds
from gavel_py.simulator.utilization import Usage
from gavel_py.workloads import Submission

__all__ = ["SIMULATION", "damaged_as_fault", "state_document", "state_from"]

SIMULATION = Kind("gavel-py simulation", 1, "the state of a simulation, as Simulation.save writes it")


def state_document(state: SimulationState) -> dict[str, Any]:
    """Return the state as plain data."""
    state.holds.write_back()
    return {
        "now": state.now,
        "taken": state.arrivals.taken,
        "digest": state.arrivals.digest,
        "events": state.events.to_dict(),
        "usage": state.usage.state(),
        "measuring": state.measuring.to_dict(),
        "tally": state.tally.to_dict(),
        "active": [work.to_dict() for work in state.active.values()],
        "holds": list(state.holds),
        "cancellations": [list(each) for each in state.cancellations],
        "gone": list(state.gone),
        "reasons": dict(state.reasons),
        "records": [record.to_dict() for record in state.records.values()],
        "wall_seconds": state.wall_seconds,
    }


def state_from(
    document: Mapping[str, Any], path: str | Path, trace: Iterable[Submission | Job], cluster: Cluster
) -> SimulationState:
    """Return the state that `state_document` described. Raises `InputError` for another trace."""
    measuring = Measuring.from_dict(document["measuring"])
    arrivals = Arrivals(trace, measuring.window)
    active = _active_from(document, path, arrivals)
    holds = Holds(len(cluster.accelerator_names))
    for job_id in document["holds"]:
        holds.take(active[job_id])
    records = (JobRecord.from_dict(each) for each in document["records"])
    return SimulationState(
        document["now"],
        arrivals,
        NodeEvents.from_dict(document["events"]),
        Usage.from_state(cluster, document["usage"]),
        holds,
        measuring,
        Tally.from_dict(document["tally"]),
        active,
        [(seconds, job_id) for seconds, job_id in document["cancellations"]],
        list(document["gone"]),
        dict(document["reasons"]),
        {record.job_id: record for record in records},
        document["wall_seconds"],
    )


@contextmanager
def damaged_as_fault(path: str | Path) -> Iterator[None]:
    """Within this, a document that is not what it should be is a fault of the file."""
    try:
        yield
    except GavelError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        text = f"is damaged, or was written by another version of gavel-py: {type(error).__name__} {error}"
        raise InputError(Fault(str(path), "", text)) from None


def _active_from(document: Mapping[str, Any], path: str | Path, arrivals: Arrivals) -> dict[str, Work]:
    """Go through the part of the trace that has been taken, and pick out the jobs that are in the system."""
    told = {each["number"]: each for each in document["active"]}
    found = {number: each for number, each in enumerate(arrivals.skip(document["taken"])) if number in told}
    if arrivals.taken < document["taken"]:
        text = f"was written when {document['taken']} jobs had arrived, and this trace has only {arrivals.taken}"
        raise InputError(Fault(str(path), "", f"{text}; hand in the trace that the simulation had"))
    if arrivals.digest != document["digest"]:
        text = f"was written with another trace: the first {document['taken']} jobs of this one are not those that had arrived"
        raise InputError(Fault(str(path), "", f"{text}; hand in the trace that the simulation had"))
    return {found[number].job.job_id: Work.from_dict(each, found[number]) for number, each in told.items()}
