"""Schedules of workflows: valid, bounded from below by a second program, and short."""

import collections
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

import gavel_py as gp
from tests.support.commands import runner
from tests.support.workflows import layered_workflows


def _case(throughputs, work, parents, gpus, sizes=None):
    """Jobs, cluster and profile of N jobs with these parents on K types."""
    names = [f"{row}" for row in range(len(work))]
    sizes = sizes or [1] * len(work)
    jobs = [
        gp.Job(name, total_steps=steps, depends_on=[names[u] for u in sorted(before)], num_gpus=size)
        for name, steps, before, size in zip(names, work, parents, sizes, strict=True)
    ]
    types = [f"type-{j}" for j in range(len(gpus))]
    speeds = gp.ThroughputProfile.from_matrix(throughputs, job_ids=names, accelerators=types)
    return jobs, gp.Cluster.from_counts(dict(zip(types, map(int, gpus), strict=True))), speeds


def _check(schedule: gp.WorkflowSchedule, jobs, speeds) -> None:
    """Check that a schedule keeps dependencies, gangs and GPUs, without any of the code that made it."""
    by_id, held = {job.job_id: job for job in jobs}, {}
    assert by_id.keys() == schedule.jobs.keys()
    for each in schedule.jobs.values():
        job = by_id[each.job_id]
        length = job.total_steps / speeds.job_throughput(job, each.accelerator)
        assert each.end_seconds - each.start_seconds == pytest.approx(length)
        assert len(set(each.gpus)) == job.num_gpus
        assert all(schedule.jobs[parent].end_seconds <= each.start_seconds for parent in job.depends_on)
        for gpu in each.gpus:
            held.setdefault((each.accelerator, *gpu), []).append((each.start_seconds, each.end_seconds))
    for times in held.values():
        assert all(first[1] <= second[0] for first, second in itertools.pairwise(sorted(times)))
    assert schedule.makespan_seconds == max(each.end_seconds for each in schedule.jobs.values())
    assert schedule.bound_seconds <= schedule.makespan_seconds * (1 + 1e-9)


def _bound(throughputs, work, parents, gpus):
    """The bound by a second formulation, with seconds on each type as variables, solved by SciPy."""
    count, kinds = np.shape(throughputs)
    size = count * kinds + count + 1
    rows = []
    for j in range(kinds):
        row = np.zeros(size)
        row[j : count * kinds : kinds], row[-1] = 1.0, -gpus[j]
        rows.append(row)
    for v in range(count):
        for u in [*parents[v], None]:
            row = np.zeros(size)
            row[v * kinds : (v + 1) * kinds], row[count * kinds + v] = 1.0, -1.0
            if u is not None:
                row[count * kinds + u] = 1.0
            rows.append(row)
        row = np.zeros(size)
        row[count * kinds + v], row[-1] = 1.0, -1.0
        rows.append(row)
    whole = np.zeros((count, size))
    for v in range(count):
        whole[v, v * kinds : (v + 1) * kinds] = throughputs[v]
    cost = np.zeros(size)
    cost[-1] = 1.0
    return linprog(cost, np.array(rows), np.zeros(len(rows)), whole, work).fun


@st.composite
def _cases(draw):
    count, kinds = draw(st.integers(1, 8)), draw(st.integers(1, 3))
    speed, length = st.sampled_from([0.1, 0.5, 1.0, 3.0]), st.sampled_from([1.0, 5.0, 60.0])
    throughputs = [[draw(speed) for _ in range(kinds)] for _ in range(count)]
    parents = [{u for u in range(v) if draw(st.integers(0, 2)) == 0} for v in range(count)]
    return throughputs, [draw(length) for _ in range(count)], parents, [draw(st.integers(1, 3)) for _ in range(kinds)]


@given(_cases())
def test_schedules_are_valid_and_the_bound_is_that_of_a_second_program(case):
    jobs, cluster, speeds = _case(*case)
    schedule = gp.schedule_workflows(jobs, cluster, speeds)
    _check(schedule, jobs, speeds)
    assert schedule.bound_seconds == pytest.approx(_bound(*case), rel=1e-6)


