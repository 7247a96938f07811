"""How fast a session answers over HTTP and in a new process, what a kill costs, and whether drawn requests ever break it.

    python benchmarks/service.py                  print the tables (about ten minutes)
    python benchmarks/service.py --only times --write
    python benchmarks/service.py --prototype FILE  beside another program with the same events: FILE serve|step FOLDER ...

Jobs are drawn from Gavel's types; 100 on 48 GPUs, 10,000 on 8,330. A turn is a submit, a complete and a round, one request each on
a kept connection of the Unix socket. Events of 8 clients are each synced. Kills come at drawn times while 16 clients send each
event until it is answered; afterwards, the rounds are those of the library for the log, and each answered event is in it once.
Histories are those of the tests: sent to a service, to two processes of `gavel step` and to a `RoundScheduler`, they must give the
same rounds as text.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import tables

import gavel_py as gp

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.service.sessions import CLUSTER, as_changes, changes_in, history, library_rounds

CLUSTERS = {100: "v100:16/4,p100:16/4,k80:16/4", 10_000: "v100:3328/4,p100:2504/4,k80:2498/2"}
TURNS, STEPS, CLIENTS, KILLERS = 60, 5, 8, 16
JSON = {"Content-Type": "application/json"}
Event = dict[str, Any]


class Connection(http.client.HTTPConnection):
    """A connection to a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=120)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(120)
        self.sock.connect(str(self.path))

    def send_events(self, events: Sequence[Event]) -> list[dict[str, Any]]:
        """Return the answers; raises `OSError` if there are none."""
        self.request("POST", "/v1/events", json.dumps(events), JSON)
        answer = self.getresponse()
        content = answer.read()
        if answer.status in (429, 503, 507):
            raise OSError(answer.status)
        return list(json.loads(content)["results"])


class Program:
    """One implementation: how its service and its single steps are started."""

    def __init__(self, name: str, serve: Callable[[Path, str], list[str]], step: Callable[[Path], list[str]]) -> None:
        self.name, self.serve, self.step = name, serve, step

    @contextmanager
    def serving(self, folder: Path, cluster: str) -> Iterator[tuple[subprocess.Popen[bytes], float]]:
        """Run the service, and yield it with the seconds until it answers. Its standard error is in `errors` beside the folder."""
        began = time.perf_counter()
        with (
            open(folder.with_name("errors"), "ab") as errors,
            subprocess.Popen(self.serve(folder, cluster), stderr=errors) as process,
        ):
            try:
                while True:
                    with suppress(OSError, http.client.HTTPException):
                        made = Connection(folder / "api.sock")
                        made.request("GET", "/healthz")
                        made.getresponse().read()
                        made.close()
                        break
                    if process.poll() is not None:
                        raise SystemExit(f"{self.name} has ended with {process.returncode}")
                    time.sleep(0.02)
                yield process, time.perf_counter() - began
            finally:
                process.kill()


def programs(prototype: str | None) -> list[Program]:
    """Return gavel, and another program if it is given."""
    own = [sys.executable, "-m", "gavel_py"]
    found = [
        Program(
            "gavel",
            lambda folder, cluster: [*own, "api", "--state", str(folder), "--cluster", cluster],
            lambda folder: [*own, "step", "--state", str(folder)],
        )
    ]
    if prototype is not None:
        other = [sys.executable, prototype]
        found.append(
            Program(
                "prototype",
                lambda folder, cluster: [*other, "serve", str(folder), "--cluster", cluster, "--socket", str(folder / "api.sock")],
                lambda folder: [*other, "step", str(folder)],
            )
        )
    return found


def drawn_jobs(count: int) -> list[dict[str, Any]]:
    trace = gp.generate_trace(count, gp.ThroughputProfile.builtin("gavel-osdi20"), jobs_per_hour=None, seed=0)
    return [each.job.model_dump(mode="json", exclude_defaults=True) for each in trace]


def submit(number: int, job: dict[str, Any]) -> Event:
    return {"id": f"submit-{number}", "event": "submit", "job": job}


def timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def spread(seconds: Sequence[float]) -> str:
    """Return "p50 · p99" in ms."""
    ordered = sorted(seconds)
    return f"{1e3 * statistics.median(ordered):.1f} · {1e3 * ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]:.1f}"


