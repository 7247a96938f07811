"""How much time each job type has on each accelerator type, as colours with the numbers in them."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from gavel_py.report.charts import Heat
from gavel_py.report.colours import is_dark
from gavel_py.report.figures.frame import SMALL, new_figure
from gavel_py.report.safe_text import shortened

__all__ = ["heat_figure"]

ROW = 19.0
LONGEST_ROW, LONGEST_COLUMN = 26, 12
BLACK, WHITE = "#000000", "#fefefe"
"""Letters on colours that are the same on a light page and on a dark one."""


def heat_figure(heat: Heat) -> Figure:
    """Draw the cells; the colours go from dark to light, which tells more from less without any hue."""
    figure = new_figure(40 + ROW * len(heat.rows))
    axes = figure.subplots()
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.xaxis.tick_top()
    for spine in axes.spines.values():
        spine.set_visible(False)
    colours = mpl.colormaps["cividis"]
    for row, column in np.argwhere(np.isfinite(heat.values)).tolist():
        share = float(heat.values[row, column])
        colour = to_hex(colours(min(1.0, max(0.0, share))))
        axes.fill([column, column + 1, column + 1, column], [row, row, row + 1, row + 1], color=colour, linewidth=0)
        ink = WHITE if is_dark(colour) else BLACK
        axes.text(column + 0.5, row + 0.5, f"{share:.0%}", color=ink, ha="center", va="center", size=SMALL)
    axes.set_xlim(0, len(heat.columns))
    axes.set_ylim(len(heat.rows), 0)
    slanted = 0 if len(heat.columns) <= 4 else 40
    names = [shortened(name, LONGEST_COLUMN) for name in heat.columns]
    axes.set_xticks(np.arange(len(names)) + 0.5, names, rotation=slanted, ha="left" if slanted else "center")
    axes.set_yticks(np.arange(len(heat.rows)) + 0.5, [shortened(name, LONGEST_ROW) for name in heat.rows])
    return figure
