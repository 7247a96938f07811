"""Placement of models on groups: published cases, all placements of small cases, and what is never broken."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

import gavel_py as gp
from gavel_py.serving.shapes import ShapeOptions, options_of, program_of_shapes, proposals
from tests.serving.alpaserve import LATENCY, OVERHEADS, RATES, STAGES
from tests.support.examples import examples


def cluster_of(num_gpus: int, memory_gb: float = 13.0) -> gp.Cluster:
    nodes = [gp.Node(name=f"n{n}", accelerator="v100", num_gpus=min(8, num_gpus - 8 * n)) for n in range(-(-num_gpus // 8))]
    return gp.Cluster(nodes, [gp.AcceleratorType(name="v100", memory_gb=memory_gb)])


def rate(model: str, stages: list[float], memory_gb: float, operators: int = 1) -> gp.ServingRate:
    shape = {"operator_parallel": operators, "pipeline_parallel": len(stages)}
    return gp.ServingRate(model=model, accelerator="v100", stage_seconds=stages, memory_gb=memory_gb, **shape)


MEASURED: dict[str, Any] = {"requests_per_second": 3.0, "condition": "closed_loop"}
PAIRS = gp.ServingProfile("pairs", [rate("m", [0.148], 5.2), rate("m", [0.075, 0.076], 2.6)])


def deep(*case: Any) -> Any:
    """Return a case that only `make deep` runs; `benchmarks/serving_requests.py` has all of them."""
    return pytest.param(*case, marks=pytest.mark.deep)


@pytest.mark.deep
@pytest.mark.parametrize(("scale", "target"), [deep(2, 0.849), (3, 0.959), deep(5, 0.992), (10, 0.995)])
def test_eight_bursty_models_on_eight_gpus_share_pairs(scale: float, target: float) -> None:
    services = [gp.Service(f"m{n}", model="m", rate=2.5, cv=3, slo_seconds=scale * 0.148) for n in range(8)]
    placement = gp.place_models(services, cluster_of(8), PAIRS, overheads=OVERHEADS, search_requests=6_000)
    assert placement.attainment.count == 5
    assert placement.attainment.mean >= target
    assert placement.attainment.low <= placement.promised.attainment + 0.01


@pytest.mark.deep
@pytest.mark.parametrize(("scale", "target"), [deep(1.5, 0.620), (2, 0.800), deep(3, 0.921)])
def test_the_published_case_of_24_models_is_met_on_its_trace_unseen(scale: float, target: float) -> None:
    rows = [rate("bert", stages, 5.2 / (op * len(stages)), op) for (op, _), stages in STAGES.items()]
    services = [gp.Service(name, model="bert", rate=each, cv=4, slo_seconds=scale * LATENCY) for name, each in RATES.items()]
    options: dict[str, Any] = {"overheads": OVERHEADS, "search_requests": 6_000, "seed": 1}
    placement = gp.place_models(services, cluster_of(16), gp.ServingProfile("bert", rows), **options)
    assert placement.replay(gp.RequestTrace.generate(RATES, 200, cv=4)).attainment >= target
    assert placement.attainment.mean >= target


def all_placements(services: list[str], held: int) -> list[tuple[str, ...]]:
    return [each for size in range(held + 1) for each in itertools.combinations(services, size)]


@pytest.mark.parametrize("seed", range(4))
def test_of_all_placements_of_three_models_on_two_gpus_the_best_is_found(seed: int) -> None:
    times = {"a": 0.1, "b": 0.15, "c": 0.2}
    rows = [rate(name, [seconds], 6.0) for name, seconds in times.items()]
    rows += [rate(name, [0.55 * seconds, 0.5 * seconds], 3.0) for name, seconds in times.items()]
    rates = {"a": 1.0 + seed, "b": 2.0, "c": 0.5 + 0.5 * seed}
    services = [gp.Service(name, model=name, rate=rates[name], cv=2, slo_seconds=0.5) for name in times]
    found = gp.place_models(services, cluster_of(2), gp.ServingProfile("p", rows), search_requests=1_000, changes=256, seed=seed)
    trace = found.promised.trace
    single, double = ({row.model: row.stage_seconds for row in rows if row.pipeline_parallel == k} for k in (1, 2))
    options = [[gp.ModelGroup({name: double[name] for name in held})] for held in all_placements([*times], 4) if held]
    for one, other in itertools.combinations_with_replacement(all_placements([*times], 2), 2):
        options.append([gp.ModelGroup({name: single[name] for name in held}) for held in (one, other)])
    best = max(gp.simulate_requests(trace, groups, 0.5, margin_seconds=0).attainment for groups in options)
    assert gp.simulate_requests(trace, found.groups, 0.5, margin_seconds=0).attainment == pytest.approx(best, abs=1e-9)


@given(data=st.data())
@settings(max_examples=examples(15, costly=True))
def test_memory_gpus_and_limits_of_replicas_are_kept(data: st.DataObject) -> None:
    count, gpus = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6))
    rows, services = [], []
    for n in range(count):
        seconds, memory = data.draw(st.sampled_from([0.05, 0.1, 0.2])), data.draw(st.sampled_from([2.0, 5.0, 12.0]))
        rows += [
            rate(f"m{n}", [seconds], memory),
            rate(f"m{n}", [seconds / 2] * 2, memory / 2),
            rate(f"m{n}", [seconds / 3], memory / 4, 4),
        ]
        most = data.draw(st.sampled_from([None, 1, 2]))
        fields = {"rate": data.draw(st.sampled_from([0.5, 4.0])), "cv": data.draw(st.sampled_from([0.0, 1.0, 4.0]))}
        services.append(gp.Service(f"s{n}", model=f"m{n}", slo_seconds=0.5, max_replicas=most, **fields))
    profile = gp.ServingProfile("p", rows)
    found = gp.place_models(services, cluster_of(gpus), profile, search_requests=200, changes=64, test_seeds=1)
    assert sum(group.num_gpus for group in found.groups) <= gpus
    memory = {(row.model, row.operator_parallel, row.pipeline_parallel): row.memory_gb or 0.0 for row in rows}
    for group in found.groups:
        shape = group.operator_parallel, group.pipeline_parallel
        assert sum(memory["m" + name[1:], *shape] for name in group.stage_seconds) <= 13.0 + 1e-9
    for service in services:
        assert service.max_replicas is None or found.replicas[service.name] <= service.max_replicas


def test_floors_are_kept_and_answers_repeat() -> None:
    services = [
        gp.Service("busy", model="m", rate=20.0, slo_seconds=1.0),
        gp.Service("idle", model="m", rate=0.1, slo_seconds=1.0, min_replicas=2),
    ]
    placed = [gp.place_models(services, cluster_of(4, 6.0), PAIRS, search_requests=500, changes=64) for _ in range(2)]
    assert placed[0].replicas["idle"] >= 2
    assert placed[0].to_dict() == placed[1].to_dict()


def test_more_weight_gets_more() -> None:
    def attained(weight: float) -> float:
        services = [gp.Service(n, model="m", rate=6.0, cv=3, slo_seconds=0.4, weight=w) for n, w in (("a", weight), ("b", 1.0))]
        return gp.place_models(services, cluster_of(1, 6.0), PAIRS, search_requests=500, changes=64).promised.attainments["a"]

    assert attained(10.0) > 0.1
    assert attained(0.1) == 0.0


def served_by(counts: tuple[int, ...], options: ShapeOptions, rates: np.ndarray, at_slo: np.ndarray) -> float:
    """Return the most requests served by groups of these numbers, over all numbers of replicas: by trying them all."""
    pairs = [(i, k) for i, k in itertools.product(range(len(rates)), range(len(counts))) if (i, k) in options.stages]
    best = 0.0
    for replicas in itertools.product(*(range(counts[k] + 1) for _, k in pairs)):
        held = dict(zip(pairs, replicas, strict=True))
        needs = [sum(options.memory_gb[p] * n for p, n in held.items() if p[1] == k) for k in range(len(counts))]
        if any(need > n * options.shapes[k].memory_gb for k, (need, n) in enumerate(zip(needs, counts, strict=True))):
            continue
        rows, limits = [], []
        for k, count in enumerate(counts):
            rows.append([1 / at_slo[p] if p[1] == k else 0.0 for p in pairs])
            limits.append(count)
        for i, each in enumerate(rates):
            rows.append([1.0 if p[0] == i else 0.0 for p in pairs])
            limits.append(each)
        bounds = [(0, at_slo[p] * held[p]) for p in pairs]
        found = linprog([-options.services[p[0]].weight for p in pairs], A_ub=rows, b_ub=limits, bounds=bounds)
        best = max(best, -found.fun)
    return best


@given(
    rates=st.lists(st.sampled_from([0.5, 2.0, 5.0, 9.0]), min_size=2, max_size=2),
    at_slo=st.lists(st.sampled_from([1.0, 1.5, 2.5, 4.0]), min_size=4, max_size=4),
    memory=st.lists(st.sampled_from([4.0, 7.0, 12.0]), min_size=4, max_size=4),
    weight=st.sampled_from([1.0, 3.0]),
)
@settings(max_examples=examples(15, costly=True))
def test_the_program_of_shapes_serves_as_much_as_the_best_of_all_lists(
    rates: list[float], at_slo: list[float], memory: list[float], weight: float
) -> None:
    services = [gp.Service("a", model="a", rate=rates[0], weight=weight), gp.Service("b", model="b", rate=rates[1])]
    rows = [
        rate("a", [0.1], memory[0]),
        rate("a", [0.1] * 2, memory[1]),
        rate("b", [0.1], memory[2]),
        rate("b", [0.1] * 2, memory[3]),
    ]
    options = options_of(services, cluster_of(3), gp.ServingProfile("p", rows), gp.ServingOverheads())
    given, table = np.array(rates), np.array(at_slo).reshape(2, 2)
    found = served_by(program_of_shapes(options, given, table), options, given, table)
    best = max(served_by(counts, options, given, table) for counts in ((3, 0), (1, 1), (2, 0), (0, 1), (0, 0), (1, 0)))
    assert found == pytest.approx(best, rel=2e-3)


def test_gpus_have_the_names_of_the_profile() -> None:
    cluster = cluster_of(4).renamed({"v100": "Tesla V100"})
    with pytest.warns(gp.GavelWarning, match="'Tesla V100' of the cluster is treated as 'v100' of profile 'pairs'"):
        options = options_of([gp.Service("a", model="m", rate=1.0)], cluster, PAIRS, gp.ServingOverheads())
    assert ({shape.accelerator for shape in options.shapes}, options.gpus) == ({"v100"}, {"v100": 4})


def test_lists_of_shapes_use_all_gpus_and_have_those_of_one_shape() -> None:
    services = [gp.Service(f"s{n}", model="m", rate=1.0, slo_seconds=0.5) for n in range(6)]
    options = options_of(services, cluster_of(6), PAIRS, gp.ServingOverheads())
    lists = proposals(options, np.ones(6), np.ones(6), gp.ServingOverheads())
    assert {(6, 0), (0, 3)} <= set(lists)
    assert all(counts[0] + 2 * counts[1] == 6 for counts in lists)


def test_results_are_tables_and_can_be_read_again(tmp_path: Any) -> None:
    services = [gp.Service(n, model="m", rate=2.0, cv=2, slo_seconds=0.6) for n in ("a", "b")]
    placed = gp.place_models(services, cluster_of(2), PAIRS, search_requests=500, changes=0, test_seeds=3)
    path = tmp_path / "placement.yaml"
    path.write_text(yaml.safe_dump({"groups": placed.to_dict()["groups"]}))
    again = gp.replayed_placement(services, gp.read_groups(path), requests=500, test_seeds=3)
    assert again.to_dict() == placed.to_dict()
    assert placed.to_columns()["replicas"].tolist() == list(placed.replicas.values())


def test_files_of_requests_are_searched_in_one_half_and_found_in_the_other(tmp_path: Any) -> None:
    gp.RequestTrace.generate({"chat": 5.0}, 200, cv=2).to_csv(tmp_path / "chat.csv")
    services = [gp.Service("chat", model="m", trace=str(tmp_path / "chat.csv"), slo_seconds=0.6)]
    placed = gp.place_models(services, cluster_of(2), PAIRS, changes=0)
    assert len(placed.found) == 1
    assert placed.promised.trace.duration_seconds == pytest.approx(placed.found[0].trace.duration_seconds)
    assert not np.array_equal(placed.promised.trace.seconds[:20], placed.found[0].trace.seconds[:20])


@pytest.mark.parametrize(
    ("service", "problem"),
    [
        ({"slo_seconds": 0.1}, "field slo_seconds: must be at least the fastest latency, 0.148 s, found 0.1"),
        ({"model": "big"}, "fits no group of GPUs: it needs at least 14 GB on each of 2 GPUs of v100, which have 13 GB each, 4 in"),
        ({"model": "sized"}, "'sized' has no stage_seconds without batch and sizes for an accelerator of the cluster"),
        ({"model": "free"}, "does not state memory_gb of 'free'"),
        ({"rate": None}, "field rate: is required, or a trace"),
        ({"slo_seconds": None, "ttft_seconds": 1.0}, "times of tokens are not simulated"),
        ({"name": "other"}, "service 'other', field name: appears twice"),
        ({"min_replicas": 9}, "min_replicas.* do not fit"),
    ],
)
def test_services_that_cannot_be_placed_are_named(service: dict[str, Any], problem: str) -> None:
    rows = [*PAIRS.rows, rate("big", [0.1], 20.0), rate("big", [0.1, 0.1], 14.0), rate("free", [0.1], 1.0)]
    rows[-1] = gp.ServingRate(model="free", accelerator="v100", stage_seconds=[0.1])
    sized = {"prompt_tokens": 128, "output_tokens": 128, "requests_per_second": 1.0, "condition": "offline"}
    rows.append(gp.ServingRate(model="sized", accelerator="v100", **sized))
    fields: dict[str, Any] = {"name": "chat", "model": "m", "rate": 1.0, "slo_seconds": 0.5} | service
    services = [gp.Service(**fields), gp.Service("other", model="m", rate=1.0)]
    with pytest.raises(gp.InputError, match=problem):
        gp.place_models(services, cluster_of(4), gp.ServingProfile("p", rows), search_requests=100, changes=0)


def test_a_cluster_without_memory_and_an_empty_list_are_named() -> None:
    with pytest.raises(gp.InputError, match="accelerator type 'v100', field memory_gb: is required"):
        gp.place_models([gp.Service("a", model="m", rate=1.0)], gp.Cluster.from_counts({"v100": (8, 8)}), PAIRS)
    with pytest.raises(gp.InputError, match="services: must not be empty"):
        gp.place_models([], cluster_of(1), PAIRS)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("groups: 3", "must be a list of groups"),
        ("groups: [{accelerator: v100}]", "line 1, field stage_seconds: must map services"),
        ("groups: [{stage_seconds: {a: [0.1]}, operator: 2}]", "did you mean 'operator_parallel'"),
        ("groups: [{stage_seconds: {a: [0.1], b: [0.1, 0.2]}}]", "same number of stages"),
        ("groups: [{stage_seconds: {a: [x]}}]", "greater than 0"),
        ("groups: [{stage_seconds: {a: [1]}, operator_parallel: 1.5}]", "whole number"),
        ("groups: [{stage_seconds: {a: [1]}, operator_parallel: 1.0}]", "whole number"),
    ],
)
def test_faults_of_group_files_are_named(tmp_path: Any, text: str, problem: str) -> None:
    path = tmp_path / "groups.yaml"
    path.write_text(text)
    with pytest.raises(gp.InputError, match=problem):
        gp.read_groups(path)


@pytest.mark.deep
def test_rates_of_models_with_stage_times_are_simulated() -> None:
    rows = [rate("m", [0.1], 5.0), rate("m", [0.06, 0.06], 3.0), gp.ServingRate(model="llm", accelerator="v100", **MEASURED)]
    services = [
        gp.Service("a", model="m", rate=8.0, slo_seconds=0.5),
        gp.Service("b", model="m", rate=2.0, cv=2, slo_seconds=0.11, attainment=0.5),
        gp.Service("c", model="m", rate=1.0),
    ]
    found = gp.simulated_rates(services, gp.ServingProfile("p", rows), seeds=2)
    by_shape = {(row.model, row.pipeline_parallel, row.slo_seconds): row for row in found.rows}
    assert set(by_shape) == {("m", 1, 0.11), ("m", 1, 0.5), ("m", 1, None), ("m", 2, 0.5), ("m", 2, None), ("llm", 1, None)}
    assert by_shape["m", 1, None].requests_per_second == pytest.approx(10.0)
    assert by_shape["m", 1, None].condition == "offline"
    promised = by_shape["m", 2, 0.5].requests_per_second or 0.0
    assert promised == gp.rate_at_slo([0.06, 0.06], 0.5, seeds=2).rate
    too_fast = gp.Service("a", model="m", rate=1.0, slo_seconds=0.05)
    with pytest.raises(
        gp.InputError, match=r"service 'a', field slo_seconds: must be at least the fastest latency, 0\.1 s, found 0\.05"
    ):
        gp.simulated_rates([too_fast], gp.ServingProfile("p", rows[:2]))
