"""Dispatching of cells to an executor: cells are submitted, stored when they end, and retried if their process died."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from dataclasses import dataclass

from gavel_py.report.runs.files import CellStore, Status, StoredCell
from gavel_py.sweeps.cell import Cell, CellResult, run_cell
from gavel_py.sweeps.local import ExecutorError, WorkerDiedError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Progress:
    """Progress of a sweep.

    Attributes:
        total: number of cells.
        done: cells that have ended without an error.
        failed: cells that have ended with one.
        kept: those of them that ended in an earlier call.
        seconds: time since this call began.
    """

    total: int
    done: int
    failed: int
    kept: int
    seconds: float

    @property
    def left(self) -> int:
        """Cells that have not ended."""
        return self.total - self.done - self.failed

    @property
    def rate(self) -> float | None:
        """Cells per second so far, None before the first."""
        ended = self.done + self.failed - self.kept
        return ended / self.seconds if ended and self.seconds > 0 else None

    @property
    def seconds_left(self) -> float | None:
        """Estimated time until the end at this rate, None before the first cell."""
        return 0.0 if not self.left else None if self.rate is None else self.left / self.rate


PAUSE_SECONDS = 0.1
"""Results are collected for this long and stored together, so the store is never older than this."""

MAX_ATTEMPTS = 2


class Dispatcher:
    """Runs cells on an executor.

    statuses: {key: status} of the cells in the store; window: how many cells are submitted at a time; on_progress: called whenever
    cells have been stored, at most ten times a second; is_stopped: polled; once it returns True, no more cells are submitted, and
    those that are running are completed.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        statuses: dict[str, str],
        store: CellStore,
        executor: Executor,
        window: int,
        on_progress: Callable[[Progress], None],
        is_stopped: Callable[[], bool],
    ) -> None:
        self._store, self._executor, self._window = store, executor, window
        self._on_progress, self._is_stopped = on_progress, is_stopped
        self._cells = {cell.key: cell for cell in cells}
        self._statuses = {key: status for key, status in statuses.items() if key in self._cells}
        self._num_failed = sum(status == "failed" for status in self._statuses.values())
        self._num_kept, self._started = len(self._statuses), time.monotonic()
        self._waiting = deque(cell for cell in cells if cell.key not in self._statuses)
        self._attempts: dict[str, int] = {}
        self._running: dict[Future[CellResult], Cell] = {}
        self._unstored: list[StoredCell] = []
        self._stored_seconds = self._started

    def run(self) -> None:
        """Run all cells, or complete those that are running when the sweep is stopped. Results are stored in any case."""
        try:
            self._on_progress(self.progress)
            while self._waiting or self._running:
                if self._is_stopped():  # submit no more cells, and cancel those that are not running yet
                    self._waiting.clear()
                    for future in [future for future in self._running if future.cancel()]:
                        del self._running[future]
                self._submit()
                for future in wait(self._running, timeout=PAUSE_SECONDS, return_when=FIRST_COMPLETED).done:
                    self._handle_end(self._running.pop(future), future)
                if time.monotonic() - self._stored_seconds >= PAUSE_SECONDS:
                    self._store_results()
        finally:
            self._store_results()

    @property
    def progress(self) -> Progress:
        """The progress so far."""
        seconds = time.monotonic() - self._started
        return Progress(len(self._cells), len(self._statuses) - self._num_failed, self._num_failed, self._num_kept, seconds)

    def _submit(self) -> None:
        """Submit cells up to the window. A cell waits until the one with which it is compared has ended."""
        blocked = []
        while self._waiting and len(self._running) < self._window:
            cell = self._waiting.popleft()
            if cell.baseline_key is not None and cell.baseline_key not in self._statuses:
                blocked.append(cell)
                continue
            isolated = None if cell.baseline_key is None else self._jobs_of(cell.baseline_key)
            self._attempts[cell.key] = self._attempts.get(cell.key, 0) + 1
            try:
                self._running[self._executor.submit(run_cell, cell.task_with(isolated))] = cell
            except (BrokenExecutor, RuntimeError) as error:
                raise ExecutorError(f"no more cells can be run: {error}; run the same sweep again to continue") from error
        self._waiting.extendleft(reversed(blocked))

    def _jobs_of(self, key: str) -> bytes | None:
        """Return the completion times that a cell keeps, which may not be in the store yet."""
        unstored = next((cell for cell in self._unstored if cell.key == key), None)
        return self._store.jobs_of(key) if unstored is None else unstored.jobs

    def _handle_end(self, cell: Cell, future: Future[CellResult]) -> None:
        try:
            result = future.result()
        except CancelledError as error:
            raise ExecutorError("the workers have disappeared; run the same sweep again to continue") from error
        except WorkerDiedError:
            if self._attempts[cell.key] < MAX_ATTEMPTS:
                self._waiting.appendleft(cell)
                logger.info("a process died while it ran a cell, which is tried again: %s", dict(cell.labels))
                return
            text = f"its process died {MAX_ATTEMPTS} times: it was killed, ran out of memory, or crashed"
            result = CellResult(cell.key, 0.0, text)
        except BrokenExecutor as error:
            raise ExecutorError(f"the workers failed: {error}; run the same sweep again to continue") from error
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  SystemExit of a cell too
            result = CellResult(cell.key, 0.0, f"{type(error).__name__}: {error}")
        self._record_result(cell, result)

    def _record_result(self, cell: Cell, result: CellResult) -> None:
        status: Status = "done" if result.error is None else "failed"
        run = result.seconds, result.metrics, result.run, result.jobs
        self._unstored.append(StoredCell(cell.key, cell.text, status, result.error, self._attempts[cell.key], *run))
        self._statuses[cell.key] = status
        self._num_failed += status == "failed"
        count, total = len(self._statuses), len(self._cells)
        logger.info("cell %d of %d is %s, %.3f s: %s", count, total, status, result.seconds, dict(cell.labels))

    def _store_results(self) -> None:
        """Store the results since the last call."""
        written, self._unstored = self._unstored, []
        self._stored_seconds = time.monotonic()
        if written:
            self._store.add(written)
        self._on_progress(self.progress)
