"""What is promised of parts of GPUs, against all ways to put jobs onto the GPUs of a round, which are tried one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, linprog, milp

import gavel_py as gp
from gavel_py.optimization.formulation import packings as module
from gavel_py.optimization.formulation.cuts import gang_rows
from gavel_py.optimization.formulation.packings import fraction_rows, packing_rows
from tests.support.examples import examples, seeds
from tests.support.instances import Floats

SIZES = (1 / 8, 0.2, 0.25, 0.3, 1 / 3, 0.4, 0.5, 0.6, 2 / 3, 0.7, 0.75, 1, 2)
TYPES = ("v100", "p100", "k80")

NO_CPUS: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())


@dataclass(frozen=True)
class Scene:
    """nodes: (type, GPUs) of each; room: GB of a GPU of each type; sizes, memory, speeds: by job, GB 0 if unknown.

    cpus: of each node, 0 where it does not say, and per GPU of each job; together: gangs that must be on one node.
    """

    nodes: tuple[tuple[int, int], ...]
    room: tuple[float, ...]
    sizes: tuple[float, ...]
    memory: tuple[float, ...]
    speeds: tuple[tuple[float, ...], ...]
    weights: tuple[float, ...]
    cpus: tuple[tuple[float, ...], tuple[float, ...]] = NO_CPUS
    together: tuple[bool, ...] = ()

    @property
    def problem(self) -> gp.AllocationProblem:
        names = TYPES[: len(self.room)]
        known = any(self.memory)
        types = [gp.AcceleratorType(name=name, memory_gb=gb if known else None) for name, gb in zip(names, self.room, strict=True)]
        cores, needs = self.cpus
        nodes = [
            gp.Node(name=f"n{i}", accelerator=TYPES[j], num_gpus=gpus, cpus=cores[i] if cores else None)
            for i, (j, gpus) in enumerate(self.nodes)
        ]
        jobs = [
            gp.Job(
                f"j{i}",
                num_gpus=size if size < 1 else int(size),
                weight=self.weights[i],
                total_steps=100,
                gpu_memory_gb=self.memory[i] or None,
                cpus_per_gpu=needs[i] if needs else 0.0,
                locality="node" if self.together and self.together[i] else "any",
            )
            for i, size in enumerate(self.sizes)
        ]
        ids = [job.job_id for job in jobs]
        speeds = gp.ThroughputProfile.from_matrix(self.speeds, job_ids=ids, accelerators=names)
        return gp.AllocationProblem.from_jobs(jobs, gp.Cluster(nodes, accelerator_types=types), speeds)

    def fit(self, jobs: Sequence[int], j: int) -> bool:
        """Whether these jobs can be on the GPUs of a type at once: the largest first, GPU by GPU, tried in all ways."""
        room = self.room[j] if any(self.memory) else float("inf")
        nodes = [n for n, (of, _) in enumerate(self.nodes) if of == j]
        free = [(n, 1.0, room) for n in nodes for _ in range(self.nodes[n][1])]
        cores = {n: self.cpus[0][n] if self.cpus[0] else float("inf") for n in nodes}
        return self._fit(sorted(jobs, key=lambda i: -self.sizes[i]), free, cores)

    def _fit(self, jobs: list[int], free: list[tuple[int, float, float]], cores: dict[int, float]) -> bool:
        if not jobs:
            return True
        size, gb = self.sizes[jobs[0]], self.memory[jobs[0]]
        count, part = (int(size), 1.0) if size >= 1 else (1, size)
        per_gpu = part * (self.cpus[1][jobs[0]] if self.cpus[1] else 0.0)
        fitting = [at for at, (_, left, memory) in enumerate(free) if left >= part - 1e-9 and memory >= gb - 1e-9]
        tried = set()
        for chosen in combinations(fitting, count):
            on = Counter(free[at][0] for at in chosen)
            alike = tuple(sorted(free[at] for at in chosen))
            apart = bool(self.together) and self.together[jobs[0]] and len(on) > 1
            if alike in tried or apart or any(cores[n] < k * per_gpu - 1e-9 for n, k in on.items()):
                continue
            tried.add(alike)
            rest = [(n, left - part * (at in chosen), memory - gb * (at in chosen)) for at, (n, left, memory) in enumerate(free)]
            if self._fit(jobs[1:], rest, {n: left - on[n] * per_gpu for n, left in cores.items()}):
                return True
        return False

    def at_once(self) -> Iterator[Floats]:
        """(N, K) all assignments of jobs to types that fit at once."""
        types = len(self.room)
        for places in product(range(-1, types), repeat=len(self.sizes)):
            if all(self.fit([i for i, place in enumerate(places) if place == j], j) for j in range(types)):
                yield np.array([[float(place == j) for j in range(types)] for place in places])

    def deliverable(self, promised: Floats) -> float:
        """The largest part of these time fractions, at most 1, that some mix of what can run at once delivers."""
        found = np.array([each.ravel() for each in self.at_once()])
        asked = promised.ravel()
        answer = linprog(
            np.append(np.zeros(len(found)), -1.0),
            np.vstack([np.column_stack([-found.T, asked]), np.append(np.ones(len(found)), 0.0)]),
            np.append(np.zeros(len(asked)), 1.0),
            bounds=[(0, None)] * len(found) + [(0, 1)],
            method="highs",
        )
        assert answer.status == 0
        return float(-answer.fun)


def drawn(chance: np.random.Generator, *, memory: bool, jobs: int, cpus: bool = False) -> Scene:
    """1 to 3 nodes of 1 to 3 types with 1 to 3 GPUs each, and as many jobs. With CPUs, gangs keep to one node."""
    count = int(chance.integers(1, 4))
    types = int(chance.integers(1, count + 1))
    of = [*range(types), *chance.integers(0, types, count - types).tolist()]
    nodes = tuple((j, int(chance.integers(1, 4))) for j in of)
    return Scene(
        nodes=nodes,
        room=tuple(chance.choice([16.0, 24.0, 40.0], types).tolist()),
        sizes=tuple(chance.choice(SIZES, jobs).tolist()),
        memory=tuple(chance.choice([4.0, 8.0, 12.0, 15.0], jobs).tolist()) if memory else (0.0,) * jobs,
        speeds=tuple(map(tuple, chance.choice([1.0, 2.0, 4.0], (jobs, types)).tolist())),
        weights=tuple(chance.choice([1.0, 1.0, 2.0], jobs).tolist()),
        cpus=(tuple(4.0 * gpus for _, gpus in nodes), tuple(chance.choice([1.0, 4.0, 6.0, 8.0], jobs).tolist()))
        if cpus
        else NO_CPUS,
        together=(True,) * jobs if cpus else (),
    )


SCENES = st.builds(
    lambda seed, memory, jobs, cpus: drawn(np.random.default_rng(seed), memory=memory, jobs=jobs, cpus=cpus),
    st.integers(0, 2**32 - 1),
    st.booleans(),
    st.integers(2, 6),
    st.booleans(),
)


@settings(max_examples=examples(150, costly=True))
@given(SCENES, st.sampled_from(["max_min_fairness", "max_total_throughput", "min_makespan"]))
def test_all_that_is_promised_can_be_packed(scene: Scene, policy: str) -> None:
    """As long as rows are looked for: what is left after 30 rounds is little."""
    problem = scene.problem
    assume(problem.runnable.any())
    allocation = gp.solve(problem, policy)
    assert scene.deliverable(allocation.time_fractions) >= 1 / 1.06
    if not packing_rows(problem, allocation.time_fractions):
        assert scene.deliverable(allocation.time_fractions) >= 1 - 1e-6


@pytest.mark.deep
@pytest.mark.parametrize(("memory", "cpus"), [(False, False), (True, False), (True, True)])
def test_of_many_small_instances_none_promises_too_much(memory: bool, cpus: bool) -> None:
    chance = np.random.default_rng(18)
    scenes = [drawn(chance, memory=memory, jobs=int(chance.integers(2, 7)), cpus=cpus) for _ in range(81)]
    parts = [scene.deliverable(gp.solve(scene.problem).time_fractions) for scene in scenes if scene.problem.runnable.any()]
    assert min(parts) >= 1 - 1e-6


def no_patterns(*_: object) -> None:
    """No patterns of all GPUs of a type, as if there were too many."""


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({}, id="all types together"),
        pytest.param({"MOST_STATES": 1}, id="each type by its patterns"),
        pytest.param({"MOST_STATES": 1, "patterns_at_once": no_patterns}, id="each GPU by itself"),
    ],
)
@settings(max_examples=examples(60, costly=True))
@given(scene=SCENES, seed=st.integers(0, 2**32 - 1))
def test_no_row_keeps_out_what_can_be_packed(limits: dict[str, object], scene: Scene, seed: int) -> None:
    problem, chance = scene.problem, np.random.default_rng(seed)
    assume(problem.runnable.any())
    found = np.array(list(scene.at_once()))
    delivered = np.einsum("mp,pij->mij", chance.dirichlet(np.full(len(found), 0.3), size=20), found)
    with pytest.MonkeyPatch.context() as patched:
        for name, limit in limits.items():
            patched.setattr(module, name, limit)
        for _ in range(4):
            some = chance.random(problem.runnable.shape) < 0.7
            wanted = np.where(problem.runnable & some, chance.uniform(0.1, 1, problem.runnable.shape), 0.0)
            for row in [*packing_rows(problem, wanted), *fraction_rows(problem, wanted), *gang_rows(problem, wanted)]:
                for mix in delivered:
                    assert row.used(problem, mix) <= row.rhs * (1 + 1e-9) + 1e-7
                assert row.used(problem, wanted) > row.rhs


@settings(max_examples=examples(60))
@given(SCENES)
def test_nothing_that_can_be_packed_is_better(scene: Scene) -> None:
    """The best mix for the least normalised throughput, written out, is no better than the answer."""
    problem = scene.problem
    assume(problem.runnable.any(axis=1).all())
    found = np.array(list(scene.at_once()))
    share = problem.weights * problem.equal_share / problem.num_gpus
    gains = np.einsum("pij,ij->pi", found, problem.throughputs) / share[:, None].T
    answer = linprog(
        np.append(np.zeros(len(found)), -1.0),
        np.vstack([np.column_stack([-gains.T, np.ones(len(share))]), np.append(np.ones(len(found)), 0.0)]),
        np.append(np.zeros(len(share)), 1.0),
        bounds=[(0, None)] * (len(found) + 1),
        method="highs",
    )
    allocation = gp.solve(problem)
    assert allocation.objective_value == pytest.approx(-answer.fun, rel=1e-5)


def one_type(sizes: Sequence[float], gpus: int, memory: Sequence[float] | None = None) -> gp.AllocationProblem:
    count = len(sizes)
    scene = Scene(((0, gpus),), (40.0,), tuple(sizes), tuple(memory or [0.0] * count), ((1.0,),) * count, (1.0,) * count)
    return scene.problem


@pytest.mark.parametrize(
    ("sizes", "gpus", "memory", "together"),
    [
        pytest.param([1 / 3, 1, 1], 2, None, 2.0, id="nobody to share with"),
        pytest.param([0.2, 2], 2, None, 1.0, id="a fifth beside a gang of all GPUs"),
        pytest.param([0.4, 0.4, 0.4, 1, 1], 3, None, 4.0, id="two of three share"),
        pytest.param([0.25] * 4, 1, [30.0] * 4, 1.0, id="memory for one"),
        pytest.param([0.25] * 4, 1, [20.0] * 4, 2.0, id="memory for two"),
        pytest.param([0.25] * 4, 1, [10.0] * 4, 4.0, id="memory for all"),
        pytest.param([1 / 3] * 21 + [1] * 20, 12, None, 26.0, id="many that share"),
        pytest.param([0.18] * 81 + [1] * 3, 18, None, 82.0, id="one more than share 16 GPUs"),
        pytest.param([1 / 3] + [1] * 20, 12, None, 12.0, id="one of a third beside many"),
        pytest.param([0.25] * 400, 100, [30.0] * 400, 100.0, id="the memory of many GPUs"),
    ],
)
def test_what_fits_is_promised_and_no_more(sizes: list[float], gpus: int, memory: list[float] | None, together: float) -> None:
    allocation = gp.solve(one_type(sizes, gpus, memory), "max_total_throughput", normalized=False)
    assert allocation.time_fractions.sum() == pytest.approx(together, rel=1e-6)
    assert allocation.verify().gap <= 1e-9


@pytest.mark.parametrize("all_gpus", [True, False], ids=["all GPUs together", "each GPU by itself"])
def test_hardly_more_than_what_fits_breaks_a_row(all_gpus: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of equally good answers, one may break a row of 1 % too much and another may not; a solver's history must not decide."""
    if not all_gpus:
        monkeypatch.setattr(module, "patterns_at_once", no_patterns)
    problem = one_type([0.6] * 20 + [1.0] * 10, 12)
    times = np.full((30, 1), 12 / 30)
    assert packing_rows(problem, times) == []
    assert len(packing_rows(problem, times * 1.00001)) == 1


