"""Executors for cells: processes of this computer (`LocalProcesses`), or a Dask cluster (`dask_executor`)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing import get_context, parent_process
from queue import SimpleQueue
from typing import Any

from gavel_py.errors import Fault, GavelError, GavelWarning, InputError

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS")

_environment_lock = threading.Lock()


class ExecutorError(GavelError, RuntimeError):
    """The executor broke, or could not be started; cells that have ended are stored."""


class WorkerDiedError(BrokenExecutor):
    """The process of this call died: it was killed, ran out of memory, or crashed."""


class _Process:
    """A pool of one process, which is replaced if it dies. pid: a future of its id."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Start a process, with the environment and the log level of this one."""
        level = logging.getLogger("gavel_py").level
        self.pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_prepare, initargs=(level,))
        with _one_thread_each():
            self.pid = self.pool.submit(os.getpid)


class LocalProcesses(Executor):
    """An executor of local processes, each with one thread for linear algebra.

    `concurrent.futures.ProcessPoolExecutor` breaks as a whole when a process dies, and does not report which call it ran.
    Here each process has its own pool, and a thread that waits for the call that it sent: if the process dies, the future of this
    call raises `WorkerDiedError`, and all other calls continue. Processes ignore Ctrl-C, which the caller handles, and end with the
    process that started them.
    """

    def __init__(self, workers: int) -> None:
        self._threads = ThreadPoolExecutor(workers)
        self._processes = [_Process() for _ in range(workers)]
        self._idle: SimpleQueue[_Process] = SimpleQueue()
        for process in self._processes:
            self._idle.put(process)
        self._is_terminated = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a function in one of the processes."""
        return self._threads.submit(self._call, partial(fn, *args, **kwargs))

    def _call(self, function: Callable[[], Any]) -> Any:
        process = self._idle.get()
        try:
            try:
                sent = process.pool.submit(function)
            except BrokenProcessPool:  # it died while it was idle
                process.start()
                sent = process.pool.submit(function)
            return sent.result()
        except BrokenProcessPool:
            if not self._is_terminated:
                process.start()
            raise WorkerDiedError("the process that ran it died: it was killed, ran out of memory, or crashed") from None
        finally:
            self._idle.put(process)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes after the calls that were submitted."""
        self._threads.shutdown(wait=wait, cancel_futures=cancel_futures)
        for process in self._processes:
            process.pool.shutdown(wait=wait, cancel_futures=cancel_futures)

    def terminate(self) -> None:
        """End the processes at once, with the calls that are running."""
        self._is_terminated = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            with contextlib.suppress(BaseException):
                os.kill(process.pid.result(timeout=5.0), signal.SIGTERM)
        self.shutdown()


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def _one_thread_each() -> Iterator[None]:
    """Set the environment variables of linear algebra to one thread within the block, except for those that are set."""
    with _environment_lock:
        added = [name for name in THREADS if name not in os.environ]
        os.environ.update(dict.fromkeys(added, "1"))
        try:
            yield
        finally:
            for name in added:
                os.environ.pop(name, None)


def _prepare(level: int) -> None:
    """Initialise a process; level: of the logger of the parent.

    The process logs only at the level DEBUG: at other levels, a line for each round of each cell would be too much.
    """
    if 0 < level <= logging.DEBUG:
        logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s [%(process)d]: %(message)s")
        logging.getLogger("gavel_py").setLevel(level)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def end_with_parent() -> None:
        if (parent := parent_process()) is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


DASK_TIMEOUT_SECONDS = 5.0
"""How long to wait for a Dask scheduler."""

DASK_SETTINGS = {
    "distributed.scheduler.allowed-failures": 1,
    "distributed.scheduler.worker-saturation": 1.0,  # one call at a time, so that the death of a worker costs one
    "distributed.deploy.lost-worker-timeout": "1 hour",  # a worker that restarts slowly is not lost
}
"""Settings of a Dask cluster that is started here."""


@contextmanager
def dask_executor(address: str | None = None, workers: int | None = None) -> Iterator[Executor]:
    """Return a context manager with an executor on the workers of a Dask cluster, for `gp.sweep`.

    A call whose worker dies is repeated: once on a cluster that is started here, otherwise as often as the setting
    `distributed.scheduler.allowed-failures` of the scheduler allows. Needs the extra `gavel-py[dask]`.

    Args:
        address: address of the scheduler, such as tcp://10.0.0.1:8786. None starts a cluster on this computer.
        workers: number of worker processes of that cluster, with one thread each; by default the number of cores.

    Raises:
        InputError: if Dask is not installed, or the scheduler does not answer within 5 s.
        GavelError: if the processes of this computer cannot be started.
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
    with ExitStack() as stack:
        stack.enter_context(dask.config.set(DASK_SETTINGS))
        try:
            cluster = stack.enter_context(_local_cluster(distributed, workers or usable_cores()))
            client = stack.enter_context(distributed.Client(cluster, set_as_default=False))
        except Exception as error:  # noqa: BLE001  whatever ends them
            reason = str(error).rstrip(".") or type(error).__name__
            raise ExecutorError(f"the processes of Dask cannot be started ({reason}); try again, or with fewer workers") from None
        yield client.get_executor(pure=False)


def _local_cluster(distributed: Any, workers: int) -> Any:
    return distributed.LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        processes=True,
        dashboard_address=None,
        silence_logs=logging.CRITICAL,
        preload="gavel_py.sweeps.local",
    )


def _client(distributed: Any, address: str) -> Any:
    place, text = f"scheduler {address}", "is it an address such as tcp://10.0.0.1:8786?"
    try:
        distributed.comm.resolve_address(address)
        distributed.comm.get_address_host_port(address)
    except (OSError, ValueError) as error:
        raise InputError(Fault(place, "", f"is not the address of a Dask scheduler ({error}); {text}")) from None
    try:
        # A client waits without limit for the greeting of the service at the address, and fails if it is another service.
        with ThreadPoolExecutor(1) as thread:  # the caller may have an event loop
            thread.submit(asyncio.run, asyncio.wait_for(_greet(distributed, address), DASK_TIMEOUT_SECONDS)).result()
        client = distributed.Client(address, timeout=DASK_TIMEOUT_SECONDS, set_as_default=False)
    except Exception as error:  # noqa: BLE001  whatever answers there
        is_silent = isinstance(error, OSError | TimeoutError | ValueError)
        reason = str(error) or "no response" if is_silent else "another service answers"
        waited = f"no Dask scheduler answers there within {DASK_TIMEOUT_SECONDS:g} s ({reason}); {text}"
        raise InputError(Fault(place, "", waited)) from None
    if not client.nthreads():
        warnings.warn(f"the Dask scheduler {address} has no workers yet; cells wait for them", GavelWarning, stacklevel=4)
    return client


async def _greet(distributed: Any, address: str) -> None:
    """Connect to a scheduler and ask for its identity; raises an error of its communication."""
    secrets = distributed.Security().get_connection_args("client")
    connection = await distributed.core.connect(address, timeout=DASK_TIMEOUT_SECONDS, **secrets)
    try:
        await connection.write({"op": "identity", "reply": True})
        await connection.read()
    finally:
        connection.abort()


def dask_setup(worker: Any) -> None:  # noqa: ARG001  Dask passes it
    """Initialise a worker of a cluster that is started here; Dask finds this function by its name.

    The worker ignores Ctrl-C, which a terminal sends to all processes and the sweep handles.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
