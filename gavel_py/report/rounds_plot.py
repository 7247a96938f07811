"""A picture of rounds: which job has which GPU, and when."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from numbers import Real
from pathlib import Path

from gavel_py.errors import Fault, InputError
from gavel_py.io.writing import FORMATS, check_plot, write_whole
from gavel_py.problem.cluster import Cluster
from gavel_py.report.bars import bars_of, blocks_of
from gavel_py.report.colours import colours_of
from gavel_py.report.lanes import lanes_of
from gavel_py.report.round_grid import RoundGrid, grid_of
from gavel_py.report.time_marks import duration
from gavel_py.report.wording import of_count
from gavel_py.scheduling.delivery import DeliveryReport
from gavel_py.scheduling.round import Round

__all__ = ["plot_rounds"]


def plot_rounds(
    rounds: Iterable[Round],
    cluster: Cluster,
    path: str | Path,
    *,
    round_seconds: float,
    delivery: DeliveryReport | None = None,
    policy: str | None = None,
) -> None:
    """Draw rounds that follow one another to an SVG or PNG file: time to the right, GPUs by type and node from the top down.

    A bar is a gang's stay on its GPUs, with marks where it started and where it was preempted; a GPU that nobody has stays white.
    cluster: whose GPUs are drawn, that of the scheduler; delivery, policy: what the title tells besides.
    The same input makes the same bytes, under one version of matplotlib. The file is written whole or not at all.

    Raises `InputError` as `check_plot` does, when there is nothing to draw, for rounds that do not follow one another, and for GPUs
    that the cluster does not have or that two jobs have.
    """
    check_plot(path)
    if not (isinstance(round_seconds, Real) and math.isfinite(round_seconds) and round_seconds > 0):
        raise InputError(Fault("", "round_seconds", f"must be a finite number greater than 0, found {round_seconds!r}"))
    lanes, rounds = lanes_of(cluster), list(rounds)
    grid = grid_of(rounds, lanes)
    from gavel_py.report.drawing import drawn
    from gavel_py.report.layout import Scene

    scene = Scene(
        lanes=lanes,
        rounds=rounds,
        round_seconds=float(round_seconds),
        job_ids=grid.job_ids,
        colours=colours_of(grid),
        blocks=blocks_of(bars_of(grid, rounds), lanes),
        title=", ".join(_title(grid, rounds, round_seconds, policy)),
        subtitle=", ".join(_subtitle(grid, rounds, delivery)),
    )
    write_whole(path, drawn(scene, FORMATS[Path(path).suffix.lower()]))


def _title(grid: RoundGrid, rounds: Sequence[Round], round_seconds: float, policy: str | None) -> Iterator[str]:
    head = "" if policy is None else f"{policy}: "
    yield f"{head}{of_count(len(rounds), 'round')} of {duration(round_seconds)}"
    yield of_count(len(grid.jobs), "GPU")


def _subtitle(grid: RoundGrid, rounds: Sequence[Round], delivery: DeliveryReport | None) -> Iterator[str]:
    ran = len(grid.job_ids)
    in_all = ran if delivery is None else len(delivery.jobs)
    yield f"{ran:,} of {of_count(in_all, 'job')} ran" if in_all > ran else f"{of_count(ran, 'job')} ran"
    yield f"{grid.used_share:.1%} of GPU time used"
    yield of_count(sum(len(each.started) for each in rounds), "start")
    yield of_count(sum(len(each.preempted) for each in rounds), "preemption")
    if delivery is not None:
        yield f"{delivery.undelivered_share:.2%} of what was promised is still owed"
