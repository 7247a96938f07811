"""The time that a solve may take, and how native solvers are stopped when it has passed."""

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
"""How much longer than its limit a native solver, which keeps the limit itself, is waited for."""


class TimeLimitReached(Exception):  # noqa: N818  (control flow inside one solve; callers of `solve` never see it)
    """The time limit has passed. Carries what was found by then; nothing of it needs to be optimal or even valid.

    Args:
        solution: Where HiGHS stopped (`highs.Solution`), if that is known.
        fractions: Candidates for an allocation, each (G, K) time fractions of the classes of jobs.
        prices: Dual prices of GPUs and limits (`certificates.Prices`), each of which gives a bound.
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
        """Raise `TimeLimitReached` if no time is left, or less than something takes that cannot be stopped."""
        if self.is_set and self.remaining <= needed_seconds:
            raise TimeLimitReached


NO_LIMIT = TimeLimit()


def checked_limit(asker: str, seconds: float | None) -> float | None:
    """Return a time limit as it was given; raises `InputError` unless it is None or a finite number greater than 0."""
    if seconds is None:
        return None
    if not (isinstance(seconds, Real) and not isinstance(seconds, bool) and 0 < seconds < np.inf):
        raise InputError(Fault(asker, "time_limit_seconds", f"must be a finite number greater than 0, found {seconds!r}"))
    return float(seconds)


def run_stoppable(work: Callable[[], Result], stop: Callable[[], object], limit: TimeLimit) -> Result:
    """Return what `work` returns, computed in a thread of its own, so that Ctrl-C and the time limit end the wait for it.

    When either happens, `stop` asks the native code to end, and the thread is left alone: what it was working on must not be used
    again. It is no daemon thread, because native code that returns while the interpreter shuts down would crash the process.

    Raises:
        TimeLimitReached: `work` was still running at the end of the limit.
    """
    outcome: Future[Result] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001  (raised again where the result is asked for)
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
