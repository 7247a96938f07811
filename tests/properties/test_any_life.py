"""Random histories of jobs and nodes: no GPU is assigned twice, accounts add up, and loaded schedulers behave the same."""

from __future__ import annotations

import pickle
import tempfile
from collections import Counter
from collections.abc import Collection, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import gavel_py as gp
from tests.scheduling.schedulers import PROFILE
from tests.scheduling.test_delivery import accounts_add_up
from tests.support.examples import examples

pytestmark = pytest.mark.filterwarnings("ignore:.*has no jobs")  # of the tenant of a limit

SECONDS = 10.0
POLICIES = ["max_min_fairness", "max_total_throughput", "fifo", "least_attained_service", "shortest_job_first"]
SIZES = st.sampled_from([1, 2, 1, 3, 4])
LOCALITIES = st.sampled_from(["any", "rack", "node"])
MEMORY, THERE = st.sampled_from([None, None, 8.0, 14.0, 20.0]), {"v100": 16.0, "k80": 12.0}
JOBS = st.fixed_dictionaries(
    {
        "job_type": st.sampled_from(["fast", "slow"]),
        "num_gpus": SIZES,
        "locality": LOCALITIES,
        "allowed_accelerators": st.sampled_from([None, None, None, ("v100",), ("k80",)]),
        "max_retries": st.integers(0, 2),
        "cpus_per_gpu": st.sampled_from([0, 0, 2, 3]),
        "gpu_memory_gb": MEMORY,
        "total_steps": st.just(100),
        "tenant": st.sampled_from(["", "a", "b", "c"]),
    }
)


@st.composite
def clusters(draw: st.DrawFn) -> gp.Cluster:
    kinds, racks, cpus = st.sampled_from(["v100", "k80"]), st.sampled_from([None, "r1", "r2"]), st.sampled_from([None, 6, 12])
    drawn = draw(st.lists(st.tuples(st.integers(1, 4), kinds, racks, cpus), min_size=2, max_size=5))
    nodes = [
        gp.Node(name=f"n{i}", accelerator=kind, num_gpus=size, rack=rack, cpus=cores)
        for i, (size, kind, rack, cores) in enumerate(drawn)
    ]
    memory = draw(st.sampled_from([{}, THERE]))
    names = dict.fromkeys(kind for _, kind, *_ in drawn)
    return gp.Cluster(nodes, [gp.AcceleratorType(name=name, memory_gb=memory.get(name)) for name in names])


