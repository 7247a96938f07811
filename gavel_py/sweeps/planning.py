"""Planning and running a sweep: the plan (`SweepPlan`), the estimate of its duration, and tables of its results."""

from __future__ import annotations

import csv
import importlib
import io
import platform
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import fmean
from typing import Any

from gavel_py import __version__
from gavel_py.errors import GavelWarning
from gavel_py.io import reading
from gavel_py.io.tabular import Rows
from gavel_py.io.writing import check_libraries, check_writable, write_atomic
from gavel_py.problem.accelerators import same_accelerator
from gavel_py.report.runs import Labels
from gavel_py.report.runs.files import CellStore, GridPlace
from gavel_py.sweeps.cell import Cell, build_simulation, run_cell, scenario_of
from gavel_py.sweeps.dispatcher import Dispatcher, Progress
from gavel_py.sweeps.grid import build_grid, check_cells
from gavel_py.sweeps.local import LocalProcesses, usable_cores
from gavel_py.sweeps.spec import read_spec

Row = Mapping[str, str | float | None]
SUFFIXES = (".csv", ".parquet")
TEXT = {"policy", "trace", "cluster", "measure_jobs", "status", "error"}
WHOLE = {"seed", "attempts"}


def align_rows(rows: Sequence[Row]) -> list[dict[str, str | float | None]]:
    """Return the rows with the columns of all of them; missing values are None."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [{name: row.get(name) for name in names} for row in rows]


def check_table(path: str | Path) -> None:
    """Check that a table can be written to a file.

    Args:
        path: the file.

    Raises:
        InputError: for a suffix other than .csv and .parquet, a folder that does not exist or is not writable, and for Parquet
            without pyarrow.
    """
    suffix = reading.suffix_of(path, dict.fromkeys(SUFFIXES))
    check_writable(path)
    if suffix == ".parquet":
        check_libraries("Parquet files", "parquet", "pyarrow.parquet")


def write_table(path: str | Path, rows: Sequence[Row]) -> None:
    """Write a table to a .csv or .parquet file, completely or not at all.

    Args:
        path: the file.
        rows: rows as `sweep` returns them.

    Raises:
        InputError: as `check_table`.
    """
    check_table(path)
    write_atomic(path, _parquet(align_rows(rows)) if Path(path).suffix.lower() == ".parquet" else _csv(align_rows(rows)))


def _csv(rows: Sequence[Row]) -> bytes:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue().encode()


def _parquet(rows: Sequence[Row]) -> bytes:
    import pyarrow
    from pyarrow import parquet

    columns = {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}
    types = dict.fromkeys(TEXT, pyarrow.string()) | dict.fromkeys(WHOLE, pyarrow.int64())
    arrays = {name: pyarrow.array(values, type=types.get(name, pyarrow.float64())) for name, values in columns.items()}
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.table(arrays), sink)
    data: bytes = sink.getvalue().to_pybytes()
    return data


PROBE_SECONDS = 1.0
"""How long a cell is simulated to estimate its duration."""

MIN_PROBE_PROGRESS = 1e-4
"""Lower limit of the work done in a probe, to keep estimates finite."""


@dataclass(frozen=True)
class DurationEstimate:
    """Estimated duration; cell_seconds: of all remaining cells on one worker; basis: the data of the estimate."""

    cell_seconds: float
    workers: int
    basis: str

    @property
    def seconds(self) -> float:
        """Time until the end if the work is spread evenly over the workers."""
        return self.cell_seconds / self.workers


FROM_COMPLETED = "the mean time of the completed cells of each policy"
FROM_PROBES = "one cell of each policy from the middle of its grid, run for a second and scaled by the fraction of its work done"


def _probe(cell: Cell) -> float:
    """Return the seconds of a cell, by simulating it for a second and extrapolating by the part of all jobs' work that was done."""
    task = cell.task_with(None)
    importlib.import_module("gavel_py.optimization.formulation.program")  # slow, and done once in each process
    started = time.perf_counter()
    if task.mode == "solve":
        run_cell(task)
        return time.perf_counter() - started
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GavelWarning)  # shown when the sweep was planned
        simulation, until = build_simulation(task)
    began = time.perf_counter()  # after setup, which all policies share
    more = True
    while more and simulation.now < until and time.perf_counter() - began < PROBE_SECONDS:
        try:
            more = simulation.step(until)
        except (Exception, SystemExit):  # noqa: BLE001  an error ends only its cell, here as in a sweep
            more = False
    seconds = time.perf_counter() - began
    jobs = len(scenario_of(task.source).trace) if simulation.measure_jobs is None else simulation.measure_jobs[1]
    if not more or simulation.now >= until:
        return seconds
    # The part of the steps of all jobs that is done, as a mean over jobs.
    records = simulation.result().jobs.values()
    done = sum(min(1.0, job.steps_done / job.total_steps) for job in records if job.total_steps > 0) / jobs
    return seconds / max(min(1.0, done), MIN_PROBE_PROGRESS)


