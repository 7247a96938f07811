"""Cells on an executor: handed out as there is room, stored as they end, and tried again if their process died.

`Progress` is how far a sweep is.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from dataclasses import dataclass

from gavel_py.errors import GavelError
from gavel_py.report.runs.files import CellStore, Status, StoredCell
from gavel_py.sweeps.cell import Cell, Ended, play
from gavel_py.sweeps.local import WorkerDiedError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Progress:
    """total: cells of the sweep; done, failed: those that have come to an end, kept of them before this sweep began; seconds: that
    it has taken so far.
    """

    total: int
    done: int
    failed: int
    kept: int
    seconds: float

    @property
    def left(self) -> int:
        """Cells that have not come to an end."""
        return self.total - self.done - self.failed

    @property
    def rate(self) -> float | None:
        """Cells per second so far, None before the first."""
        played = self.done + self.failed - self.kept
        return played / self.seconds if played and self.seconds > 0 else None

    @property
    def seconds_left(self) -> float | None:
        """The time until the end at this rate, None where nobody can know."""
        return 0.0 if not self.left else None if self.rate is None else self.left / self.rate


PAUSE_SECONDS = 0.1
"""Cells that end within so much of one another are written together: what is on the disk is never older than this."""

MOST_ATTEMPTS = 2


class ExecutorError(GavelError, RuntimeError):
    """What played the cells is not there any more; those that have come to an end are stored."""


class Dispatcher:
    """Plays cells on an executor. ended: {key: status} of those that the store has; window: so many are handed out at a time.

    on_progress: called whenever cells have been stored, and ten times a second at most; is_stopped: asked as often; when it says
    so, no more cells are handed out, and those that have begun are waited for.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        ended: dict[str, str],
        store: CellStore,
        executor: Executor,
        window: int,
        on_progress: Callable[[Progress], None],
        is_stopped: Callable[[], bool],
    ) -> None:
        self._store, self._executor, self._window = store, executor, window
        self._on_progress, self._is_stopped = on_progress, is_stopped
        self._cells = {cell.key: cell for cell in cells}
        self._ended = {key: status for key, status in ended.items() if key in self._cells}
        self._failed = sum(status == "failed" for status in self._ended.values())
        self._kept, self._began = len(self._ended), time.monotonic()
        self._waiting = deque(cell for cell in cells if cell.key not in self._ended)
        self._attempts: dict[str, int] = {}
        self._playing: dict[Future[Ended], Cell] = {}
        self._unwritten: list[StoredCell] = []
        self._written = self._began

    def run(self) -> None:
        """Play all cells, or those that have begun when it is to stop. After an error, what has ended is stored."""
        try:
            self._on_progress(self.progress)
            while self._waiting or self._playing:
                if self._is_stopped():
                    self._take_back()
                self._hand_out()
                self._collect()
                if time.monotonic() - self._written >= PAUSE_SECONDS:
                    self._write()
        finally:
            self._write()

    @property
    def progress(self) -> Progress:
        """How far it is."""
        seconds = time.monotonic() - self._began
        return Progress(len(self._cells), len(self._ended) - self._failed, self._failed, self._kept, seconds)

    def _take_back(self) -> None:
        """Hand out no more, and take back what has not begun."""
        self._waiting.clear()
        for future in [future for future in self._playing if future.cancel()]:
            del self._playing[future]

    def _hand_out(self) -> None:
        blocked = []
        while self._waiting and len(self._playing) < self._window:
            cell = self._waiting.popleft()
            if cell.needs is not None and cell.needs not in self._ended:
                blocked.append(cell)
                continue
            isolated = None if cell.needs is None else self._jobs_of(cell.needs)
            self._attempts[cell.key] = self._attempts.get(cell.key, 0) + 1
            try:
                self._playing[self._executor.submit(play, cell.task_with(isolated))] = cell
            except (BrokenExecutor, RuntimeError) as error:
                raise ExecutorError(f"cells cannot be played any more: {error}; the same sweep goes on from here") from error
        self._waiting.extendleft(reversed(blocked))

    def _jobs_of(self, key: str) -> bytes | None:
        """What a cell keeps of its jobs, which may not have been written yet."""
        unwritten = next((cell for cell in self._unwritten if cell.key == key), None)
        return self._store.jobs_of(key) if unwritten is None else unwritten.jobs

    def _collect(self) -> None:
        """Take up what has ended, and wait for it a little."""
        for future in wait(self._playing, timeout=PAUSE_SECONDS, return_when=FIRST_COMPLETED).done:
            self._ends(self._playing.pop(future), future)

    def _ends(self, cell: Cell, future: Future[Ended]) -> None:
        try:
            ended = future.result()
        except CancelledError as error:
            raise ExecutorError("what played the cells has gone; the same sweep goes on from here") from error
        except WorkerDiedError:
            if self._attempts[cell.key] < MOST_ATTEMPTS:
                self._waiting.appendleft(cell)
                logger.info("a process died while it played a cell, which is tried again: %s", dict(cell.labels))
                return
            ended = Ended(cell.key, 0.0, f"its process died {MOST_ATTEMPTS} times: it was killed, ran out of memory, or crashed")
        except BrokenExecutor as error:
            raise ExecutorError(f"what played the cells broke: {error}; the same sweep goes on from here") from error
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  one that was to end its process, too
            ended = Ended(cell.key, 0.0, f"{type(error).__name__}: {error}")
        self._note(cell, ended)

    def _note(self, cell: Cell, ended: Ended) -> None:
        status: Status = "done" if ended.error is None else "failed"
        attempts = self._attempts[cell.key]
        stored = StoredCell(cell.key, cell.text, status, ended.error, attempts, ended.seconds, ended.metrics, ended.run, ended.jobs)
        self._unwritten.append(stored)
        self._ended[cell.key] = status
        self._failed += status == "failed"
        logger.info("cell %d of %d is %s, %.3f s: %s", len(self._ended), len(self._cells), status, ended.seconds, dict(cell.labels))

    def _write(self) -> None:
        """Store what has ended since."""
        written, self._unwritten = self._unwritten, []
        self._written = time.monotonic()
        if written:
            self._store.add(written)
        self._on_progress(self.progress)
