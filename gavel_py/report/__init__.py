"""Runs as plain data, reports that compare them, and Gantt charts of rounds.

`write_report` turns runs into a page with summaries and charts; `plot_rounds` draws the rounds of a scheduler;
`AllocationView` draws an allocation from records. A report is independent of simulators and clusters: it reads the record of a run
that both produce (`runs`). matplotlib and jinja2 are imported only for drawing.
"""

from gavel_py import names_in
from gavel_py.io.writing import check_plot, check_report, check_writable
from gavel_py.report.rounds_plot import plot_rounds
from gavel_py.report.run_report import write_report

__all__ = ["check_plot", "check_report", "check_writable", "plot_rounds", "write_report"]

__getattr__, __dir__, _ = names_in(__name__)
