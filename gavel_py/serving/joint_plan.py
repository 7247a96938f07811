"""One answer for services and training jobs: the replicas that leave training the best objective of its policy.

Replicas hold their GPUs all the time, on nodes of their own choice, and training jobs divide the rest. Which replicas is decided by
a search (`joint_search`); what they hold counts for the shares and limits of their tenants (`held`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

import numpy as np

from gavel_py.allocation.solver import Solver
from gavel_py.errors import Fault, InputError, ProofError
from gavel_py.io.tabular import Rows
from gavel_py.policies import Policy, resolve_policy
from gavel_py.problem.accelerators import same_accelerator
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.problem import AllocationProblem
from gavel_py.problem.tolerances import PROOF_TOLERANCE
from gavel_py.serving.held import rules_of
from gavel_py.serving.joint_search import JointSearch, Tried, with_gpus
from gavel_py.serving.market import check_feasible, gpus_of, named_market
from gavel_py.serving.plan import DEFAULTS, BoundedPlan, ServingPlan, ServingPlanOptions, stated, type_of, work_gained
from gavel_py.serving.replicas import relaxed
from gavel_py.serving.whole_replicas import WholePlan, best_level, whole_plan

if TYPE_CHECKING:
    from gavel_py.allocation.result import Allocation
    from gavel_py.problem.job import Job
    from gavel_py.problem.profile import Profile
    from gavel_py.serving.keywords import PlanKeywords
    from gavel_py.serving.services import Service, ServingProfile

NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, eq=False)
class JointPlan(BoundedPlan):
    """Whole replicas for services, and the allocation of training jobs on the rest of the cluster.

    Attributes:
        POLICIES: Names of the policies of training that can decide on replicas: the objective, or that of the first level, is found
            by one program, and is no better with fewer GPUs.
        serving: The replicas and the routes of requests.
        places: A row for each replica, or stage of one: service, replica, node, GPUs.
        whole: The cluster.
        cluster: The rest of it, on which training jobs run.
        problem: The training jobs on it, with the normalisers of the whole cluster.
        policy: The policy of the training jobs, which counts the replicas of tenants as parts of their shares.
        training: The allocation of the training jobs.
        value: The training objective; of policies in levels, that of the first level.
        bound: No replicas that serve the floors leave a better one, up to `gap`.
        costs: A row for each row of replicas: the training objective without one of them, and the part of its work Σ s_i v_i that
            each tenant would gain; None for a tenant without work.
    """

    POLICIES: ClassVar[tuple[str, ...]] = (
        *("max_min_fairness", "max_total_throughput", "min_makespan", "min_cost", "finish_time_fairness"),
        *("water_filling", "hierarchical"),
    )

    serving: ServingPlan
    places: Rows
    whole: Cluster
    cluster: Cluster
    problem: AllocationProblem
    policy: Policy
    training: Allocation
    value: float
    bound: float
    costs: Rows

    @property
    def gpus_of_services(self) -> dict[str, int]:
        """{tenant: GPUs that the replicas of its services take}, "" for services without a tenant."""
        tenants, found = {service.name: service.tenant or "" for service in self.serving.services}, dict[str, int]()
        for row in self.serving.replicas:
            tenant = tenants[row["service"]]
            found[tenant] = found.get(tenant, 0) + row["num_gpus"] * row["replicas"]
        return found

    def verify(self) -> None:
        """Check the replicas, their nodes and the allocation of training jobs without a solver; the bound follows from a search.

        Raises:
            ProofError: Replicas exceed a limit or a node, requests are lost, or the allocation does not hold.
        """
        self.serving.verify()
        for name, used in self.serving.gpus_used.items():
            placed = sum(row["num_gpus"] for row in self.places if row["accelerator"] == name)
            if placed != used:
                raise ProofError(f"replicas take {used} GPUs of {name}, but {placed} are on nodes")
        for node, rest in zip(self.whole.nodes, self.cluster.nodes, strict=True):
            placed = sum(row["num_gpus"] for row in self.places if row["node"] == node.name)
            if node.name != rest.name or placed + rest.num_gpus != node.num_gpus:
                raise ProofError(
                    f"node {node.name!r} has {node.num_gpus} GPUs: {placed} for replicas, {rest.num_gpus} for training"
                )
        self.training.verify()

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data, for JSON."""
        serving = self.serving.to_dict()
        names = ("served_fractions", "replicas", "routes", "gpus_used", "gpus_free", "price_per_hour", "notes")
        own = {
            "value": self.value,
            "bound": self.bound,
            "gap": self.gap,
            "status": self.status,
            "places": list(self.places),
            "costs": list(self.costs),
        }
        return {name: serving[name] for name in names} | own


