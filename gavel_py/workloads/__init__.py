"""Workloads: traces of submitted jobs, read from many formats, generated, cut and described."""

from gavel_py.throughput_profiles.extrapolation import extend_profile
from gavel_py.workloads.durations import Empirical, LogUniform
from gavel_py.workloads.formats import trace_formats
from gavel_py.workloads.generator import generate_trace
from gavel_py.workloads.job_types import assign_job_types
from gavel_py.workloads.picture import plot_trace
from gavel_py.workloads.read import read_trace
from gavel_py.workloads.report import Skipped, TraceReport
from gavel_py.workloads.run_times import assume_durations
from gavel_py.workloads.submission import Submission
from gavel_py.workloads.summary import TraceSummary, describe_trace
from gavel_py.workloads.trace import Trace
from gavel_py.workloads.write import trace_text

__all__ = [
    "Empirical",
    "LogUniform",
    "Skipped",
    "Submission",
    "Trace",
    "TraceReport",
    "TraceSummary",
    "assign_job_types",
    "assume_durations",
    "describe_trace",
    "extend_profile",
    "generate_trace",
    "plot_trace",
    "read_trace",
    "trace_formats",
    "trace_text",
]