def times(program: Program, size: int) -> dict[str, str]:
    """Return what one client waits for, a restart after a kill, and single steps."""
    jobs, found = drawn_jobs(size + TURNS), dict[str, list[float]]()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "state"
        folder.mkdir(mode=0o700)
        with program.serving(folder, CLUSTERS[size]) as (process, _):
            client = Connection(folder / "api.sock")
            first = [submit(number, job) for number, job in enumerate(jobs[:size])]
            found["all submits in one request, s"] = [timed(lambda: client.send_events(first))]
            client.send_events([{"id": "first", "event": "round"}])
            for turn in range(TURNS):
                job_id = jobs[turn]["job_id"]
                events: list[Event] = [
                    submit(size + turn, jobs[size + turn]),
                    {"event": "complete", "job_id": job_id},
                    {"event": "round"},
                ]
                for event in events:
                    sent = {"id": f"{event['event']}-{size + turn}", **event}
                    found.setdefault(f"{event['event']}, ms", []).append(timed(partial(client.send_events, [sent])))
                if program.name == "gavel":
                    path = f"/v1/jobs/{jobs[size - 1]['job_id']}/explanation"
                    found.setdefault("explanation, ms", []).append(timed(partial(_read, client, path)))
            client.close()
            process.kill()
            process.wait()
        with program.serving(folder, CLUSTERS[size]) as (process, seconds):
            found["recovery, s"] = [seconds]
            process.kill()
            process.wait()
        round_of = json.dumps({"event": "round"})
        for number in range(STEPS):
            line = f'{{"id": "step-{number}", {round_of[1:]}\n'
            run = partial(subprocess.run, program.step(folder), input=line, text=True, check=True, capture_output=True)
            found.setdefault("new process, s", []).append(timed(run))
    return {name: spread(values) if name.endswith("ms") else f"{statistics.median(values):.2f}" for name, values in found.items()}


def _read(client: Connection, path: str) -> None:
    client.request("GET", path)
    answer = client.getresponse()
    answer.read()
    assert answer.status == 200


def throughput(program: Program, seconds: float = 5.0) -> float:
    """Return the events per second of 8 clients, one synced event a request."""
    jobs, counts = drawn_jobs(100), [0] * CLIENTS
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "state"
        folder.mkdir(mode=0o700)
        with program.serving(folder, CLUSTERS[100]):
            Connection(folder / "api.sock").send_events([submit(number, job) for number, job in enumerate(jobs)])
            end = time.perf_counter() + seconds

            def report(client: int) -> None:
                made = Connection(folder / "api.sock")
                while time.perf_counter() < end:
                    job = jobs[(client + CLIENTS * counts[client]) % len(jobs)]["job_id"]
                    event = {"id": f"{client}-{counts[client]}", "event": "report", "job_id": job, "steps_done": counts[client]}
                    made.send_events([event])
                    counts[client] += 1
                made.close()

            _together(report, CLIENTS)
    return sum(counts) / seconds


