"""Speed of the request simulator and of what is built on it, and its answers beside published ones.

    python benchmarks/serving_requests.py            print the tables (about two minutes)
    python benchmarks/serving_requests.py --write    and put them into benchmarks/RESULTS.md

Speeds are CPU seconds, medians of 5 runs; the baseline is a simulator written down as its rules are worded, with the same answers,
in the same run. The published cases need ../shared/data/alpaserve; without it, the table says so.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import numpy as np
import tables

import gavel_py as gp

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from tests.serving.alpaserve import DATA, LATENCY, OVERHEADS, RATES, STAGES, published  # noqa: E402

RUNS = 5


class Scene(NamedTuple):
    """A case of the simulator."""

    name: str
    trace: gp.RequestTrace
    groups: list[gp.ModelGroup]
    slo: float | None


def scenes() -> Iterator[Scene]:
    eight = {f"m{n}": 2.5 for n in range(8)}
    trace = gp.RequestTrace.generate({"a": 2.0, "b": 2.0}, 25_000, cv=3)
    yield Scene("2 models, a pipeline of 2 GPUs, no SLO", trace, [gp.ModelGroup(dict.fromkeys("ab", (0.075, 0.076)))], None)
    trace = gp.RequestTrace.generate(eight, 5_000, cv=3)
    pairs = [gp.ModelGroup({f"m{(2 * g + n) % 8}": [0.075, 0.076] for n in range(5)}) for g in range(4)]
    yield Scene("8 models, 4 pipelines of 2 GPUs, 5 models each", trace, pairs, 0.444)
    singles = [gp.ModelGroup({f"m{g}": [0.148], f"m{(g + 1) % 8}": [0.148]}) for g in range(8)]
    yield Scene("8 models, 8 single GPUs, 2 models each", trace, singles, 0.444)
    trace = gp.RequestTrace.generate(RATES, 2_500, cv=4)
    shared = [gp.ModelGroup(dict.fromkeys([*RATES][g : g + 18], STAGES[1, 8])) for g in (0, 6)]
    yield Scene("24 models, 2 pipelines of 8 GPUs, 18 models each", trace, shared, 3 * LATENCY)
    yield Scene("24 models, all on each of 16 GPUs", trace, [gp.ModelGroup(dict.fromkeys(RATES, (LATENCY,)))] * 16, 3 * LATENCY)
    mixed = [gp.ModelGroup({name: [0.03 + 0.001 * n] * 4 for n, name in enumerate(RATES)})] * 4
    yield Scene("24 models of different times, 4 pipelines of 4 GPUs", trace, mixed, 3 * LATENCY)


def as_worded(trace: gp.RequestTrace, groups: Sequence[gp.ModelGroup], slo: float | None) -> list[float]:
    """Return the latencies, NaN if refused: the baseline."""
    clocks = [[-np.inf] * group.pipeline_parallel for group in groups]
    latencies = []
    for now, number in zip(trace.seconds.tolist(), trace.service_index.tolist(), strict=True):
        service, options = trace.services[number], []
        for g, group in enumerate(groups):
            if service in group.stage_seconds:
                moment, passed = now, []
                for clock, seconds in zip(clocks[g], OVERHEADS.stages(group.stage_seconds[service]).tolist(), strict=True):
                    moment = max(moment, clock) + seconds
                    passed.append(moment)
                options.append((moment, clocks[g][-1], g, passed))
        end, _, g, passed = min(options)
        latency = end - now + OVERHEADS.request_seconds
        if slo is None or latency <= slo + 1e-9:
            clocks[g] = passed
            latencies.append(latency)
        else:
            latencies.append(np.nan)
    return latencies


def cpu_seconds(work: Callable[[], Any], runs: int = RUNS) -> float:
    """Return the median CPU time of the work after a first run."""
    work()
    found = []
    for _ in range(runs):
        begin = time.process_time()
        work()
        found.append(time.process_time() - begin)
    return median(found)


def speeds() -> str:
    rows = []
    for scene in scenes():
        count = len(scene.trace)
        short = scene.trace.between(0, scene.trace.duration_seconds / 10)
        many = [gp.RequestScenario(short.times_faster(1.0 + n / 1000), scene.groups, scene.slo) for n in range(64)]
        begin = time.process_time()
        worded = as_worded(short, scene.groups, scene.slo)
        base = len(short) / (time.process_time() - begin)
        found = gp.simulate_requests(short, scene.groups, scene.slo, overheads=OVERHEADS)
        if not np.allclose(found.latencies, worded, rtol=0, atol=1e-9, equal_nan=True):
            raise SystemExit(f"{scene.name}: the simulators differ")
        one = cpu_seconds(partial(gp.simulate_requests, scene.trace, scene.groups, scene.slo, overheads=OVERHEADS))
        all_64 = cpu_seconds(partial(gp.simulate_many, many, overheads=OVERHEADS), 3)
        rows.append([scene.name, base / 1e6, count / one / 1e6, count / one / base, 64 * len(short) / all_64 / 1e6])
    header = ["case", "as worded, M requests/s", "one run", "x", "64 runs side by side, in all"]
    return tables.markdown(header, rows)


def others() -> str:
    rows = [
        ["`rate_at_slo`, 8 seeds of 20,000 requests", cpu_seconds(lambda: gp.rate_at_slo([0.148], 0.6, cv=2))],
        ["`place_models`, 8 models on 8 GPUs", timed(partial(eight_models, 3))[1]],
        ["`place_models`, 24 models on 16 GPUs", timed(partial(twenty_four_models, 2))[1]],
        ["`place_models`, 32 models on 64 GPUs", timed(many_models)[1]],
    ]
    return tables.markdown(["what", "CPU s"], rows)


def cluster_of(num_gpus: int) -> gp.Cluster:
    nodes = [gp.Node(name=f"n{n}", accelerator="v100", num_gpus=8) for n in range(num_gpus // 8)]
    return gp.Cluster(nodes, [gp.AcceleratorType(name="v100", memory_gb=13)])


def profile_of(stages: dict[tuple[int, int], list[float]], memory_gb: float) -> gp.ServingProfile:
    """Return rates of one model by (operator, pipeline) parallelism, its memory split over the GPUs."""
    rows = []
    for (operators, pipeline), seconds in stages.items():
        shape: dict[str, Any] = {
            "stage_seconds": tuple(seconds),
            "operator_parallel": operators,
            "pipeline_parallel": pipeline,
            "memory_gb": memory_gb / (operators * pipeline),
        }
        rows.append(gp.ServingRate(model="bert", accelerator="v100", **shape))
    return gp.ServingProfile("bert", rows)


SINGLE, PAIR = {(1, 1): [0.148]}, {(1, 2): [0.075, 0.076]}
EIGHT = {f"m{n}": 2.5 for n in range(8)}


def eight_models(scale: float, stages: dict[tuple[int, int], list[float]] | None = None) -> gp.ModelPlacement:
    services = [gp.Service(name, model="bert", rate=rate, cv=3, slo_seconds=scale * 0.148) for name, rate in EIGHT.items()]
    return gp.place_models(services, cluster_of(8), profile_of(stages or SINGLE | PAIR, 5.2), overheads=OVERHEADS)


def twenty_four_models(scale: float) -> gp.ModelPlacement:
    services = [gp.Service(name, model="bert", rate=rate, cv=4, slo_seconds=scale * LATENCY) for name, rate in RATES.items()]
    return gp.place_models(services, cluster_of(16), profile_of(STAGES, 5.2), overheads=OVERHEADS, seed=1)


def many_models() -> gp.ModelPlacement:
    services = [gp.Service(f"m{n}", model="bert", rate=150 / (n + 4), cv=3, slo_seconds=0.5) for n in range(32)]
    return gp.place_models(services, cluster_of(64), profile_of(SINGLE | PAIR | {(1, 4): [0.038] * 4}, 5.2), overheads=OVERHEADS)


def published_cases() -> str:
    """Return the worst errors of the published cases by shape."""
    if not DATA.is_dir():
        return "The published cases are not on this machine.\n"
    trace = gp.RequestTrace.generate(RATES, 200, cv=4)
    errors: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for case in published():
        found = gp.simulate_requests(trace, case.groups, case.scale * LATENCY, overheads=OVERHEADS).attainment
        errors.setdefault(case.shape, []).append((abs(found - case.simulated), abs(found - case.measured)))
    names = {
        (1, 1): "replicas on single GPUs, nothing fitted",
        (4, 1): "operator parallel 4, 89.0 ms fitted to these two",
        (1, 8): "pipeline of 8, 32.9 ms each fitted to this case",
    }
    limits = {(1, 1): 0.0015, (4, 1): 0.003, (1, 8): 0.003}
    rows = []
    for shape, each in errors.items():
        simulated, measured = (max(values) for values in zip(*each, strict=True))
        rows.append([names[shape], str(len(each)), f"{simulated:.4f}", f"{limits[shape]}", f"{measured:.4f}", "0.012"])
    header = ["AlpaServe's cases", "cases", "worst error to their simulator", "target", "worst error to their 16 GPUs", "target"]
    return tables.markdown(header, rows)


def mean_latency(cv: float, rate: float, groups: list[gp.ModelGroup]) -> float:
    traces = [gp.RequestTrace.generate({"a": rate / 2, "b": rate / 2}, 20_000, cv=cv, seed=seed) for seed in range(5)]
    return mean(gp.simulate_requests(trace, groups, overheads=OVERHEADS).mean_seconds for trace in traces)


def two_models() -> str:
    one_each = [gp.ModelGroup({"a": [0.148]}), gp.ModelGroup({"b": [0.148]})]
    pipeline = [gp.ModelGroup({"a": [0.075, 0.076], "b": [0.075, 0.076]})]
    rows = []
    for cv, rate, target in ((1, 2, "ratio about 1"), (3, 4, "0.745, 0.438"), (6, 4, "ratio about 2")):
        each, shared = mean_latency(cv, rate, one_each), mean_latency(cv, rate, pipeline)
        rows.append([str(cv), str(rate), f"{each:.3f}", f"{shared:.3f}", f"{each / shared:.2f}", target])
    return tables.markdown(["cv", "requests/s", "one GPU each, mean s", "a pipeline of both, mean s", "ratio", "known"], rows)


EIGHT_KNOWN = ((2.0, 0.849, 0.854, 0.608), (3.0, 0.959, 0.964, 0.776), (5.0, 0.992, 0.997, 0.928), (10.0, 0.995, 1.0, 0.994))
"""Scale of the SLO, target, AlpaServe's search and greedy replication."""

