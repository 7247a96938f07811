"""Objects that several threads may use at once: a re-entrant lock each, which a forked child gets anew."""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Self, TypeVar
from weakref import WeakSet

P = ParamSpec("P")
R = TypeVar("R")


class Lock:
    """A `threading.RLock`, `held`, that survives `os.fork` and is not copied: whatever is copied or unpickled has a new one.

    abandoned: whether another thread held it when this process was forked. That thread does not exist here and can never release
    the lock, so the child has a new one; but what it protects may have been in the middle of a change.
    """

    __slots__ = ("__weakref__", "abandoned", "held")

    def __init__(self) -> None:
        self.held = threading.RLock()
        self.abandoned = False
        _locks.add(self)

    def __reduce__(self) -> tuple[type[Lock], tuple[()]]:
        return Lock, ()

    def renew(self) -> None:
        """Be a new lock if another thread holds the old one."""
        if self.held.acquire(blocking=False):
            self.held.release()  # it is free, or the forking thread itself holds it and will release it in the child
        else:
            self.held, self.abandoned = threading.RLock(), True


_locks: WeakSet[Lock] = WeakSet()


def synchronized(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Let only one thread at a time be in this method and the others of the same object that are synchronized."""

    @functools.wraps(method)
    def alone(self: Any, /, *args: P.args, **options: P.kwargs) -> R:
        lock = self._lock
        with lock.held:
            if lock.abandoned:
                self._recover()
                lock.abandoned = False
            return method(self, *args, **options)

    return alone


class Synchronized:
    """An object whose `synchronized` methods exclude each other, and the setting of its attributes.

    The lock is re-entrant, so that what such a method calls may call back. A copy has a lock of its own.
    """

    _lock: Lock

    def __new__(cls, *_args: Any, **_options: Any) -> Self:
        made = super().__new__(cls)
        vars(made)["_lock"] = Lock()
        return made

    def __setattr__(self, name: str, value: object) -> None:
        with self._lock.held:
            super().__setattr__(name, value)

    @synchronized
    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_lock": Lock()}

    def _recover(self) -> None:
        """Become usable in a forked child if another thread was in the middle of a call at the fork."""


def _renew_all() -> None:
    """Renew, in a forked child, the locks that threads of the parent held."""
    for lock in list(_locks):
        lock.renew()
    if sys.version_info < (3, 12):  # where each `cached_property` has a lock of its own
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] == "gavel_py":
                _renew_cached_properties(module)


def _renew_cached_properties(module: object) -> None:
    kinds = [thing for thing in vars(module).values() if isinstance(thing, type)]
    for each in (value for kind in kinds for value in vars(kind).values() if isinstance(value, functools.cached_property)):
        if each.lock.acquire(blocking=False):  # type: ignore[attr-defined]
            each.lock.release()  # type: ignore[attr-defined]
        else:
            each.lock = threading.RLock()  # type: ignore[attr-defined]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
