"""Thread safety: objects with a re-entrant lock that is replaced in a forked child, and array products on a single thread."""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar
from weakref import WeakSet

from threadpoolctl import ThreadpoolController

P = ParamSpec("P")
R = TypeVar("R")


class Lock:
    """A `threading.RLock`, `held`, that survives `os.fork`. A copied or unpickled lock is a new one.

    abandoned: whether another thread held the lock when this process was forked. That thread does not exist in the child and can
    never release the lock, so the child has a new one; what the lock protects may be inconsistent.
    """

    __slots__ = ("__weakref__", "abandoned", "held")

    def __init__(self) -> None:
        self.held = threading.RLock()
        self.abandoned = False
        _locks.add(self)

    def __reduce__(self) -> tuple[type[Lock], tuple[()]]:
        return Lock, ()


_locks: WeakSet[Lock] = WeakSet()


def synchronized(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Return the method guarded by a lock: only one thread at a time runs any synchronized method of an object."""

    @functools.wraps(method)
    def locked(self: Any, /, *args: P.args, **options: P.kwargs) -> R:
        lock = self._lock
        with lock.held:
            if lock.abandoned:
                self._recover()
                lock.abandoned = False
            return method(self, *args, **options)

    return locked


class Synchronized:
    """Base class with a lock for its `synchronized` methods and for setting attributes; only one thread at a time does either.

    The lock is re-entrant, so a callback of such a method may call others. A copy has its own lock.
    """

    _lock: Lock

    def __new__(cls, *_args: Any, **_options: Any) -> Self:
        made = super().__new__(cls)
        vars(made)["_lock"] = Lock()
        return made

    if not TYPE_CHECKING:  # for type checkers, only the attributes that a class has can be set

        def __setattr__(self, name: str, value: object) -> None:
            with self._lock.held:
                super().__setattr__(name, value)

    @synchronized
    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_lock": Lock()}

    def _recover(self) -> None:
        """Restore a consistent state in a forked child, after another thread was within a call at the fork."""


class _BlasThreads:
    """The calls in progress that limit BLAS, the library behind NumPy's array products, to one thread, and their shared limit."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.calls = 0
        self.modules = 0
        self.controller: ThreadpoolController | None = None
        self.limit: Any = None

    def start(self) -> None:
        """Limit the loaded libraries; they are looked up again, which takes a millisecond, only after further imports."""
        if self.controller is None or self.modules != len(sys.modules):
            self.modules, self.controller = len(sys.modules), ThreadpoolController()
        self.limit = self.controller.limit(limits=1, user_api="blas")


_blas = _BlasThreads()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Compute array products on the calling thread only, until the last of concurrent blocks has ended.

    A product of 10,000 numbers takes microseconds, but wakes threads that keep the other cores busy for some 30 ms after it.
    """
    with _blas.lock.held:
        if not _blas.calls:
            _blas.start()
        _blas.calls += 1
    try:
        yield
    finally:
        with _blas.lock.held:
            _blas.calls -= 1
            if not _blas.calls:
                _blas.limit.restore_original_limits()


def _is_abandoned(lock: Any) -> bool:
    """Return whether a lock is held by another thread."""
    if lock.acquire(blocking=False):
        lock.release()  # it was free, or the forking thread holds it and releases it in the child
        return False
    return True


def _renew_all() -> None:
    """Replace, in a forked child, the locks that other threads of the parent held."""
    for lock in list(_locks):
        if _is_abandoned(lock.held):
            lock.held, lock.abandoned = threading.RLock(), True
    if sys.version_info < (3, 12):  # before which each `cached_property` has a lock
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] == "gavel_py":
                _renew_cached_properties(module)


def _renew_cached_properties(module: object) -> None:
    classes = [value for value in vars(module).values() if isinstance(value, type)]
    for each in (value for cls in classes for value in vars(cls).values() if isinstance(value, functools.cached_property)):
        if _is_abandoned(each.lock):  # type: ignore[attr-defined]
            each.lock = threading.RLock()  # type: ignore[attr-defined]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
