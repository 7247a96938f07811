"""Service in a tree of tenants equals a step-by-step simulation from one finished job to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gavel_py.policies.fair_queueing import Queues, Segments, ServiceRise, ServiceTree

Floats = NDArray[np.float64]
DIGITS = Fraction(1, 10**12)


# --- the tree as nested dictionaries, and the arrays made of it


def job(room: float, weight: float = 1.0, count: int = 1) -> dict[str, Any]:
    return {"room": room, "weight": weight, "count": count}


def fair(*members: dict[str, Any], weight: float = 1.0) -> dict[str, Any]:
    return {"fifo": False, "weight": weight, "members": list(members)}


def fifo(*members: dict[str, Any], weight: float = 1.0) -> dict[str, Any]:
    return {"fifo": True, "weight": weight, "members": list(members)}


def jobs_of(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for member in node["members"]:
        if "room" in member:
            yield member
        else:
            yield from jobs_of(member)


@dataclass
class Arrays:
    """A nested tree as the arrays of `ServiceTree`: nodes and jobs in the order in which they are met."""

    rows: list[tuple[float, float, float, int]] = field(default_factory=list)  # count, weight, rank, leaf
    nodes: list[tuple[int, float, float, bool]] = field(default_factory=list)  # parent, weight, rank, is fifo

    def add(self, node: dict[str, Any], parent: int = -1, rank: float = 0) -> Arrays:
        number = len(self.nodes)
        self.nodes.append((parent, node["weight"], rank, node["fifo"]))
        for place, member in enumerate(node["members"]):
            if "room" in member:
                self.rows.append((member["count"], member["weight"], place, number))
            else:
                self.add(member, number, place)
        return self

    def tree(self, row_order: list[int] | None = None, node_order: list[int] | None = None) -> ServiceTree:
        """The tree with row i of the arrays in place row_order[i], and likewise for nodes."""
        rows = shuffled(self.rows, row_order)
        nodes = shuffled(self.nodes, node_order)
        new = node_order if node_order is not None else list(range(len(nodes)))
        return ServiceTree(
            counts=[row[0] for row in rows],
            weights=[row[1] for row in rows],
            ranks=[row[2] for row in rows],
            leaves=[new[row[3]] for row in rows],
            parents=[-1 if node[0] < 0 else new[node[0]] for node in nodes],
            node_weights=[node[1] for node in nodes],
            node_ranks=[node[2] for node in nodes],
            is_fifo=[node[3] for node in nodes],
        )


def shuffled(entries: list[Any], order: list[int] | None) -> list[Any]:
    if order is None:
        return entries
    moved = [None] * len(entries)
    for entry, place in zip(entries, order, strict=True):
        moved[place] = entry
    return moved


def rise_of(root: dict[str, Any]) -> ServiceRise:
    return Arrays().add(root).tree().rise([j["room"] for j in jobs_of(root)])


# --- the same, step by step, in exact fractions


@dataclass(frozen=True)
class History:
    """What each job has been served at the levels where some job was done; in between it grows evenly."""

    levels: list[Fraction]
    services: list[list[Fraction]]

    def at(self, level: Fraction) -> list[Fraction]:
        for (low, high), (before, after) in zip(pairwise(self.levels), pairwise(self.services), strict=True):
            if level <= high:
                part = (max(level, low) - low) / (high - low)
                return [one + part * (other - one) for one, other in zip(before, after, strict=True)]
        return self.services[-1]

    def start(self, i: int) -> Fraction:
        """The last level at which job i has been served nothing."""
        return max(level for level, served in zip(self.levels, self.services, strict=True) if served[i] == 0)


def step_by_step(root: dict[str, Any]) -> History:
    jobs = list(jobs_of(root))
    served = {id(one): Fraction(0) for one in jobs}
    level = Fraction(0)
    levels, services = [level], [list(served.values())]
    while rates := current_rates(root, served):
        step = min((Fraction(one["room"]) - served[id(one)]) / rates[id(one)] for one in jobs if id(one) in rates)
        level += step
        for one, rate in rates.items():
            served[one] += step * rate
        levels.append(level)
        services.append(list(served.values()))
    return History(levels, services)


def current_rates(root: dict[str, Any], served: dict[int, Fraction]) -> dict[int, Fraction]:
    """How fast each single job that is not done is served, where the root's virtual time runs at speed 1."""
    rates: dict[int, Fraction] = {}

    def is_active(member: dict[str, Any]) -> bool:
        if "room" in member:
            return served[id(member)] < member["room"]
        return any(map(is_active, member["members"]))

    def share(member: dict[str, Any]) -> Fraction:
        return Fraction(member["weight"]) * member.get("count", 1)

    def give(member: dict[str, Any], rate: Fraction) -> None:
        if "room" in member:
            rates[id(member)] = rate / member["count"]
            return
        active = [one for one in member["members"] if is_active(one)]
        if member["fifo"]:
            give(active[0], rate)
        else:
            for one in active:
                give(one, rate * share(one) / sum(map(share, active)))

    if is_active(root):
        active = [one for one in root["members"] if is_active(one)]
        give(root, Fraction(1) if root["fifo"] else sum(map(share, active), Fraction(0)))
    return rates