def test_gangs_keep_their_nodes():
    jobs = [gp.Job(f"{n}", num_gpus=3, total_steps=10, locality="node") for n in range(4)] + [gp.Job("4", total_steps=5)]
    speeds = gp.ThroughputProfile.from_matrix([[1.0]] * 5, job_ids=[job.job_id for job in jobs], accelerators=["v100"])
    schedule = gp.schedule_workflows(jobs, gp.Cluster.from_inline("v100:8/4"), speeds)
    _check(schedule, jobs, speeds)
    assert all(len({node for node, _ in each.gpus}) == 1 for each in schedule.jobs.values())
    assert schedule.makespan_seconds == 20.0


def _nodes(sizes, racks):
    """A cluster of nodes n0, n1, … of one type."""
    places = enumerate(zip(sizes, racks, strict=True))
    return gp.Cluster([gp.Node(name=f"n{n}", accelerator="v100", num_gpus=size, rack=rack) for n, (size, rack) in places])


def test_gangs_that_need_two_gpus_of_a_node_run_two_at_a_time_on_two_nodes_of_three():
    """All three fit the 6 GPUs, and the bound says so; but the nodes have room for one each."""
    jobs = [gp.Job(name, num_gpus=2, gpus_per_node=2, total_steps=100) for name in "abc"]
    speeds = gp.ThroughputProfile.from_matrix([[1.0]] * 3, job_ids=list("abc"), accelerators=["v100"])
    schedule = gp.schedule_workflows(jobs, _nodes([3, 3], ["r", "r"]), speeds)
    _check(schedule, jobs, speeds)
    assert all(len({node for node, _ in each.gpus}) == 1 for each in schedule.jobs.values())
    assert (schedule.makespan_seconds, schedule.bound_seconds, schedule.gap) == (200, pytest.approx(100), pytest.approx(1))


def _may_run_on(job, gpus, racks):
    """Whether a gang may run on these GPUs, from the words of the documentation."""
    on_node = collections.Counter(node for node, _ in gpus)
    nodes, racks_of = set(on_node), {racks[node] for node in on_node}
    is_even = not job.even_split or len(set(on_node.values())) == 1
    has_part = job.gpus_per_node is None or set(on_node.values()) == {job.gpus_per_node}
    return is_even and has_part and len({"node": nodes, "rack": racks_of, "any": [0]}[job.locality]) == 1


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_each_gang_starts_as_soon_as_gpus_on_which_it_may_run_are_free(data):
    sizes = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    racks = [data.draw(st.sampled_from(["r", "s"])) for _ in sizes]
    cluster, rack_of = _nodes(sizes, racks), {f"n{n}": rack for n, rack in enumerate(racks)}
    gpus = [(f"n{n}", index) for n, size in enumerate(sizes) for index in range(size)]
    lengths = sorted(data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=7, unique=True)), reverse=True)
    jobs = []
    for length in lengths:  # which is their order by both rules
        size = data.draw(st.integers(1, 4))
        part = data.draw(st.sampled_from([None, *(part for part in range(1, size + 1) if size % part == 0)]))
        locality = data.draw(st.sampled_from(["any", "rack", "node"]))
        fields = {"num_gpus": size, "locality": locality, "gpus_per_node": part, "even_split": data.draw(st.booleans())}
        job = gp.Job(f"{length}", total_steps=length, **fields)
        if any(_may_run_on(job, gang, rack_of) for gang in itertools.combinations(gpus, size)):
            jobs.append(job)
    speeds = gp.ThroughputProfile.from_matrix([[1.0]] * len(jobs), job_ids=[job.job_id for job in jobs], accelerators=["v100"])
    schedule = gp.schedule_workflows(jobs, cluster, speeds)
    free = dict.fromkeys(gpus, 0.0)
    for job in jobs:
        gangs = [gang for gang in itertools.combinations(gpus, job.num_gpus) if _may_run_on(job, gang, rack_of)]
        found = schedule.jobs[job.job_id]
        assert _may_run_on(job, found.gpus, rack_of)
        assert found.start_seconds == min(max(free[gpu] for gpu in gang) for gang in gangs)
        free.update(dict.fromkeys(found.gpus, found.end_seconds))
    if jobs:
        _check(schedule, jobs, speeds)


