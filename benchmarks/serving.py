"""Plans of services on a fixed set of GPUs: their quality beside their bound, and their time; plans over an hour of requests.

    python benchmarks/serving.py            print the tables (about five minutes)
    python benchmarks/serving.py --write    and put them into benchmarks/RESULTS.md
    python benchmarks/serving.py --quick    100 services on 1,000 GPUs only

The large cases are drawn (`drawn`): 100 services on 8 types, replicas of 1, 2, 4 and 8 GPUs, 9 sizes of requests; the demand is
scaled so that the relaxation serves 0.80 of it. The others need ../shared/data; without it, the table says so. Times are CPU
seconds of one run.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tables

import gavel_py as gp
from gavel_py.optimization.solving.highs import TimeLimit
from gavel_py.serving.market import named_market
from gavel_py.serving.replicas import MarketProgram, bound_of, relaxed

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from tests.serving.known_answers import (  # noqa: E402
    case,
    cluster_of,
    cut_plans,
    equal_shares,
    grids,
    melange,
    mlperf,
)
from tests.support.shared_data import SHARED  # noqa: E402

SPEEDS = [0.25, 0.35, 0.5, 0.8, 1.0, 1.6, 2.6, 4.0]
MEMORIES = [24, 24, 48, 40, 80, 96, 141, 192]
SIZES = [(prompt, output) for prompt in (128, 1000, 5000) for output in (128, 500, 2000)]
REPLICAS = [1, 2, 4, 8]
SERVED = 0.8


def drawn(gpus: int, seed: int = 0, services: int = 100) -> tuple[list[gp.Service], gp.Cluster, gp.ServingProfile]:
    """Draw models of 3 to 70 GB on eight types, with rates that fall with the size of requests and with the memory that is left."""
    random = np.random.default_rng(seed)
    counts = np.maximum(8, np.round(gpus * random.dirichlet(np.full(8, 3.0)) / 8) * 8).astype(int)
    rows, demands = [], []
    for number in range(services):
        weights = float(random.choice([3, 8, 14, 34, 70]))
        base = random.lognormal(0, 0.3) * 300 / weights
        liking, doubling = random.lognormal(0, 0.3, (8, 9)), random.uniform(0.85, 0.95, 8)
        for k, (speed, memory) in enumerate(zip(SPEEDS, MEMORIES, strict=True)):
            for step, size in enumerate(REPLICAS):
                free = 0.9 - weights / (memory * size)
                for b, (prompt, output) in enumerate(SIZES if free > 0.05 else []):
                    work = (0.1 * prompt + output) / 1000
                    rate = base * size * doubling[k] ** step * speed * liking[k, b] * free / (free + 0.15 * work) / work
                    served: dict[str, Any] = {"requests_per_second": rate, "condition": "offline"}
                    served |= {"prompt_tokens": prompt, "output_tokens": output}
                    served |= {"accelerator": f"g{k}", "num_gpus": size}
                    rows.append(gp.ServingRate(model=f"m{number}", **served))
        demands.append(random.dirichlet(np.full(9, 0.7)) * random.lognormal(0, 0.7) * 100 / weights)
    cluster = cluster_of({f"g{k}": int(count) for k, count in enumerate(counts)})
    profile = gp.ServingProfile("drawn", rows)
    asked = [
        gp.Service(f"s{n}", model=f"m{n}", rate=float(demand.sum()), mix=dict(zip(SIZES, demand.tolist(), strict=True)))
        for n, demand in enumerate(demands)
    ]
    return scaled(asked, cluster, profile), cluster, profile


def scaled(services: list[gp.Service], cluster: gp.Cluster, profile: gp.ServingProfile) -> list[gp.Service]:
    """Return the services with rates at which the relaxation serves `SERVED` of all."""
    for _ in range(3):  # a served fraction is at most 1, so the first rates must be too high
        large = [each.model_copy(update={"rate": float(each.rate or 0) * 1000}) for each in services]
        level = relaxed(named_market(tuple(large), cluster, profile, "max_min", {}, None, {}).market).levels.min()
        services = [each.model_copy(update={"rate": float(each.rate or 0) * level / SERVED}) for each in large]
    return services


def planned(services: list[gp.Service], cluster: gp.Cluster, profile: gp.ServingProfile) -> tuple[gp.ServingPlan, float, float]:
    """Return a verified plan, its CPU seconds, and the bound of the relaxation."""
    started = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gp.GavelWarning)
        plan = gp.plan_serving(services, cluster, profile)
    seconds = time.process_time() - started
    plan.verify()
    assert plan._evidence is not None
    return plan, seconds, bound_of(plan._evidence.market.market, plan._evidence.multipliers)


def branch_and_bound_alone(services: list[gp.Service], cluster: gp.Cluster, profile: gp.ServingProfile) -> float:
    """Return what HiGHS alone finds in 10 s for the whole program."""
    market = named_market(tuple(services), cluster, profile, "max_min", {}, None, {}).market
    found = MarketProgram(market).whole(gap=1e-4, limit=TimeLimit(10))
    return 0.0 if found is None else -found.value


def plans(quick: bool) -> str:
    header = [
        "case",
        "least served fraction",
        "target",
        "bound",
        "of the relaxation",
        "gap",
        "CPU s",
        "branch and bound alone, 10 s",
        "requests found / promised",
    ]
    rows: list[list[Any]] = []
    cases: list[tuple[str, Any, str, bool]] = [("100 services, 1,000 GPUs", drawn(1000), "0.74", True)]
    if not quick:
        cases += [("100 services, 1,000 GPUs, seed 1", drawn(1000, 1), "", False)]
        cases += [("100 services, 8,000 GPUs", drawn(8000), "0.79", True)]
        cases[:0] = [("4 services, 88 GPUs", case(), "0.896", False)] if SHARED.is_dir() else []
    for name, given, target, is_alone in cases:
        plan, seconds, loose = planned(*given)
        alone = f"{branch_and_bound_alone(*given):.3f}" if is_alone else None
        replay = gp.replayed_plan(plan, traces=1)
        shown = [f"{plan.value:.4f}", target, f"{plan.bound:.4f}", f"{loose:.4f}", f"{plan.gap:.2%}", seconds, alone]
        rows.append([name, *shown, f"{replay.attainment.mean / replay.promised_attainment:.4f}"])
        print(rows[-1], flush=True)
    return tables.markdown(header, rows)


def over_time() -> str:
    if not SHARED.is_dir():
        return "An hour of Azure's requests: ../shared/data is absent.\n"
    header = ["rates", "of the known future", "target", "served", "each alone", "one plan", "known future (bound)"]
    return tables.markdown([*header, "loads", "at most", "alone", "requests found / promised", "CPU s"], hours())


def hours() -> Iterator[list[Any]]:
    files = {name: SHARED / "azure-llm-2023" / f"AzureLLMInferenceTrace_{name}.csv" for name in ("conv", "code")}
    traces = {name: gp.RequestTrace.from_file(path, service=name) for name, path in files.items()}
    services = [gp.Service(name, model="LLaMA v3.1 70B", trace=str(path)) for name, path in files.items()]
    cluster = gp.Cluster.from_counts({"l40s": 8, "a100-80gb": 4, "h100": 2, "h200": 2})
    seconds = max(trace.duration_seconds for trace in traces.values()) / 24
    profile = gp.ServingProfile.builtin("trtllm")
    for times in (1, 2, 3, 4):
        many = {name: trace.times_as_many(times) for name, trace in traces.items()}
        curve = {name: times * rates for name, rates in gp.demand_curve(traces, 24).items()}
        started = time.process_time()
        found = gp.plan_over_time(services, cluster, profile, curve, interval_seconds=seconds, compare=True, time_limit_seconds=60)
        spent = time.process_time() - started
        alone, static, known = found.compared.values()
        shares = [each.served_requests / found.requests for each in (found.outcome, alone, static, known)]
        ratio = found.outcome.served_requests / known.served_requests
        replay = gp.replayed_schedule(found, many)
        *first, last = [f"{share:.4f}" for share in shares]
        bound = "" if known.bound is None else f" ({known.bound / found.requests:.4f})"
        loads = [str(found.outcome.loads), f"{alone.loads / 2:g}", str(alone.loads)]
        replayed = f"{replay.attainment.mean / replay.promised_attainment:.4f}"
        yield [f"x {times}", f"{ratio:.4f}", "0.98", *first, last + bound, *loads, replayed, spent]


def known() -> str:
    """Return known answers of others beside those found."""
    if not SHARED.is_dir():
        return "Known answers of others: ../shared/data is absent.\n"
    shares, slices = melange()
    ratios = [ours / theirs for ours, theirs in grids()]
    measured = mlperf()
    rows = [
        ["4 services on a quarter of each type, each alone: least served fraction", equal_shares(), "0.607"],
        ["the cheapest plans of 4 services, cut to the GPUs that there are: least served fraction", cut_plans(), "0.348"],
        ["Mélange's example, shares of requests: price", shares, "4.68"],
        ["Mélange's example, all requests of a size on one type, by another solver: price", slices, "6.70"],
        [f"AIBrix's grids, {len(ratios)} mixes: largest price over that of Mélange's program", max(ratios), "at most 1"],
        ["MLPerf v5.1, 32 MI300X and 16 MI325X over the sum of their parts", measured["5.1-0065"][0], "0.938"],
        ["MLPerf v5.1, 16 MI325X and 8 MI300X over the sum of their parts", measured["5.1-0091"][0], "0.989"],
        [f"MLPerf v5.1, Server over Offline, median of {measured['Server'][1]}", measured["Server"][0], "0.90"],
        [f"MLPerf v5.1, Interactive over Offline, median of {measured['Interactive'][1]}", measured["Interactive"][0], "0.55"],
    ]
    return tables.markdown(["case", "found", "known"], [[name, f"{found:.3f}", wanted] for name, found, wanted in rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    line = f"CPU seconds; {tables.machine()}; `python benchmarks/serving.py --write`.\n"
    text = plans(arguments.quick) if arguments.quick else f"{plans(False)}\n{over_time()}\n{known()}\n{line}"
    print(text)
    if arguments.write:
        tables.write("serving_plans", text)


if __name__ == "__main__":
    main()