# --- random trees

TAME = st.one_of(st.just(0.0), st.sampled_from([1.0, 2.0, 3.0]), st.floats(0.1, 10))
WILD = st.one_of(st.just(0.0), st.sampled_from([1.0, 1e-6, 1e6]), st.floats(-6, 6).map(lambda e: 10.0**e))
WEIGHTS = {"tame": st.one_of(st.sampled_from([1.0, 2.0]), st.floats(0.1, 10)), "wild": st.floats(-6, 6).map(lambda e: 10.0**e)}


@st.composite
def trees(draw: st.DrawFn, kind: str = "wild", depth: int | None = None) -> dict[str, Any]:
    """A tree of up to four levels; members of a node are jobs, or nodes, or some of both."""
    levels = draw(st.integers(1, 4)) if depth is None else depth
    rooms, weights = (WILD if kind == "wild" else TAME), WEIGHTS[kind]
    turns = draw(st.booleans())
    members = []
    for _ in range(draw(st.integers(0 if depth is not None else 1, 3 if levels > 1 else 5))):
        if levels > 1 and draw(st.integers(0, 4)):
            members.append(draw(trees(kind, levels - 1)))
        else:
            members.append(job(draw(rooms), draw(weights), 1 if turns else draw(st.sampled_from([1, 1, 2, 1000]))))
    return {"fifo": turns, "weight": draw(weights), "members": members}


def levels_to_try(history: History) -> list[Fraction]:
    """The levels where something happens and those half way between, and one beyond."""
    between = [(low + high) / 2 for low, high in pairwise(history.levels)]
    return [*history.levels, *between, history.levels[-1] * 2 + 1]


def assert_as_at(found: float, exact: Callable[[Fraction], Fraction], level: Fraction) -> None:
    """The number is what it is at this level, or one that differs in the last digits."""
    assert exact(level * (1 - DIGITS)) * (1 - DIGITS) <= Fraction(found) <= exact(level * (1 + DIGITS)) * (1 + DIGITS)


# --- known answers


def test_a_fair_node_serves_by_weight_until_jobs_are_done() -> None:
    rise = rise_of(fair(job(1), job(2), job(8, weight=2)))
    assert rise.most == 4
    assert rise.services(0.5).tolist() == [0.5, 0.5, 1]
    assert rise.services(1.5).tolist() == [1, 1.5, 3]
    assert rise.services(4).tolist() == rise.services(100).tolist() == [1, 2, 8]
    assert rise.levels([0.5, 1.5, 3]).tolist() == [0.5, 1.5, 1.5]
    assert rise.levels([1, 2, 8]).tolist() == [4, 4, 4]


def test_a_fifo_node_serves_one_after_the_other() -> None:
    rise = rise_of(fifo(job(3), job(0), job(2), job(5)))
    assert rise.most == 10
    assert rise.services(4).tolist() == [3, 0, 1, 0]
    assert rise.levels([1, 0, 1, 0]).tolist() == [1, 10, 4, 5]  # the job without room is done; the last one starts at 5


def test_tenants_share_by_weight_what_their_jobs_then_share() -> None:
    """Weights 2 (fairness) and 3 (fifo): each of four jobs is served 0.5 a level, and the first of the other four 3."""
    research = fair(*[job(9) for _ in range(4)], weight=2)
    product = fifo(*[job(9) for _ in range(4)], weight=3)
    assert rise_of(fair(research, product)).services(1).tolist() == [0.5] * 4 + [3, 0, 0, 0]


