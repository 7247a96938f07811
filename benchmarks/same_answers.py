"""Compares the answers of two checkouts bit by bit.

    python benchmarks/same_answers.py BEFORE AFTER [--problems 200] [--scenarios 20] [--only problems,rounds,...]
    python benchmarks/same_answers.py BEFORE --save answers.jsonl
    python benchmarks/same_answers.py --keep tests/properties/known_answers.json

BEFORE and AFTER are directories of checkouts, which need not be installed; both run with this interpreter. A file that --save wrote
stands for the checkout; answers that it lacks are not compared. The exit code is 1 if anything differs, and the first differences
are printed. --only chooses parts:

- problems: every policy with each of its switches on seeded problems: objective, bound, fractions, throughputs, prices, exclusions.
- rounds: scenarios with arrivals, failures, departures, shared GPUs, and a save and load: GPUs of each round, delivered time.
- simulations, sweep: five simulations of 40 jobs and a small sweep: the record of each job, the metrics of each cell.
- recorded: small simulations with failures, restarts, sharing, elastic jobs, workflows, events: `same_simulations.py`.
- commands, helps: exit code, output, errors and written files of some 80 command lines; all help: `same_commands.py`.
- slurm: recorded snapshots of Slurm and scenes on the Slurm of the tests to decisions: `same_slurm.py`.

Numbers, ids, GPUs, texts and their order are compared. The order of keys in JSON, computing times, routes of the solver, notes of
rounds, charts other than SVG, saved states and stores are not, nor are public names: `tests/test_public_names.py` lists these. A
figure that has got another name since BEFORE is in `RENAMED`. Each checkout uses its own examples, recordings and in-memory Slurm.
--keep writes 20 of the answers of the gavel-py that is imported, for tests/properties/test_known_answers.py.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gavel_py import AllocationProblem

Document = dict[str, Any]

MOST_SHOWN = 20

OF_TIMES = ("mean", "median", "p90", "p99")
RENAMED = {
    **{f"{of}_{part}_seconds": f"{part}_{of}_seconds" for of in ("jct", "queueing", "workflow_jct") for part in OF_TIMES},
    **{f"queueing_{size}_mean_seconds": f"mean_queueing_{size}_seconds" for size in ("1_gpus", "2_gpus", "4_gpus", "elastic")},
    "rho_mean": "finish_time_fairness",
    "rho_max": "max_finish_time_fairness",
    "rho_above_one": "finish_time_fairness_above_one",
    **{
        f"{of}shortfall_{unit}": f"{of}undelivered_{unit}"
        for of in ("", "least_", "tenant_", "least_tenant_")
        for unit in ("gpu_seconds", "seconds", "by_reason")
    },
    "received_gpu_seconds": "delivered_gpu_seconds",
}
"""{former public name of a figure: its name}, the same to a comparison."""

PARTS = ("problems", "rounds", "simulations", "sweep", "recorded", "commands", "helps", "slurm")


def main() -> int:
    arguments = _parser().parse_args()
    if arguments.play:
        import gavel_py

        assert Path(gavel_py.__file__).is_relative_to(os.environ["PYTHONPATH"]), "the checkout to be played is not the one imported"
        sys.argv[0] = "gavel"  # as messages of the command name it
        for document in _played(arguments):
            print(json.dumps(document), flush=True)
        return 0
    if arguments.keep:
        arguments.keep.write_text("".join(json.dumps(document) + "\n" for document in kept()))
        return 0
    if arguments.save:
        arguments.save.write_text("".join(line + "\n" for line in _lines(Path(arguments.before), arguments).values()))
        return 0
    with ThreadPoolExecutor(2) as both:
        before, after = both.map(lambda tree: _lines(Path(tree), arguments), (arguments.before, arguments.after))
    if Path(arguments.before).is_file():
        before = {name: before[name] for name in after if name in before}
        after = {name: after[name] for name in before}
    differing = [name for name in [*before, *(name for name in after if name not in before)] if before.get(name) != after.get(name)]
    for name in differing[:MOST_SHOWN]:
        print(f"{name}:\n  before {_first_difference(before.get(name), after.get(name))}")
    print(f"{len(before)} answers compared, {len(differing)} differ")
    return 1 if differing or not before else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("before", nargs="?", help="a checkout, or a file of its answers")
    parser.add_argument("after", nargs="?", default=".", help="another one")
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--scenarios", type=int, default=20)
    parser.add_argument("--only", default=",".join(PARTS), help="parts to be compared", type=_parts)
    parser.add_argument("--save", type=Path, help="write the answers of the first checkout, and compare nothing")
    parser.add_argument("--keep", type=Path, help="write the answers that are kept for a test, and compare nothing")
    parser.add_argument("--play", action="store_true", help=argparse.SUPPRESS)
    return parser


def _parts(text: str) -> str:
    if unknown := set(text.split(",")) - set(PARTS):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))} not known; known: {', '.join(PARTS)}")
    return text


def _lines(tree: Path, arguments: argparse.Namespace) -> dict[str, str]:
    sizes = [f"--problems={arguments.problems}", f"--scenarios={arguments.scenarios}", f"--only={arguments.only}"]
    if tree.is_file():
        return _by_name(tree.read_text())
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home, "folder")
        folder.mkdir()
        places = {"HOME": home, "XDG_STATE_HOME": home, "GAVEL_PY_STORE": f"{home}/store.sqlite"}
        fixed = {"COLUMNS": "100", "PYTHONWARNINGS": "ignore", "TZ": "UTC"}
        environment = os.environ | {"PYTHONPATH": str(tree.resolve())} | places | fixed
        command = [sys.executable, __file__, "--play", *sizes]
        done = subprocess.run(command, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    return _by_name(done.stdout)


def _by_name(lines: str) -> dict[str, str]:
    return {
        (document := json.loads(line))["name"]: _with_names_of_today(json.dumps(document, sort_keys=True))
        for line in lines.splitlines()
    }


def _with_names_of_today(text: str) -> str:
    names = "|".join(map(re.escape, RENAMED))
    return re.sub(rf"\b({names})\b", lambda found: RENAMED[found[1]], text) if names else text


def _first_difference(before: str | None, after: str | None) -> str:
    if before is None or after is None:
        return f"{'missing' if before is None else 'there'}, after {'missing' if after is None else 'there'}"
    at = next((i for i, (one, other) in enumerate(zip(before, after, strict=False)) if one != other), min(len(before), len(after)))
    return f"...{before[max(0, at - 60) : at + 60]}...\n  after  ...{after[max(0, at - 60) : at + 60]}..."


def _played(arguments: argparse.Namespace) -> Iterator[Document]:
    from same_commands import commands, helps
    from same_simulations import recorded
    from same_slurm import decisions

    tree = Path(os.environ["PYTHONPATH"])
    parts: dict[str, Callable[[], Iterable[Document]]] = {
        "problems": lambda: (_solved(seed, *each) for seed in range(arguments.problems) for each in _policies()),
        "rounds": lambda: map(_rounds, range(arguments.scenarios)),
        "simulations": lambda: map(_simulation, range(5)),
        "sweep": lambda: [_sweep()],
        "recorded": recorded,
        "commands": lambda: commands(tree),
        "helps": helps,
        "slurm": lambda: decisions(tree),
    }
    for part in arguments.only.split(","):
        yield from parts[part]()


def kept() -> Iterator[Document]:
    """Yield 20 answers: one policy each on 14 problems, 4 scenarios of rounds, a simulation and a sweep."""
    for seed, policy in zip(KEPT_PROBLEMS, KEPT_POLICIES, strict=True):
        yield _solved(seed, policy, {})
    for seed in (2, 3, 4, 7):  # the published mechanism, events, sharing, the deficit mechanism
        yield _rounds(seed)
    yield _simulation(1)
    yield _sweep()


KEPT_PROBLEMS = (4, 5, 10, 13, 15, 17, 28, 41, 50, 55, 66, 72, 80, 82)
"""Seeds of problems with six jobs or more on three accelerator types."""

KEPT_POLICIES = (
    "max_min_fairness",
    "water_filling",
    "hierarchical",
    "finish_time_fairness",
    "min_makespan",
    "max_total_throughput",
    "min_cost",
    "nash_welfare",
    "least_attained_service",
    "fifo",
    "shortest_job_first",
    "isolated",
    "allox",
    "throughput_per_dollar",
)


def _policies() -> Iterator[tuple[str, dict[str, bool]]]:
    """Every policy, with its defaults and with each option that is on or off."""
    import gavel_py as gp

    for policy in gp.policy_names():
        flags = [name for name, option in gp.policy_options(gp.policy_class(policy)).items() if option.type is bool]
        for options in ({}, *({flag: True} for flag in flags), *({flag: False} for flag in flags)):
            yield policy, options


def _solved(seed: int, policy: str, options: dict[str, bool]) -> Document:
    """Return the answer of a policy on one seeded problem, or the class of its error."""
    import gavel_py as gp

    name = f"problem {seed}, {policy} {json.dumps(options)}"
    try:
        found = gp.solve(_problem(seed), gp.resolve_policy(policy, **options))
    except gp.GavelError as error:
        return {"name": name, "error": type(error).__name__}
    return {
        "name": name,
        "objective": repr(found.objective_value),
        "bound": repr(found.objective_bound),
        "fractions": found.time_fractions.tolist(),
        "throughputs": found.throughputs.tolist(),
        "prices": None if found.shadow_prices is None else found.shadow_prices.tolist(),
        "excluded": dict(found.excluded),
        "status": str(found.status),
    }


@cache
def _problem(seed: int) -> AllocationProblem:
    import numpy as np

    import gavel_py as gp

    rng = np.random.default_rng(seed)
    jobs, types = int(rng.integers(1, 9)), int(rng.integers(1, 4))
    steps = rng.integers(1, 200, jobs) * 100.0
    return gp.AllocationProblem.from_arrays(
        rng.integers(1, 40, (jobs, types)) * (rng.random((jobs, types)) < 0.9) / 4,
        rng.integers(1, 9, types),
        num_gpus=rng.choice([1, 1, 1, 2, 4, 0.5], jobs),
        weights=rng.choice([1.0, 1.0, 2.0, 0.5], jobs),
        priorities=rng.integers(0, 3, jobs),
        prices_per_hour=rng.integers(1, 9, types) / 2,
        total_steps=steps,
        steps_remaining=steps * rng.choice([1.0, 0.5], jobs),
        deadlines_seconds=rng.integers(100, 90_000, jobs) * 1.0,
        waiting_seconds=rng.integers(0, 9_000, jobs) * 1.0,
        isolated_seconds=rng.integers(100, 90_000, jobs) * 1.0,
        attained_gpu_seconds=rng.integers(0, 20_000, jobs) * 1.0,
        tenants=rng.choice(["a", "b", "c"], jobs).tolist(),
    )


POLICIES = ("max_min_fairness", "fifo", "min_makespan", "hierarchical", "shortest_job_first", "max_total_throughput")


def _rounds(seed: int) -> Document:
    """Return rounds with arrivals, failures and departures, with gangs of all sizes, shared GPUs, and a save and load."""
    import numpy as np

    import gavel_py as gp

    rng = np.random.default_rng(seed)
    profile = gp.ThroughputProfile.builtin("gavel-osdi20")
    cluster = gp.Cluster.from_counts({"v100": (int(rng.integers(1, 4)) * 8, 4), "p100": (8, 4), "k80": (8, 8)})
    by_events, sharing = seed % 5 == 3, seed % 5 == 4
    scheduler = gp.RoundScheduler(
        cluster,
        profile,
        "fifo" if by_events else "max_min_fairness" if sharing else POLICIES[seed % len(POLICIES)],
        sharing=sharing,
        by_events=by_events,
        mechanism="priority" if seed % 4 == 2 and not by_events else "deficit",
        restart_seconds=0.0 if by_events else 30.0,
        solve_seconds=0.0 if by_events or seed % 2 else 720.0,
    )
    trace = gp.generate_trace(
        60, profile, jobs_per_hour=None, seed=seed, gang_mix={1: 6, 2: 2, 4: 2, 8: 1} if not sharing else {1: 1}
    )
    coming = [submission.job for submission in trace.submissions]
    played = []
    for number in range(24):
        for job in [coming.pop() for _ in range(min(len(coming), int(rng.integers(0, 6))))]:
            scheduler.submit(job)
        alive = sorted(job.job_id for job in scheduler.jobs)
        if alive and rng.random() < 0.5:
            scheduler.complete(alive[int(rng.integers(len(alive)))])
        running = sorted(scheduler.running)
        if running and rng.random() < 0.3:
            scheduler.job_failed(running[int(rng.integers(len(running)))])
        node = sorted(scheduler.nodes)[int(rng.integers(len(scheduler.nodes)))]
        match int(rng.integers(6)):
            case 0:
                scheduler.node_down(node)
            case 1:
                scheduler.drain(node)
            case 2 | 3:
                for name in scheduler.nodes:
                    scheduler.node_up(name)
        begun = scheduler.next_round()
        played.append({key: value for key, value in begun.to_dict().items() if key != "notes"})
        scheduler.report_all(dict.fromkeys(begun.assignments, 100.0 * (number + 1)))
        if number == 12:
            scheduler = gp.RoundScheduler.from_dict(scheduler.to_dict(), profile)
    return {"name": f"rounds {seed}", "rounds": [*played, scheduler.delivery().to_dict()]}


def _simulation(seed: int) -> Document:
    import gavel_py as gp

    profile = gp.ThroughputProfile.builtin("gavel-osdi20")
    trace = gp.generate_trace(40, profile, jobs_per_hour=10.0, seed=seed)
    policy = ("max_min_fairness", "fifo", "finish_time_fairness", "min_makespan", "shortest_job_first")[seed]
    result = gp.simulate(trace, gp.Cluster.from_counts({"v100": 8, "p100": 8, "k80": 8}), profile, policy)
    return {"name": f"simulation {seed}", "jobs": {job_id: repr(record) for job_id, record in result.jobs.items()}}


def _sweep() -> Document:
    import gavel_py as gp

    spec = {
        "policies": ["fifo", "isolated", "max_min_fairness"],
        "traces": [{"generate": {"jobs": 12}}],
        "clusters": ["v100:8,k80:8"],
    }
    rows = gp.sweep(spec, seeds=[0, 1], executor=None, workers=1)
    return {
        "name": "sweep",
        "rows": [{name: repr(value) for name, value in row.items() if "seconds" not in name or "jct" in name} for row in rows],
    }


if __name__ == "__main__":
    sys.exit(main())