def test_a_job_is_in_one_place_at_a_time() -> None:
    """While the gang has both V100s, the K80 is all that there is for the two others, each of which fills a GPU."""
    scene = Scene(((0, 2), (1, 1)), (40.0, 40.0), (2.0, 0.75, 0.6), (0.0,) * 3, ((1.0, 1.0),) * 3, (1.0,) * 3)
    allocation = gp.solve(scene.problem)
    assert scene.deliverable(allocation.time_fractions) == pytest.approx(1)
    gang, *others = allocation.time_fractions.sum(axis=1).tolist()
    assert gang + sum(others) <= 2 + 1e-9


def test_gangs_whose_nodes_lack_cpus_for_both_take_turns() -> None:
    """On a node of 3 GPUs and 12 CPUs, beside 8 CPUs of one job there are not the 6 of the other."""
    jobs = [gp.Job("two", num_gpus=2, cpus_per_gpu=4, locality="node"), gp.Job("one", num_gpus=1, cpus_per_gpu=6)]
    cluster = gp.Cluster([gp.Node(name="n", accelerator="v100", num_gpus=3, cpus=12)])
    speeds = gp.ThroughputProfile.from_matrix([[2.0], [1.0]], job_ids=["two", "one"], accelerators=["v100"])
    problem = gp.AllocationProblem.from_jobs(jobs, cluster, speeds)
    assert gp.solve(problem).time_fractions.sum() == pytest.approx(1)
    assert "what CPUs and memory of the nodes with v100 allow at once" in {
        each.name for each in gp.explain(problem, "one").bindings
    }


