"""Workloads: traces of submitted jobs, read from many formats, generated, sampled, cut and summarised."""

from gavel_py.throughput_profiles.extrapolation import extend_profile
from gavel_py.workloads.formats import trace_formats
from gavel_py.workloads.generator import Empirical, LogUniform, generate_trace
from gavel_py.workloads.job_types import assign_job_types, assume_durations
from gavel_py.workloads.reading import read_trace, trace_text
from gavel_py.workloads.submission import Skipped, Submission, TraceReport
from gavel_py.workloads.summary import TraceSummary, describe_trace, plot_trace
from gavel_py.workloads.trace import Trace

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
