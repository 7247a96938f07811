"""Pictures of what was decided, and reports of what came of it.

Rounds: lanes: where each GPU is drawn; round_grid: who has it when; bars: stays of gangs on GPUs; colours: one for each job;
time_marks: round numbers and times along the picture; layout: where things stand; drawing: draws them; rounds_plot: the whole.

Runs: settings: which are compared; estimates: means over seeds; measures: how metrics are shown; summary: the table; cast: who is
drawn; load_charts, distribution_charts, time_charts, tradeoffs, place_charts: charts as data (charts), thinned; stay_lanes: where
gangs were; tones: colours; figures: draws charts; embedding: makes them parts of a page; sections, page: the page; run_report:
all.
"""

from gavel_py.io.writing import check_plot, check_report
from gavel_py.report.run_report import write_report
from gavel_py.report.timeline_drawing import plot_rounds

__all__ = ["check_plot", "check_report", "plot_rounds", "write_report"]
