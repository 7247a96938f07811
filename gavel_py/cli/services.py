"""Services beside training jobs: the options of commands that take both, and what they say of the replicas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gavel_py as gp
from gavel_py.cli import estimates
from gavel_py.cli.inputs import INPUT, INPUT_OR_TEXT, OF_PROBLEM, Inputs, Output, assignments, main_option, option
from gavel_py.cli.output import money, number
from gavel_py.cli.tables import Column, columns_text, folded_names, wrapped
from gavel_py.cli.usage import refuse

PROFILE_FILES = (".csv", ".yaml", ".yml", ".json")

RATES: Mapping[str, Any] = {
    "type": INPUT_OR_TEXT,
    "default": "trtllm",
    "show_default": True,
    "metavar": "NAME|FILE",
    "help": "Rates of replicas: a CSV or YAML file, or a built-in profile.",
}

FLOOR: Mapping[str, Any] = {
    "metavar": "SERVICE=T",
    "help": "Least served fraction of a service; may be repeated [1: all of its demand].",
}

NONE = "nothing"


@dataclass(frozen=True)
class ServicesOptions(Output):
    """Options of services beside training jobs."""

    services: Path | None = main_option("Input", type=INPUT, metavar="FILE", help="Services, whose whole replicas get GPUs first.")
    rates: str = option("Input", **RATES)
    floor: tuple[str, ...] = option("Input", **FLOOR)
    above_floors: bool = option("Input", help="With --floor: let services also use GPUs that training never needs.")

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(
            (self.services is None and self.floor, "--floor is about services; give --services FILE with it"),
            (self.services is None and self.rates != RATES["default"], "--rates is about services; give --services FILE with it"),
            (self.above_floors and not self.floor, "--above-floors is for services with a --floor below 1; give one"),
        )


def beside_services(
    request: ServicesOptions, loaded: Inputs, policy: gp.Policy, up: Sequence[gp.Node] | None = None, **limits: Any
) -> gp.JointPlan:
    """Return the replicas of --services, and the allocation of the training jobs on the rest of the cluster.

    up: the nodes that may have replicas and jobs, by default all; limits: fields of `gp.ServingPlanOptions`.
    """
    assert request.services is not None  # noqa: S101
    services = gp.read_services(request.services)
    plan = gp.plan_jointly(
        services,
        loaded.jobs,
        loaded.cluster if up is None else gp.Cluster(up, loaded.cluster.accelerator_types),
        with_rates(services, serving_profile(request.rates)),
        loaded.profile,
        policy,
        floors=numbers_of(request.floor, "--floor", FLOOR["metavar"]),
        above_floors=request.above_floors,
        problem_options=loaded.options.model_dump(include={*OF_PROBLEM}),
        **limits,
    )
    plan.verify()
    return plan


MOST_JOBS = 1_000
"""Number of jobs of a trace, the first by arrival, for which the replicas of a simulation are chosen, as if all were there."""


def beside_trace(
    request: ServicesOptions, loaded: Inputs, policies: Sequence[gp.Policy]
) -> tuple[gp.JointPlan, Sequence[gp.Policy]]:
    """Return the replicas of --services that a simulation keeps, and the policies beside them.

    The replicas are chosen by the first policy that can decide on replicas, else by `max_min_fairness`.
    """
    first = next((each for each in policies if each.name in gp.JointPlan.POLICIES and not each.is_agnostic), None)
    plan = beside_services(request, loaded, first or gp.resolve_policy("max_min_fairness"))
    return plan, [plan.policy if each is first else each for each in policies]


def held_line(plan: gp.JointPlan | None) -> str:
    """Return a line on the GPUs that replicas hold, "" without services."""
    if plan is None or not plan.places:
        return ""
    nodes, gpus = folded_names(dict.fromkeys(row["node"] for row in plan.places)), plan.serving.gpus_used.items()
    return f"Replicas of services stay on {' and '.join(f'{n} {name}' for name, n in gpus if n)} ({', '.join(nodes)})."


def services_entry(plan: gp.JointPlan | None) -> dict[str, Any]:
    """Return the entry of the JSON output, empty without services."""
    return {} if plan is None else {"services": plan.to_dict()}


def rest_of(loaded: Inputs, plan: gp.JointPlan | None) -> Inputs:
    """Return the inputs with what the replicas of a plan leave of the cluster, which may have nodes that the plan lacks."""
    if plan is None:
        return loaded
    left = {node.name: node for node in plan.cluster.nodes}
    rest = gp.Cluster([left.get(node.name, node) for node in loaded.cluster.nodes], loaded.cluster.accelerator_types)
    rest.left_out = loaded.cluster.left_out
    return replace(loaded, cluster=rest)


def serving_profile(name: str) -> gp.ServingProfile:
    """Return the rates in a file or of a built-in profile."""
    is_file = Path(name).suffix.lower() in PROFILE_FILES
    return gp.ServingProfile.from_file(name) if is_file else gp.ServingProfile.builtin(name)


def with_rates(services: Sequence[gp.Service], profile: gp.ServingProfile) -> gp.ServingProfile:
    """Return the profile with simulated rates, if it has stage times without rates."""
    return gp.simulated_rates(services, profile) if any(row.requests_per_second is None for row in profile.rows) else profile


def numbers_of(texts: tuple[str, ...], name: str, form: str) -> dict[str, float]:
    """Return {name: number} of an option that gives numbers by name."""
    typed = assignments(texts, name, form)
    found = {key: estimates.number_in(value) for key, value in typed.items()}
    refuse(*((found[key] is None, f"{name} {key}={value}: {value!r} is not a decimal number") for key, value in typed.items()))
    return {key: value for key, value in found.items() if value is not None}


def replica_text(row: Mapping[str, Any]) -> str:
    """Return the GPUs of a replica, such as "2 h100"."""
    stages = f" in {row['pipeline_parallel']} stages" if row["pipeline_parallel"] > 1 else ""
    return f"{row['num_gpus']} {row['accelerator']}{stages}"


def services_text(plan: gp.JointPlan, *, wide: bool = False) -> Iterator[str]:
    """Yield what the services get, what the tenants have of both kinds, and what the replicas cost the training jobs."""
    yield wrapped([verdict(plan)], indent="")
    yield columns_text(TITLE, _replicas(plan), wide=wide)
    yield from _tenants(plan, wide=wide)
    yield _costs(plan, wide=wide)


def verdict(plan: gp.JointPlan) -> str:
    """Return sentences on what the services get, and whether other replicas would leave the training jobs more."""
    least, price = f"{min(plan.serving.served.values()):.1%}", plan.serving.price_per_hour
    text = "all of their demand is served" if least == "100.0%" else f"at least {least} of the demand of each is served"
    proof = (
        "no other replicas leave the training jobs more, proven"
        if plan.status == "optimal"
        else f"other replicas leave the training jobs at most {plan.gap:.1%} more"
    )
    cost = f" The GPUs of their replicas cost {money(price)} an hour." if price else ""
    return f"Services: {text}; {proof}.{cost}"


TITLE = "Replicas, which training never interrupts"


def services_table(plan: gp.JointPlan) -> gp.PageTable:
    """Return the replicas as a table of a page."""
    return gp.PageTable("Services", f"{TITLE}; served: part of the demand", _replicas(plan))


def _replicas(plan: gp.JointPlan) -> list[tuple[str | Column, list[str]]]:
    rows, names = plan.serving.replicas, [row["replica"] for row in plan.costs]
    nodes = [
        dict.fromkeys(each["node"] for each in plan.places if (each["service"], each["replica"]) == (row["service"], name))
        for row, name in zip(rows, names, strict=True)
    ]
    return [
        ("service", [row["service"] for row in rows]),
        (Column("replica", "text"), [replica_text(row) for row in rows]),
        ("replicas", [str(row["replicas"]) for row in rows]),
        ("served", [f"{plan.serving.served[row['service']]:.1%}" for row in rows]),
        (Column("nodes", "prose"), [", ".join(folded_names(each)) for each in nodes]),
    ]


def _tenants(plan: gp.JointPlan, *, wide: bool) -> Iterator[str]:
    """Yield a table of the GPUs that tenants have for services and for training jobs."""
    tenants, held = plan.training.tenants(), plan.gpus_of_services
    if not tenants and not any(held):
        return
    every, names = float(plan.problem.share_capacities.sum()), {each.tenant: each for each in tenants}
    gone = [name for name in held if name not in names]
    training = [sum(each.gpus.values()) for each in tenants] + [0.0] * len(gone)
    for tenant, count in [*held.items()]:
        while tenant := names[tenant].parent or "" if tenant in names else "":
            held[tenant] = held.get(tenant, 0) + count
    services = [held.get(name, 0) for name in (*names, *gone)]
    yield columns_text(
        f"GPUs of tenants, of {every:,g}",
        [
            ("tenant", [name or "(none)" for name in (*names, *gone)]),
            ("share", [f"{each.share:.1%}" for each in tenants] + [""] * len(gone)),
            ("services", [str(count) for count in services]),
            ("training", [number(count) for count in training]),
            ("together", [f"{(a + b) / every:.1%}" for a, b in zip(services, training, strict=True)]),
        ],
        wide=wide,
    )


def _costs(plan: gp.JointPlan, *, wide: bool) -> str:
    """Return what training would gain with the GPUs of one replica, in a sentence if that is nothing for everybody."""
    rows = plan.costs
    gains = [{name: _part(part) for name, part in row["work_gained"].items()} for row in rows]
    if all(cell == NONE for row in gains for cell in row.values()):
        return wrapped(["No tenant's training jobs would gain from one replica fewer."], indent="")
    names = dict.fromkeys(name for row in gains for name in row)
    return columns_text(
        "Work that training jobs would gain with the GPUs of one replica",
        [
            ("service", [row["service"] for row in rows]),
            (Column("replica", "text"), [row["replica"] for row in rows]),
            *((name or "jobs", [row[name] for row in gains]) for name in names),
        ],
        wide=wide,
    )


def _part(part: float | None) -> str:
    return "some, from 0" if part is None else NONE if f"{abs(part):.1%}" == "0.0%" else f"{part:+.1%}"
