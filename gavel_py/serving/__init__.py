"""Serving: models with request rates and latency targets on the GPUs of a cluster.

Entry points: `services` (`Service`, `ServingProfile`, `read_services`), `requests` and `attainment` (`RequestTrace`,
`simulate_requests`, `rate_at_slo`), `placement` (`place_models`), `plan` (`plan_serving`), `over_time`
(`plan_over_time`). The package reads clusters, profiles and allocations of training jobs. It is independent of the job simulator
and of sweeps.
"""

from gavel_py import names_in
from gavel_py.serving.attainment import RateAtSlo, RequestResult, RequestScenario, rate_at_slo, simulate_many, simulate_requests
from gavel_py.serving.joint_plan import JointPlan, plan_jointly
from gavel_py.serving.over_time import (
    PlanOutcome,
    ServingSchedule,
    ServingScheduleOptions,
    demand_curve,
    plan_over_time,
    replayed_schedule,
)
from gavel_py.serving.pictures import AttainmentCurve, attainment_curve, plot_attainment, plot_serving_gpus
from gavel_py.serving.placement import place_models, read_groups
from gavel_py.serving.plan import ServingPlan, ServingPlanOptions, beside_training, plan_serving
from gavel_py.serving.replay import ModelPlacement, PlanReplay, replayed_placement, replayed_plan
from gavel_py.serving.requests import Bucket, RequestTrace
from gavel_py.serving.services import Service, ServingProfile, ServingRate, read_services
from gavel_py.serving.shapes import simulated_rates
from gavel_py.serving.simulation import ModelGroup, ServingOverheads

__all__ = [
    "AttainmentCurve",
    "Bucket",
    "JointPlan",
    "ModelGroup",
    "ModelPlacement",
    "PlanOutcome",
    "PlanReplay",
    "RateAtSlo",
    "RequestResult",
    "RequestScenario",
    "RequestTrace",
    "Service",
    "ServingOverheads",
    "ServingPlan",
    "ServingPlanOptions",
    "ServingProfile",
    "ServingRate",
    "ServingSchedule",
    "ServingScheduleOptions",
    "attainment_curve",
    "beside_training",
    "demand_curve",
    "place_models",
    "plan_jointly",
    "plan_over_time",
    "plan_serving",
    "plot_attainment",
    "plot_serving_gpus",
    "rate_at_slo",
    "read_groups",
    "read_services",
    "replayed_placement",
    "replayed_plan",
    "replayed_schedule",
    "simulate_many",
    "simulate_requests",
    "simulated_rates",
]

__getattr__, __dir__, _ = names_in(__name__)
