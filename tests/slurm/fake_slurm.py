"""An in-memory Slurm that answers the commands of the driver in the JSON of two versions."""

from __future__ import annotations

import json
import math
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import gavel_py as gp
from gavel_py.integrations.slurm.client.commands import CommandResult
from gavel_py.integrations.slurm.client.notation import gpus_in

__all__ = ["EARLIER", "FIRST", "FakeClock", "FakeJob", "FakeSlurm"]

START = 1_700_000_000.0

EARLIER = "89999"
"""A lease for which jobs wait from the beginning, as if a driver had been there before."""

FIRST = "90001"
"""The lease that the first driver will take."""

DOWN = '{"errors": [{"description": "Failed while looking for jobs", "error": "Unspecified error"}], "jobs": [], "nodes": []}'

NUMBERS = {
    "TimeLimit": "time_limit",
    "MinCPUsNode": "minimum_cpus_per_node",
    "NumTasks": "tasks",
    "NumCPUs": "cpus",
    "CPUsPerTask": "cpus_per_task",
    "MinMemoryNode": "memory_per_node",
}
"""{word of scontrol: key of squeue}."""

SHOWN = (
    *("job_id", "job_state", "state_reason", "partition", "nodes", "required_nodes", "start_time", "time_limit", "priority"),
    *("dependency", "account", "qos", "tres_per_node", "node_count", "cpus", "memory_per_node", "features", "comment"),
)
"""Keys of squeue that its text shows."""


@dataclass
class FakeClock:
    """A clock that only advances in `sleep`, which calls `on_sleep`.

    slept: seconds in `sleep`; set_back: seconds by which the clock of the machine is behind.
    """

    seconds: float = START
    slept: float = 0.0
    set_back: float = 0.0
    on_sleep: Callable[[float], None] | None = None
    stops_at: float = float("inf")

    def now(self) -> float:
        return self.seconds

    def machine_seconds(self) -> float:
        return self.seconds - self.set_back

    def catch_up(self, seconds: float) -> None:
        self.seconds = max(self.seconds, seconds)

    def sleep(self, seconds: float) -> bool:
        self.slept += seconds
        self.seconds += seconds
        if self.on_sleep is not None:
            self.on_sleep(self.seconds)
        return self.seconds < self.stops_at


@dataclass
class FakeJob:
    """A job in Slurm. per_node, per_job: requested GPUs of each node or of the whole job, as "type:count" or "count"; most: nodes
    that it accepts at most, 0 for no limit; dependency: what its user wants it to wait for, never fulfilled here; lease: the lease
    for which it waits, too; priority: 0 on hold; left: when it was last stopped, and on which nodes.
    """

    number: int
    per_node: str = ""
    per_job: str = ""
    nodes: int = 1
    most: int = 0
    partition: str = "gpu"
    comment: str = ""
    name: str = "job"
    state: str = "PENDING"
    priority: int = 1000
    reason: str = "Dependency"
    description: str = ""
    dependency: str = ""
    lease: str = ""
    admin_comment: str = ""
    wanted: list[str] = field(default_factory=list)
    held: dict[str, int] = field(default_factory=dict)
    start: float = 0.0
    end: float = 0.0
    eligible: float = 0.0
    stops: float = 0.0
    restarts: int = 0
    runs_in: str = ""
    left: tuple[float, frozenset[str]] = (0.0, frozenset())
    more: dict[str, Any] = field(default_factory=dict)


def answered(text: str) -> CommandResult:
    """What a command that succeeds returns."""
    return CommandResult(0, text, "")


