"""What a Dask worker that we begin does first (a preload module of Dask, named in `local`)."""

from __future__ import annotations

import signal
from typing import Any


def dask_setup(worker: Any) -> None:  # noqa: ARG001  as Dask calls it
    """Ignore Ctrl-C, which a terminal sends to all processes, and which is for the sweep to heed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
