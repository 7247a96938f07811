"""The time limit of a solve, and how native solvers are stopped when it has passed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from numbers import Real
from typing import Any, TypeVar

import numpy as np

from gavel_py.errors import Fault, InputError
from gavel_py.problem.arrays import Floats

Result = TypeVar("Result")
GRACE_SECONDS = 0.05
"""Additional time to wait for a native solver that keeps the limit itself."""


class TimeLimitReached(Exception):  # noqa: N818  (control flow inside one solve; callers of `solve` never see it)
    """The time limit has passed. Carries the results so far, which need not be optimal or even valid.

    Args:
        solution: The solution at which HiGHS stopped (`highs.Solution`), if known.
        fractions: Candidates for an allocation, each (G, K) time fractions of the job classes.
        prices: Dual prices of GPUs and limits (`certificates.Prices`), for bounds.
    """

    def __init__(self, solution: Any = None, fractions: tuple[Floats, ...] = (), prices: tuple[Any, ...] = ()) -> None:
        super().__init__("the time limit was reached")
        self.solution = solution
        self.fractions = fractions
        self.prices = prices


class TimeLimit:
    """A number of seconds counted from the creation of this object, or no limit at all (None)."""

    def __init__(self, seconds: float | None = None) -> None:
        self._end = np.inf if seconds is None else time.monotonic() + seconds

    @property
    def is_set(self) -> bool:
        """Whether there is a limit."""
        return bool(self._end < np.inf)

    @property
    def remaining(self) -> float:
        """Seconds left, at least 0; infinite without a limit."""
        return max(0.0, self._end - time.monotonic()) if self.is_set else np.inf

    def check(self, needed_seconds: float = 0.0) -> None:
        """Raise `TimeLimitReached` if no time is left, or less than an operation needs that cannot be interrupted."""
        if self.is_set and self.remaining <= needed_seconds:
            raise TimeLimitReached


NO_LIMIT = TimeLimit()


def checked_limit(owner: str, seconds: float | None) -> float | None:
    """Return the time limit of an owner; raises `InputError` unless it is None or a finite number greater than 0."""
    if seconds is None:
        return None
    if not (isinstance(seconds, Real) and not isinstance(seconds, bool) and 0 < seconds < np.inf):
        raise InputError(Fault(owner, "time_limit_seconds", f"must be a finite number greater than 0, found {seconds!r}"))
    return float(seconds)


def run_stoppable(work: Callable[[], Result], stop: Callable[[], object], limit: TimeLimit) -> Result:
    """Run `work` in another thread and return its result; Ctrl-C and the time limit end the wait.

    Then `stop` requests the native code to end, and the thread is abandoned: the objects it uses must not be used again. It is not
    a daemon thread, because native code that returns while the interpreter shuts down would crash the process.

    Raises:
        TimeLimitReached: `work` was still running at the end of the limit.
    """
    outcome: Future[Result] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001  (raised again by `outcome.result`)
            outcome.set_exception(error)

    threading.Thread(target=run, name="gavel-py solver").start()
    try:
        return outcome.result(limit.remaining + GRACE_SECONDS if limit.is_set else None)
    except TimeoutError:
        stop()
        raise TimeLimitReached from None
    except KeyboardInterrupt:
        stop()
        raise