PUBLISHED = ((1.5, 0.620, 0.647), (2.0, 0.800, 0.806), (3.0, 0.921, 0.921))
"""Scale of the SLO, target and AlpaServe's search."""


def timed(work: Callable[[], gp.ModelPlacement]) -> tuple[gp.ModelPlacement, float]:
    begin = time.process_time()
    return work(), time.process_time() - begin


def placements() -> str:
    rows: list[list[object]] = []
    for scale, target, theirs, replicas in EIGHT_KNOWN:
        placed, seconds = timed(partial(eight_models, scale))
        found = f"{placed.attainment.mean:.4f} ± {placed.attainment.half_width:.4f}"
        alone = f"{eight_models(scale, SINGLE).attainment.mean:.3f}"
        shown = [f"{placed.promised.attainment:.4f}", found, str(target), f"{theirs:.3f}", alone, f"{replicas:.3f}"]
        rows.append(["8 models on 8 GPUs, cv 3, 20/s", f"{scale:g}", *shown, seconds])
    trace = gp.RequestTrace.generate(RATES, 200, cv=4)
    for scale, target, theirs in PUBLISHED:
        placed, seconds = timed(partial(twenty_four_models, scale))
        shown = [f"{placed.promised.attainment:.4f}", f"{placed.replay(trace).attainment:.4f}", f"{target:.3f}", f"{theirs:.3f}"]
        rows.append(["24 models on 16 GPUs, cv 4, 40/s, the published trace", f"{scale:g}", *shown, None, None, seconds])
    known = ["target", "AlpaServe's search", "single GPUs only", "AlpaServe's replication", "CPU s"]
    return tables.markdown(["case", "SLO, x latency", "promised", "found, unseen", *known], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    line = f"CPU seconds; {tables.machine()}; `python benchmarks/serving_requests.py --write`.\n"
    texts = {
        "serving_requests": f"{speeds()}\n{others()}\n{line}",
        "serving_published": f"{published_cases()}\n{two_models()}\n{placements()}\n{line}",
    }
    for name, text in texts.items():
        print(text)
        if arguments.write:
            tables.write(name, text)


if __name__ == "__main__":
    main()
