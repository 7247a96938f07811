"""The published comparison on 36 V100, 36 P100 and 36 K80, reproduced: completion times against load, and makespan.

    python benchmarks/gavel_figures.py --store cells.jsonl            print the tables
    python benchmarks/gavel_figures.py --store cells.jsonl --write    and put them, and the pictures, into docs/
    python benchmarks/gavel_figures.py --only makespan                one of: single, gangs, fifo, makespan
    python benchmarks/gavel_figures.py --quick                        a small cluster and few jobs: seconds, and no result

Each finished cell is a line in the store, so that an interrupted run can be continued.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import tables
from figure_cells import Cell, Scale
from figure_curves import FIGURES, Figure, Window
from figure_pictures import draw
from figure_store import run
from figure_tables import Results, curve_table, variant_table

PAGE = Path(__file__).parents[1] / "docs" / "published-comparison.md"
FULL, QUICK = Scale(), Scale(gpus=8, round_seconds=14400.0)
QUICK_WINDOW = Window(3, 9)


def cells_of(figure: Figure, scale: Scale) -> Iterator[Cell]:
    """Return the cells of a figure, those of the published point first, since a run may be interrupted."""
    at = figure.at
    for x in sorted(figure.xs, key=lambda each: each != at):
        yield from (Cell(figure.key, curve.key, x, 0, figure.window_of(x), scale) for curve in figure.curves)
    for curve in figure.variants:
        yield Cell(figure.key, curve.key, at, 0, figure.window_of(at), scale)
    for seed in range(1, figure.seeds):
        yield from (Cell(figure.key, curve.key, at, seed, figure.window_of(at), scale) for curve in figure.curves)


def text_of(figure: Figure, results: Results) -> str:
    """Return the tables of a figure, with a line below each."""
    command = f"`python benchmarks/gavel_figures.py --only {figure.key} --write`"
    at, others = (f"jobs {each.first:,} to {each.end - 1:,}" for each in map(figure.window_of, (figure.at, figure.xs[0])))
    seeds = f"{figure.seeds} seeds at {figure.at:g}, least and most in brackets; one elsewhere" if figure.seeds > 1 else "one seed"
    counted = "" if figure.is_static else f"; measured: {at} at {figure.at:g}, {others} elsewhere" if at != others else f"; {at}"
    below = f"Hours; {seeds}{counted}; {command}."
    return f"{curve_table(results, figure)}\n{below}\n\n{variant_table(results, figure)}\nAt {figure.at:g}, seed 0, hours.\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"put tables and pictures into docs/{PAGE.name}")
    parser.add_argument("--only", choices=[each.key for each in FIGURES], help="one of the figures")
    parser.add_argument("--workers", type=int, default=1, help="processes that play cells; 0: play none, show what is in the store")
    parser.add_argument("--store", type=Path, metavar="FILE", help="finished cells, read and appended to")
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="draw PNG files there")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    if options.quick and options.write:
        parser.error("--quick gives no result that could be written")
    scale = QUICK if options.quick else FULL
    figures = [each for each in FIGURES if options.only in (None, each.key)]
    figures = [each.scaled(QUICK.gpus / FULL.gpus, QUICK_WINDOW) for each in figures] if options.quick else figures
    cells = [cell for each in figures for cell in cells_of(each, scale)]
    results = run(cells, options.store, options.workers)
    for figure in figures:
        text = text_of(figure, results)
        print(f"\n## {figure.title}\n\n{text}", flush=True)
        if options.pictures is not None:
            draw(results, figure, options.pictures / f"published-{figure.key}.png")
        if options.write:
            tables.write(f"published-{figure.key}", text, PAGE)
            draw(results, figure, PAGE.with_name(f"published-{figure.key}.svg"))


if __name__ == "__main__":
    main()
