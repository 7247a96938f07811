"""The bytes of a chart as a file, the same for the same chart under one version of matplotlib.

Charts drawn with matplotlib, which comes with `gavel-py[plot]`; nothing outside imports it for them.

frame: size, letters, axes and legends; lines, bars, points, heat, stays: one kind of chart each; files: bytes of an SVG or PNG.
"""

from __future__ import annotations

import io
import warnings

import matplotlib as mpl
from matplotlib.figure import Figure

from gavel_py.report.charts import Bars, Chart, Heat, Lines, Points
from gavel_py.report.figures.shapes import STYLE, bars_figure, heat_figure, lines_figure, points_figure, put_title, stays_figure

__all__ = ["figure_bytes"]

DPI = 150


def figure_bytes(chart: Chart, form: str, *, alone: bool = False) -> bytes:
    """Return the chart as the bytes of an SVG or PNG file (form: "svg", "png"), in the colours of the light page.

    alone: with its title and a white ground, for a file that stands by itself; otherwise a page has these.
    """
    with mpl.rc_context(), warnings.catch_warnings():
        # Letters that the font does not have are drawn as boxes in a PNG, and by the viewer's font in an SVG.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        mpl.rcdefaults()  # the same chart, whatever the user's settings
        mpl.rcParams.update(STYLE)
        content = io.BytesIO()
        metadata = {"Date": None, "Creator": None} if form == "svg" else {"Software": None}
        figure = _figure(chart)
        if alone:
            put_title(figure, chart.title)
        figure.savefig(content, format=form, dpi=DPI, metadata=metadata, facecolor="white" if alone else "none")
        return content.getvalue()


def _figure(chart: Chart) -> Figure:
    drawing = chart.drawing
    if isinstance(drawing, Lines):
        return lines_figure(drawing)
    if isinstance(drawing, Bars):
        return bars_figure(drawing)
    if isinstance(drawing, Points):
        return points_figure(drawing)
    return heat_figure(drawing) if isinstance(drawing, Heat) else stays_figure(drawing)
