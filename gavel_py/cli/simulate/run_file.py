"""The file of --run-out: each policy's run, as reports and pictures show it."""

from __future__ import annotations

from collections.abc import Sequence

import gavel_py as gp
from gavel_py.cli.simulate.options import Request
from gavel_py.cli.simulate.played import YARDSTICK, Played

__all__ = ["check_run_file", "write_run_file"]


def check_run_file(request: Request) -> None:
    """Raise `InputError` if the file cannot be written, before hours have gone into what it is to hold."""
    if request.run_out is not None:
        gp.write_runs(request.run_out, [])


def write_run_file(request: Request, all_played: Sequence[Played]) -> None:
    """Write the runs of the policies that were played, if that is asked for."""
    if request.run_out is None:
        return
    isolated = next((_jcts(played) for played in all_played if played.policy.name == YARDSTICK), None)
    gp.write_runs(request.run_out, [_run(request, played, isolated) for played in all_played])


def _run(request: Request, played: Played, isolated: dict[str, float] | None) -> gp.Run:
    assert played.recorder is not None  # noqa: S101
    labels: dict[str, str | float | None] = {
        "policy": played.label,
        "trace": request.trace_file.name,
        "load": None,
        "cluster": request.cluster,
        "seed": request.seed,
        "round_seconds": request.round_seconds if played.in_rounds else None,
    }
    return played.recorder.run(labels, played.result.summary, isolated)


def _jcts(played: Played) -> dict[str, float]:
    return {} if played.recorder is None else played.recorder.jct_seconds
