"""Estimates of unmeasured throughputs, with intervals."""

from gavel_py import names_in
from gavel_py.throughput_profiles.estimation.estimated_profile import Estimate, EstimatedProfile
from gavel_py.throughput_profiles.estimation.estimates import Estimates, FittedEstimator, ThroughputEstimator
from gavel_py.throughput_profiles.estimation.evaluation import (
    EstimateCheck,
    PlannedMeasurement,
    check_estimates,
    contradictions,
    plan_measurements,
)

__all__ = [
    "Estimate",
    "EstimateCheck",
    "EstimatedProfile",
    "Estimates",
    "FittedEstimator",
    "PlannedMeasurement",
    "ThroughputEstimator",
    "check_estimates",
    "contradictions",
    "plan_measurements",
]

__getattr__, __dir__, _ = names_in(__name__)
