"""A job for tests: it does steps at the speed of its GPU type, and resumes where it was stopped.

Run as a batch script, by path, without this package: worker.py FOLDER STEPS LOADING SHOWN TYPE=STEPS_PER_SECOND ...

LOADING are the seconds without steps at each start, and SHOWN is what scontrol shows of the job then.

FOLDER/progress/JOB holds the steps done and is updated frequently, like a checkpoint. FOLDER/stays/JOB has a line of JSON for each
start and each end of the job, as a record of where it ran. SIGUSR1 ends the work at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

TICK_SECONDS = 0.5


class FinishedError(Exception):
    """End the work on a signal."""


def main() -> None:
    folder, total, loading, shown, *speeds = sys.argv[1:]
    job, node = os.environ["SLURM_JOB_ID"], os.environ["SLURMD_NODENAME"]
    speed = dict(word.split("=") for word in speeds)[node.rpartition("-")[0]]
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    signal.signal(signal.SIGUSR1, finish)
    progress = Path(folder) / "progress" / job
    left = float(total) - (float(progress.read_text()) if progress.exists() else 0.0)
    tell(folder, job, event="start", shown=shown, left=left)
    done = False
    try:
        with contextlib.suppress(FinishedError):
            time.sleep(float(loading))
            work(progress, float(total), float(speed))
        done = True
    finally:
        tell(folder, job, event="end", done=done)


def work(progress: Path, total: float, speed: float) -> None:
    """Do the remaining steps."""
    begun, first = time.time(), float(progress.read_text()) if progress.exists() else 0.0
    steps = first
    while steps < total:
        time.sleep(min(TICK_SECONDS, (total - steps) / speed))
        steps = min(total, first + (time.time() - begun) * speed)
        beside = progress.with_suffix(f".{os.getpid()}")  # of its own: another process of the job may not have ended yet
        beside.write_text(str(steps))
        beside.replace(progress)


def stop(*_: object) -> None:
    sys.exit(1)


def finish(*_: object) -> None:
    raise FinishedError


def tell(folder: str, job: str, **what: object) -> None:
    with open(Path(folder) / "stays" / job, "a") as file:
        file.write(json.dumps({"seconds": time.time()} | what) + "\n")


if __name__ == "__main__":
    main()