@pytest.mark.guard
@pytest.mark.parametrize(("tasks", "most"), [(200, 1.2), (1000, 1.01)])
def test_schedules_of_layered_workflows_are_close_to_the_bound(tasks, most):
    ratios = []
    for seed in range(5):
        throughputs, work, parents = layered_workflows(np.random.default_rng(seed), tasks)
        jobs, cluster, speeds = _case(throughputs, work.tolist(), parents, np.array([4, 6, 8]) * (tasks // 200))
        schedule = gp.schedule_workflows(jobs, cluster, speeds)
        _check(schedule, jobs, speeds)
        ratios.append(1 + schedule.gap)
    assert max(ratios) <= most


def test_a_path_of_two_jobs_beside_two_others_ends_when_it_must():
    jobs, cluster, speeds = _case([[1.0]] * 4, [10.0] * 4, [set(), {0}, set(), set()], [2])
    schedule = gp.schedule_workflows(jobs, cluster, speeds)
    assert (schedule.makespan_seconds, schedule.bound_seconds) == (20.0, pytest.approx(20.0))


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ([gp.Job("a", total_steps=1), gp.Job("b", total_steps=1, depends_on="c")], "'c', which does not exist"),
        ([gp.Job("a", total_steps=1), gp.Job("b", depends_on="a")], "field total_steps: is unknown"),
        ([gp.Job("a", total_steps=1), gp.Job("b", num_gpus=9, total_steps=1)], "fits nowhere"),
        ([gp.Job("a", total_steps=1), gp.Job("b", total_steps=1, depends_on="afternotok:a")], "has afternotok"),
    ],
)
def test_jobs_that_cannot_be_scheduled_are_named(jobs, message):
    speeds = gp.ThroughputProfile.from_matrix([[1.0], [1.0]], job_ids=["a", "b"], accelerators=["v100"])
    with pytest.raises(gp.InputError, match="'b'") as error:
        gp.schedule_workflows(jobs, gp.Cluster.from_counts({"v100": 2}), speeds)
    assert message in str(error.value)


def test_finished_jobs_are_left_out():
    jobs, cluster, speeds = _case([[1.0], [1.0]], [10.0, 5.0], [set(), {0}], [1])
    done = [jobs[0].model_copy(update={"steps_done": 10.0}), jobs[1]]
    assert list(gp.schedule_workflows(done, cluster, speeds).jobs) == ["1"]
    assert gp.schedule_workflows(done[:1], cluster, speeds).makespan_seconds == 0


class TestCommand:
    """gavel solve --workflows."""

    @pytest.fixture
    def run(self, tmp_path, capsys):
        jobs, speeds = tmp_path / "jobs.csv", tmp_path / "speeds.csv"
        jobs.write_text("job_id,total_steps,depends_on\nprepare,7200,\ntrain,14400,prepare\n")
        speeds.write_text("job_id,v100\nprepare,1\ntrain,2\n")
        return runner(capsys, "solve", str(jobs), "-c", "v100:2", "--throughputs", str(speeds), "--workflows")

    def test_a_table(self, run):
        output = run().out
        assert "The last of 2 jobs ends after 4 hours" in output
        assert "no schedule ends before 4 hours; gap 0.00%" in output
        assert "prepare" in output

    def test_csv_and_json(self, run):
        assert run("--csv").out.splitlines()[2].startswith("train,v100,7200.0,14400.0")
        assert '"bound_seconds": 14400' in run("--json").out

    def test_options_of_policies_are_refused(self, run):
        result = run("-p", "fifo")
        assert result.code == 2
        assert "leave out --policy" in result.err