def _together(call: Callable[[int], None], count: int) -> None:
    threads = [threading.Thread(target=call, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def kills(program: Program, count: int) -> dict[str, int]:
    """Kill the service at drawn times while clients send; return what was answered, lost and doubled."""
    chance, jobs, answered, done = random.Random(1), drawn_jobs(4000), dict[str, int](), threading.Event()  # noqa: S311
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "state"
        folder.mkdir(mode=0o700)

        def send(client: int) -> None:
            number = 0
            while not done.is_set():
                event: Event = submit(0, jobs[(client + KILLERS * (number // 4)) % len(jobs)])
                event = event if number % 4 == 0 else {"event": "round"}
                event["id"] = f"{client}-{number}"
                while not done.is_set():
                    with suppress(OSError, http.client.HTTPException, ValueError):
                        made = Connection(folder / "api.sock")
                        (answer,) = made.send_events([event])
                        made.close()
                        if answer["status"] != "refused":
                            answered[event["id"]] = answer["version"]
                        break
                    time.sleep(0.05)
                number += 1

        def kill() -> None:
            for _ in range(count):
                with program.serving(folder, CLUSTERS[100]) as (process, _):
                    time.sleep(chance.uniform(0.05, 0.8))
                    process.send_signal(signal.SIGKILL)
            done.set()

        _together(lambda client: send(client) if client < KILLERS else kill(), KILLERS + 1)
        log = [json.loads(line) for path in sorted(folder.glob("events-*")) for line in path.read_bytes().split(b"\n")[:-1]]
        versions = {each["event"]["id"]: each["version"] for each in log}
        first = min(versions.values())
        lost = sum(1 for name, version in answered.items() if version >= first and versions.get(name) != version)
        profile = gp.ThroughputProfile.builtin("gavel-osdi20")
        differing = 0
        if first == 1:  # the whole history is there
            scheduler = gp.RoundScheduler(gp.Cluster.from_inline(CLUSTERS[100]), profile)
            for entry in log:
                if entry["event"]["event"] == "submit":
                    scheduler.submit(gp.Job(**entry["event"]["job"]))
                else:
                    decided = scheduler.next_round()
                    differing += sorted(entry["answer"]["starts"]) != list(decided.started)
    return {
        "kills": count,
        "answered": len(answered),
        "lost": lost,
        "doubled": len(log) - len(versions),
        "rounds differ": differing,
    }


WORDS = ["id", "event", "job", "job_id", "steps_done", "node", "policy", "fields", "options", "now_seconds", "table", "x" * 2000]
OPTIONS = ["agnostic", "efficiency", "caution", "tenants", "held", "seed", "min_share", "thresholds", "by", "reference", "x"]
JOBS = [
    {"job_id": "a", "job_type": "ResNet-18 (batch size 64)", "total_steps": 1000},
    {"job_id": "b", "job_type": "Transformer (batch size 64)", "num_gpus": 2, "tenant": "t", "depends_on": ["a"]},
    {"job_id": "c", "job_type": "ResNet-50 (batch size 64)", "min_gpus": 1, "max_gpus": 8, "deadline_seconds": 9000},
]
KINDS = ["submit", "complete", "report", "job_failed", "update", "node_down", "policy", "round", "no"]


def drawn_value(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randrange(9 if depth < 4 else 7)
    if kind < 7:
        return [
            None,
            True,
            chance.randrange(-5, 10**6),
            chance.random() * 1e300,
            "a",
            "\ud800" if chance.random() < 0.1 else "1e5",
            KINDS,
        ][kind]
    inner = [drawn_value(chance, depth + 1) for _ in range(chance.randrange(4))]
    return inner if kind == 7 else {chance.choice([*WORDS, *gp.Job.model_fields]): each for each in inner}


def drawn_body(chance: random.Random) -> bytes:
    events = []
    for _ in range(chance.randrange(4)):
        event = {"id": str(chance.randrange(3000)), "event": chance.choice(KINDS)}
        event |= {chance.choice(WORDS): drawn_value(chance) for _ in range(chance.randrange(4))}
        events.append(event if chance.random() < 0.9 else drawn_value(chance))
    text = json.dumps(events).encode()
    if chance.random() < 0.2:
        at = chance.randrange(len(text) + 1)
        text = text[:at] + chance.choice([b"NaN", b"1e999", b"{", b"\xff", b"[" * 5000, b'"', b""]) + text[at:]
    return text


def drawn_problem(chance: random.Random) -> bytes:
    """Return a problem of `POST /v1/solve` in which some values are drawn."""
    jobs = [dict(chance.choice(JOBS)) for _ in range(chance.randrange(1, 6))]
    problem: dict[str, Any] = {"jobs": jobs, "cluster": "v100:4,k80:8/2", "policy": chance.choice(gp.policy_names()), "options": {}}
    for _ in range(chance.randrange(4)):
        place = chance.choice([problem, problem["options"], *jobs])
        names = list(problem) if place is problem else OPTIONS if place is problem["options"] else list(gp.Job.model_fields)
        place[chance.choice(names)] = chance.choice([drawn_value(chance), "v100:999999999/1", 10**6, 10**30, [1, 2, 4], "v100"])
        if not isinstance(problem["jobs"], list) or not isinstance(problem["options"], dict):
            break
    return json.dumps(problem).encode()


def fuzz(program: Program, count: int) -> dict[str, int]:
    """Return how often drawn requests had which status, and the number of tracebacks in answers and in what the service says."""
    chance, found, tracebacks = random.Random(2), dict[str, int](), 0  # noqa: S311
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "state"
        folder.mkdir(mode=0o700)
        with program.serving(folder, CLUSTERS[100]):
            made = Connection(folder / "api.sock")
            for _ in range(count):
                route = chance.choice(["/v1/events"] * 7 + ["/v1/solve"] * 2 + ["/v1/nothing"])
                is_problem = route == "/v1/solve" and chance.random() < 0.8
                made.request("POST", route, (drawn_problem if is_problem else drawn_body)(chance), JSON)
                answer = made.getresponse()
                tracebacks += b"Traceback" in answer.read()
                found[f"status {answer.status}"] = found.get(f"status {answer.status}", 0) + 1
            made.close()
        tracebacks += folder.with_name("errors").read_bytes().count(b"Traceback")
    return dict(sorted(found.items())) | {"tracebacks": tracebacks}


def doors(program: Program, count: int) -> dict[str, int]:
    """Return how many drawn histories, and how many of their rounds, differ between the service, single steps and the library."""
    rounds = of_answers = of_library = 0
    for seed in range(count):
        events = history(seed)
        wanted, half = [as_changes(each) for each in library_rounds(events)], len(events) // 2
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "served"
            with program.serving(folder, CLUSTER):
                client = Connection(folder / "api.sock")
                served = [*client.send_events(events[:half]), *client.send_events(events[half:])]
                client.close()
            stepped = []
            for part in (events[:half], events[half:]):
                command = [*program.step(Path(place) / "stepped"), "--cluster", CLUSTER]
                lines = "".join(f"{json.dumps(each)}\n" for each in part)
                done = subprocess.run(command, input=lines, text=True, check=False, capture_output=True)  # 2 if one is refused
                stepped += [json.loads(line) for line in done.stdout.splitlines()]
        for each in stepped:
            each.pop("schema_version")
        rounds += len(wanted)
        of_answers += json.dumps(served) != json.dumps(stepped)
        of_library += json.dumps(changes_in(served), sort_keys=True) != json.dumps(wanted, sort_keys=True)
    names = ("histories", "rounds", "differ between service and steps", "differ from the library")
    return dict(zip(names, (count, rounds, of_answers, of_library), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["times", "kills", "fuzz", "doors"])
    parser.add_argument("--prototype", metavar="FILE")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--histories", type=int, default=50)
    parser.add_argument("--jobs", type=int, choices=sorted(CLUSTERS), action="append")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    found = programs(given.prototype)
    for name, call in {"times": _times, "kills": _kills, "fuzz": _fuzz, "doors": _doors}.items():
        if given.only in (None, name):
            text = call(found, given) + f"\n{tables.machine()}; `python benchmarks/service.py --only {name} --write`.\n"
            sys.stdout.write(text)
            if given.write:
                tables.write(f"service-{name}", text)


def _times(found: list[Program], given: argparse.Namespace) -> str:
    columns = {(each.name, size): times(each, size) for size in given.jobs or CLUSTERS for each in found}
    rows = [[name, *(column.get(name) for column in columns.values())] for name in max(columns.values(), key=len)]
    rows.append(
        [
            "events/s of 8 clients",
            *(f"{throughput(each):,.0f}" if size == 100 else None for size in given.jobs or CLUSTERS for each in found),
        ]
    )
    return tables.markdown(["", *(f"{name}, {size:,} jobs" for name, size in columns)], rows)


def _kills(found: list[Program], given: argparse.Namespace) -> str:
    counts = kills(found[0], given.kills)
    return tables.markdown(list(counts), [list(counts.values())])


def _fuzz(found: list[Program], given: argparse.Namespace) -> str:
    counts = fuzz(found[0], given.requests)
    return tables.markdown(list(counts), [list(counts.values())])


def _doors(found: list[Program], given: argparse.Namespace) -> str:
    counts = doors(found[0], given.histories)
    return tables.markdown(list(counts), [list(counts.values())])


if __name__ == "__main__":
    main()
