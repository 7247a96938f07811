"""The figures as SVG or PNG, depending on the suffix: our curves as lines, published values as rings of the same colour."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from figure_cells import Cell, Played
from figure_curves import LABELS, Figure
from figure_tables import hours_of

__all__ = ["draw"]

COLOURS = {"aware": "#0072B2", "agnostic": "#D55E00", "fifo-bug": "#D55E00", "fifo": "#E69F00", "fairness": "#009E73"}
COLOURS |= {"gandiva": "#CC79A7", "sharing": "#56B4E9"}
"""Colours that can be distinguished with any colour vision."""

HIGHEST = 130.0
"""Upper limit of the axis: larger mean completion times only show that the queue grows without end."""

STYLE: dict[Any, Any] = {
    "svg.hashsalt": "gavel-py",  # equal cells give equal bytes
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def draw(results: Mapping[Cell, Played], figure: Figure, path: Path) -> None:
    """Draw one figure."""
    import matplotlib as mpl
    from matplotlib.figure import Figure as Canvas

    with mpl.rc_context(STYLE):
        canvas = Canvas(figsize=(7, 4), layout="constrained")
        axes = canvas.subplots()
        _ours(axes, results, figure)
        _published(axes, figure)
        axes.set(title=figure.title, xlabel=figure.x_label, ylabel=figure.y_label)
        axes.set_ylim(0, None if figure.is_static else min(HIGHEST, axes.get_ylim()[1]))
        axes.legend(frameon=False, fontsize=8, loc="upper left")
        canvas.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)


def _ours(axes: Any, results: Mapping[Cell, Played], figure: Figure) -> None:
    for curve in figure.curves:
        points = [(x, hours) for x in figure.xs if (hours := hours_of(results, figure, curve.key, x))]
        means = [fmean(hours) for _, hours in points]
        spans = [
            [m - min(h) for m, (_, h) in zip(means, points, strict=True)],
            [max(h) - m for m, (_, h) in zip(means, points, strict=True)],
        ]
        colour = COLOURS[curve.key]
        axes.errorbar(
            [x for x, _ in points], means, spans, color=colour, marker="o", markersize=3, linewidth=1.5, label=curve.label
        )


def _published(axes: Any, figure: Figure) -> None:
    labels = LABELS | {each.key: each.label for each in figure.curves}
    for key in dict.fromkeys(key for values in figure.published.values() for key in values):
        points = [(x, values[key]) for x, values in figure.published.items() if key in values]
        ring = {"marker": "o", "markersize": 8, "markerfacecolor": "none", "linestyle": ":", "linewidth": 1.0}
        axes.plot(*zip(*points, strict=True), color=COLOURS[key], label=f"published: {labels[key]}", **ring)
