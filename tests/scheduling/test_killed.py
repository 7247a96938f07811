"""A process that is killed between rounds or while it saves leaves the last state that was complete."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import gavel_py as gp
from tests.support.deaths import DEATHS

ROOT = Path(__file__).resolve().parents[2]

# One round after the other, each saved; the process ends in the given way at the third save.
PROGRAM = f"""{DEATHS}
from tests.scheduling.test_killed import begin, go_on

def between_rounds():
    die()

made, path, way = begin(), sys.argv[1], sys.argv[2]
number = 0
while True:
    number += 1
    go_on(made, number)
    if number == 3 and way != "some_time":
        globals()[way]()
    made.save(path)
    print(number, flush=True)
"""


def profile() -> gp.ThroughputProfile:
    speeds = [[1.0 + i % 3, 1.0 + i % 2] for i in range(400)]
    return gp.ThroughputProfile.from_matrix(speeds, job_ids=[f"j{i}" for i in range(400)], accelerators=["v100", "k80"])  # type: ignore[return-value]


def begin() -> gp.RoundScheduler:
    return gp.RoundScheduler(gp.Cluster.from_inline("v100:6/4,k80:4/2"), profile(), "least_attained_service")


def go_on(made: gp.RoundScheduler, number: int) -> None:
    """Another job comes, which may wait for the one before, an earlier one may leave, and a round is played."""
    if number < 400:
        depends_on = [f"j{number - 1}"] if number % 4 == 2 else ()
        made.submit(gp.Job(f"j{number}", num_gpus=1 + number % 3, depends_on=depends_on, workflow=f"w{number // 4}"))
    if number % 2 and 5 < number < 400:
        made.complete(f"j{number - 4}")
    made.next_round()


def undisturbed(rounds: int) -> gp.RoundScheduler:
    """Return a scheduler after this number of rounds."""
    made = begin()
    for number in range(1, rounds + 1):
        go_on(made, number)
    return made


def as_after(rounds: int) -> gp.Round:
    """Return the round after this number of rounds of an undisturbed scheduler."""
    return undisturbed(rounds).next_round()


def started(path: Path, way: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(path), way],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.deep
@pytest.mark.parametrize(
    ("way", "complete"),
    [
        ("while_writing", 2),
        ("before_it_is_on_the_disk", 2),
        ("before_it_is_in_place", 2),
        ("after_it_is_in_place", 3),
        ("between_rounds", 2),
    ],
)
def test_the_last_complete_save_survives(tmp_path: Path, way: str, complete: int) -> None:
    path = tmp_path / "state.json"
    process = started(path, way)
    output, errors = process.communicate(timeout=60)
    assert (-process.returncode in {signal.SIGKILL, signal.SIGXFSZ}, errors) == (True, "")
    assert output.split() == ["1", "2"]
    made = gp.RoundScheduler.load(path, profile())
    assert made.blocked == undisturbed(complete).blocked == {"j2": ("j1",)}
    assert made.next_round() == as_after(complete)
    made.save(path)
    gp.RoundScheduler.load(path, profile())


@pytest.mark.deep
def test_whenever_it_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    for seconds in (0.0, 0.011, 0.037, 0.083):
        path.unlink(missing_ok=True)
        with started(path, "some_time") as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(seconds)
            process.kill()
            saved = 1 + len(process.stdout.read().split())
        following = gp.RoundScheduler.load(path, profile()).next_round()
        # The last save may have been complete though it was not reported any more.
        assert following in (as_after(saved), as_after(saved + 1))
