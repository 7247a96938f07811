"""Pictures of what was decided.

lanes: where each GPU is drawn; round_grid: who has it when; bars: stays of gangs on GPUs; colours: one for each job; time_marks:
round numbers and times along the picture; drawing: the only module that knows matplotlib; picture_file: a file written whole.
"""

from gavel_py.picture_files import check_plot
from gavel_py.report.rounds_plot import plot_rounds

__all__ = ["check_plot", "plot_rounds"]
