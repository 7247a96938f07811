"""Throughput profiles: how fast each job type runs on each accelerator; built-in, from files, and in a store of one's own."""

from gavel_py.throughput_profiles.matrix import ThroughputMatrix
from gavel_py.throughput_profiles.measurement import Entry, Measurement
from gavel_py.throughput_profiles.profile import ThroughputProfile
from gavel_py.throughput_profiles.store import ProfileSummary, ThroughputStore

__all__ = ["Entry", "Measurement", "ProfileSummary", "ThroughputMatrix", "ThroughputProfile", "ThroughputStore"]