def test_whole_gangs_are_left_alone() -> None:
    """Without parts of GPUs there is nothing to look for."""
    problem = one_type([1, 2, 2], 3)
    assert packing_rows(problem, np.ones((3, 1))) == []
    assert packing_rows(gp.AllocationProblem.from_arrays([[1.0]], [1], num_gpus=[0.5]), np.ones((1, 1))) == []


def test_the_rounds_of_a_problem_with_memory_know_of_it() -> None:
    """Four quarters with memory for one: each runs every fourth round, and nothing is left undelivered."""
    cluster = gp.Cluster(
        [gp.Node(name="n", accelerator="v100", num_gpus=1)], accelerator_types=[gp.AcceleratorType(name="v100", memory_gb=40)]
    )
    speeds = gp.ThroughputProfile.from_matrix([[1.0]] * 4, job_ids=list("abcd"), accelerators=["v100"])
    scheduler = gp.RoundScheduler(cluster, speeds)
    for name in "abcd":
        scheduler.submit(gp.Job(name, num_gpus=0.25, gpu_memory_gb=30, total_steps=1e6))
    for _ in range(8):
        assert len(scheduler.next_round().assignments) == 1
    assert scheduler.allocation.time_fractions.sum() == pytest.approx(1)


@pytest.mark.deep
@pytest.mark.parametrize("seed", seeds(6))
def test_what_types_of_many_gpus_are_promised_can_be_packed(seed: int) -> None:
    """Jobs of a few sizes on 9 to 24 GPUs; the packings that deliver the promise are found by integer programs."""
    chance = np.random.default_rng(seed)
    sizes = chance.choice(chance.choice(SIZES, 4, replace=False), 30)
    gpus = int(np.clip(chance.uniform(0.4, 0.8) * np.ceil(sizes).sum(), 9, 24))
    policy = str(chance.choice(["max_min_fairness", "max_total_throughput", "min_makespan"]))
    promised = gp.solve(one_type(sizes.tolist(), gpus), policy).time_fractions[:, 0]
    assert part_packed(sizes, promised, gpus) >= 1 - 1e-5


