"""Executors for the cells of a sweep: processes of this computer, or the workers of a Dask cluster.

A process of `LocalProcesses` that dies costs what it was playing, and nothing else. `dask_executor` uses a Dask cluster that is
there, or one of processes of this computer.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context, parent_process
from typing import Any

from gavel_py.errors import Fault, GavelWarning, InputError

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS")

SHORT_CALL_SECONDS = 0.5
"""While cells are done sooner than this, the next one waits in the process already; else it is kept back, so that it can be taken
back.
"""

_environment_lock = threading.Lock()


class WorkerDiedError(BrokenExecutor):
    """The process that played this died meanwhile: it was killed, ran out of memory, or crashed."""


class _Call:
    """A call that is to be made in a process, and the future that its caller has."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function, self.future, self.started = function, Future[Any](), 0.0
        self.is_claimed = False

    def claim(self) -> bool:
        """Say whether it is still wanted; from now on, it cannot be cancelled."""
        if not self.is_claimed:
            self.is_claimed = self.future.set_running_or_notify_cancel()
        return self.is_claimed


class _Process:
    """One process, made anew when it has died. tasks: what has been sent to it, in order; pid: known when it has begun."""

    def __init__(self) -> None:
        self.calls: deque[_Call] = deque()
        self.pool, self.pid = _start_pool()
        self.is_quick = False

    def restart(self) -> None:
        """Begin another process."""
        self.pool.shutdown(wait=False, cancel_futures=True)
        self.pool, self.pid = _start_pool()

    def send(self, call: _Call) -> Future[Any]:
        """Send a task."""
        call.started = time.monotonic()
        try:
            return self.pool.submit(call.function)
        except BrokenProcessPool:  # it died while it had nothing to do
            self.restart()
            return self.pool.submit(call.function)


class LocalProcesses(Executor):
    """An executor of so many processes, each with one thread for linear algebra.

    `concurrent.futures.ProcessPoolExecutor` breaks as a whole when one of its processes dies, and does not tell which call it was
    that died with it. Here each process has a pool of its own, of one: a future whose process died raises `WorkerDiedError`, and
    all others go on. Processes ignore Ctrl-C, which is for the caller to heed, and end when the process that began them has gone.
    """

    def __init__(self, workers: int) -> None:
        self._lock = threading.RLock()
        self._waiting: deque[_Call] = deque()
        self._processes = [_Process() for _ in range(workers)]
        self._is_open = True

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Let a function be called in one of the processes."""
        call = _Call(partial(fn, *args, **kwargs))
        with self._lock:
            if not self._is_open:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._waiting.append(call)
            self._send()
        return call.future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes when they have done what they were sent."""
        with self._lock:
            self._is_open = False
            if cancel_futures:
                while self._waiting:
                    self._waiting.popleft().future.cancel()
        for process in self._processes:
            process.pool.shutdown(wait=wait, cancel_futures=cancel_futures)

    def terminate(self) -> None:
        """End the processes at once, whatever they do."""
        self.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            with contextlib.suppress(BaseException):
                os.kill(process.pid.result(timeout=5.0), signal.SIGTERM)
        for process in self._processes:
            process.pool.shutdown(wait=True)

    def _send(self) -> None:
        """Send waiting tasks to processes that have none, then a second one to those that are quick."""
        for depth in (1, 2):
            for process in self._processes:
                while self._waiting and len(process.calls) < depth and (depth == 1 or process.is_quick):
                    call = self._waiting.popleft()
                    if not call.claim():
                        continue
                    process.calls.append(call)
                    sent = process.send(call)
                    sent.add_done_callback(partial(self._on_done, process, process.pool, call))

    def _on_done(self, process: _Process, pool: ProcessPoolExecutor, call: _Call, sent: Future[Any]) -> None:
        """Take up what came of a task. A pool that breaks tells all of its tasks so, first the one that was played."""
        error = None if sent.cancelled() else sent.exception()
        with self._lock:
            process.calls.remove(call)
            if isinstance(error, BrokenProcessPool):
                if process.pool is not pool and self._is_open:  # this one had not begun
                    self._waiting.appendleft(call)
                    self._send()
                    return
                if self._is_open:
                    process.restart()
                error = WorkerDiedError("the process that played it died: it was killed, ran out of memory, or crashed")
            process.is_quick = time.monotonic() - call.started < SHORT_CALL_SECONDS
            if self._is_open:
                self._send()
        if sent.cancelled():
            call.future.set_exception(WorkerDiedError("it was not played any more"))
        elif error is not None:
            call.future.set_exception(error)
        else:
            call.future.set_result(sent.result())


