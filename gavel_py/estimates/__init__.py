"""Estimates of unmeasured throughputs, with intervals: fitted to a profile, learned from running jobs, checked against an answer.

Entry points: `estimated_profile` (`EstimatedProfile`), `learning` (`ThroughputLearner`, which a scheduler takes instead of a
profile), `evaluation` (`check_estimates`, `plan_measurements`), `regret` (`sensitivity`).
"""

from gavel_py import names_in
from gavel_py.estimates.estimated_profile import Estimate, EstimatedProfile
from gavel_py.estimates.estimator import Estimates, FittedEstimator, ThroughputEstimator
from gavel_py.estimates.evaluation import (
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
