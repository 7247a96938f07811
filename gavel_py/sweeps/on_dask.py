"""The same cells on a Dask cluster: one that is there, or one of processes of this computer."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any

from gavel_py.errors import Fault, InputError

__all__ = ["dask_executor"]

PATIENCE_SECONDS = 8.0
"""How long a scheduler is waited for."""


@contextmanager
def dask_executor(address: str | None = None, workers: int | None = None) -> Iterator[Executor]:
    """Within this, an executor whose calls are made by the workers of a Dask cluster, for `gp.sweep`.

    address: of its scheduler, as in tcp://10.0.0.1:8786; None begins one on this computer, with so many worker processes of one
    thread each, by default as many as there are cores. A call whose worker dies is made again: once by a cluster that is begun
    here, else as often as the setting `distributed.scheduler.allowed-failures` of the scheduler says.
    Needs the extra `gavel-py[dask]`. Raises `InputError` for a scheduler that does not answer within 8 s.
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
    settings = {"distributed.scheduler.allowed-failures": 1}
    with (
        dask.config.set(settings),
        distributed.LocalCluster(
            n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=logging.CRITICAL
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client.get_executor(pure=False)


def _client(distributed: Any, address: str) -> Any:
    try:
        return distributed.Client(address, timeout=PATIENCE_SECONDS, set_as_default=False)
    except (OSError, TimeoutError, ValueError, ImportError) as error:
        reason = str(error) or type(error).__name__
        text = f"no Dask scheduler answers there within {PATIENCE_SECONDS:g} s ({reason}); is it an address such as tcp://10.0.0.1:8786?"
        raise InputError(Fault(f"scheduler {address}", "", text)) from None