def usable_cores() -> int:
    """Return on how many cores this process may run."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _start_pool() -> tuple[ProcessPoolExecutor, Future[int]]:
    """Begin a process; it gets its environment from ours, and the level at which gavel_py logs."""
    level = logging.getLogger("gavel_py").level
    pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_prepare, initargs=(level,))
    with _one_thread_each():
        return pool, pool.submit(os.getpid)


@contextlib.contextmanager
def _one_thread_each() -> Iterator[None]:
    """Within this, the environment says that linear algebra is to use one thread, unless it says otherwise already."""
    with _environment_lock:
        added = [name for name in THREADS if name not in os.environ]
        os.environ.update(dict.fromkeys(added, "1"))
        try:
            yield
        finally:
            for name in added:
                os.environ.pop(name, None)


def _prepare(level: int) -> None:
    """Prepare a process.

    level: of the logger in the process that began it; at that of debugging, this one logs too. A line for each round of each cell
    would be too much at others.
    """
    if 0 < level <= logging.DEBUG:
        logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s [%(process)d]: %(message)s")
        logging.getLogger("gavel_py").setLevel(level)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


DASK_TIMEOUT_SECONDS = 5.0
"""How long a scheduler is waited for."""

DASK_SETTINGS = {
    "distributed.scheduler.allowed-failures": 1,
    "distributed.scheduler.worker-saturation": 1.0,  # one call at a time, so that a death blames no other
    "distributed.deploy.lost-worker-timeout": "1 hour",  # a worker that takes long to begin anew is not lost
}
"""Of the cluster that is begun here."""


@contextmanager
def dask_executor(address: str | None = None, workers: int | None = None) -> Iterator[Executor]:
    """Within this, an executor whose calls are made by the workers of a Dask cluster, for `gp.sweep`.

    address: of its scheduler, as in tcp://10.0.0.1:8786; None begins one on this computer, with so many worker processes of one
    thread each, by default as many as there are cores. A call whose worker dies is made again: once by a cluster that is begun
    here, else as often as the setting `distributed.scheduler.allowed-failures` of the scheduler says.
    Needs the extra `gavel-py[dask]`. Raises `InputError` for a scheduler that does not answer within 5 s.
    """
    try:
        import dask
        import distributed
    except ImportError as error:
        text = f"sweeps on Dask need the package distributed ({error}); install it with: pip install 'gavel-py[dask]'"
        raise InputError(text) from None
    if address is not None:
        with _client(distributed, address) as client:
            yield client.get_executor(pure=False)
        return
    with (
        dask.config.set(DASK_SETTINGS),
        distributed.LocalCluster(
            n_workers=workers or usable_cores(),
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            silence_logs=logging.CRITICAL,
            preload="gavel_py.sweeps.dask_worker",
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client.get_executor(pure=False)


def _client(distributed: Any, address: str) -> Any:
    text = "is it an address such as tcp://10.0.0.1:8786?"
    try:
        distributed.comm.resolve_address(address)
        distributed.comm.get_address_host_port(address)
    except (OSError, ValueError) as error:
        raise InputError(Fault(f"scheduler {address}", "", f"is no address of a Dask scheduler ({error}); {text}")) from None
    try:
        client = distributed.Client(address, timeout=DASK_TIMEOUT_SECONDS, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        waited = f"no Dask scheduler answers there within {DASK_TIMEOUT_SECONDS:g} s ({error}); {text}"
        raise InputError(Fault(f"scheduler {address}", "", waited)) from None
    if not client.nthreads():
        warnings.warn(f"the Dask scheduler {address} has no workers yet; cells wait for them", GavelWarning, stacklevel=4)
    return client
