"""Throughput profiles: steps/s of each job type on each accelerator type, built in, read from files or kept in a store."""

from gavel_py import names_in
from gavel_py.problem.accelerators import AcceleratorSpec, AcceleratorTable
from gavel_py.throughput_profiles.files import Entry, Measurement
from gavel_py.throughput_profiles.formats import profile_formats
from gavel_py.throughput_profiles.matrix import ThroughputMatrix
from gavel_py.throughput_profiles.profile import ThroughputProfile
from gavel_py.throughput_profiles.store import ProfileSummary, ThroughputStore

__all__ = [
    "AcceleratorSpec",
    "AcceleratorTable",
    "Entry",
    "Measurement",
    "ProfileSummary",
    "ThroughputMatrix",
    "ThroughputProfile",
    "ThroughputStore",
    "profile_formats",
]

__getattr__, __dir__, _ = names_in(__name__, "gavel_py.estimates")
