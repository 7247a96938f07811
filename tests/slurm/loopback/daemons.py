"""Start and end of the daemons of a cluster through its keeper."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.slurm.loopback import keeper
from tests.slurm.loopback.waiting import GUARD_SECONDS

__all__ = ["Daemons"]


class Daemons:
    """The daemons of a cluster; they end and their folder is deleted by `close` or at the end of this process.

    guards: open files that the keeper holds while it runs.
    """

    def __init__(self, folder: Path, guards: tuple[int, ...] = ()) -> None:
        self.folder = folder
        self._keeper = subprocess.Popen(
            [sys.executable, "-S", "-E", str(keeper.__file__), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=guards,
            start_new_session=True,
        )

    def start(self, name: str, *command: str) -> None:
        self._order(do="start", name=name, command=command, log=str(self.folder / "log" / f"{name}.out"))

    def end(self, name: str, *, how: signal.Signals = signal.SIGTERM, within: float = GUARD_SECONDS) -> None:
        self._order(do="end", name=name, signal=int(how), within=within)

    def kill_orphans(self, title: str) -> list[int]:
        """Kill orphans of the daemons with these words on their command line, and return their ids."""
        return list(self._order(do="kill children", title=title))

    def close(self) -> None:
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        self._keeper.stdin.close()
        self._keeper.wait(GUARD_SECONDS)
        self._keeper.stdout.close()

    def _order(self, **order: object) -> Any:
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        self._keeper.stdin.write(json.dumps(order) + "\n")
        self._keeper.stdin.flush()
        return json.loads(self._keeper.stdout.readline())
