"""How well Kueue's decisions are replayed, and what advice on them gains.

    python benchmarks/kueue.py               print the tables (about three minutes)
    python benchmarks/kueue.py --write       and put them into benchmarks/RESULTS.md
    python benchmarks/kueue.py --quick       one seed, three draws, five states

The backlog: 120 jobs of two teams on 32 H100, 64 A100 and 64 L40S, half of them each team's quota in one cohort that may reclaim.
60 % of the jobs select the H100 by habit, 30 % the A100, 10 % nothing; speeds and sizes are those of five measured types, an A100
= 1. The other seeds draw other jobs. "Lengths off": the advice is found with the stated lengths, and replayed with lengths that
differ by a factor e^x, x normal with deviation 0.7. Drawn states: 1 or 2 queues, 1 to 3 flavors, up to 30 jobs that run or wait.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import tables

import gavel_py as gp
from gavel_py.integrations.kueue.replay import KueueReplay

API, GPU = "kueue.x-k8s.io/v1beta2", "nvidia.com/gpu"
REAL = Path(__file__).resolve().parents[2] / "shared" / "data" / "kueue" / "real"
HALF = {"h100": 16, "a100": 32, "l40s": 32}
TYPES = {"train-mpt7b": (8, 10.0), "train-mpt1b": (8, 4.0), "gen-8b": (1, 6.0), "gen-mixtral": (4, 6.0), "gen-70b": (8, 6.0)}
"""{job type: (GPUs, mean hours on the A100)}."""

SPEEDS = {
    "train-mpt7b": {"h100": 2.29, "a100": 1.0},
    "train-mpt1b": {"h100": 2.22, "a100": 1.0},
    "gen-8b": {"h100": 4.02, "a100": 1.0, "l40s": 1.07},
    "gen-mixtral": {"h100": 3.9, "a100": 1.0, "l40s": 0.74},
    "gen-70b": {"h100": 3.45, "a100": 1.0, "l40s": 0.40},
}
MIX = {
    "research": {"train-mpt7b": 0.45, "train-mpt1b": 0.35, "gen-8b": 0.1, "gen-70b": 0.1},
    "product": {"gen-8b": 0.6, "gen-mixtral": 0.25, "gen-70b": 0.15},
}
PROFILE = gp.ThroughputProfile(
    "measured",
    [
        gp.Measurement(job_type=name, num_gpus=TYPES[name][0], accelerator=flavor, steps_per_second=speed)
        for name, speeds in SPEEDS.items()
        for flavor, speed in speeds.items()
    ],
)
SEED, OTHER_SEEDS, JOBS = 7, (1, 2, 3, 4, 5), 120
DRAWS, DEVIATION = 5, 0.7
ARRIVAL_HOURS, ARRIVALS = 120.0, 900


def flavor(name: str) -> dict[str, Any]:
    return {"apiVersion": API, "kind": "ResourceFlavor", "metadata": {"name": name}, "spec": {"nodeLabels": {"gpu": name}}}


def queue(name: str, quotas: Mapping[str, int], cohort: str | None = "all") -> dict[str, Any]:
    flavors = [{"name": each, "resources": [{"name": GPU, "nominalQuota": str(gpus)}]} for each, gpus in quotas.items()]
    spec: dict[str, Any] = {
        "namespaceSelector": {},
        "queueingStrategy": "BestEffortFIFO",
        "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"},
        "resourceGroups": [{"coveredResources": [GPU], "flavors": flavors}],
    }
    if cohort:
        spec["cohortName"] = cohort
    return {"apiVersion": API, "kind": "ClusterQueue", "metadata": {"name": name, "uid": f"q-{name}"}, "spec": spec}


def local_queue(team: str) -> dict[str, Any]:
    return {
        "apiVersion": API,
        "kind": "LocalQueue",
        "metadata": {"name": "main", "namespace": team},
        "spec": {"clusterQueue": team},
    }


def workload(number: int, team: str, job_type: str, hours: float, pin: str | None) -> dict[str, Any]:
    """A Workload with a selector, or for training without one an affinity to the flavors that are measured."""
    gpus = str(TYPES[job_type][0])
    pod: dict[str, Any] = {
        "containers": [{"name": "c", "image": "x", "resources": {"requests": {GPU: gpus}, "limits": {GPU: gpus}}}]
    }
    if pin:
        pod["nodeSelector"] = {"gpu": pin}
    elif job_type.startswith("train"):
        terms = [{"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["h100", "a100"]}]}]
        required = "requiredDuringSchedulingIgnoredDuringExecution"
        pod["affinity"] = {"nodeAffinity": {required: {"nodeSelectorTerms": terms}}}
    made = f"2026-11-28T10:{number // 60 % 60:02d}:{number % 60:02d}Z"
    name = f"job-j{number:03d}"
    metadata = {"name": name, "namespace": team, "uid": f"{number:06d}", "creationTimestamp": made}
    template = {"metadata": {"annotations": {"gavel-py/job-type": job_type}}, "spec": pod}
    spec = {
        "queueName": "main",
        "maximumExecutionTimeSeconds": int(hours * 3600),
        "podSets": [{"name": "main", "count": 1, "template": template}],
    }
    owner = [{"kind": "Job", "name": f"j{number:03d}"}]
    return {"apiVersion": API, "kind": "Workload", "metadata": {**metadata, "ownerReferences": owner}, "spec": spec}


def jobs_of(seed: int, count: int = JOBS) -> Iterator[dict[str, Any]]:
    draw = random.Random(seed)  # noqa: S311
    for number in range(count):
        team = "research" if number % 3 == 0 else "product"
        job_type = draw.choices(list(MIX[team]), list(MIX[team].values()))[0]
        mean, habit = TYPES[job_type][1], draw.random()
        pin = "h100" if habit < 0.6 else "a100" if habit < 0.9 else None
        hours = min(max(draw.lognormvariate(0, 0.8) / 1.377 * mean, 0.2), 6 * mean)
        yield workload(number, team, job_type, hours, pin)


def backlog(seed: int, count: int = JOBS) -> gp.KueueState:
    queues = [each for team in MIX for each in (queue(team, HALF), local_queue(team))]
    return read([*map(flavor, HALF), *queues, *jobs_of(seed, count)])


def read(items: list[dict[str, Any]]) -> gp.KueueState:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "state.json"
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        return gp.read_kueue(file, gp.KueueSettings(profile=PROFILE))


def advice_table(seeds: tuple[int, ...]) -> tuple[str, gp.KueueAdvice]:
    rows: list[list[Any]] = []
    first = None
    for seed in (SEED, *seeds):
        state, began = backlog(seed), time.process_time()
        advice = gp.advise_kueue(state)
        seconds = time.process_time() - began
        first = first or advice
        found = [advice.base, *(each or advice.base for each in (advice.kept, advice.lifted or advice.kept))]
        worst = max(
            each.worst_by_queue[name] / advice.base.by_queue[name] - 1 for each in found[1:] for name in advice.base.by_queue
        )
        rows.append(
            [
                f"seed {seed}",
                *(f"{each.mean:.2f}" for each in found),
                *(f"{each.gain(advice.base):.0%}" for each in found[1:]),
                f"{worst:+.1%}",
                advice.replays,
                f"{seconds:.0f}",
            ]
        )
        print(rows[-1], flush=True)
    header = ["", "as it is, h", "pins kept, h", "lifted, h", "gain kept", "gain lifted", "a team later by", "replays", "CPU s"]
    assert first is not None
    return tables.markdown(header, rows), first


def lengths_table(advice: gp.KueueAdvice, draws: int) -> str:
    rows: list[list[Any]] = []
    for number in range(draws):
        draw = random.Random(100 + number)  # noqa: S311
        wrong = {job.key: draw.lognormvariate(0, DEVIATION) for job in advice.state.jobs}
        real = replace(advice.state, jobs=tuple(replace(job, hours=job.hours * wrong[job.key]) for job in advice.state.jobs))

        def mean(changes: gp.KueueChanges, real: gp.KueueState = real) -> float:
            return statistics.fmean(gp.forecast_kueue(real, changes, tie_order=order).mean for order in range(5))

        base, *found = (mean(each.changes) for each in (advice.base, advice.kept or advice.base, advice.lifted or advice.base))
        rows.append(
            [
                f"draw {number + 1}",
                f"{base:.2f}",
                *(f"{1 - each / base:.0%}" for each in found),
                *(1 - each / base for each in found),
            ]
        )
        print(rows[-1], flush=True)
    means = ["mean", "", *(f"{statistics.fmean(row[column] for row in rows):.0%}" for column in (4, 5))]
    return tables.markdown(["lengths off", "as it is, h", "gain kept", "gain lifted"], [*(row[:4] for row in rows), means])


def drawn_state(seed: int) -> gp.KueueState:
    """A small state: some jobs run, the others wait."""
    draw = random.Random(seed)  # noqa: S311
    flavors = draw.sample(list(HALF), draw.randint(1, 3))
    teams = list(MIX)[: draw.randint(1, 2)]
    items: list[dict[str, Any]] = [*map(flavor, flavors)]
    for team in teams:
        quotas = {each: draw.choice((0, 8, 16)) for each in flavors}
        items += [queue(team, quotas, draw.choice(("all", "all", None))), local_queue(team)]
    free = {
        (each["metadata"]["name"], one["name"]): int(one["resources"][0]["nominalQuota"])
        for each in items
        if each["kind"] == "ClusterQueue"
        for one in each["spec"]["resourceGroups"][0]["flavors"]
    }
    for number in range(draw.randint(2, 30)):
        team = draw.choice(teams)
        job_type = draw.choice(list(MIX[team]))
        each = workload(number, team, job_type, draw.uniform(0.2, 20), draw.choice([None, *flavors]))
        where = draw.choice(flavors)
        gpus = TYPES[job_type][0]
        if draw.random() < 0.4 and free[team, where] >= gpus and where in SPEEDS[job_type]:
            free[team, where] -= gpus
            each["spec"]["podSets"][0]["template"]["spec"].pop("nodeSelector", None)
            assigned = [{"name": "main", "count": 1, "flavors": {GPU: where}, "resourceUsage": {GPU: str(gpus)}}]
            stamp = each["metadata"]["creationTimestamp"]
            held = [
                {"type": name, "status": "True", "reason": name, "message": "", "lastTransitionTime": stamp}
                for name in ("QuotaReserved", "Admitted")
            ]
            each["status"] = {"admission": {"clusterQueue": team, "podSetAssignments": assigned}, "conditions": held}
        items.append(each)
    return read(items)


def mean_of(forecasts: list[gp.KueueForecast], keys: set[str]) -> float:
    """Return the mean hours to the end of these jobs; one that never ends counts as infinite."""
    return statistics.fmean(each.ends.get(key, math.inf) for each in forecasts for key in keys)


def states_table(count: int) -> str:
    """Check advice on drawn states by what it promises."""
    advised = without = lost = later = overwritten = written = skipped = 0
    for seed in range(count):
        try:
            state = drawn_state(seed)
        except gp.InputError:
            skipped += 1
            continue
        advice = gp.advise_kueue(state, most_steps=4)
        pins = {job.key: job.source["spec"]["podSets"][0]["template"]["spec"].get("nodeSelector") for job in state.pending}
        for chosen, lift in ((advice.kept, False), (advice.lifted, True)):
            if chosen is None:
                continue
            advised += 1
            again = [gp.forecast_kueue(state, chosen.changes, tie_order=order) for order in range(5)]
            base = [gp.forecast_kueue(state, tie_order=order) for order in range(5)]
            keys = set.intersection(*(set(each.ends) for each in base))
            lost += any(keys - set(each.ends) for each in again)
            without += mean_of(again, keys) > 0.97 * mean_of(base, keys)
            for queue_name in set(base[0].queues.values()):
                own = {key for key in keys if base[0].queues[key] == queue_name}
                later += bool(own) and max(mean_of([each], own) for each in again) > 1.02 * mean_of(base, own) + 1e-9
            patches, _ = gp.kueue_patches(state, chosen, lift=lift)
            written += len(patches)
            for patch in patches if not lift else ():
                new = patch.replaced()
                if new["kind"] == "Workload":
                    key = f"{new['metadata']['namespace']}/{new['metadata']['name']}"
                    overwritten += new["spec"]["podSets"][0]["template"]["spec"].get("nodeSelector") != pins[key]
    rows = [
        ["states drawn", count],
        ["of them without a job that can run, or refused", skipped],
        ["advices", advised],
        ["objects written", written],
        ["advices without a replayed gain of 3 %", without],
        ["advices after which a job never ends", lost],
        ["teams more than 2 % later", later],
        ["pins overwritten", overwritten],
    ]
    return tables.markdown(["", "number"], rows)


def real_table() -> str:
    """Compare the replay with the decisions of a real Kueue."""
    settings = gp.KueueSettings(profile=PROFILE, released=True)
    held, running = (gp.read_kueue(REAL / f"{name}40.json", settings) for name in ("held", "running"))
    names = {job.key: f"{job.key.partition('/')[0]}/{job.owner[1]}" for job in held.jobs}
    events = json.loads((REAL / "run_base.json").read_text())["events"]
    first: dict[str, str] = {}
    for event in events:
        if event["what"] == "QuotaReserved":
            first.setdefault(event["job"], event["flavor"])
    replayed = gp.forecast_kueue(held)
    equal = sum(first[names[key]] == found for key, found in replayed.first_flavors.items())
    stated = {
        (name, use["name"]): sum(int(one["total"]) for one in use["resources"])
        for name, each in running.objects["ClusterQueue"].items()
        for use in each["status"]["flavorsReservation"]
    }
    uses = {(each.queue, use.flavor): use.held for each in gp.kueue_overview(running).queues for use in each.flavors}
    rows = [
        [
            "GPUs held by queue and flavor as Kueue states",
            f"{sum(uses.get(key) == value for key, value in stated.items())} of {len(stated)}",
        ],
        ["first flavor equal, as it is", f"{equal} of {len(first)}"],
    ]
    for name in ("base", "lifted"):
        right, total = next_admissions(held, name)
        rows.append([f"next admission (job and flavor) from each real state, {name}", f"{right} of {total}"])
    return tables.markdown(["", "equal"], rows)


def next_admissions(held: gp.KueueState, name: str) -> tuple[int, int]:
    """Return how many of the admissions of a real run the replay predicts from the state before it, and how many there are."""
    run = json.loads((REAL / f"run_{name}.json").read_text())
    hour = run["scale"]
    by_name = {f"{job.key.partition('/')[0]}/{job.owner[1]}": job for job in held.jobs}
    queues, jobs = advised(held, by_name) if name == "lifted" else ({}, by_name)
    runs: dict[str, tuple[str, float]] = {}
    waiting, ended, right, total = dict(jobs), set[str](), 0, 0
    for event in run["events"]:
        job, what = event["job"], event["what"]
        if what == "QuotaReserved":
            right += (job, event["flavor"]) in predicted(held, queues, waiting, runs, event["t"], hour)
            total += 1
            waiting.pop(job, None)
            runs[job] = event["flavor"], event["t"]
        elif what in ("-QuotaReserved", "Finished") and job in runs:
            del runs[job]
            if what == "-QuotaReserved" and job not in ended:
                waiting[job] = jobs[job]
            ended |= {job} if what == "Finished" else set()
    return right, total


def advised(held: gp.KueueState, by_name: Mapping[str, gp.KueueJob]) -> tuple[dict[str, Any], dict[str, gp.KueueJob]]:
    """Return the queues and jobs after the changes of the recorded advice."""
    changes = json.loads((REAL / "advice_by_job.json").read_text())["lifted"]
    queues = {name: {**held.objects["ClusterQueue"][name]["spec"], **fields} for name, fields in changes["queues"].items()}
    jobs = {}
    for name, job in by_name.items():
        own = changes["jobs"].get(name, {})
        flavors = own.get("flavors")
        excluded = {"main": {each: "" for each in job.speeds if each not in flavors}} if flavors else job.workload.excluded
        jobs[name] = replace(job, workload=replace(job.workload, priority=own.get("priority", 0), excluded=excluded))
    return queues, jobs


def predicted(
    held: gp.KueueState,
    queues: Mapping[str, Any],
    waiting: Mapping[str, gp.KueueJob],
    runs: Mapping[str, tuple[str, float]],
    now: float,
    hour: float,
) -> set[tuple[str, str]]:
    """Return the admissions of the next instant by the replay from a state: job and flavor."""
    names, jobs = {}, []
    for name, job in waiting.items():
        jobs.append(replace(job, flavor="", held=""))
        names[job.key] = name
    for name, (on, since) in runs.items():
        job = next(each for each in held.jobs if f"{each.key.partition('/')[0]}/{each.owner[1]}" == name)
        usage = {(on, GPU): job.gpus}
        own = replace(job.workload, usage=usage, reserved=(since - now) / hour)
        jobs.append(replace(job, workload=own, flavor=on, done=(now - since) / hour * job.speeds[on]))
    state = replace(held, jobs=tuple(jobs))
    found = gp.forecast_kueue(state, gp.KueueChanges(queues=dict(queues)))
    first = min(found.starts.values(), default=0.0)
    return {(names[key], found.first_flavors[key]) for key, start in found.starts.items() if start == first}


def time_table() -> str:
    state = backlog(SEED, ARRIVALS)
    draw, times = random.Random(SEED), []  # noqa: S311
    arrivals = sorted(draw.uniform(0, ARRIVAL_HOURS) for _ in state.jobs)
    free = gp.KueueChanges(flavors={job.key: job.liftable for job in state.jobs})
    for changes in (free,) * 5:
        began = time.process_time()
        KueueReplay(state, changes).run(list(zip(state.jobs, arrivals, strict=True)))
        times.append(time.process_time() - began)
    return tables.markdown(
        ["a replay of", "CPU s, median of 5"],
        [[f"{ARRIVALS} jobs that arrive over {ARRIVAL_HOURS:.0f} h", statistics.median(times)]],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    seeds, draws, states = ((), 3, 5) if options.quick else (OTHER_SEEDS, DRAWS, 200)
    advice, first = advice_table(seeds)
    parts = [advice, lengths_table(first, draws), states_table(states), *([real_table()] if REAL.is_dir() else []), time_table()]
    text = "\n".join(parts) + f"\n{tables.machine()}; `python benchmarks/kueue.py --write`.\n"
    print(text)
    if options.write:
        tables.write("kueue", text)


if __name__ == "__main__":
    main()
