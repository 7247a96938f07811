"""Known answers about plans: published ones, and those of other solvers, on the data in ../shared."""

from __future__ import annotations

import csv
import json
import warnings
from collections.abc import Iterator
from statistics import median
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

import gavel_py as gp
from tests.support.shared_data import SHARED

Floats = np.ndarray


def cluster_of(counts: dict[str, int], prices: dict[str, float] | None = None, per_node: int = 8) -> gp.Cluster:
    nodes = gp.Cluster.from_counts({name: (count, per_node) for name, count in counts.items()}).nodes
    return gp.Cluster(nodes, [gp.AcceleratorType(name=name, price_per_hour=(prices or {}).get(name)) for name in counts])


def rate(model: str, accelerator: str, num_gpus: int, rate: float, bucket: tuple[int, int] | None = None) -> gp.ServingRate:
    sizes: dict[str, Any] = {} if bucket is None else {"prompt_tokens": bucket[0], "output_tokens": bucket[1]}
    fields: dict[str, Any] = {"model": model, "accelerator": accelerator, "num_gpus": num_gpus, "requests_per_second": rate}
    return gp.ServingRate(**fields, **sizes, condition="closed_loop")


def case() -> tuple[list[gp.Service], gp.Cluster, gp.ServingProfile]:
    """The fixed set of 88 GPUs and four services."""
    document = json.loads((SHARED / "serving_stock" / "case.json").read_text())
    services, rows = [], []
    for entry in document["services"]:
        mix = {(each["prompt_tokens"], each["output_tokens"]): each["share"] for each in entry["mix"]}
        services.append(gp.Service(entry["name"], model=entry["name"], rate=entry["demand_per_second"], mix=mix))
        for each in entry["rates"]:
            bucket = each["prompt_tokens"], each["output_tokens"]
            gpus = each["tensor_parallel"]
            rows.append(rate(entry["name"], each["accelerator"], gpus, each["requests_per_second"], bucket))
    return services, cluster_of(document["stock"], document["price_per_gpu_hour"]), gp.ServingProfile("case", rows)


def equal_shares() -> float:
    """The least served fraction if each service gets a quarter of each type, and is planned alone."""
    services, cluster, profile = case()
    counts = zip(cluster.accelerator_names, cluster.capacities.astype(int).tolist(), strict=True)
    quarter = cluster_of({name: count // 4 for name, count in counts})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gp.GavelWarning)
        return min(gp.plan_serving([service], quarter, profile).value for service in services)


def cut_plans() -> float:
    """The least served fraction of the cheapest plans of all services, cut to the GPUs of the scarcest type."""
    services, cluster, profile = case()
    gpus = dict(zip(cluster.accelerator_names, cluster.capacities.astype(int).tolist(), strict=True))
    prices = dict(zip(cluster.accelerator_names, cluster.prices_per_hour.tolist(), strict=True))
    ample = cluster_of(dict.fromkeys(gpus, 1000), prices)
    alone = [gp.plan_serving([service], ample, profile, "min_cost").gpus_used for service in services]
    needed = {name: sum(used[name] for used in alone) for name in gpus}
    return float(min(gpus[name] / needed[name] for name in gpus if needed[name]))


def melange() -> tuple[float, float]:
    """The cost of Mélange's example with shares of requests, and with all requests of a size on one type."""
    document = json.loads((SHARED / "melange" / "example.json").read_text())
    rates, prices, grid = melange_tables(document["gpu_info"], document["workload_distribution"], document["total_request_rate"])
    return rent(rates, grid, prices), melange_cost(rates, grid, prices)


def grids() -> Iterator[tuple[float, float]]:
    """The same on the grids of AIBrix, for drawn mixes of requests at three rates."""
    tables = [json.loads((SHARED / "aibrix" / f"simulator-llama2-7b-{name}.json").read_text()) for name in ("a40", "a100")]
    grid = np.array([np.array(each["tputs"]).ravel() for each in tables]).T
    prices = np.array([each["cost"] for each in tables])
    served = (grid > 0).any(axis=1)
    for seed in (0, 1):
        for total in (2.0, 17.0, 60.0):
            rates = total * np.random.default_rng(seed).dirichlet(np.full(int(served.sum()), 0.3))
            yield rent(rates, grid[served], prices), melange_cost(rates, grid[served], prices)


def melange_tables(info: dict[str, Any], mix: list[list[float]], rate: float) -> tuple[Floats, Floats, Floats]:
    """(B,) requests/s, (K,) prices, (B, K) requests/s of a GPU."""
    grid = np.array([np.array(each["tputs"], dtype=float).ravel() for each in info.values()]).T
    return rate * np.array(mix).ravel(), np.array([each["cost"] for each in info.values()]), grid


def melange_cost(rates: Floats, grid: Floats, prices: Floats) -> float:
    """The published program, with all requests of a size on one type, by another solver."""
    sizes, types = grid.shape
    load = np.divide(rates[:, None], grid, out=np.zeros_like(grid), where=grid > 0)
    assigned = np.hstack([np.kron(np.eye(sizes), np.ones(types)), np.zeros((sizes, types))])
    loaded = np.hstack([np.vstack([np.kron(load[b], 1)[None].T * np.eye(types) for b in range(sizes)]).T, -np.eye(types)])
    upper = np.r_[(grid > 0).ravel().astype(float), np.full(types, np.inf)]
    constraints = [LinearConstraint(assigned, 1, 1), LinearConstraint(loaded, -np.inf, 0)]
    costs = np.r_[np.zeros(sizes * types), prices]
    found = milp(costs, constraints=constraints, bounds=Bounds(0, upper), integrality=np.ones(len(costs)))
    return float(found.fun)


def rent(rates: Floats, grid: Floats, prices: Floats) -> float:
    """The cheapest plan of this package, on as many GPUs as it wants."""
    names = [f"type-{k}" for k in range(len(prices))]
    buckets = [(n + 1, 1) for n in range(len(rates))]
    rows = [rate("m", name, 1, grid[b, k], buckets[b]) for b in range(len(rates)) for k, name in enumerate(names)]
    service = gp.Service("s", model="m", rate=rates.sum(), mix=dict(zip(buckets, rates.tolist(), strict=True)))
    cluster = cluster_of(dict.fromkeys(names, 1000), dict(zip(names, prices.tolist(), strict=True)))
    plan = gp.plan_serving([service], cluster, gp.ServingProfile("grid", rows), "min_cost")
    plan.verify()
    return plan.value


def mlperf() -> dict[str, tuple[float, int]]:
    """Ratios in the results of MLPerf Inference v5.1: {what: (ratio, results)}."""
    with open(SHARED / "mlperf-inference-v5.1" / "closed_datacenter.csv", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["units"] == "Tokens/s"]
    rates: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        rates.setdefault((row["id"], row["model"]), {})[row["scenario"]] = float(row["result"])
    found: dict[str, tuple[float, int]] = {}
    for scenario in ("Server", "Interactive"):
        ratios = [each[scenario] / each["Offline"] for each in rates.values() if scenario in each and "Offline" in each]
        found[scenario] = median(ratios), len(ratios)
    numbers = ("5.1-0065", "5.1-0066", "5.1-0067", "5.1-0090", "5.1-0091")
    mixed, mi300x, mi325x, two_nodes, other = (rates[number, "llama2-70b-99"]["Offline"] for number in numbers)
    found["5.1-0065"] = mixed / (4 * mi300x + 2 * mi325x), 3
    found["5.1-0091"] = other / (two_nodes + mi300x), 3
    return found
