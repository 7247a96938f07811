"""The lines of the log that tell of rounds."""

from __future__ import annotations

from typing import Any

from gavel_py.integrations.slurm.applying import Applied
from gavel_py.integrations.slurm.deciding import Decided

__all__ = ["applied_line", "round_line"]


def round_line(decided: Decided) -> dict[str, Any]:
    """Return what was decided, and what a report needs to know of it."""
    begun, moves = decided.begun, decided.moves
    return {
        "round": begun.index,
        "keep": list(moves.keep),
        "stop": list(moves.stop),
        "hold": list(moves.hold),
        "start": {job_id: dict(target) for job_id, target in moves.start.items()},
        "cannot": dict(moves.cannot),
        "give_back": dict(moves.give_back),
        "excluded": begun.excluded,
        "refused": dict(decided.picture.refused),
        **decided.account(),
    }


def applied_line(applied: Applied) -> dict[str, Any]:
    """Return what came of it."""
    return {
        "started": applied.started,
        "elsewhere": applied.elsewhere,
        "waiting": applied.waiting,
        "left": applied.left,
        "lingering": applied.lingering,
        "given_back": applied.given_back,
        "errors": applied.errors,
        "stop_seconds": round(applied.stop_seconds, 3),
        "start_seconds": round(applied.start_seconds, 3),
    }
