"""What rounds deliver of what allocations promise: the deficit mechanism and the published rule, side by side.

    python benchmarks/rounds.py                 print the tables (some ten minutes)
    python benchmarks/rounds.py --write         and put them into docs/performance.md
    python benchmarks/rounds.py --only churn    one of: fixed, churn, turns, small, large, nodes, speed
    python benchmarks/rounds.py --seeds 2       fewer seeds than 10

Shares are means over the seeds, worst cases the largest. Two processes play seeds at a time; times are CPU times of one alone.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing import get_context
from statistics import mean, median

import numpy as np
import tables
from round_exact import choose_exactly
from round_nodes import compared
from round_play import Outcome, demand_of, play
from round_scenes import SIZES, coming_and_going, few_large, fixed, openb

from gavel_py.rounds import choose_by_priority, choose_jobs
from gavel_py.rounds.ground import Ground
from gavel_py.rounds.ledger import DeliveryLedger
from gavel_py.rounds.planning import plan_round

DEFICIT, PUBLISHED, UNFORGETTING = "deficit", "published rule", "published rule, never reset"
TURNS, EXACT = "deficit, h = 0, bound 1", "exact program per round"
RULES = {
    DEFICIT: choose_jobs,
    PUBLISHED: choose_by_priority,
    UNFORGETTING: choose_by_priority,
    TURNS: partial(choose_jobs, hysteresis_rounds=0.0, urgent_rounds=1.0),
    EXACT: choose_exactly,
}
HEADER = ["instance", "rule", "undelivered, %", *(f"of gangs of {size}" for size in SIZES), "worst deficit, rounds"]
HEADER += ["restarts per running job-round", "idle GPUs"]


def one(task: tuple[Callable[[int], object], int, str, tuple[int, ...]]) -> Outcome:
    build, seed, rule, at = task
    return play(build(seed), RULES[rule], resets=rule != UNFORGETTING, at=at)  # type: ignore[arg-type]


def outcomes(build: Callable[[int], object], seeds: int, rule: str, at: tuple[int, ...] = ()) -> list[Outcome]:
    with get_context("spawn").Pool(2) as pool:
        return pool.map(one, [(build, seed, rule, at) for seed in range(seeds)], chunksize=1)


def row(name: str, rule: str, played: Sequence[Outcome], after: int | None = None) -> list[object]:
    """after: the shares after so many rounds; what else there is counts over all rounds."""
    shares = [outcome.short_after[after] if after else (outcome.undelivered(), outcome.by_size) for outcome in played]
    by_size = [100 * mean(sizes[size] for _, sizes in shares) for size in SIZES]
    worst, idle = max(outcome.worst for outcome in played), sum(outcome.idle for outcome in played)
    return [name, rule, 100 * mean(total for total, _ in shares), *by_size, worst, mean(o.restart_rate for o in played), idle]


def of_fixed(seeds: int) -> Iterator[str]:
    rows: list[list[object]] = []
    together: list[list[object]] = []
    for gpus, rounds, at in ((108, 1000, (200, 1000)), (1080, 200, (200,))):
        for rule in (DEFICIT, PUBLISHED):
            played = outcomes(partial(fixed, per_type=gpus // 3, rounds=rounds), seeds, rule, at)
            rows += [row(f"{gpus:,} GPUs, {after:,} rounds", rule, played, after) for after in at]
            together.append([f"{gpus:,} GPUs", rule, 100 * mean(outcome.together_share for outcome in played), 99])
    yield "### One allocation for all rounds\n\n" + tables.markdown(HEADER, sorted(rows, key=lambda cells: str(cells[0])))
    yield tables.markdown(["gangs on one node, of those that can be", "rule", "%", "target"], together)


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
    if openb(0) is not None:
        played = outcomes(openb, seeds, DEFICIT)
        cells = ["every eighth node of openb", 100 * mean(outcome.together_share for outcome in played), 99]
        yield "### Gangs on one node, of those that can be, on mixed nodes\n\n" + tables.markdown(
            ["cluster", "%", "target"], [cells]
        )
    rows = []
    for name, odd in (("1, 2, 4, 8, 16 GPUs on nodes of 1, 2, 4, 8", False), ("gangs and nodes of odd sizes too", True)):
        found = [compared(seed, odd=odd) for seed in range(30 * seeds)]
        possible = [each for each in found if each.exactly == each.gangs]
        counts = [sum(getattr(each, name) for each in found) for name in ("gangs", "exactly", "placed")]
        share = sum(each.placed for each in possible) / max(1, sum(each.gangs for each in possible))
        rows.append([name, *counts, 100 * share, 99])
    header = ["gangs", "number", "on the fewest nodes: exact program", "placement", "% where a packing exists", "target"]
    yield "### Gangs on the fewest nodes, 2 to 6 nodes, against an exact program\n\n" + tables.markdown(header, rows)


def of_speed(_: int) -> Iterator[str]:
    rows = []
    for gpus, rounds, target in ((10**4, 20, 20), (10**5, 8, 500)):
        scene = fixed(0, gpus // 3, rounds)
        for name, rule in (("deficit", choose_jobs), ("published rule", choose_by_priority)):
            choosing, planning = _times(scene, rule)
            cells = [f"{gpus:,} GPUs, {len(scene.jobs):,} jobs", name]
            rows.append([*cells, *(1e3 * median(choosing), 1e3 * max(choosing), 1e3 * median(planning), target)])
    header = ["instance", "rule", "choosing, ms", "slowest, ms", "choosing and placing, ms", "target, ms"]
    yield "### CPU time of one round, medians\n\n" + tables.markdown(header, rows)


def _times(scene: object, rule: Callable[..., object]) -> tuple[list[float], list[float]]:
    """CPU seconds of choosing, and of choosing and placing, in each round after the third; no more than one thread works."""
    phase, jobs, cluster = scene.phases[0], scene.jobs, scene.cluster  # type: ignore[attr-defined]
    names, ledger, held, choosing, planning = cluster.accelerator_names, DeliveryLedger(cluster.accelerator_names), {}, [], []
    received, ground = np.zeros(phase.fractions.shape), Ground(jobs, cluster.nodes)
    for number in range(phase.rounds):
        asked = demand_of(phase, ledger, held, received)
        started = time.process_time()
        chosen = rule(asked)
        between = time.process_time()
        held = plan_round(asked, jobs, names, cluster.nodes, held, rule, ground=ground)  # type: ignore[arg-type]
        ended = time.process_time()
        columns = np.asarray(chosen)
        ledger.record(phase.problem.job_ids, asked.num_gpus, asked.runnable, phase.fractions, columns, 1.0)
        received += columns[:, None] == np.arange(len(names))
        if number >= 3:
            choosing.append(between - started)
            planning.append(ended - between)
    return choosing, planning


PARTS = {"fixed": of_fixed, "churn": of_churn, "turns": of_turns, "small": of_small, "large": of_large, "nodes": of_nodes}
PARTS["speed"] = of_speed


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true", help="put the tables into docs/performance.md")
    parser.add_argument("--only", choices=list(PARTS), help="one of the tables")
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    for name in [options.only] if options.only else PARTS:
        runs = "one run" if name == "speed" else f"{options.seeds} seeds"
        below = f"{runs}; {tables.machine()}; `python benchmarks/rounds.py --only {name} --write`.\n"
        text = "\n".join([*PARTS[name](options.seeds), below])
        print(text, flush=True)
        if options.write:
            tables.write(f"rounds-{name}", text)


if __name__ == "__main__":
    main()
