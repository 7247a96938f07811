"""Charts drawn with matplotlib, which comes with `gavel-py[plot]`; nothing outside imports it for them.

frame: size, letters, axes and legends; lines, bars, points, heat, stays: one kind of chart each; files: bytes of an SVG or PNG.
"""

from gavel_py.report.figures.files import figure_bytes

__all__ = ["figure_bytes"]
