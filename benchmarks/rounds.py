"""The part of promised time that rounds deliver, with the deficit mechanism and with the published one.

    python benchmarks/rounds.py                 print the tables (some ten minutes)
    python benchmarks/rounds.py --write         and put them into benchmarks/RESULTS.md
    python benchmarks/rounds.py --only churn    one of: first, fixed, churn, curve, turns, small, large, nodes
    python benchmarks/rounds.py --seeds 2       fewer seeds than 10

Shares are means over the seeds, worst cases maxima. Two processes run seeds at a time.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing import get_context
from statistics import mean

import tables
from round_exact import choose_exactly
from round_first import Course, best_first_round, course_of, of_demo
from round_nodes import compared
from round_play import Outcome, play
from round_scenes import OPENB, SIZES, Scene, coming_and_going, few_large, fixed, openb

from gavel_py.scheduling import choose_by_priority, choose_jobs
from gavel_py.scheduling.mechanism.demand import Mechanism

DEFICIT, PUBLISHED, UNFORGETTING = "deficit", "published rule", "published rule, never reset"
TURNS, EXACT = "deficit, h = 0, bound 1", "exact program per round"
RULES: dict[str, Mechanism] = {
    DEFICIT: choose_jobs,
    PUBLISHED: choose_by_priority,
    UNFORGETTING: choose_by_priority,
    TURNS: partial(choose_jobs, hysteresis_rounds=0.0, urgent_rounds=1.0),
    EXACT: choose_exactly,
}
CURVE = {h: f"deficit, h = {h:g}" for h in (0.5, 1.0, 1.5, 2.0, 2.6, 3.5, 5.0, 8.0)}
RULES |= {name: partial(choose_jobs, hysteresis_rounds=h) for h, name in CURVE.items()}
MECHANISMS: dict[str, str] = {DEFICIT: "deficit", PUBLISHED: "priority"}
FIRST = (1, 3, 10, 50, 200)
Build = Callable[[int], Scene]
HEADER = ["instance", "rule", "undelivered, %", *(f"of gangs of {size}" for size in SIZES), "worst deficit, rounds"]
HEADER += ["restarts per running job-round", "idle GPUs"]


def one(task: tuple[Build, int, str, tuple[int, ...]]) -> Outcome:
    build, seed, rule, at = task
    return play(build(seed), RULES[rule], resets=rule != UNFORGETTING, at=at)


def outcomes(build: Build, seeds: int, rule: str, at: tuple[int, ...] = ()) -> list[Outcome]:
    with get_context("spawn").Pool(2) as pool:
        return pool.map(one, [(build, seed, rule, at) for seed in range(seeds)], chunksize=1)


def row(name: str, rule: str, played: Sequence[Outcome], after: int | None = None) -> list[object]:
    """Return a row; after: take shares after this number of rounds; other figures are of all rounds."""
    shares = [outcome.short_after[after] if after else (outcome.undelivered(), outcome.by_size) for outcome in played]
    by_size = [100 * mean(sizes[size] for _, sizes in shares) for size in SIZES]
    worst, idle = max(outcome.worst for outcome in played), sum(outcome.idle for outcome in played)
    return [name, rule, 100 * mean(total for total, _ in shares), *by_size, worst, mean(o.restart_rate for o in played), idle]


def of_fixed(seeds: int) -> Iterator[str]:
    rows: list[list[object]] = []
    for gpus, rounds, at in ((108, 1000, (200, 1000)), (1080, 200, (200,))):
        for rule in (DEFICIT, PUBLISHED):
            played = outcomes(partial(fixed, per_type=gpus // 3, rounds=rounds), seeds, rule, at)
            rows += [row(f"{gpus:,} GPUs, {after:,} rounds", rule, played, after) for after in at]
    yield "### One allocation for all rounds\n\n" + tables.markdown(HEADER, sorted(rows, key=lambda cells: str(cells[0])))


def of_churn(seeds: int) -> Iterator[str]:
    rows = []
    for rounds in (200, 1000):
        build = partial(coming_and_going, per_type=36, rounds=rounds)
        for rule in (DEFICIT, PUBLISHED, UNFORGETTING):
            rows.append(row(f"108 GPUs, {rounds:,} rounds", rule, outcomes(build, seeds, rule)))
    yield "### Jobs come and go, a new allocation every 6 rounds\n\n" + tables.markdown(HEADER, rows)


def of_turns(seeds: int) -> Iterator[str]:
    build = partial(fixed, per_type=36, rounds=200, sizes=(1,))
    rows = [row("108 GPUs, single-GPU jobs", rule, outcomes(build, seeds, rule)) for rule in (DEFICIT, TURNS, PUBLISHED)]
    yield "### Single-GPU jobs\n\n" + tables.markdown(HEADER, rows)


def of_small(seeds: int) -> Iterator[str]:
    rows = []
    for gpus, sizes in ((36, SIZES), (36, (1, 2, 4)), (24, (1, 2, 4)), (12, (1, 2))):
        build = partial(fixed, per_type=gpus // 3, rounds=200, sizes=sizes)
        played = {rule: outcomes(build, seeds, rule) for rule in (DEFICIT, EXACT, PUBLISHED)}
        name = f"{gpus} GPUs, gangs of {', '.join(map(str, sizes))}"
        exact = mean(outcome.undelivered() for outcome in played[EXACT])
        rows += [[*row(name, rule, each), mean(o.undelivered() for o in each) / exact] for rule, each in played.items()]
    yield "### Small clusters, 200 rounds, against an exact program\n\n" + tables.markdown([*HEADER, "x exact"], rows)


def of_large(seeds: int) -> Iterator[str]:
    rows = []
    for name, whole in (("patterns of whole gangs", True), ("as published", False)):
        build = partial(few_large, whole_gangs=whole)
        rows += [row(f"36 GPUs, {name}", rule, outcomes(build, seeds, rule)) for rule in (DEFICIT, EXACT, PUBLISHED)]
    yield "### Five gangs of 8 among the jobs on 36 GPUs: fractions that cannot be delivered\n\n" + tables.markdown(HEADER, rows)


def of_nodes(seeds: int) -> Iterator[str]:
    scenes: dict[str, Build] = {
        "108 GPUs": partial(fixed, per_type=36, rounds=50),
        "1,080 GPUs": partial(fixed, per_type=360, rounds=20),
    }
    if OPENB.exists():
        scenes["every eighth node of openb"] = openb
    rows: list[list[object]] = []
    for name, build in scenes.items():
        for rule in (DEFICIT, PUBLISHED):
            played = courses(build, seeds, rule, ())
            shares = [100 * mean(course.together_share(*which) for course in played) for which in ((True,), (True, False))]
            rows.append([name, rule, *shares, 99])
    header = ["cluster", "rule", "% of those promised one node only", "% of all", "target"]
    yield "### Gangs on one node, of those that can be\n\n" + tables.markdown(header, rows)
    rows = []
    for name, odd in (("1, 2, 4, 8, 16 GPUs on nodes of 1, 2, 4, 8", False), ("gangs and nodes of odd sizes too", True)):
        found = [compared(seed, odd=odd) for seed in range(30 * seeds)]
        possible = [each for each in found if each.exactly == each.gangs]
        counts = [sum(getattr(each, name) for each in found) for name in ("gangs", "exactly", "placed")]
        share = sum(each.placed for each in possible) / max(1, sum(each.gangs for each in possible))
        rows.append([name, *counts, 100 * share, 99])
    header = ["gangs", "number", "on the fewest nodes: exact program", "placement", "% where a packing exists", "target"]
    yield "### Gangs on the fewest nodes, 2 to 6 nodes, against an exact program\n\n" + tables.markdown(header, rows)


def of_first(seeds: int) -> Iterator[str]:
    header = ["instance", "rule", *(f"after {number}" for number in FIRST), *HEADER[-2:-4:-1]]
    rows: list[list[object]] = []
    one_allocation: dict[str, tuple[Build, int]] = {
        "`make demo`, 112 GPUs": (of_demo, 1),
        "108 GPUs": (partial(fixed, per_type=36, rounds=200), seeds),
    }
    for name, (build, count) in one_allocation.items():
        for rule in (DEFICIT, PUBLISHED):
            played = courses(build, count, rule, FIRST)
            shares = [100 * mean(course.undelivered[number] for course in played) for number in FIRST]
            rows.append([name, rule, *shares, mean(c.restart_rate for c in played), max(c.worst for c in played)])
        least = [100 * mean(course.least[number] for course in played) for number in FIRST]
        rows.append([name, "lower bound of the delivery report", *least])
        scenes = [build(seed) for seed in range(count)]
        best = mean(best_first_round(each.cluster, each.jobs) for each in scenes)
        rows.append([name, "best first round, exact program", 100 * best])
    widened = [[*cells, *[None] * (len(header) - len(cells))] for cells in rows]
    yield "### The first rounds: undelivered, %, under one allocation\n\n" + tables.markdown(header, widened)
    rows = []
    for name, times in (("twice", 2.0), ("half", 0.5)):
        build = partial(coming_and_going, per_type=36, rounds=200, times=times)
        for rule in (DEFICIT, PUBLISHED):
            played = courses(build, seeds, rule, (200,))
            short = 100 * sum(course.short for course in played) / sum(course.short_promised for course in played)
            waits = mean(wait for course in played for wait in course.waits)
            rates = [mean(c.restart_rate for c in played), max(c.worst for c in played)]
            total, count = 100 * mean(course.undelivered[200] for course in played), sum(course.short_jobs for course in played)
            rows.append([f"{name} the published times", rule, total, *rates, waits, count, short])
    header = ["jobs stay for", "rule", "undelivered, %", "restarts per running job-round", "worst deficit, rounds"]
    header += ["rounds to the first start", "jobs that leave within 12 rounds", "undelivered of these, %"]
    yield "### Jobs that arrive, 108 GPUs, 200 rounds, a new allocation every 6\n\n" + tables.markdown(header, rows)


def of_curve(seeds: int) -> Iterator[str]:
    scenes = {
        "one allocation": partial(fixed, per_type=36, rounds=200),
        "a new one every 6 rounds": partial(coming_and_going, per_type=36, rounds=200),
    }
    rows: list[list[object]] = []
    for name, build in scenes.items():
        for h, rule in CURVE.items():
            played = outcomes(build, seeds, rule)
            shares = [100 * mean(outcome.undelivered(size) for outcome in played) for size in (None, SIZES[-1])]
            rows.append([name, h, mean(outcome.restart_rate for outcome in played), *shares, max(o.worst for o in played)])
    header = [
        "108 GPUs, 200 rounds",
        "h",
        "restarts per running job-round",
        "undelivered, %",
        "of gangs of 8",
        "worst deficit, rounds",
    ]
    yield "### Undelivered time against restarts\n\n" + tables.markdown(header, rows)


def courses(build: Build, seeds: int, rule: str, at: tuple[int, ...]) -> list[Course]:
    with get_context("spawn").Pool(2) as pool:
        return pool.map(played_by_users, [(build, seed, MECHANISMS[rule], at) for seed in range(seeds)], chunksize=1)


def played_by_users(task: tuple[Build, int, str, tuple[int, ...]]) -> Course:
    build, seed, mechanism, at = task
    return course_of(build(seed), mechanism, at)


PARTS: dict[str, Callable[[int], Iterator[str]]] = {
    "first": of_first,
    "fixed": of_fixed,
    "churn": of_churn,
    "curve": of_curve,
    "turns": of_turns,
    "small": of_small,
    "large": of_large,
    "nodes": of_nodes,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true", help="put the tables into benchmarks/RESULTS.md")
    parser.add_argument("--only", choices=list(PARTS), help="one of the tables")
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    for name in [options.only] if options.only else PARTS:
        below = f"{options.seeds} seeds; {tables.machine()}; `python benchmarks/rounds.py --only {name} --write`.\n"
        text = "\n".join([*PARTS[name](options.seeds), below])
        print(text, flush=True)
        if options.write:
            tables.write(f"rounds-{name}", text)


if __name__ == "__main__":
    main()
