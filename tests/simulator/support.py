"""Files of saved simulations, as a fault would have left them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gavel_py.simulator.simulation import SIMULATION

__all__ = ["saved_state", "write_state"]


def saved_state(path: str | Path) -> dict[str, Any]:
    """Return what a file holds."""
    return SIMULATION.read(path)


def write_state(path: str | Path, state: dict[str, Any]) -> None:
    """Write a file with a valid checksum, whatever it holds."""
    SIMULATION.write(path, state)
