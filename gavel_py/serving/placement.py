"""Placement of models on groups of GPUs, so that the most requests end within their SLO under bursts.

`shapes` proposes how many groups of each shape to form. Models are added to them one at a time: the model whose requests miss their
SLO most often goes to the group with the least work. Then single changes are kept if they are better in the simulator: a model
replaced on a group, two models exchanged, groups merged or split. The search uses one trace of requests; the attainment on this
trace is the promise, and the attainment found on traces of other seeds is reported beside it (`replay`). Li et al. (AlpaServe, OSDI
2023) showed the benefit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gavel_py.errors import InputError, refuse, relocated_faults, together, unknown_names, wrong_types
from gavel_py.io import reading
from gavel_py.io.records import Count, check, faults_of, number_of
from gavel_py.problem.arrays import Floats
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.tolerances import INPUT_ROUNDING
from gavel_py.serving.replay import ModelPlacement, RequestArrivals, replayed_placement
from gavel_py.serving.requests import RequestTrace
from gavel_py.serving.services import Service, ServingProfile
from gavel_py.serving.shapes import Counts, Held, ShapeOptions, merges, options_of, proposals
from gavel_py.serving.simulation import (
    NO_OVERHEADS,
    ModelGroup,
    ServerTable,
    ServingOverheads,
    busy_seconds,
    compile_groups,
    run_of,
    serve,
)

BEST_LISTS = 2
"""Number of the best lists of shapes that are refined by single changes."""

MAX_PASSES = 40
"""Maximum number of simulations while models are added to a list; if there is more room, several models are added after each."""

BATCH = 64
"""Number of single changes that are simulated together."""

LATENCY_COST = 1e-4
"""Cost of a mean latency of one second, in attainment, to choose among placements with equal attainment."""


def place_models(
    services: Sequence[Service],
    cluster: Cluster,
    profile: ServingProfile,
    *,
    overheads: ServingOverheads = NO_OVERHEADS,
    seed: int = 0,
    search_requests: int = 12_000,
    changes: int = 512,
    test_seeds: int = 5,
) -> ModelPlacement:
    """Return groups of GPUs with models on them, so that the largest weighted number of requests ends within the SLO.

    Args:
        services: Services with a rate and cv, or with a trace file. The search sees the first half of a file, and the placement is
            tested on the second half.
        cluster: The GPUs, with the memory of each type.
        profile: The possible shapes: its rows with stage_seconds and memory_gb, without batch and sizes of requests.
        overheads: Time that serving adds to the stages.
        seed: Seed of the arrivals that the search sees, and of its random changes.
        search_requests: Number of requests that the search sees; more make it slower and the promise more reliable.
        changes: Number of single changes that are tried at the end.
        test_seeds: Number of traces with other seeds on which the placement is replayed.

    Raises:
        InputError: A service fits no group, has an SLO below the fastest latency, or has neither a rate nor a trace; the cluster or
            the profile lacks memory sizes; a name appears twice; floors do not fit.
        UnknownNameError: The profile lacks a model.
    """
    check("placement of models", search_requests=(search_requests, Count), test_seeds=(test_seeds, Count))
    options = options_of(services, cluster, profile, overheads)
    arrivals = RequestArrivals(services)
    trace = arrivals.trace(arrivals.seconds(search_requests), seed, is_second_half=False)
    evaluator = Evaluator(options, trace, overheads)
    rates = np.array([trace.rates[service.name] for service in services])
    lists = proposals(options, rates, arrivals.cvs, overheads)
    placements = [each for each in filled_greedily(options, lists, evaluator) if keeps_limits(options, each)]
    problem = "the least numbers of replicas do not fit on the groups together"
    refuse("placement of models", (not placements, "min_replicas", problem))
    evaluated = evaluator.evaluate(placements)
    order = sorted(range(len(placements)), key=lambda n: -evaluated[n].score)[:BEST_LISTS]
    chance = np.random.default_rng(seed)
    batches = math.ceil(changes / BATCH / len(order))
    best = max((refined(options, placements[n], evaluator, batches, chance) for n in order), key=lambda found: found[0].score)
    groups = tuple(options.group(held) for held in best[1] if held[1])
    return replayed_placement(services, groups, overheads=overheads, seed=seed, requests=search_requests, test_seeds=test_seeds)


GROUP_FIELDS = {"accelerator", "operator_parallel", "pipeline_parallel", "num_gpus", "stage_seconds", "utilization"}


def read_groups(path: str | Path) -> tuple[ModelGroup, ...]:
    """Read groups from a YAML or JSON file with a list of them under `groups`, such as the output of `gavel serve simulate --json`.

    Args:
        path: The file. A group has stage_seconds, {service: [seconds of each stage]}, and may have operator_parallel and
            accelerator.

    Raises:
        InputError: All faults of the file, each with its line.
    """
    document = reading.document(path)
    entries: Any = document.value.get("groups") if isinstance(document.value, Mapping) else document.value
    refuse(document.where(), (not isinstance(entries, list) or not entries, "groups", "must be a list of groups"))
    with together() as attempt:
        groups = [attempt(partial(_group, document.where("groups", n), entry)) for n, entry in enumerate(entries)]
    return tuple(groups)


def _group(where: str, entry: Any) -> ModelGroup:
    fields: Any = entry if isinstance(entry, Mapping) else {}
    stages, operators = fields.get("stage_seconds"), fields.get("operator_parallel", 1)
    rule = "must map services to the seconds of each stage, such as {chat: [0.1, 0.1]}"
    faults = wrong_types(where, "stage_seconds", [stages], Mapping, rule)
    faults += unknown_names(where, None, map(str, fields), GROUP_FIELDS) + faults_of(where, operator_parallel=(operators, Count))
    InputError.raise_any(faults)
    seconds = {str(name): [number_of(each) for each in times] if isinstance(times, list) else [] for name, times in stages.items()}
    with relocated_faults(lambda fault: replace(fault, where=where)):
        return ModelGroup(seconds, operators, str(entry.get("accelerator", "")))


class Evaluation(NamedTuple):
    """Weighted attainment; score: this less a cost of latency; lacks: (S,) missed requests; busy: (G,) seconds of work."""

    attainment: float
    score: float
    lacks: Floats
    busy: Floats


class Evaluator:
    """Simulates placements on one trace. Groups with the same shape and models are compiled once.

    requests: (S,) number of requests of each service in the trace.
    """

    def __init__(self, options: ShapeOptions, trace: RequestTrace, overheads: ServingOverheads) -> None:
        self._options, self._trace, self._overheads = options, trace, overheads
        self._compiled: dict[Held, ServerTable] = {}
        order = [trace.services.index(service.name) for service in options.services]
        self._slo = np.empty(len(order))
        self._slo[order] = options.slo_seconds
        self._weights = np.empty(len(order))
        self._weights[order] = options.weights
        self._weight_of = self._weights[trace.service_index]
        self._order = order
        self._run = run_of(trace, self._slo, compile_groups([], trace.services, overheads), overheads)
        self.requests = np.bincount(trace.service_index, minlength=len(order)).astype(float)[order]

    def evaluate(self, placements: Sequence[Sequence[Held]]) -> list[Evaluation]:
        """Simulate the placements and return the evaluation of each."""
        runs = [self._run._replace(table=self._table(groups)) for groups in placements]
        found = []
        for run, served in zip(runs, serve(runs), strict=True):
            missed = np.isnan(served.ends)
            latencies = np.where(missed, 0.0, served.ends - self._trace.seconds)
            attained = 1 - float(self._weight_of[missed].sum() / self._weight_of.sum())
            mean = float(latencies.sum() / max(1, len(missed) - missed.sum()))
            lacks = np.bincount(self._trace.service_index[missed], self._weight_of[missed], len(self._slo)).astype(
                float, copy=False
            )
            found.append(Evaluation(attained, attained - LATENCY_COST * mean, lacks[self._order], busy_seconds(run, served)))
        return found

    def _table(self, groups: Sequence[Held]) -> ServerTable:
        each = [self._one(group) for group in groups]
        clocks = max(len(table.stages) for table in each)
        stages = [np.pad(table.stages, ((0, clocks - len(table.stages)), (0, 0), (0, 0))) for table in each]
        lead, work = (np.hstack([table[n] for table in each]) for n in (0, 2))
        return ServerTable(lead, np.concatenate(stages, axis=2), work)

    def _one(self, group: Held) -> ServerTable:
        if group not in self._compiled:
            self._compiled[group] = compile_groups([self._options.group(group)], self._trace.services, self._overheads)
        return self._compiled[group]


def filled_greedily(options: ShapeOptions, lists: Sequence[Counts], evaluator: Evaluator) -> list[tuple[Held, ...]]:
    """Return a placement for each list of shapes: models with the most missed requests are added first, where GPUs work least."""
    placements = [[(k, frozenset[int]()) for k, count in enumerate(counts) for _ in range(count)] for counts in lists]
    open_ones = list(range(len(lists)))
    for groups in placements:
        _add_floors(options, groups)
    while open_ones:
        evaluated = evaluator.evaluate([placements[n] for n in open_ones])
        for n, evaluation in zip(list(open_ones), evaluated, strict=True):
            if not evaluation.lacks.any():
                _fill(options, placements[n], evaluation, evaluator.requests)
                open_ones.remove(n)
            elif not _add(options, placements[n], evaluation):
                open_ones.remove(n)
    return [tuple(groups) for groups in placements]


def _add(options: ShapeOptions, groups: list[Held], evaluation: Evaluation) -> bool:
    """Add a model, or several if there is plenty of room; return False if none fits."""
    least = min(options.memory_gb.values())
    room = sum(int((options.room(group) + INPUT_ROUNDING) / least) if least else len(options.services) for group in groups)
    lacks, counts = evaluation.lacks.copy(), _replicas(options, groups)
    added = 0
    work = evaluation.busy / [options.shapes[k].pipeline_parallel for k, _ in groups]
    for g in np.argsort(work, kind="stable").tolist():
        wanted = (
            s for s in np.argsort(-lacks, kind="stable").tolist() if options.fits(s, groups[g]) and _is_below(options, s, counts)
        )
        service = next(wanted, None)
        if service is not None:
            groups[g] = groups[g][0], groups[g][1] | {service}
            lacks[service] /= 2
            counts[service] += 1
            added += 1
        if added * MAX_PASSES >= room:
            break
    return added > 0


def _fill(options: ShapeOptions, groups: list[Held], evaluation: Evaluation, requests: Floats) -> None:
    """Fill the remaining memory with the models that have the most requests per replica, since other traces have other bursts."""
    while _add(options, groups, evaluation._replace(lacks=requests / (1 + np.array(_replicas(options, groups))))):
        pass


def _replicas(options: ShapeOptions, groups: Iterable[Held]) -> list[int]:
    counts = Counter(service for _, held in groups for service in held)
    return [counts[service] for service in range(len(options.services))]


def _is_below(options: ShapeOptions, service: int, counts: Sequence[int]) -> bool:
    most = options.services[service].max_replicas
    return most is None or counts[service] < most


def _add_floors(options: ShapeOptions, groups: list[Held]) -> None:
    """Add the minimum number of replicas of each service to the groups with the most room."""
    for service, each in enumerate(options.services):
        for _ in range(each.min_replicas):
            possible = [g for g, group in enumerate(groups) if options.fits(service, group)]
            if possible:
                g = max(possible, key=lambda g: options.room(groups[g]))
                groups[g] = groups[g][0], groups[g][1] | {service}


def refined(
    options: ShapeOptions, placement: tuple[Held, ...], evaluator: Evaluator, batches: int, chance: np.random.Generator
) -> tuple[Evaluation, tuple[Held, ...]]:
    """Return the placement after single changes; the best change of each batch is kept if it is an improvement."""
    best, found = evaluator.evaluate([placement])[0], placement
    for _ in range(batches):
        if best.attainment == 1.0:
            break
        tried = list(dict.fromkeys(_changed(options, found, chance) for _ in range(BATCH)))
        tried = [each for each in tried if each != found and keeps_limits(options, each)]
        if not tried:
            break
        evaluated = evaluator.evaluate(tried)
        at = max(range(len(tried)), key=lambda n: evaluated[n].score)
        if evaluated[at].score > best.score + 1e-9:
            best, found = evaluated[at], tried[at]
    return best, found


def keeps_limits(options: ShapeOptions, placement: Sequence[Held]) -> bool:
    """Return whether each service has at least its minimum and at most its maximum number of replicas."""
    counts = _replicas(options, placement)
    limits = [(each.min_replicas, each.max_replicas) for each in options.services]
    return all(least <= count and (most is None or count <= most) for (least, most), count in zip(limits, counts, strict=True))


def _changed(options: ShapeOptions, placement: tuple[Held, ...], chance: np.random.Generator) -> tuple[Held, ...]:
    """Return the placement with one random change, which may have no effect."""
    drawn, groups = chance.random(), list(placement)
    if drawn < 0.15:
        _reshape(options, groups, chance)
    elif drawn < 0.4:
        _exchange(options, groups, chance)
    else:
        _replace(options, groups, chance)
    return tuple(groups)


def _replace(options: ShapeOptions, groups: list[Held], chance: np.random.Generator) -> None:
    """Replace a model on a group by another one that fits; sometimes only add one."""
    g = int(chance.integers(len(groups)))
    shape, held = groups[g]
    if held and chance.random() < 0.8:
        held = held - {int(chance.choice(sorted(held)))}
    counts = _replicas(options, groups)
    fitting = [s for s in range(len(options.services)) if options.fits(s, (shape, held)) and _is_below(options, s, counts)]
    fitting = [s for s in fitting if s not in groups[g][1]]
    if fitting:
        groups[g] = shape, held | {int(chance.choice(fitting))}


def _exchange(options: ShapeOptions, groups: list[Held], chance: np.random.Generator) -> None:
    """Exchange a model of a group with one of another."""
    if len(groups) < 2:
        return
    a, b = chance.choice(len(groups), 2, replace=False).tolist()
    ours, theirs = sorted(groups[a][1] - groups[b][1]), sorted(groups[b][1] - groups[a][1])
    if not ours or not theirs:
        return
    gone, come = int(chance.choice(ours)), int(chance.choice(theirs))
    first, second = (groups[a][0], groups[a][1] - {gone}), (groups[b][0], groups[b][1] - {come})
    if options.fits(come, first) and options.fits(gone, second):
        groups[a], groups[b] = (first[0], first[1] | {come}), (second[0], second[1] | {gone})


def _reshape(options: ShapeOptions, groups: list[Held], chance: np.random.Generator) -> None:
    """Merge groups into one of another shape with the same number of GPUs, or split one; keep as many of their models as fit."""
    possible_merges = list(merges(options))
    if not possible_merges:
        return
    small, large, parts = possible_merges[int(chance.integers(len(possible_merges)))]
    is_merged = chance.random() < 0.5
    taken, made, count = (small, large, parts) if is_merged else (large, small, 1)
    possible = [g for g, (shape, _) in enumerate(groups) if shape == taken]
    if len(possible) < count:
        return
    gone = chance.choice(possible, count, replace=False).tolist()
    models = [service for g in gone for service in sorted(groups[g][1])]
    new: list[Held] = [(made, frozenset())] * (1 if is_merged else parts)
    numbers = Counter(shape for shape, _ in groups)
    numbers.update({taken: -count, made: len(new)})
    if not options.hold([numbers[k] for k in range(len(options.shapes))]):
        return
    for service in [*models, *models] if not is_merged else models:
        at = max(range(len(new)), key=lambda n: options.room(new[n]))
        if options.fits(service, new[at]):
            new[at] = made, new[at][1] | {service}
    groups[:] = [*(group for g, group in enumerate(groups) if g not in gone), *new]
