"""Pictures of what was decided, and reports of what came of it.

Rounds: timeline: lanes of GPUs, the jobs on them and their colours; timeline_layout: where things stand; timeline_drawing: draws
them.

Runs: runs: runs as plain data, and their files; settings: which are compared, and their summary; measures: means over seeds, and
how metrics are shown; charts: charts as data, and their styles; run_charts: the charts of a setting; figures: draws charts;
run_report: the page and all its files.
"""

from gavel_py.io.writing import check_plot, check_report
from gavel_py.report.run_report import write_report
from gavel_py.report.timeline_drawing import plot_rounds

__all__ = ["check_plot", "check_report", "plot_rounds", "write_report"]