def plan_jointly(
    services: Iterable[Service],
    jobs: Iterable[Job],
    cluster: Cluster,
    rates: ServingProfile,
    profile: Profile,
    policy: str | Policy = "max_min_fairness",
    *,
    options: ServingPlanOptions = DEFAULTS,
    problem_options: Mapping[str, Any] = NO_OPTIONS,
    **changes: Unpack[PlanKeywords],
) -> JointPlan:
    """Return whole replicas that serve the floors of services, and the best allocation of training jobs that any of them leave.

    Replicas hold their GPUs all the time, so that training never interrupts them. Among all plans of replicas on the nodes, the
    one is chosen under which the training jobs have the best objective of the policy.

    Args:
        services: The services, each with a rate or a trace.
        jobs: The training jobs.
        cluster: The whole cluster.
        rates: The rates of replicas.
        profile: The throughputs of the training jobs.
        policy: One of `JointPlan.POLICIES`. Of `water_filling` and `hierarchical`, the first level decides on the replicas, as if
            these held nothing for their tenants; what they hold counts when all levels are then solved.
        options: What the replicas must keep to. Floors are 1 by default, all demand at its SLO.
        problem_options: Arguments of `AllocationProblem.from_jobs`.
        **changes: Fields of `ServingPlanOptions` that replace those of `options`.

    Raises:
        ConflictError: The floors do not fit on these GPUs; the error names a minimal set of services and limits.
        InputError: A service, job, policy or option is wrong.
        SolverError: No plan was found in time.
    """
    services, policy = tuple(services), resolve_policy(policy)
    if policy.name not in JointPlan.POLICIES or policy.is_agnostic:
        text = f"cannot decide beside services; these can, without agnostic: {', '.join(JointPlan.POLICIES)}"
        raise InputError(Fault(f"policy {policy.name}", "", text))
    options = options.changed(**changes)
    floors, budget, quotas = options.limits
    floors = dict.fromkeys((service.name for service in services), 1.0) | dict(floors)
    # Types without replicas are for training jobs alone: a warning that they are ignored would be wrong.
    useful = [name for name in cluster.accelerator_names if same_accelerator(name, rates.accelerators)]
    there, rules = cluster.restricted_to(useful) if useful else cluster, rules_of(policy, cluster)
    market = named_market(services, there, rates, "max_min", floors, budget, quotas, rules)
    jobs = list(jobs)
    check_feasible(market)

    def build(some: Cluster) -> AllocationProblem:
        return AllocationProblem.from_jobs(jobs, some, profile, **problem_options)

    search = JointSearch(market, cluster, build, policy, options.limit)
    best, value, bound = search.best()
    problem, solver = search.build(best.rest), Solver(search.held(best.replicas).policy(policy))
    training = solver.solve(problem)
    if options.above_floors:
        best = _with_spare_gpus(search, best, training, solver)
        problem = search.build(best.rest)
        training = solver.solve(problem)
    levels = [best_level(columns, y)[0] for columns, y in zip(market.market.services, best.replicas, strict=True)]
    relaxation = relaxed(market.market)
    serving = stated(
        market, "max_min", WholePlan(best.replicas, np.array(levels), min(levels), relaxation.bound), relaxation.multipliers
    )
    costs = Rows(_costs(serving, best, training, lambda rest: solver.solve(search.build(rest))))
    return JointPlan(serving, best.places, cluster, best.rest, problem, solver.policy, training, value, bound, costs)


def _with_spare_gpus(search: JointSearch, best: Tried, training: Allocation, solver: Solver) -> Tried:
    """Return a plan with replicas on GPUs that training never needs, the same plan if that is none or some tenant would lose."""
    market, problem = search.market, search.build(best.rest)
    needed = np.where(training.time_fractions > 0, problem.most_gpus_by_type, 0.0).sum(axis=0)
    spare = search.same @ np.floor(np.maximum(problem.capacities - needed, 0.0))
    limits, names = market.market.limits.copy(), market.cluster.accelerator_names
    limits[[market.limit_names.index(gpus_of(name)) for name in names]] = np.where(
        search.same.any(axis=1), best.gpus + spare, market.cluster.capacities
    )
    rates = [
        service.weight * columns.demand.sum() for service, columns in zip(market.services, market.market.services, strict=True)
    ]
    more = replace(market.market, limits=limits, gains=np.array(rates), common=0.0)
    found = whole_plan(more, relaxed(more), search.limit)
    placed = None if found is None else search.placed(found.replicas)
    if found is None or placed is None:
        return best
    gained = work_gained(training, solver.solve(search.build(placed[1])))
    is_free = all(part is None or part >= -PROOF_TOLERANCE for part in gained.values())
    return best._replace(replicas=found.replicas, places=placed[0], rest=placed[1]) if is_free else best


def _costs(
    serving: ServingPlan, best: Tried, training: Allocation, solved: Callable[[Cluster], Allocation]
) -> Iterator[dict[str, Any]]:
    """Yield what training would have with the GPUs of one replica of each row."""
    for row in serving.replicas:
        name = str(type_of(row))
        free = {node.name: node.num_gpus for node in best.rest.nodes}
        for place in best.places:
            if (place["service"], place["replica"], place["number"]) == (row["service"], name, 1):
                free[place["node"]] += place["num_gpus"]
        other = solved(with_gpus(best.rest, free))
        objectives = {"objective": training.objective_value, "objective_without_replica": other.objective_value}
        yield {"service": row["service"], "replica": name, **objectives, "work_gained": work_gained(training, other)}