class FakeSlurm:
    """nodes: {name: (type, GPUs)}; members: {node: its partitions}; new: whether the output is that of 24.05 instead of 22.05;
    stuck: jobs that never start; blocked: nodes on which none starts; counted: {node: further fields of sinfo};
    slow: {job: seconds to stop}; is_down: whether slurmctld is down; fails: called before each command, and may raise;
    refuses: returns the error message for a line of scontrol, or a command on one job, if any;
    config, accounts, partitions, reservations: output of scontrol, by default with this account as SlurmUser;
    tables: those of sacctmgr, {} if slurmdbd does not answer; leases: {job: [comment, begin]}, with one for which jobs wait before
    there is a driver; owners: {lease: uid} of those that do not belong to this account; ahead: seconds by which the clock of
    slurmctld is ahead; signalled: (job, signal, whether to its script only) as sent; on_signal: is called with each such job.
    """

    def __init__(self, clock: FakeClock, nodes: dict[str, tuple[str, int]], *, new: bool = False) -> None:
        self.clock, self.nodes, self.new = clock, nodes, new
        self.states: dict[str, str] = dict.fromkeys(nodes, "IDLE")
        self.members: dict[str, list[str]] = defaultdict(lambda: ["gpu", "free"])
        self.jobs: dict[int, FakeJob] = {}
        self.sent: list[str] = []
        self.stuck: set[int] = set()
        self.blocked: set[str] = set()
        self.leases: dict[str, list[Any]] = {EARLIER: ["", math.inf]}
        self.ahead = 0.0
        self._numbers = 90_000
        self.owners: dict[str, int] = {}
        self.counted: dict[str, dict[str, Any]] = {}
        self.slow: dict[int, float] = {}
        self.elsewhere: dict[int, dict[str, int]] = {}
        self.is_down = False
        self.fails: Callable[[Sequence[str]], None] | None = None
        self.config = f"Configuration data as of 2026-01-01T00:00:00\nSlurmUser               = me({os.geteuid()})\n"
        self.accounts = "Current Association Manager state\n\nUser Records\n\n"
        self.refuses: Callable[[str], str] = lambda _: ""
        self.partitions = "PartitionName=gpu QoS=N/A\nPartitionName=free QoS=N/A\n"
        self.reservations = "No reservations in the system\n"
        self.tables = {"assoc": "", "qos": ""}
        self.signalled: list[tuple[int, str, bool]] = []
        self.on_signal: Callable[[int], None] = lambda _: None

    def submit(self, number: int, **fields: Any) -> FakeJob:
        """Submit a job; by default, it waits for a lease and is annotated as by the plugin."""
        mark = {"admin_comment": f"gavel:submit={self.clock.now():.0f};shared", "lease": max(self.leases, default="")}
        is_managed = "free" not in fields.get("partition", "gpu").split(",")
        self.jobs[number] = FakeJob(number, **((mark if is_managed else {}) | fields))
        return self.jobs[number]

    def run(self, arguments: Sequence[str], text: str = "") -> CommandResult:
        if self.fails is not None:
            self.fails(arguments)
        if self.is_down:  # recorded from 22.05
            return answered(DOWN) if "--json" in arguments else CommandResult(1, "", "Unable to contact controller")
        if arguments[0] == "sinfo":
            return answered(json.dumps(self._sinfo()))
        if arguments[0] == "sdiag":
            return answered(f"***\nsdiag output at Mon Jan 01 00:00:00 2026 ({self.clock.machine_seconds() + self.ahead:.0f})\n")
        if arguments[0] in ("sbatch", "scancel") or "--name=gavel-driver" in arguments or "update" in arguments:
            return self._single(arguments)
        if arguments[0] == "squeue":
            self._schedule()
            return answered(self._queue(arguments))
        if len(arguments) > 1:
            return self._shown(arguments)
        assert list(arguments) == ["scontrol"]
        errors = [error for line in text.splitlines() if line != "quit" and (error := self._order(line))]
        return CommandResult(1 if errors else 0, "", "\n".join(errors))

    def drivers(self) -> list[str]:
        """Return the comments of the leases of drivers."""
        return [comment for comment, _ in self.leases.values() if comment]

    def _held_by(self, number: str) -> dict[str, Any]:
        uid, state = self.owners.get(number, os.geteuid()), "PENDING"
        entry = {"name": "gavel-driver", "user_id": uid, "user_name": f"user{uid}", "partition": "gpu"}
        comment, begin = self.leases[number]
        begin = 0 if math.isinf(begin) else begin
        entry |= {"eligible_time": {"set": True, "infinite": False, "number": begin} if self.new else begin}
        return entry | {"job_id": int(number), "comment": comment, "job_state": [state] if self.new else state}

    def _queue(self, arguments: Sequence[str]) -> str:
        """List jobs, as JSON or a line of text each; from 24.05 on, filters also apply to JSON."""
        is_text = "--json" not in arguments
        wanted = dict(word.split("=", 1) for word in arguments if "=" in word)
        names, states, nodes = (wanted.get(name, "").split(",") for name in ("--partition", "--states", "--nodelist"))
        leases = [self._held_by(number) for number in self.leases] if nodes == [""] or not self.new else []
        found = {number: self._shape(job) for number, job in self.jobs.items()}
        if "--jobs" in wanted and self.new:
            found = {number: shape for number, shape in found.items() if str(number) in wanted["--jobs"].split(",")}
        if (is_text or self.new) and names != [""]:
            found = {number: shape for number, shape in found.items() if not set(names).isdisjoint(shape["partition"].split(","))}
        if (is_text or self.new) and states not in ([""], ["all"]):
            found = {number: shape for number, shape in found.items() if self.jobs[number].state in states}
        if (is_text or self.new) and nodes != [""]:
            found = {number: shape for number, shape in found.items() if not self.jobs[number].held.keys().isdisjoint(nodes)}
        if wanted.get("--format") == "%i|%E":
            return "".join(f"{number}|{shape['dependency']}\n" for number, shape in found.items())
        if is_text:
            return "".join("|".join(str(shape.get(name)) for name in ("name", *SHOWN)) + "\n" for shape in found.values())
        version = {"major": "24", "micro": "0", "minor": "05"} if self.new else {"major": 22, "micro": 8, "minor": 5}
        listed = [*found.values(), *leases]
        return json.dumps({"meta": {"slurm" if self.new else "Slurm": {"version": version}}, "jobs": listed})

    def _single(self, arguments: Sequence[str]) -> CommandResult:
        """Carry out a command on one job, which is a lease except for signals."""
        self._end_leases()
        if arguments[0] == "squeue":
            return answered(json.dumps({"jobs": [self._held_by(number) for number in self.leases]}))
        if error := self.refuses(" ".join(arguments)):
            return CommandResult(1, "", error)
        if arguments[0] == "sbatch":
            words = dict(word.removeprefix("--").split("=", 1) for word in arguments if "=" in word)
            self._numbers += 1
            self.leases[str(self._numbers)] = [words["comment"], self._time(words["begin"])]
            return answered(f"{self._numbers}\n")
        if arguments[0] == "scancel":
            self._scancel(arguments[1:])
        else:
            words = dict(word.split("=", 1) for word in arguments[2:])
            if (number := words["JobId"]) not in self.leases:
                return CommandResult(1, "", f"Job is no longer pending execution for job {number}")
            if "StartTime" in words:
                self.leases[number] = [words["Comment"], self._time(words["StartTime"])]
        return answered("")

    def _time(self, text: str) -> float:
        if not text.startswith("now"):
            return datetime.fromisoformat(text).timestamp()
        return self.clock.machine_seconds() + float(text.removeprefix("now") or 0)

    def _end_leases(self) -> None:
        """End the leases whose time has come."""
        self.leases = {number: each for number, each in self.leases.items() if each[1] > self.clock.machine_seconds()}

    def _shown(self, arguments: Sequence[str]) -> CommandResult:
        """Answer a question about the cluster."""
        if arguments[0] == "sacctmgr":
            table = self.tables.get(arguments[4])
            return CommandResult(1, "", "sacctmgr: error: no slurmdbd") if table is None else answered(table)
        texts = {"config": self.config, "partition": self.partitions, "assoc_mgr": self.accounts, "reservation": self.reservations}
        return answered(texts[arguments[arguments.index("show") + 1]])

    def _scancel(self, words: Sequence[str]) -> None:
        if not words[0].startswith("--signal="):
            del self.leases[words[0]]
            return
        for number in [int(word) for word in words[1:] if word != "--batch"]:
            assert self.jobs[number].state == "RUNNING"
            self.signalled.append((number, words[0].removeprefix("--signal="), "--batch" in words))
            self.on_signal(number)

    def end(self, number: int, state: str = "COMPLETED") -> None:
        job = self.jobs[number]
        job.state, job.end, job.held = state, self.clock.now(), {}

    def node_fails(self, name: str) -> None:
        self.states[name] = "DOWN"
        for job in self.jobs.values():
            if name in job.held:  # Slurm requeues it after a while
                job.state, job.held, job.restarts = "PENDING", {}, job.restarts + 1
                job.eligible, job.reason = self.clock.now() + 120, "BeginTime"

    def free(self, name: str) -> int:
        return self.nodes[name][1] - sum(job.held.get(name, 0) for job in self.jobs.values())

    def _order(self, line: str) -> str:
        self.sent.append(line)
        if error := self.refuses(line):
            return error
        verb, _, rest = line.partition(" ")
        if verb == "update":
            return self._update(rest)
        verb = "stop" if rest.startswith("Incomplete ") else verb
        errors = [self._one(verb, int(number)) for number in rest.removeprefix("Incomplete ").split(",")]
        return "\n".join(error for error in errors if error)

    def _one(self, verb: str, number: int) -> str:
        job = self.jobs.get(number)
        if verb == "requeue" and job is not None and job.state == "FAILED":
            job.state, job.restarts, job.eligible, job.reason = "PENDING", job.restarts + 1, self.clock.now() + 120, "BeginTime"
            return ""
        if job is None or job.state not in ("PENDING", "RUNNING", "SPECIAL_EXIT"):
            return f"Job has already finished for job {number}"
        if verb == "hold":
            job.priority, job.reason = 0, "JobHeldUser"
        elif verb == "release":
            job.priority, job.reason, job.state = 1000, "None", job.state.replace("SPECIAL_EXIT", "PENDING")
        elif verb == "stop":
            job.left = self.clock.now(), frozenset(job.held)
            job.state, job.restarts = "COMPLETING", job.restarts + 1
            job.stops = self.clock.now() + self.slow.get(number, 0.0)
            self._stop_those_whose_time_has_come()
        else:
            raise AssertionError(verb)
        return ""

    def _update(self, rest: str) -> str:
        words = dict(word.split("=", 1) for word in rest.split())
        job = self.jobs[int(words.pop("JobId"))]
        if "AdminComment" in words:
            assert set(words) == {"AdminComment"}, "an operator may not write it, and is refused the whole line"
            job.admin_comment = words["AdminComment"]
            return ""
        if "Comment" in words:
            assert set(words) == {"Comment"}
            job.comment = words["Comment"]
            return ""
        if "Priority" in words:
            assert set(words) <= {"Priority", "Dependency", "StartTime"}
            if not job.priority:
                return f"Job is in held state, pending scheduler release for job {job.number}"
            job.priority = int(words.pop("Priority"))
        if job.state not in ("PENDING", "SPECIAL_EXIT", "COMPLETING"):
            return f"Job is no longer pending execution for job {job.number}"
        if "Dependency" in words:
            parts = [part for part in words.pop("Dependency").split(",") if part]
            leases = [part for part in parts if part.removeprefix("afterany:") in self.leases]
            job.lease = leases[0].removeprefix("afterany:") if leases else ""
            job.dependency = ",".join(part for part in parts if part not in leases)
        if "StartTime" in words:
            job.eligible = self._time(words.pop("StartTime"))
        if "ReqNodeList" in words:
            job.wanted = [name for name in words.pop("ReqNodeList").split(",") if name]
            least, _, most = words.pop("NumNodes").partition("-")
            job.nodes, job.most = int(least), int(most)
        if "Gres" in words:
            job.per_job, job.per_node = words.pop("TresPerJob"), words.pop("Gres")
        job.more |= {NUMBERS[word]: int(words.pop(word)) for word in [*words] if word in NUMBERS}
        assert not words, words
        return ""

    def _stop_those_whose_time_has_come(self) -> None:
        for job in self.jobs.values():
            if job.state == "COMPLETING" and job.stops <= self.clock.now():
                job.state, job.held = "PENDING", {}
                if job.runs_in:  # Slurm puts it first
                    job.partition = ",".join(dict.fromkeys([job.runs_in, *job.partition.split(",")]))
                job.reason, job.eligible = "BeginTime", self.clock.now() + 120

    def _schedule(self) -> None:
        """Start jobs that wait for nothing on the nodes that they request, or wherever there is room."""
        self._stop_those_whose_time_has_come()
        self._end_leases()
        for job in self.jobs.values():
            if job.state != "PENDING" or not job.priority or job.eligible > self.clock.now() or job.number in self.stuck:
                continue
            if job.dependency or job.lease in self.leases:
                continue
            held = self.elsewhere.get(job.number) or self._room(job)
            if held:
                job.runs_in = next(name for name in job.partition.split(",") if self._is_open(name, held))
                job.state, job.held, job.start, job.reason = "RUNNING", held, self.clock.now(), "None"
                if int(job.left[0]) == int(job.start) and not job.left[1].isdisjoint(held):  # as in Slurm 22.05
                    self.end(job.number, "FAILED")

    def _room(self, job: FakeJob) -> dict[str, int]:
        gpus = gpus_in(job.per_node)
        if not sum((gpus or gpus_in(job.per_job)).values()):
            return {}
        count = sum(gpus.values()) or -(-sum(gpus_in(job.per_job).values()) // job.nodes)
        kind = next(iter(gpus or gpus_in(job.per_job)))
        usable = [name for name in job.wanted or self.nodes if self.states[name] == "IDLE" and name not in self.blocked]
        usable = [name for name in usable if kind in ("", self.nodes[name][0]) and self.free(name) >= count]
        usable = [name for name in usable if self.ends_in_time(job, name)]
        for partition in job.partition.split(","):
            names = [name for name in usable if self._is_open(partition, [name])][: job.nodes]
            if len(names) == job.nodes:
                return dict.fromkeys(names, count)
        return {}

    def ends_in_time(self, job: FakeJob, node: str, margin: float = 0.0) -> bool:
        """Return whether a job that starts now, or so many seconds later, ends before all reservations of a node."""
        minutes, now = job.more.get("time_limit"), self.clock.now()
        end = now + margin + (math.inf if minutes is None else 60.0 * minutes)
        return all(until <= now or end <= begin for names, begin, until in self.booked() if node in names)

    def booked(self) -> list[tuple[list[str], float, float]]:
        """Return (nodes, begin, end) of the reservations."""
        lines = [dict(word.split("=", 1) for word in line.split()) for line in self.reservations.splitlines() if "=" in line]
        times = [[datetime.fromisoformat(line[name]).timestamp() for name in ("StartTime", "EndTime")] for line in lines]
        return [(line["Nodes"].split(","), begin, end) for line, (begin, end) in zip(lines, times, strict=True)]

    def _is_open(self, partition: str, nodes: Iterable[str]) -> bool:
        """Return whether a partition starts jobs on these nodes."""
        closed = re.search(rf"PartitionName={partition} .*State=(DOWN|INACTIVE)", self.partitions)
        return closed is None and all(partition in self.members[name] for name in nodes)

    def _sinfo(self) -> dict[str, Any]:
        if not self.new:
            return {
                "nodes": [
                    {
                        "name": n,
                        "gres": f"gpu:{t}:{g}(S:0)",
                        "state": self.states[n].lower(),
                        "state_flags": [],
                        "cpus": 4 * g,
                        "features": t,
                        "partitions": self.members[n],
                        "real_memory": 64000,
                        **self.counted.get(n, {}),
                    }
                    for n, (t, g) in self.nodes.items()
                ]
            }
        return {
            "sinfo": [
                {
                    "nodes": {"nodes": [n]},
                    "node": {"state": re.split(r"\+", self.states[n])},
                    "gres": {"total": f"gpu:{t}:{g}"},
                    "cpus": {"minimum": 4 * g, "total": 4 * g},
                    "memory": {"minimum": 64000},
                    "partition": {"name": p},
                    "features": {"active": t},
                    **self.counted.get(n, {}),
                }
                for n, (t, g) in self.nodes.items()
                for p in self.members[n]
            ]
        }

    def _waits_for(self, job: FakeJob) -> str:
        """Return the dependency on a lease that has not ended."""
        waits = job.state == "PENDING" and job.lease in self.leases
        return f"afterany:{job.lease}(unfulfilled)" if waits else ""

    def _shape(self, job: FakeJob) -> dict[str, Any]:
        def number(value: float | None) -> Any:
            return {"set": value is not None, "infinite": False, "number": value or 0} if self.new else value

        return {
            "job_id": job.number,
            "job_state": [job.state] if self.new else job.state,
            "name": job.name,
            "user_name": "anna",
            "account": "",
            "partition": (job.runs_in or job.partition) if job.state == "RUNNING" else job.partition,
            "comment": job.comment,
            "admin_comment": job.admin_comment,
            "tres_per_node": job.per_node,
            "tres_per_job": job.per_job,
            "node_count": number(max(1, len(job.held)) if job.held else 1),
            "tres_req_str": f"cpu=1,node={job.nodes},billing=1",
            "nodes": ",".join(job.held),
            "gres_detail": [f"gpu:{self.nodes[n][0]}:{g}(IDX:0-{g - 1})" for n, g in job.held.items()],
            "required_nodes": ",".join(job.wanted),
            "priority": number(job.priority),
            "state_reason": job.reason,
            "state_description": job.description,
            "dependency": ",".join(filter(None, [job.dependency, self._waits_for(job)])),
            "cpus": number(1),
            "max_nodes": number(0 if job.restarts or job.held else job.most),  # as Slurm, which shows it until the first start
            "submit_time": number(self.clock.now()),
            "start_time": number(job.eligible if job.state == "PENDING" else job.start),
            "end_time": number(job.end),
            "eligible_time": number(job.eligible),
            "restart_cnt": job.restarts,
            "batch_flag": True,
            "requeue": True,
            **job.more,
        }


def no_answer(*_: object) -> None:
    raise gp.SlurmError("squeue has not answered within 60 s; is slurmctld up?")
