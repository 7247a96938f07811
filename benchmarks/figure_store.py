"""Finished cells in a file, one JSON line each, so that an interrupted run can be continued."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

from figure_cells import Cell, Played, Scale, play
from figure_curves import Window

__all__ = ["finished", "run"]


def finished(path: Path) -> dict[Cell, Played]:
    """Return the cells in a file, none if it does not exist. The last line of a cell counts, and a truncated line is ignored."""
    cells = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        where = record["cell"]
        parts = {"window": Window(**where["window"]), "scale": Scale(**where["scale"])}
        cells[Cell(**where | parts)] = Played(**record["played"])
    return cells


def run(cells: Iterable[Cell], path: Path | None, workers: int) -> Mapping[Cell, Played]:
    """Simulate the cells that are not in the file, in this number of processes, and append each to it; 0: simulate none."""
    wanted = list(dict.fromkeys(cells))
    results = {} if path is None else finished(path)
    left = [cell for cell in wanted if cell not in results] if workers else []
    for number, (cell, played) in enumerate(_played(left, workers), 1):
        results[cell] = played
        where = f"{cell.figure} {cell.curve} {cell.x:g}, seed {cell.seed}"
        print(f"{number}/{len(left)} {where}: {played.hours:.2f} h, took {played.seconds:.0f} s", flush=True)
        if path is not None:
            _append(path, cell, played)
    return {cell: results[cell] for cell in wanted if cell in results}


def _append(path: Path, cell: Cell, played: Played) -> None:
    cut_off = path.exists() and not path.read_text().endswith("\n") and path.stat().st_size > 0
    with path.open("a") as file:
        file.write("\n" * cut_off + json.dumps({"cell": asdict(cell), "played": asdict(played)}) + "\n")


def _played(cells: list[Cell], workers: int) -> Iterator[tuple[Cell, Played]]:
    if workers == 1 or not cells:
        yield from map(_one, cells)
        return
    with get_context("spawn").Pool(workers) as pool:
        yield from pool.imap_unordered(_one, cells, chunksize=1)


def _one(cell: Cell) -> tuple[Cell, Played]:
    return cell, play(cell)
