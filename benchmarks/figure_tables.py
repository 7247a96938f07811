"""The cells as Markdown tables: each curve beside the published one, and the effect of each variant."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

import tables
from figure_cells import Cell, Played
from figure_curves import LABELS, Figure

__all__ = ["curve_table", "hours_of", "variant_table"]

Results = Mapping[Cell, Played]


def hours_of(results: Results, figure: Figure, curve: str, x: float) -> list[float]:
    """Return the hours of all seeds of a point, in the order of the seeds."""
    key = (figure.key, curve, x, figure.window_of(x))
    found = {cell.seed: played.hours for cell, played in results.items() if (cell.figure, cell.curve, cell.x, cell.window) == key}
    return [found[seed] for seed in sorted(found)]


def curve_table(results: Results, figure: Figure) -> str:
    """Return a row for each x: for each curve our mean and the published one, then the published curves without ours."""
    ours = [each.key for each in figure.curves]
    told = {key for values in figure.published.values() for key in values}
    header = ["jobs" if figure.is_static else "jobs/h"]
    for curve in figure.curves:
        header += [curve.label, "published"] if curve.key in told else [curve.label]
    others = [key for key in LABELS if key in told and key not in ours]
    header += [f"published {LABELS[key]}" for key in others]
    rows = []
    for x in figure.xs:
        published = figure.published.get(x, {})
        row: list[object] = [f"{x:g}"]
        for curve in figure.curves:
            row.append(_text(hours_of(results, figure, curve.key, x), figure.seeds if x == figure.at else 1))
            row += [_one(published.get(curve.key))] if curve.key in told else []
        rows.append([*row, *(_one(published.get(key)) for key in others)])
    return tables.markdown(header, rows)


def variant_table(results: Results, figure: Figure) -> str:
    """Return a row for each curve and variant at the compared x with seed 0, the same jobs for all."""
    rows = []
    for curve in (*figure.curves, *figure.variants):
        key = (figure.key, curve.key, figure.at, 0, figure.window)
        for cell, played in results.items():
            if (cell.figure, cell.curve, cell.x, cell.seed, cell.window) == key:
                median, alone = _one(played.median_hours), _one(played.alone_hours)
                rows.append([curve.label, _one(played.hours), median, alone, f"{100 * played.undelivered:.2f}"])
    header = ["variant", "hours", "median completion time", "alone on V100, mean", "undelivered, %"]
    return tables.markdown(header, rows)


def _text(hours: list[float], seeds: int) -> str | None:
    """Return the mean; with several seeds also the range, and the number of seeds if some are missing."""
    if not hours:
        return None
    mean = f"{fmean(hours):.1f}"
    told = [f"{min(hours):.1f} to {max(hours):.1f}"] * (len(hours) > 1)
    told += [f"of {len(hours)} of {seeds} seeds"] * (len(hours) < seeds)
    return f"{mean} ({', '.join(told)})" if told else mean


def _one(hours: float | None) -> str | None:
    return None if hours is None else f"{hours:.1f}"
