"""Replicas on nodes: every plan fits, and is the best of all that fit, found by placing replicas node by node."""

from __future__ import annotations

import itertools
import warnings
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

import gavel_py as gp
from gavel_py.optimization.formulation import packings
from gavel_py.serving.shapes import options_of, program_of_shapes, proposals

Vector = tuple[int, ...]


class Case(NamedTuple):
    """nodes: (type, GPUs) of each; rates: of each replica (model, type, operator_parallel, pipeline_parallel, requests/s)."""

    nodes: list[tuple[str, int]]
    services: list[gp.Service]
    rates: list[tuple[str, str, int, int, float]]

    def plan(self, objective: Any = "max_min", **limits: Any) -> gp.ServingPlan:
        nodes = [gp.Node(name=f"n{i}", accelerator=name, num_gpus=gpus) for i, (name, gpus) in enumerate(self.nodes)]
        cluster = gp.Cluster(
            nodes, [gp.AcceleratorType(name=name, price_per_hour=1.0) for name in {name for name, _ in self.nodes}]
        )
        fields = ("model", "accelerator", "operator_parallel", "pipeline_parallel", "requests_per_second")
        rows = [gp.ServingRate(**dict(zip(fields, each, strict=True)), condition="offline") for each in self.rates]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", gp.GavelWarning)
            plan = gp.plan_serving(self.services, cluster, gp.ServingProfile("p", rows), objective, **limits)
        plan.verify()
        return plan

    def parts(self) -> list[tuple[int, int]]:
        """The GPUs of each part of a replica that is on one node, and the number of parts."""
        largest = {name: max(gpus for each, gpus in self.nodes if each == name) for name, _ in self.nodes}
        return [(o * p, 1) if o * p <= largest.get(name, 0) else (o, p) for _, name, o, p, _ in self.rates]

    def all_that_fit(self) -> list[Vector]:
        """The largest numbers of all replicas that the nodes hold at once."""
        parts, totals = self.parts(), [(0,) * len(self.rates)]
        for name, gpus in self.nodes:
            held: list[Vector] = [()]
            for (_, accelerator, *_), (size, _) in zip(self.rates, parts, strict=True):
                left = [gpus - sum(n * s for n, (s, _) in zip(one, parts, strict=False)) for one in held]
                held = [
                    (*one, n) for one, g in zip(held, left, strict=True) for n in range(1 + (accelerator == name) * (g // size))
                ]
            totals = largest_of([tuple(np.add(one, other)) for one in totals for other in largest_of(held)])
        return [tuple(n // p for n, (_, p) in zip(one, parts, strict=True)) for one in totals]

    def best(self, objective: str) -> float:
        values = []
        for numbers in self.all_that_fit():
            served = [sum(n * r for n, (m, *_, r) in zip(numbers, self.rates, strict=True) if m == s.model) for s in self.services]
            levels = [min(1.0, rate / (each.rate or 0)) for rate, each in zip(served, self.services, strict=True)]
            total = sum(each.weight * (each.rate or 0) * t for each, t in zip(self.services, levels, strict=True))
            values.append(min(levels) if objective == "max_min" else total)
        return max(values)


def largest_of(vectors: list[Vector]) -> list[Vector]:
    found: list[Vector] = []
    for vector in sorted(set(vectors), key=lambda each: -sum(each)):
        if not any(all(a >= b for a, b in zip(other, vector, strict=True)) for other in found):
            found.append(vector)
    return found


def two(sizes: tuple[int, ...], gpus: tuple[int, int], need: tuple[int, int]) -> Case:
    services = [gp.Service("x", model="m", rate=need[0]), gp.Service("y", model="k", rate=need[1])]
    return Case([("g", size) for size in sizes], services, [("m", "g", gpus[0], 1, 1.0), ("k", "g", gpus[1], 1, 1.0)])


@pytest.mark.parametrize(
    ("sizes", "gpus", "need", "best"),
    [
        ((4, 4, 4), (3, 2), (2, 3), 2 / 3),
        ((8, 8), (7, 2), (4, 1), 1 / 4),
        ((8, 8), (6, 4), (4, 1), 1 / 4),
        ((6, 2), (4, 2), (1, 3), 2 / 3),
        ((6,), (2, 3), (1, 2), 1 / 2),  # every node is a multiple of each size
        ((7, 3, 1), (2, 1), (1, 1), 1.0),
    ],
)
def test_sizes_that_do_not_divide_each_other_fit_on_nodes(
    sizes: tuple[int, ...], gpus: tuple[int, int], need: tuple[int, int], best: float
) -> None:
    case = two(sizes, gpus, need)
    assert case.best("max_min") == pytest.approx(best)
    plan = case.plan()
    assert (plan.value, plan.status) == (pytest.approx(best), "optimal")


def test_nodes_with_many_packings_are_exact_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packings, "MOST_PATTERNS", 1)
    packings.node_patterns.cache_clear()
    try:
        plan = two((8, 8, 4), (3, 5), (2, 3)).plan()
    finally:
        packings.node_patterns.cache_clear()
    assert (plan.value, plan.status) == (pytest.approx(2 / 3), "optimal")


def test_stages_of_replicas_larger_than_a_node_are_each_on_one_node() -> None:
    """Three nodes of 6 have 18 GPUs, but hold only one replica of 2 stages of 4."""
    services = [gp.Service("x", model="m", rate=2)]
    assert Case([("g", 6)] * 3, services, [("m", "g", 4, 2, 1.0)]).plan().value == pytest.approx(0.5)
    smaller = Case([("g", 4), ("g", 3), ("g", 3)], services, [("m", "g", 4, 2, 1.0), ("m", "g", 1, 8, 1.0)])
    assert smaller.plan().value == pytest.approx(0.5)
    with pytest.raises(gp.InputError, match="the cluster cannot hold 2 stages of 4 g, each on one node"):
        Case([("g", 4), ("g", 3), ("g", 3)], services, [("m", "g", 4, 2, 1.0)]).plan()


def test_a_demand_that_no_nodes_can_hold_is_a_conflict() -> None:
    with pytest.raises(gp.ConflictError, match="at least 100% of its demand"):
        two((4, 4, 4), (3, 2), (2, 3)).plan("min_cost")
    assert two((4, 4, 4), (3, 2), (2, 2)).plan("min_cost").value == pytest.approx(10)


def test_a_plan_that_the_nodes_cannot_hold_fails_its_check() -> None:
    plan = two((4, 4, 4), (3, 2), (2, 3)).plan()
    rows = [{**row, "replicas": 3} if row["service"] == "y" else row for row in plan.replicas]
    more = replace(plan, replicas=type(plan.replicas)(rows))
    assert sum(row["replicas"] * row["num_gpus"] for row in rows) <= 12
    with pytest.raises(gp.ProofError, match="on one node"):
        more.verify()


def test_plans_over_time_fit_on_nodes() -> None:
    case, demand = two((4, 4, 4), (3, 2), (2, 3)), {"x": [2.0, 2.0], "y": [3.0, 3.0]}
    cluster = gp.Cluster([gp.Node(name=f"n{i}", accelerator="g", num_gpus=4) for i in range(3)])
    rows = [
        gp.ServingRate(model=m, accelerator=g, num_gpus=n, requests_per_second=r, condition="offline")
        for m, g, n, _, r in case.rates
    ]
    found = gp.plan_over_time(case.services, cluster, gp.ServingProfile("p", rows), demand, interval_seconds=600, compare=True)
    assert {row["served_fraction"] for row in found.intervals if row["service"] == "y"} <= {2 / 3, 1.0}
    assert found.outcome.served_requests == pytest.approx(2 * 600 * 4)
    assert found.compared["known future"].bound == pytest.approx(2 * 600 * 4, rel=1e-3)


def drawn(seed: int) -> Case:
    random = np.random.default_rng(seed)
    types = ["g", "h"][: int(random.integers(1, 3))]
    nodes = [(str(random.choice(types)), int(random.integers(1, 9))) for _ in range(random.integers(1, 4))]
    services, rates = [], []
    for i in range(random.integers(1, 4)):
        services.append(gp.Service(f"s{i}", model=f"m{i}", rate=random.uniform(0.5, 12), weight=int(random.integers(1, 4))))
        for _ in range(random.integers(1, 4)):
            operators, stages = (
                (int(random.integers(1, 5)), int(random.integers(2, 4)))
                if random.random() < 0.15
                else (int(random.integers(1, 9)), 1)
            )
            rates.append(
                (f"m{i}", str(random.choice(types)), operators, stages, float((operators * stages) ** random.uniform(0.6, 1.2)))
            )
    return Case(nodes, services, list({each[:4]: each for each in rates}.values()))


def checked(seeds: range) -> tuple[int, int]:
    """Solve drawn cases; return how many have a service that no nodes can hold, and how many plans are not proven optimal."""
    refused = unproven = 0
    for seed, objective in zip(seeds, itertools.cycle(["max_min", "weighted_rate"]), strict=False):
        case = drawn(seed)
        try:
            plan = case.plan(objective)
        except gp.InputError:
            refused += 1
            continue
        best = case.best(objective)
        assert plan.value <= best + 1e-6, seed
        assert plan.bound >= best - 1e-6, seed
        if plan.status == "optimal":
            assert plan.value == pytest.approx(best, rel=2e-4, abs=1e-6), seed
        unproven += plan.status != "optimal"
    return refused, unproven


def test_drawn_plans_are_the_best_that_nodes_hold() -> None:
    assert checked(range(20))[1] == 0


@pytest.mark.deep
def test_many_drawn_plans_are_the_best_that_nodes_hold() -> None:
    count = 5000
    refused, unproven = checked(range(1000, 1000 + count))
    assert refused < 0.6 * count
    assert unproven <= 0.05 * (count - refused)


# ---------------------------------------------------------------------------------------------------------------- groups of models


def test_groups_of_models_fit_on_nodes() -> None:
    """Three nodes of 4 hold three groups of 3, or six of 2, or mixes such as (3, 2, 2, 2, 2)."""
    shapes = ((3, 1), (2, 1), (2, 2))
    rows = [
        gp.ServingRate(
            model="m", accelerator="g", operator_parallel=o, pipeline_parallel=p, stage_seconds=(0.3 / o,) * p, memory_gb=1
        )
        for o, p in shapes
    ]
    nodes = [gp.Node(name=f"n{i}", accelerator="g", num_gpus=4) for i in range(3)]
    services = [gp.Service("a", model="m", rate=40, slo_seconds=1.0)]
    cluster = gp.Cluster(nodes, [gp.AcceleratorType(name="g", memory_gb=1)])
    options = options_of(services, cluster, gp.ServingProfile("p", rows), gp.ServingOverheads())
    fits = {counts for counts in itertools.product(range(7), repeat=3) if packed(counts)}
    assert {counts for counts in itertools.product(range(7), repeat=3) if options.hold(counts)} == fits
    lists = proposals(options, np.array([40.0]), np.array([1.0]), gp.ServingOverheads())
    assert (3, 0, 0) in lists
    assert fits.issuperset(lists)
    assert program_of_shapes(options, np.array([40.0]), np.array([[3.0, 0.1, 0.1]]))[0] == 3


def packed(counts: tuple[int, ...]) -> bool:
    threes, twos = counts[0], counts[1] + 2 * counts[2]
    return threes <= 3 and twos <= 2 * (3 - threes)