def test_what_a_job_leaves_goes_to_its_own_tenant_first() -> None:
    rise = rise_of(fair(fair(job(1), job(5)), fair(job(10))))
    assert rise.services(2).tolist() == [1, 1, 2]
    assert rise.services(4).tolist() == [1, 3, 4]  # not 2.5 and 2.5
    assert rise.services(6).tolist() == [1, 5, 6]  # the first tenant is done
    assert rise.most == 10
    assert rise.levels([0.5, 3, 8]).tolist() == [1, 4, 8]


def test_tenants_may_take_turns() -> None:
    rise = rise_of(fifo(fair(job(1), job(3)), fifo(job(2), job(2))))
    assert rise.services(3).tolist() == [1, 2, 0, 0]
    assert rise.services(7).tolist() == [1, 3, 2, 1]
    assert rise.levels([0, 0, 0, 0]).tolist() == [0, 0, 4, 6]


def test_a_row_of_several_jobs_is_as_many_rows_of_one() -> None:
    together = rise_of(fair(fair(job(3, count=4), job(1)), fair(job(5, weight=2))))
    apart = rise_of(fair(fair(*[job(3)] * 4, job(1)), fair(job(5, weight=2))))
    for level in (1.0, 3.0, 7.0):
        assert together.services(level)[[0, 0, 0, 0, 1, 2]] == pytest.approx(apart.services(level), rel=1e-15)


def test_jobs_without_room_take_no_part() -> None:
    rise = rise_of(fair(fair(job(0, weight=100), job(2)), fair(job(0)), fair(job(2))))
    assert rise.services(1).tolist() == [0, 1, 0, 1]
    assert rise.levels([0, 0, 0, 0]).tolist() == [2, 0, 2, 0]


@pytest.mark.parametrize(
    "root", [fair(), fair(fair(), fifo()), fair(job(0), fair(job(0)))], ids=["no jobs", "no jobs below", "no room"]
)
def test_nothing_to_serve(root: dict[str, Any]) -> None:
    rise = rise_of(root)
    assert rise.most == 0
    assert rise.services(1).tolist() == rise.levels(np.zeros(len(rise.services(1)))).tolist() == [0.0] * len(list(jobs_of(root)))


def test_a_job_of_next_to_no_weight_is_served_in_the_end() -> None:
    rise = rise_of(fair(fair(job(1e9, weight=1e-300), job(1)), job(1)))
    assert rise.services(rise.most).tolist() == [1e9, 1, 1]
    assert np.isfinite(rise.levels([1e8, 0.5, 0.5])).all()


# --- properties


@pytest.mark.deep
@given(root=trees())
@example(root=fair(fifo(job(1e6), job(10**1.25), job(10**1.25), job(0))))  # sums that do not ascend if added in spans
def test_services_are_those_of_serving_step_by_step(root: dict[str, Any]) -> None:
    history, rise = step_by_step(root), rise_of(root)
    assert rise.most == pytest.approx(float(history.levels[-1]), rel=1e-12)
    for level in levels_to_try(history):
        for i, found in enumerate(rise.services(float(level)).tolist()):
            assert_as_at(found, lambda at, i=i: history.at(at)[i], level)


@given(root=trees(), part=st.one_of(st.sampled_from([0.0, 1.0]), st.floats(1e-9, 1)))
def test_levels_are_the_inverse_of_services(root: dict[str, Any], part: float) -> None:
    history, rise = step_by_step(root), rise_of(root)
    served = part * np.array([j["room"] for j in jobs_of(root)])
    for i, (one, level) in enumerate(zip(jobs_of(root), rise.levels(served).tolist(), strict=True)):
        if served[i] >= one["room"]:
            assert level == rise.most
        elif served[i] == 0:
            assert level == pytest.approx(float(history.start(i)), rel=1e-12)
        else:
            assert_as_at(served[i], lambda at, i=i: history.at(at)[i], Fraction(level))