def part_packed(sizes: Floats, promised: Floats, gpus: int) -> float:
    """The part of these time fractions that packings deliver: columns are the best packings at the prices of the jobs so far."""
    found = [np.eye(len(sizes))[i] for i in range(len(sizes))]
    while True:
        answer = linprog(
            np.append(np.zeros(len(found)), -1.0),
            np.vstack([np.column_stack([-np.transpose(found), promised]), np.append(np.ones(len(found)), 0.0)]),
            np.append(np.zeros(len(sizes)), 1.0),
            method="highs",
        )
        prices = -answer.ineqlin.marginals[:-1]
        better = best_packing(sizes, prices, gpus)
        if better @ prices <= -answer.fun + 1e-7:
            return float(-answer.fun)
        found.append(better)


def best_packing(sizes: Floats, prices: Floats, gpus: int) -> Floats:
    """The jobs of the largest total price that fit at once: y_p GPUs hold the fractions of pattern p, the others whole gangs."""
    kinds, jobs = np.unique(sizes[sizes < 1]), len(sizes)
    tried = product(*(range(int(1 / kind + 1e-9) + 1) for kind in kinds))
    patterns = np.array([numbers for numbers in tried if np.dot(numbers, kinds) <= 1 + 1e-9], dtype=float).reshape(-1, len(kinds))
    rows = [
        np.hstack([np.equal.outer(kinds, sizes), -patterns.T]),
        np.concatenate([np.where(sizes < 1, 0.0, sizes), np.ones(len(patterns))])[None],
    ]
    answer = milp(
        np.concatenate([-prices, np.zeros(len(patterns))]),
        constraints=LinearConstraint(np.vstack(rows), -np.inf, np.append(np.zeros(len(kinds)), gpus)),
        integrality=1,
        bounds=Bounds(0, np.append(np.ones(jobs), np.full(len(patterns), gpus))),
    )
    chosen: Floats = np.round(answer.x[:jobs])
    return chosen