class Life(RuleBasedStateMachine):
    """Two schedulers get the same calls; one is saved and loaded, or copied, now and then. A model keeps its own accounts."""

    @initialize(
        cluster=clusters(),
        jobs=st.lists(JOBS, min_size=3, max_size=8),
        policy=st.sampled_from(POLICIES),
        mechanism=st.sampled_from(["deficit", "deficit", "priority"]),
        min_run=st.sampled_from([0.0, 0.0, 2.5 * SECONDS]),
        solve=st.sampled_from([0.0, 0.0, 2.5 * SECONDS, 6 * SECONDS]),
        retry=st.sampled_from([0.0, 0.7 * SECONDS, 2.5 * SECONDS]),
        restart=st.sampled_from([3.0, 0.0, 2 * SECONDS]),
        limit=st.sampled_from([None, None, gp.MaxGpus(3, every_round=True), gp.MaxGpus(2, tenant="a", every_round=True)]),
    )
    def begin(
        self,
        cluster: gp.Cluster,
        jobs: list[dict[str, Any]],
        policy: str,
        mechanism: Any,
        min_run: float,
        solve: float,
        retry: float,
        restart: float,
        limit: gp.MaxGpus | None,
    ) -> None:
        options: dict[str, Any] = {"mechanism": mechanism, "min_run_seconds": min_run, "restart_seconds": restart}
        options |= {"solve_seconds": solve, "retry_seconds": retry}
        self.mechanism, self.limit = mechanism, limit
        self.live, self.saved = (gp.RoundScheduler(cluster, PROFILE, self.limited(policy), SECONDS, **options) for _ in range(2))
        self.folder = tempfile.TemporaryDirectory()
        self.nodes = {node.name: node for node in cluster.nodes}
        self.memory_gb = {kind.name: kind.memory_gb for kind in cluster.accelerator_types}
        self.lost: set[tuple[str, int]] = set()
        self.gone: list[str] = []
        self.decided: set[str] = set()
        self.is_planned = False
        self.told: dict[str, gp.Assignment] = {}
        self.planned: dict[str, gp.Assignment] = {}
        self.gpu_seconds: Counter[str] = Counter()
        self.now = 0.0
        self.round: gp.Round
        self.received: dict[str, tuple[int, float]] = {}  # {job: GPUs and seconds of the round that it received last}
        self.rounds = self.submitted = 0
        self.submit(jobs)
        self.next_round(None)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()

    def both(self, name: str, *args: Any, **fields: Any) -> Any:
        found = [getattr(each, name) for each in (self.live, self.saved)]
        results = [each(*args, **fields) if callable(each) else each for each in found]
        assert results[0] == results[1]
        return results[0]

    @rule(jobs=st.lists(JOBS, min_size=1, max_size=3))
    def submit(self, jobs: list[dict[str, Any]]) -> None:
        for fields in jobs:
            self.submitted += 1
            self.both("submit", gp.Job(f"job-{self.submitted}", **fields))

    @precondition(lambda self: self.known)
    @rule(data=st.data(), what=st.sampled_from(["report", "weight", "gang", "memory", "complete", "cancel", "fail", "interrupted"]))
    def change_job(self, data: st.DataObject, what: str) -> None:
        job = data.draw(st.sampled_from(list(self.known.values())))
        broken = True
        if what == "report":
            steps = data.draw(st.integers(0, 110))
            self.both("report", job.job_id, steps_done=steps)
            broken = steps >= 100
        elif what == "weight":
            self.both("update", job.job_id, weight=data.draw(st.sampled_from([0.5, 2.0, 3.0])))
            broken = False
        elif what == "gang":
            size, locality = data.draw(SIZES), data.draw(LOCALITIES)
            self.both("update", job.job_id, num_gpus=size, locality=locality)
            broken = (job.num_gpus, job.locality) != (size, locality)
        elif what == "memory":
            size = data.draw(MEMORY)
            self.both("update", job.job_id, gpu_memory_gb=size)
            broken = job.gpu_memory_gb != size
        elif what == "interrupted":
            running = self.live.running
            self.both("interrupted", job.job_id)
            self.take_back(running, (job.job_id,) if job.job_id in running else ())
        elif what == "fail":
            assert self.both("job_failed", job.job_id) is (job.job_id in self.known)
            assert (job.job_id in self.live.failed) is (job.job_id not in self.known)
        else:
            self.both(what, job.job_id)
        if job.job_id not in self.known:
            self.gone.append(job.job_id)
        self.break_promises({job.job_id} if broken else set())

    @precondition(lambda self: self.gone)
    @rule(forget=st.booleans())
    def think_of_a_job_that_left(self, forget: bool) -> None:
        job = self.gone[0]
        with pytest.raises(gp.UnknownNameError, match="is no longer in the system"):
            self.live.report(job, steps_done=1)
        if not forget:
            return
        if job in self.decided:
            with pytest.raises(gp.InputError, match="has left since the last round was decided"):
                self.live.forget(job)
            return
        self.both("forget", self.gone.pop(0))
        self.gpu_seconds.pop(job, None)
        self.received.pop(job, None)

    @rule(data=st.data(), how=st.sampled_from(["node_down", "drain", "node_up", "node_up"]))
    def change_node(self, data: st.DataObject, how: str) -> None:
        name, running = data.draw(st.sampled_from(list(self.nodes))), self.live.running
        stopped = self.both(how, name) or ()
        hit = {job for job, held in running.items() if name in {node for node, _ in held.gpus}}
        assert set(stopped) == (hit if how == "node_down" else set())
        self.take_back(running, stopped)

    @rule(data=st.data(), how=st.sampled_from(["gpu_lost", "gpu_back"]))
    def change_gpu(self, data: st.DataObject, how: str) -> None:
        running = self.live.running
        gpus = [gpu for held in running.values() for gpu in held.gpus] or [(name, 0) for name in self.nodes]
        gpu = data.draw(st.sampled_from(gpus if how == "gpu_lost" or not self.lost else sorted(self.lost)))
        (self.lost.add if how == "gpu_lost" else self.lost.discard)(gpu)
        stopped = self.both(how, *gpu) or ()
        assert set(stopped) == {job for job, held in running.items() if gpu in held.gpus and how == "gpu_lost"}
        self.take_back(running, stopped)

    @rule(policy=st.sampled_from(POLICIES))
    def change_policy(self, policy: str) -> None:
        self.live.policy = self.saved.policy = self.limited(policy)

    @rule()
    def save_and_load(self) -> None:
        path = Path(self.folder.name) / "state.json"
        self.saved.save(path)
        first = path.read_bytes()
        self.saved = gp.RoundScheduler.load(path, PROFILE)
        self.saved.save(path)
        assert path.read_bytes() == first

    @rule(pickles=st.booleans())
    def copy(self, pickles: bool) -> None:
        before = self.saved.to_dict()
        copied = pickle.loads(pickle.dumps(self.saved)) if pickles else deepcopy(self.saved)  # noqa: S301
        assert copied.to_dict() == before == self.saved.to_dict()
        self.saved = copied

    @rule()
    def plan(self) -> None:
        self.decide()
        self.planned = self.both("plan_next").assignments
        leases = {job: self.both("lease", job) for job in self.known}
        self.told = {job: lease.assignment for job, lease in leases.items() if lease is not None and lease.renewed}

    @rule(late=st.sampled_from([0.0, 0.5 * SECONDS]))
    def late_round(self, late: float) -> None:
        self.next_round(late)

    @rule()
    def one_round(self) -> None:
        self.next_round(None)

    @rule(share=st.sampled_from([0.0, 0.1, 0.3, 0.5, 1.0]), wait=st.booleans())
    def start_waiting(self, share: float, wait: bool) -> None:
        """Start jobs within the round; the model counts the rest of it once for each job."""
        end = self.round.end_seconds
        self.now = end if wait else max(self.now, self.round.start_seconds) * (1 - share) + end * share
        running, states, rest = self.live.running, self.live.nodes, end - self.now
        started = self.both("start_waiting", self.now)
        assert started == {} or rest > 0
        assert self.live.running == running | started, "a gang was preempted or moved"
        assert not started.keys() & running.keys()
        self.check_gangs(self.live.running, busy=set(running))
        self.check_backoffs(started, self.now)
        for job, held in started.items():
            assert all(states[node] is gp.NodeState.UP for node, _ in held.gpus)
            gpus, seconds = self.received.get(job, (0, 0.0))
            self.gpu_seconds[job] += len(held.gpus) * rest - gpus * min(rest, seconds)
            self.received[job] = len(held.gpus), rest
            lease = self.both("lease", job)
            assert lease is not None
            if lease.renewed:
                self.told[job] = held
        again = self.both("start_waiting", self.now)
        if self.mechanism == "deficit":
            assert again == {}, "what could start has started"
        for job, held in again.items():
            self.gpu_seconds[job] += len(held.gpus) * rest
        self.check_sums()

    @rule(times=st.integers(2, 4))
    def some_rounds(self, times: int) -> None:
        for _ in range(times):
            self.next_round(None)

    def next_round(self, late: float | None) -> None:
        running, states = self.live.running, self.live.nodes
        planned, backoffs = self.is_planned or late is not None, self.live.backoffs
        self.decide()
        start = None if late is None else self.live.plan_next().start_seconds + late
        if late is not None:
            self.saved.plan_next()
        self.is_planned = False
        now = self.both("next_round", start)
        self.check_gangs(now.assignments)
        new = {job: held for job, held in now.assignments.items() if job not in running}
        self.check_backoffs(new, now.start_seconds)
        for job in () if planned else new.keys() & backoffs.keys():
            self.check_avoided(self.known[job], new[job], backoffs[job], now.start_seconds)
        self.round, self.now, self.received = now, now.start_seconds, {}
        for job, held in now.assignments.items():
            assert (job in now.kept) == (running.get(job) == held)
            assert (job in now.started) == (job not in now.kept)
            for node, _ in held.gpus:
                stays = job in now.kept and self.planned.get(job) == held
                assert states[node] is gp.NodeState.UP or (states[node] is gp.NodeState.DRAINING and stays)
            self.gpu_seconds[job] += len(held.gpus) * SECONDS
            self.received[job] = len(held.gpus), SECONDS
        for job, held in self.told.items():
            assert now.assignments[job] == held, f"{job} was told that it keeps its GPUs"
        assert set(now.preempted) <= set(self.known) - set(now.assignments)
        assert {job for job in running.keys() - now.assignments.keys() if self.known[job].steps_done < 100} <= set(now.preempted)
        assert now.index == self.rounds
        self.rounds += 1
        self.told = self.planned = {}
        self.check_sums()

    def limited(self, policy: str) -> gp.Policy:
        return gp.resolve_policy(policy, constraints=() if self.limit is None else [self.limit])

    def decide(self) -> None:
        """Record the jobs in the system if a round is decided now, which happens once."""
        if not self.is_planned:
            self.decided, self.is_planned = set(self.known), True

    def check_gangs(self, gangs: Mapping[str, gp.Assignment], busy: Collection[str] = ()) -> None:
        """Check the GPUs of these gangs, and the requests of those that are not `busy`."""
        given = Counter(gpu for held in gangs.values() for gpu in held.gpus)
        assert set(given.values()) <= {1}, "a GPU was given twice"
        assert not given.keys() & self.lost
        if self.limit is not None:
            counted = (held for job, held in gangs.items() if self.limit.tenant in (None, self.known[job].tenant))
            assert sum(len(held.gpus) for held in counted) <= self.limit.gpus
        cores: Counter[str] = Counter()
        for job_id, held in gangs.items():
            for node, _ in held.gpus:
                cores[node] += self.known[job_id].cpus_per_gpu  # type: ignore[assignment]
        assert all(used <= (self.nodes[name].cpus or used) for name, used in cores.items())
        for job_id, held in gangs.items():
            job = self.known[job_id]
            if job_id in busy:
                continue
            assert len(held.gpus) == job.num_gpus
            assert (job.gpu_memory_gb or 0.0) <= (self.memory_gb[held.accelerator] or 1e9)
            assert job.steps_done < 100
            assert held.accelerator in (job.allowed_accelerators or ("v100", "k80"))
            at = [self.nodes[node] for node, _ in held.gpus]
            assert {node.accelerator for node in at} == {held.accelerator}
            assert all(0 <= index < self.nodes[node].num_gpus for node, index in held.gpus)
            racks = {node.rack or node.name for node in at}
            assert job.locality == "any" or len(racks) == 1
            assert job.locality != "node" or len({node.name for node in at}) == 1

    def check_backoffs(self, started: Collection[str], now: float) -> None:
        """No job starts before its back-off ends, and only jobs in the system that failed have one."""
        backoffs = self.both("backoffs")
        assert all(job not in backoffs or backoffs[job].until_seconds <= now for job in started)
        assert backoffs.keys() <= self.known.keys()

    def check_avoided(self, job: gp.Job, held: gp.Assignment, backoff: gp.Backoff, now: float) -> None:
        """A gang is on a node that it avoids only if the other nodes that are up lack GPUs for it; gangs that may lie anywhere."""
        avoided = {node for node, until in backoff.nodes.items() if now < until}
        if job.locality != "any" or job.cpus_per_gpu or job.gpu_memory_gb or not avoided & {node for node, _ in held.gpus}:
            return
        up = [node for name, node in self.nodes.items() if self.live.nodes[name] is gp.NodeState.UP and name not in avoided]
        free = Counter({node.accelerator: 0 for node in up})
        for node in up:
            free[node.accelerator] += node.num_gpus - sum(name == node.name for name, _ in self.lost)
        assert all(free[name] < job.num_gpus for name in job.allowed_accelerators or free)

    def check_sums(self) -> None:
        report = self.both("delivery")
        for job_id, account in report.jobs.items():
            assert account.num_gpus * account.delivered_seconds == pytest.approx(self.gpu_seconds[job_id])
        assert report.delivered_gpu_seconds == pytest.approx(sum(self.gpu_seconds.values()))
        assert report.undelivered_gpu_seconds <= report.promised_gpu_seconds + 1e-6
        accounts_add_up(report)

    @property
    def known(self) -> dict[str, gp.Job]:
        return {job.job_id: job for job in self.live.jobs}

    def break_promises(self, jobs: set[str]) -> None:
        self.told = {job: held for job, held in self.told.items() if job not in jobs}

    def take_back(self, running: dict[str, gp.Assignment], stopped: tuple[str, ...]) -> None:
        for job in stopped:
            gpus, seconds = self.received.get(job, (0, 0.0))
            assert gpus in (0, len(running[job].gpus))
            self.gpu_seconds[job] -= gpus * seconds
            self.received[job] = 0, 0.0
        assert not set(stopped) & set(self.live.running)
        self.break_promises(set(stopped))


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=examples(20), stateful_step_count=30)