@given(root=trees("tame"))
def test_services_and_levels_invert_each_other(root: dict[str, Any]) -> None:
    rise, rooms = rise_of(root), np.array([j["room"] for j in jobs_of(root)])
    for part in (0.01, 0.3, 0.9, 0.999):
        services = rise.services(part * rise.most)
        served = (services > 0) & (services < rooms)
        assert rise.levels(services)[served] == pytest.approx(part * rise.most, rel=1e-12)
        for i, level in enumerate(rise.levels(part * rooms).tolist()):
            assert rise.services(level)[i] == pytest.approx(part * rooms[i], rel=1e-9)


@given(root=trees())
def test_services_rise_and_reach_all_room(root: dict[str, Any]) -> None:
    rise, rooms = rise_of(root), np.array([j["room"] for j in jobs_of(root)])
    levels = np.sort(np.concatenate([np.linspace(0, 1.1, 50), np.geomspace(1e-9, 1, 50)])) * rise.most
    services = np.array([rise.services(level) for level in levels.tolist()])
    assert (np.diff(services, axis=0) >= 0).all()  # to the last digit
    assert ((services >= 0) & (services <= rooms)).all()
    assert np.array_equal(rise.services(rise.most), rooms)


@given(root=trees())
def test_what_jobs_are_served_is_all_that_the_root_serves(root: dict[str, Any]) -> None:
    """The root serves by the weights of its members that are not done, or at speed 1 if it is fifo."""
    rise, counts = rise_of(root), np.array([j["count"] for j in jobs_of(root)])
    history = step_by_step(root)
    for level in levels_to_try(history):
        total = float(counts @ np.array([float(served) for served in history.at(level)]))
        assert counts @ rise.services(float(level)) == pytest.approx(total, rel=1e-11)


@given(root=trees(), data=st.data())
def test_the_order_of_rows_and_nodes_does_not_matter(root: dict[str, Any], data: st.DataObject) -> None:
    arrays, rooms = Arrays().add(root), [j["room"] for j in jobs_of(root)]
    row_order = data.draw(st.permutations(range(len(arrays.rows))))
    node_order = data.draw(st.permutations(range(len(arrays.nodes))))
    rise = arrays.tree().rise(rooms)
    moved = arrays.tree(row_order, node_order).rise(shuffled(rooms, row_order))
    assert moved.most == rise.most
    for part in (0.1, 0.5, 0.9):
        services = rise.services(part * rise.most)
        assert np.array_equal(moved.services(part * rise.most)[row_order], services)
        assert np.array_equal(moved.levels(shuffled(services.tolist(), row_order))[row_order], rise.levels(services))


# --- many jobs


def test_small_jobs_lose_no_digit_to_large_ones_elsewhere() -> None:
    rng = np.random.default_rng(1)
    small = fair(*(job(room, weight) for room, weight in zip(rng.random(500) * 1e-6, rng.random(500) + 0.1, strict=True)))
    large = fair(*(job(room) for room in (rng.random(500) * 1e6).tolist()))
    beside, alone = rise_of(fair(large, small)), rise_of(fair(small))
    for part in (0.01, 0.5, 0.99):
        level = part * alone.most
        assert np.array_equal(beside.services(level)[500:], alone.services(level))
        assert np.array_equal(beside.levels(beside.services(level))[500:].clip(max=alone.most), alone.levels(alone.services(level)))


