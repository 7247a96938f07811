"""The same cells on a Dask cluster: one that is there, or one of processes of this computer."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any

from gavel_py.errors import Fault, GavelWarning, InputError
from gavel_py.sweeps.local import usable_cores

__all__ = ["dask_executor"]

PATIENCE_SECONDS = 5.0

"""How long a scheduler is waited for."""

SETTINGS = {
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
        dask.config.set(SETTINGS),
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
        client = distributed.Client(address, timeout=PATIENCE_SECONDS, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        waited = f"no Dask scheduler answers there within {PATIENCE_SECONDS:g} s ({error}); {text}"
        raise InputError(Fault(f"scheduler {address}", "", waited)) from None
    if not client.nthreads():
        warnings.warn(f"the Dask scheduler {address} has no workers yet; cells wait for them", GavelWarning, stacklevel=4)
    return client
