"""Rounds that a team can live with: its GPUs in every round, limits, turns, and jobs that neither move nor wait for nothing.

python benchmarks/round_teams.py                 print the tables (some five minutes)
python benchmarks/round_teams.py --write         and put them into benchmarks/RESULTS.md
python benchmarks/round_teams.py --only turns    one of: teams, labels, limits, turns, moves, fractions, time
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import mean, median

import numpy as np
import tables
from round_first import of_demo
from round_scenes import Scene, cluster_of, coming_and_going, fixed, jobs_for, profile
from round_team_scenes import (
    ROUND_SECONDS,
    ROUNDS,
    Speed,
    as_gpus,
    changing,
    equal_types,
    gang_jobs,
    labelled,
    nested,
    one_or_two,
    scheduler_of,
    staying,
    stays_of,
    team_jobs,
    two_speeds,
)
from round_watch import Turns, Watched, least_shortfall, turns_of, watched

import gavel_py as gp

HOUR = 3600.0
SEEDS = 5

# Teams under `hierarchical`.


def of_teams() -> Iterator[str]:
    header = ["teams", "GPUs by team: in rounds", "first rounds", "team shortfall, %", "least by whole gangs, %"]
    header += ["most missing in a round, GPUs", "furthest behind, rounds", "team-rounds without GPUs"]
    header += ["restarts per running job-round", "target"]
    equal = {count: team_jobs(dict.fromkeys("abc", (count, 1))) for count in (300, 100, 30)}
    rows = [team_row(f"3 of {count} jobs, 15 GPUs", "5/5/5 always", jobs, "g:15/3") for count, jobs in equal.items()]
    double = {"a": {"weight": 2}, "b": {}, "c": {}}
    for count in (30, 300):
        rows.append(team_row(f"2:1:1, of {count} jobs, 16 GPUs", "8/4/4 ±1, 1 %", equal[count], "g:16/8", tenants=double))
    tree, leaves = nested()
    rows.append(team_row("20 + 2 + 1 below three, 15 GPUs", "5/5/5 always", leaves, "g:15/3", tenants=tree, top=lambda t: t[0]))
    jobs, behind = team_jobs({"a": (300, 1), "b": (150, 2), "c": (75, 4)}), "none at 0, 1 round behind"
    rows.append(team_row("gangs of 1, 2, 4, 16 GPUs", f"12 %, {behind}", jobs, "g:16/8"))
    rows.append(team_row("the same, arriving at 0, 3, 6", f"0, 3, 6; {behind}", jobs, "g:16/8", arrives={"a": 0, "b": 3, "c": 6}))
    jobs = team_jobs({"a": (100, 1), "b": (50, 2), "c": (25, 4)})
    rows.append(team_row("gangs of 1, 2, 4, 16 + 16 GPUs, other speeds", f"5 %, {behind}", jobs, "v:16/8,k:16/8", speed=two_speeds))
    yield "### Three teams, `hierarchical`\n\n" + tables.markdown(header, rows)


def team_row(
    name: str,
    target: str,
    jobs: list[gp.Job],
    cluster: str,
    *,
    tenants: Mapping[str, object] | None = None,
    arrives: Mapping[str, int] | None = None,
    top: Callable[[str], str] = lambda name: name,
    speed: Speed = as_gpus,
    rounds: int = ROUNDS,
) -> list[object]:
    policy = gp.resolve_policy("hierarchical", **({"tenants": tenants} if tenants else {}))
    made = scheduler_of(jobs, cluster, policy, speed)
    seen = watched(made, staying(jobs, arrives), rounds, lambda job: top(job.tenant))
    sizes = [int(min(job.num_gpus for job in jobs if top(job.tenant) == team)) for team in seen.teams]
    least = least_shortfall(seen.promised, sizes, made.cluster.num_gpus)
    shares = [100 * seen.shortfall, 100 * least, (seen.promised - seen.held).max(), seen.behind]
    firsts = ", ".join(map(str, seen.first_rounds))
    return [name, seen.summary(), firsts, *shares, seen.without_gpus, seen.restart_rate, target]


# Scenes of the benchmark of rounds, with tenants drawn at random.


def of_labels() -> Iterator[str]:
    header = ["scene", "team shortfall, %", "furthest behind, rounds", "team-rounds without GPUs, a seed", "undelivered, %"]
    header += ["after 1", "after 3", "after 10", "restarts per running job-round", "worst deficit, rounds", "target"]
    one = partial(fixed, per_type=36, rounds=200)
    price = "undelivered .40 %, restarts .18, deficit 3.4"
    rows = [
        label_row(
            "108 GPUs, 200 rounds, no teams",
            ".361 %, .165, 2.99, as without claims",
            [labelled(one(s), s, 0) for s in range(SEEDS)],
        ),
        label_row("the same, 8 teams", f"6.5 %, 3.5; {price}", [labelled(one(s), s, 8) for s in range(SEEDS)]),
        label_row("a new allocation every 6 rounds, 96 rounds", None, [labelled(coming_and_going(0, 36, 96), 0, 8)]),
        label_row("1,080 GPUs, 30 rounds, 20 teams", None, [labelled(fixed(0, 360, 30), 0, 20)]),
        label_row("`make demo`, 112 GPUs, its 3 teams", "33.5, 13.5, 6.5 % after 1, 3, 10", [of_demo(0)]),
    ]
    seen = [watched(*changing(seed, 8), ROUNDS) for seed in range(3)]
    rows.append(["24 GPUs, 8 teams, jobs come and go each round", *label_figures(seen), "17 %, 5 rounds, 8 without"])
    yield "### Teams drawn at random\n\n" + tables.markdown(header, rows)


def label_row(name: str, target: str | None, scenes: Sequence[Scene]) -> list[object]:
    seen = []
    for scene in scenes:
        made = gp.RoundScheduler(scene.cluster, scene.profile, round_seconds=1.0)
        seen.append(watched(made, stays_of(scene), sum(phase.rounds for phase in scene.phases)))
    return [name, *label_figures(seen), target]


def label_figures(seen: Sequence[Watched]) -> list[object]:
    undelivered = [100 * mean(each.undelivered[at - 1] for each in seen) for at in (0, 1, 3, 10)]
    shortfall, behind = 100 * mean(each.shortfall for each in seen), max(each.behind for each in seen)
    without, restarts = mean(each.without_gpus for each in seen), mean(each.restart_rate for each in seen)
    return [shortfall, behind, without, *undelivered, restarts, max(each.worst for each in seen)]


# Limits that hold in every round.


def of_limits() -> Iterator[str]:
    header = ["limit", "promised GPUs", "GPUs in a round, least to most", "rounds above the limit", "delivered, %", "target"]
    gangs = [gp.Job(f"{size}-{i}", num_gpus=size, tenant="v") for size in (1, 2, 4) for i in range(4)]
    others = [gp.Job(f"o{i:02d}", tenant="o") for i in range(12)]
    eight, ones, threes = gang_jobs(8), gang_jobs(8, 1, 1), gang_jobs(3, 3)
    rows = [
        limit_row("4 GPUs, gang of 8", "none above", 4, eight, "g:8/8"),
        limit_row("4 GPUs, gangs of 8, 1, 1", "none above", 4, ones, "g:8/8"),
        limit_row("4 GPUs, two gangs of 3", "none above", 4, threes, "g:8/8"),
        limit_row("7 of 16 GPUs, four gangs each of 1, 2, 4", "none above, 95 %", 7, gangs, "g:16/8"),
        limit_row("the same for a tenant, 12 jobs of others", "none above, 95 %", 7, [*gangs, *others], "g:16/8", "v"),
    ]
    yield "### Limits with `every_round`, `max_min_fairness`, 20 rounds\n\n" + tables.markdown(header, rows)
    seen = guaranteed()
    header = ["guarantee", "GPUs of the tenant from its arrival on: in rounds", "target"]
    row = ["10 of 30, 20 jobs from round 3 on", seen.summary(), "10 always"]
    yield "### A guarantee\n\n" + tables.markdown(header, [row])


def limit_row(name: str, target: str, limit: int, jobs: list[gp.Job], cluster: str, tenant: str | None = None) -> list[object]:
    policy = gp.resolve_policy("max_min_fairness", constraints=[gp.MaxGpus(gpus=limit, tenant=tenant, every_round=True)])
    seen = watched(scheduler_of(jobs, cluster, policy), staying(jobs), 20)
    which = [tenant is None or team == tenant for team in seen.teams]
    held, promised = seen.held[:, which].sum(axis=1), seen.promised[:, which].sum(axis=1)
    between = f"{held.min():.0f} to {held.max():.0f}"
    return [name, promised[-1], between, int((held > limit).sum()), 100 * (1 - seen.undelivered[-1]), target]


def guaranteed() -> Watched:
    """Return what a tenant with a guarantee has from its arrival on."""
    jobs = team_jobs({"guaranteed": (20, 1), "others": (40, 1)})
    policy = gp.resolve_policy("max_min_fairness", constraints=[gp.Quota(tenant="guaranteed", gpus=10)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gp.GavelWarning)  # the tenant has no jobs at first
        seen = watched(scheduler_of(jobs, "g:30/3", policy), staying(jobs, {"guaranteed": 3}), 20)
    return replace(seen, teams=seen.teams[:1], promised=seen.promised[3:, :1], held=seen.held[3:, :1])


# Turns of jobs whose restarts cost time.


def of_turns() -> Iterator[str]:
    header = ["jobs", "s a restart", "makespan, h", "mean completion, h", "starts a job", "GPU time lost to further starts, %"]
    header += ["latest first start, h", "queue / GPUs x 6 restarts, h", "target"]
    targets = {(20, 180): "1.55 h", (20, 300): "1.55 h", (160, 300): "12 h, mean 9 h"}
    settings = [(count, seconds) for count in (20, 40, 80, 160, 320) for seconds in (60, 180, 300)]
    rows = [[*turn_row(*each), ", ".join(filter(None, [targets.get(each), "10 % lost"]))] for each in settings]
    yield "### One-hour jobs on 16 GPUs, rounds of 360 s, `max_min_fairness`, simulated\n\n" + tables.markdown(header, rows)
    rows = [["300 jobs, 15 GPUs, 300 s a restart, 240 rounds", *stalls(), 12]]
    header = ["jobs that never end", "longest time without a start, rounds", "mean turn, rounds", "target"]
    yield "### No standstill\n\n" + tables.markdown(header, rows)


def turn_row(count: int, restart_seconds: float, gpus: int = 16) -> list[object]:
    jobs = [gp.Job(f"j{i:03d}", total_steps=3600) for i in range(count)]
    speeds = gp.ThroughputProfile.from_matrix([[1.0]] * count, job_ids=[job.job_id for job in jobs], accelerators=["g"])
    cluster = gp.Cluster.from_inline(f"g:{gpus}/8")
    records = gp.simulate(jobs, cluster, speeds, restart_seconds=restart_seconds).jobs.values()
    ends, firsts = [each.end_seconds or 0.0 for each in records], [each.first_start_seconds or 0.0 for each in records]
    lost = sum((each.starts - 1) * restart_seconds for each in records) / sum(each.running_seconds for each in records)
    waits = [max(firsts) / HOUR, count / gpus * 6 * restart_seconds / HOUR]
    hours = [f"{max(ends) / HOUR:.2f}", f"{mean(ends) / HOUR:.2f}"]
    return [count, restart_seconds, *hours, mean(each.starts for each in records), 100 * lost, *waits]


def stalls(count: int = 300, rounds: int = 240) -> list[object]:
    jobs = [gp.Job(f"j{i:03d}") for i in range(count)]
    seen = watched(scheduler_of(jobs, "g:15/3", restart_seconds=300.0), staying(jobs), rounds)
    return [seen.rounds_without_start, seen.running / sum(seen.starts)]


# Types of equal speed.


def of_moves() -> Iterator[str]:
    header = ["jobs", "GPUs", "restarts per running job-round", "undelivered, %", "one group of the same size", "target"]
    cases = [
        ("4", 4, (2, 2), "max_min_fairness", 0, "0"),
        ("4", 4, (3, 2), "max_min_fairness", 0, "0"),
        ("5", 5, (2, 2), "max_min_fairness", 0, "10 % above one group"),
        ("6", 6, (2, 2), "max_min_fairness", 0, "10 % above one group"),
        ("30, `hierarchical`", 30, (16, 8, 8), "hierarchical", 0, ".01"),
        ("40", 40, (16, 8, 8), "max_min_fairness", 0, "10 % above one group"),
        ("7, one replaced every 5 rounds", 7, (4, 4), "max_min_fairness", 5, "0"),
        ("30, one replaced every 5 rounds", 30, (16, 8, 8), "max_min_fairness", 5, "10 % above one group"),
        ("40, one replaced every 5 rounds", 40, (16, 8, 8), "max_min_fairness", 5, "10 % above one group"),
    ]
    rows = []
    for name, count, sizes, policy, every, target in cases:
        seen, one = (watched(*equal_types(count, each, policy, every), ROUNDS) for each in (sizes, (sum(sizes),)))
        gpus = " + ".join(map(str, sizes))
        rows.append([name, gpus, seen.restart_rate, 100 * seen.undelivered[-1], one.restart_rate, target])
    for count, b300, h200, limit in ((4, 2, 4, ".03"), (30, 16, 28, ".03"), (30, 16, 16, "10 % above one group")):
        seen, one = watched(*one_or_two(count, b300, h200), ROUNDS), watched(*equal_types(count, (b300 + h200 // 2,)), ROUNDS)
        jobs, gpus = f"{count} that need 1 B300 or 2 H200", f"{b300} B300 + {h200} H200"
        rows.append([jobs, gpus, seen.restart_rate, 100 * seen.undelivered[-1], one.restart_rate, limit])
    yield "### Several groups of equal GPUs\n\n" + tables.markdown(header, rows)


# Fractions of GPUs.


def of_fractions() -> Iterator[str]:
    header = ["jobs x GPUs of each", "GPUs", "rounds", "longest wait, rounds", "whole GPUs of the same shape"]
    header += ["least received of the promise, %", "rounds with room for a waiting job", "starts per job-round", "target"]
    alike, mixed = "whole GPUs + 2, 99 %, 0", "97 %, 0"
    cases: list[tuple[list[tuple[int, float]], str, int, tuple[list[tuple[int, float]], int] | None, str]] = [
        ([(81, 0.18)], "g:16/8", 200, ([(81, 1)], 80), alike),
        ([(101, 0.01)], "g:1", 300, ([(101, 1)], 100), alike),
        ([(21, 0.05)], "g:1", 300, ([(21, 1)], 20), alike),
        ([(41, 0.1)], "g:4", 300, ([(41, 1)], 40), alike),
        ([(3, 0.5)], "g:1", 200, ([(3, 1)], 2), alike),
        ([(5, 0.3)], "g:1", 200, ([(5, 1)], 3), alike),
        ([(2, 0.2), (2, 0.3), (2, 0.5), (1, 0.7), (1, 0.9)], "g:2", 200, None, mixed),
        ([(6, 0.5), (3, 1)], "g:4", 200, ([(6, 1), (3, 2)], 8), f"whole GPUs + 2, {mixed}"),
        ([(81, 0.18), (3, 1)], "g:18/8", 100, ([(3, 1)], 1), f"whole GPUs + 2, {mixed}"),  # 17 GPUs hold all of the 81
    ]
    rows = []
    for parts, cluster, rounds, whole, target in cases:
        alone = None if whole is None else fraction_turns(whole[0], f"g:{whole[1]}/{min(8, whole[1])}", rounds).longest_wait
        seen = fraction_turns(parts, cluster, rounds)
        name = " + ".join(f"{number} x {size:g}" for number, size in parts)
        rows.append(
            [name, cluster.partition(":")[2].partition("/")[0], rounds, seen.longest_wait, alone, 100 * seen.least_received]
        )
        rows[-1] += [seen.with_room, seen.start_rate, target]
    yield "### Fractions of GPUs, `max_min_fairness`\n\n" + tables.markdown(header, rows)


def fraction_turns(parts: Sequence[tuple[int, float]], cluster: str, rounds: int) -> Turns:
    sizes = [size for count, size in parts for _ in range(count)]
    jobs = [gp.Job(f"j{i:03d}", num_gpus=size) for i, size in enumerate(sizes)]
    return turns_of(scheduler_of(jobs, cluster), jobs, rounds)


# The time of a round.


def of_time() -> Iterator[str]:
    found: dict[int, list[float]] = {0: [], 20: []}
    for _ in range(3):
        for teams, seconds in found.items():
            seconds.append(seconds_of_round(3336, teams))
    ratio = median(after / before for before, after in zip(found[0], found[20], strict=True))
    rows = [["10,008 GPUs, 1 % of jobs replaced", *(1000 * median(each) for each in found.values()), ratio, "1.2"]]
    header = ["`next_round`", "without teams, CPU ms", "20 teams, CPU ms", "ratio, median of 3 pairs", "target"]
    yield "### Time of a round\n\n" + tables.markdown(header, rows)


def seconds_of_round(per_type: int, teams: int, rounds: int = 15) -> float:
    """Return the median CPU time of a round in which 1 % of the jobs are new, the first one excepted."""
    chance, drawn, cluster = np.random.default_rng(1), jobs_for(np.random.default_rng(0), 10**9), cluster_of(per_type)
    made = gp.RoundScheduler(cluster, profile(), round_seconds=ROUND_SECONDS, solve_seconds=HOUR)
    seconds = []
    for number in range(rounds):
        gone = chance.choice(sorted(job.job_id for job in made.jobs), len(made.jobs) // 100, replace=False).tolist()
        for job_id in gone:
            made.cancel(job_id)
        asked = sum(job.num_gpus for job in made.jobs)
        while asked < 2 * cluster.num_gpus:
            job = next(drawn)
            made.submit(job.model_copy(update={"tenant": f"t{chance.integers(teams):02d}"}) if teams else job)
            asked += job.num_gpus
        begin = time.process_time()
        made.next_round(number * ROUND_SECONDS)
        seconds.append(time.process_time() - begin)
    return median(seconds[1:])


PARTS: dict[str, Callable[[], Iterator[str]]] = {
    "teams": of_teams,
    "labels": of_labels,
    "limits": of_limits,
    "turns": of_turns,
    "moves": of_moves,
    "fractions": of_fractions,
    "time": of_time,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true", help="put the tables into benchmarks/RESULTS.md")
    parser.add_argument("--only", choices=list(PARTS), help="one of the tables")
    options = parser.parse_args()
    for name in [options.only] if options.only else PARTS:
        below = f"{tables.machine()}; `python benchmarks/round_teams.py --only {name} --write`.\n"
        text = "\n".join([*PARTS[name](), below])
        print(text, flush=True)
        if options.write:
            tables.write(f"round-teams-{name}", text)


if __name__ == "__main__":
    main()