def test_a_hundred_thousand_jobs_over_twelve_orders_of_magnitude() -> None:
    rng = np.random.default_rng(2)
    rows, leaves = 100_000, 1000
    nodes = 1 + 10 + 100 + leaves
    parents = [-1] + [0] * 10 + [1 + i // 10 for i in range(100)] + [11 + i // 10 for i in range(leaves)]
    tree = ServiceTree(
        counts=np.ones(rows),
        weights=10 ** rng.uniform(-6, 6, rows),
        ranks=rng.permutation(rows),
        leaves=111 + rng.integers(0, leaves, rows),
        parents=parents,
        node_weights=10 ** rng.uniform(-6, 6, nodes),
        node_ranks=np.arange(nodes),
        is_fifo=rng.random(nodes) < 0.3,
    )
    rooms = 10 ** rng.uniform(-6, 6, rows)
    rise = tree.rise(rooms)
    assert np.array_equal(rise.services(rise.most), rooms)
    for level in np.geomspace(1e-12, 0.9, 8) * rise.most:
        services = rise.services(level)
        served = (services > 0) & (services < rooms)
        assert served.any()
        assert rise.levels(services)[served] == pytest.approx(level, rel=1e-12)


@pytest.mark.parametrize("node", [fair, fifo])
def test_services_never_fall_by_rounding_at_corners(node: Callable[..., dict[str, Any]]) -> None:
    rng = np.random.default_rng(3)
    weights = rng.choice([0.1, 0.3, 0.7, 1.1, 1e5 / 3], (4, 60))
    rooms = weights * rng.choice([1.0, 2.0, 1 / 3, 1e6], (4, 60))
    rise = rise_of(fair(*(node(*map(job, *leaf), weight=rng.random()) for leaf in zip(rooms, weights, strict=True))))

    levels = around(rise.levels(np.nextafter(rooms.ravel(), 0)))
    services = np.array([rise.services(level) for level in levels.tolist()])
    assert (np.diff(services, axis=0) >= 0).all()
    assert ((services >= 0) & (services <= rooms.ravel())).all()


@pytest.mark.parametrize("seed", range(10))
def test_virtual_time_and_service_ascend_together_to_the_last_digit(seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.choice([0.1, 0.3, 0.7, 1.1, 1e5 / 3, 1e-3], 40)
    rooms = weights * rng.choice([1.0, 2.0, 1 / 3, 1e6, 1e-3, 7.0, 7.7], 40)
    node = Queues(np.zeros(40, dtype=int), np.array([False]), speed=weights, rank=np.zeros(40), count=np.ones(40)).times(rooms)
    times, served = around(node.times).clip(0, node.last), around(node.served).clip(0, node.total)
    same = np.zeros(len(times), dtype=int)
    assert (np.diff(node.served_at(same, times)) >= 0).all()
    assert (np.diff(node.times_at(same[: (served < node.total).sum()], served[served < node.total])) >= 0).all()


def around(values: Floats) -> Floats:
    """The values, and the six next numbers below and above each, in order."""
    found = [values]
    for way in (0, np.inf):
        step = values
        for _ in range(6):
            step = np.nextafter(step, way)
            found.append(step)
    return np.sort(np.concatenate(found), axis=0)


def test_sums_over_ties_do_not_depend_on_the_order_of_rows() -> None:
    rng = np.random.default_rng(4)
    weights = (10 ** rng.uniform(-3, 3, 300)).tolist()
    root = fair(fair(*(job(weight, weight, int(rng.integers(1, 4))) for weight in weights)), job(1e9))  # all done at once
    arrays, rooms = Arrays().add(root), [*weights, 1e9]
    services = arrays.tree().rise(rooms).services(1000)
    for _ in range(20):
        order = rng.permutation(301).tolist()
        moved = arrays.tree(order).rise(shuffled(rooms, order))
        assert np.array_equal(moved.services(1000)[order], services)


# --- segments


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    seed=st.integers(0, 2**32 - 1),
)
def test_segments_are_summed_and_searched_one_by_one(lengths: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    segments = Segments.of(np.array(lengths))
    values = rng.choice([0.0, 1.0, 1e-6, 1e6, 0.1], sum(lengths))
    parts = np.split(values, np.cumsum(lengths)[:-1])
    sums = np.concatenate([np.cumsum(part) for part in parts])
    assert segments.sums(values) == pytest.approx(sums, rel=1e-14)
    assert np.array_equal(segments.ascending(values), np.concatenate([np.maximum.accumulate(part) for part in parts]))
    back = np.concatenate([np.cumsum(part[::-1])[::-1] for part in parts])
    assert segments.sums_back(values) == pytest.approx(back, rel=1e-14)

    table = np.concatenate([np.sort(part) for part in parts])
    which = rng.integers(0, len(lengths), 50)
    asked = rng.choice([-1.0, 0.0, 0.05, 0.1, 1.0, 2.0, 1e7], 50)
    found = segments.last_up_to(table, which, asked)
    for place, segment, value in zip(found.tolist(), which.tolist(), asked.tolist(), strict=True):
        first = int(segments.starts[segment])
        inside = table[first : first + lengths[segment]]
        assert place == first + max(0, int(np.searchsorted(inside, value, side="right")) - 1)