PACKAGES = ("numpy", "scipy", "cvxpy", "highspy", "clarabel", "pydantic")


def versions() -> dict[str, str]:
    """Return {package: version} of everything that results depend on, with Python and the platform."""
    found = {"gavel-py": __version__, "python": platform.python_version(), "platform": platform.platform()}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


WINDOW_PER_WORKER = 4

FOREIGN_WINDOW = 256
"""Cells submitted at a time to an executor of the caller, which has an unknown number of workers."""


def _ignore_progress(progress: Progress) -> None:
    """Do nothing."""


def _never_stop() -> bool:
    return False


class SweepPlan:
    """A checked sweep, as `plan_sweep` returns it.

    Attributes:
        labels: labels of each cell, in the order of the grid; the seed is None if none enters the cell, which then has one place.
        fixed: number of these cells that run once though there are several seeds.
        results: the file in which cells are stored; None: in memory, and lost at the end.
        inputs: the files that the spec names: traces, clusters, profiles and others.
        yardsticks: number of simulations under the policy `isolated` that are run in addition, for finish-time fairness.
    """

    def __init__(self, source: str | Path | Mapping[str, Any], changes: Mapping[str, Any]) -> None:
        checked = read_spec(source, changes)
        self._document = checked.document
        self._grid, self._cells = build_grid(checked)
        results = checked.spec.results
        self.results: Path | None = None if results is None else checked.path(results)
        self.inputs = checked.inputs
        self.labels: tuple[Labels, ...] = tuple(cell.labels for cell in self._grid)
        self.fixed = sum(labels["seed"] is None for labels in self.labels) if len(checked.spec.seeds) > 1 else 0
        self.yardsticks = sum(cell.task.mode == "isolated" for cell in self._cells)
        check_cells(self._cells)

    def __len__(self) -> int:
        return len(self._cells)

    @property
    def unused_gpus(self) -> dict[str, dict[str, int]]:
        """{cluster: {accelerator type: GPUs}} of the GPUs that `allow_unknown_types` leaves out."""
        sources = {str(cell.labels["cluster"]): cell.task.source for cell in self._grid}
        clusters = {label: (source.cluster.value, source.profile.value.accelerators) for label, source in sources.items()}
        found = {
            label: {
                name: int(count)
                for name, count in zip(cluster.accelerator_names, cluster.capacities.tolist(), strict=True)
                if count and same_accelerator(name, known) is None
            }
            for label, (cluster, known) in clusters.items()
        }
        return {label: gpus for label, gpus in found.items() if gpus}

    def kept(self) -> dict[str, int]:
        """Return {status: number of cells} in the store, for the statuses "done" and "failed"."""
        with self._store(make=False) as store:
            statuses = store.statuses()
        found = [statuses[cell.key] for cell in self._cells if cell.key in statuses]
        return {status: found.count(status) for status in ("done", "failed")}

    def estimate(self, workers: int | None = None, *, retry_failed: bool = False) -> DurationEstimate:
        """Return how long `play` will take.

        The estimate is the mean time of the cells of each policy that have ended. A policy without any is probed: a cell of it is
        simulated for a second.

        Args:
            workers: number of processes, by default the number of cores.
            retry_failed: as for `play`.
        """
        with self._store(make=False) as store:
            seconds, final = store.seconds(), _final_statuses(store, retry_failed)
        remaining: dict[str, list[Cell]] = {}
        ended: dict[str, list[float]] = {}
        for cell in self._cells:
            policy = str(cell.labels["policy"])
            if cell.key not in final:
                remaining.setdefault(policy, []).append(cell)
            if cell.key in seconds:
                ended.setdefault(policy, []).append(seconds[cell.key])
        total = 0.0
        for policy, cells in remaining.items():
            total += len(cells) * (fmean(ended[policy]) if policy in ended else _probe(cells[len(cells) // 2]))
        bases = ([FROM_COMPLETED] if remaining.keys() & ended else []) + ([FROM_PROBES] if remaining.keys() - ended else [])
        used = _num_workers(workers, sum(map(len, remaining.values())))
        return DurationEstimate(total, used, "; else ".join(bases) or "nothing is left")

    def play(
        self,
        executor: Executor | None = None,
        *,
        workers: int | None = None,
        retry_failed: bool = False,
        on_progress: Callable[[Progress], None] = _ignore_progress,
        is_stopped: Callable[[], bool] = _never_stop,
    ) -> Rows:
        """Run the cells that are not in the store, and return a row for each cell of the grid that has ended.

        Results are stored in any case. A `KeyboardInterrupt` stops the sweep at once; the same call then continues it.

        Args:
            executor: a `concurrent.futures.Executor`, which is not shut down; by default local processes.
            workers: number of these processes, by default the number of cores. If a process dies, its cell is tried once more.
            retry_failed: whether to run cells again that have failed.
            on_progress: called with the progress.
            is_stopped: polled; once it returns True, running cells are completed and no more are started.

        Raises:
            InputError: if the store cannot be used.
            GavelError: if the executor breaks.
        """
        with self._store() as store:
            grid = [GridPlace(cell.key, cell.labels) for cell in self._grid]
            store.begin(self._document, versions(), datetime.now(UTC).isoformat(timespec="seconds"), grid)
            ended = _final_statuses(store, retry_failed)
            remaining = sum(cell.key not in ended for cell in self._cells)
            if remaining:
                with _executor(executor, _num_workers(workers, remaining)) as (used, window):
                    Dispatcher(self._cells, ended, store, used, window, on_progress, is_stopped).run()
            else:
                failed = sum(ended[cell.key] == "failed" for cell in self._cells)
                on_progress(Progress(len(self), len(self) - failed, failed, len(self), 0.0))
            return Rows(align_rows(store.rows()))

    def _store(self, *, make: bool = True) -> CellStore:
        """Return the store; without `make`, an empty one in memory if the file does not exist."""
        exists = self.results is not None and self.results.exists()
        return CellStore(self.results if make or exists else None)


def _final_statuses(store: CellStore, retry_failed: bool) -> dict[str, str]:
    """Return {key: status} of the cells that are not run again."""
    return {key: status for key, status in store.statuses().items() if not (retry_failed and status == "failed")}


def _num_workers(workers: int | None, remaining: int) -> int:
    """Return the number of processes, at most one for each cell."""
    return max(1, min(workers or usable_cores(), remaining))


@contextmanager
def _executor(given: Executor | None, workers: int) -> Iterator[tuple[Executor, int]]:
    """Yield an executor and its window: the given one, or local processes, which end with the block."""
    if given is not None:
        yield given, FOREIGN_WINDOW
        return
    own = LocalProcesses(workers)
    try:
        yield own, WINDOW_PER_WORKER * workers
    except BaseException:
        own.terminate()
        raise
    own.shutdown()


def plan_sweep(spec: str | Path | Mapping[str, Any], **changes: Any) -> SweepPlan:
    """Return the plan of a sweep. No cell is run yet.

    Args:
        spec: a YAML file, or a mapping with the same keys (docs/sweeps.md).
        **changes: keys that replace those of the spec.

    Raises:
        InputError: with all faults: unknown keys, an empty grid, inputs that cannot be read or do not fit together.
    """
    return SweepPlan(spec, changes)


def sweep(
    spec: str | Path | Mapping[str, Any],
    *,
    executor: Executor | None = None,
    workers: int | None = None,
    retry_failed: bool = False,
    on_progress: Callable[[Progress], None] = _ignore_progress,
    **changes: Any,
) -> Rows:
    """Run a grid of simulations or static solves.

    If the spec names a file of `results`, cells are stored there as they end, and the same call continues a sweep that was stopped;
    `read_runs` reads the file.

    Args:
        spec: as for `plan_sweep`.
        executor: as for `SweepPlan.play`.
        workers: as for `SweepPlan.play`.
        retry_failed: as for `SweepPlan.play`.
        on_progress: as for `SweepPlan.play`.
        **changes: as for `plan_sweep`.

    Returns:
        A row for each cell that has ended: its labels, status, error and metrics. The list has `to_columns` and `to_pandas`.

    Raises:
        InputError: as `plan_sweep` and `SweepPlan.play`.

    >>> import gavel_py as gp
    >>> spec = {"policies": ["fifo", "isolated"], "traces": [{"generate": {"jobs": 3}}], "clusters": ["v100:8"]}
    >>> rows = gp.sweep(spec, seeds=[0, 1], executor=None, workers=1)
    >>> [(row["policy"], row["seed"], row["status"], row["finished"]) for row in rows]
    [('fifo', 0, 'done', 3), ('isolated', 0, 'done', 3), ('fifo', 1, 'done', 3), ('isolated', 1, 'done', 3)]
    """
    plan = plan_sweep(spec, **changes)
    return plan.play(executor, workers=workers, retry_failed=retry_failed, on_progress=on_progress)
