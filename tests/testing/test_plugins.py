"""Round mechanisms and trace formats of users: named, offered by packages, and checked against their contracts."""

from __future__ import annotations

import textwrap
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import gavel_py as gp
from gavel_py.scheduling.mechanism.rules import _named, resolve_mechanism
from gavel_py.workloads.formats import FORMATS
from tests.support.fakes import refusal

MODULE = '''
import gavel_py as gp

def largest_first(demand):
    """Start the largest gangs that are promised time."""
    free, selected = demand.capacities.copy(), [-1] * len(demand.num_gpus)
    for job in sorted(range(len(selected)), key=lambda job: -demand.num_gpus[job]):
        for column in range(len(free)):
            promised = demand.shares[job, column] > 0 or demand.claims[job, column] > 0
            if selected[job] < 0 and promised and demand.runnable[job, column] and demand.num_gpus[job] <= free[column]:
                selected[job] = column
                free[column] -= demand.num_gpus[job]
    return selected

def _read(path, intake):
    for number, line in enumerate(path.read_text(errors="replace").splitlines()[1:], 2):
        with intake.entry(f"{path}, line {number}"):
            cells = line.split(";")
            if len(cells) != 3:
                raise gp.InputError(gp.Fault("", "", f"has {len(cells)} fields, and needs 3"))
            intake.job({"job_id": cells[0], "num_gpus": cells[1], "arrival_seconds": cells[2]})

SITE = gp.TraceFormat("site", "our own accounting", lambda head: head.first_line == "name;gpus;second", _read)
A_NUMBER = 3
'''
TRACE = "name;gpus;second\na;1;0\nb;2;30\nc;1;60\nd;8;90\n"


@pytest.fixture(autouse=True)
def _our_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "our_plugins.py").write_text(MODULE)
    (tmp_path / "trace.txt").write_text(TRACE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    _named.cache_clear()


def offer(folder: Path, name: str, group: str, *entries: str) -> None:
    """Make an installed package with these entry points."""
    place = folder / f"{name}-1.0.dist-info"
    place.mkdir()
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (place / "entry_points.txt").write_text(f"[{group}]\n" + "".join(f"{entry}\n" for entry in entries))


def played(mechanism: object) -> list[set[str]]:
    profile = gp.ThroughputProfile.from_matrix([[1.0]] * 3, job_ids=["a", "b", "c"], accelerators=["v100"])
    scheduler = gp.RoundScheduler(gp.Cluster.from_inline("v100:4"), profile, mechanism=mechanism)  # type: ignore[arg-type]
    scheduler.submit_all([gp.Job("a", num_gpus=1), gp.Job("b", num_gpus=4), gp.Job("c", num_gpus=2)])
    return [set(scheduler.next_round().assignments) for _ in range(3)]


def test_a_mechanism_is_named_by_its_module_or_offered_by_a_package(tmp_path: Path) -> None:
    import our_plugins  # type: ignore[import-not-found]

    expected = played(our_plugins.largest_first)
    assert expected == [{"b"}] * 3
    assert played("our_plugins:largest_first") == expected
    offer(tmp_path, "ours", "gavel_py.mechanisms", "largest = our_plugins:largest_first")
    assert played("largest") == expected
    assert played("deficit") != expected


def test_a_saved_scheduler_knows_the_name_of_its_mechanism(tmp_path: Path) -> None:
    profile = gp.ThroughputProfile.from_matrix([[1.0]], job_ids=["a"], accelerators=["v100"])
    scheduler = gp.RoundScheduler(gp.Cluster.from_inline("v100:4"), profile, mechanism="our_plugins:largest_first")
    scheduler.submit(gp.Job("a"))
    scheduler.save(tmp_path / "state.json")
    assert set(gp.RoundScheduler.load(tmp_path / "state.json", profile).next_round().assignments) == {"a"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("larges", "there is no mechanism 'larges'; did you mean 'largest'"),
        ("our_plugins:largest", "has no function 'largest'; did you mean 'largest_first'"),
        ("our_plugins:A_NUMBER", "must be a function of a RoundDemand, found 3"),
        ("no_such:thing", "Python finds no module 'no_such'"),
        ("our_plugins.largest_first", "to use your own, write package.module:name"),
    ],
)
def test_wrong_names_of_mechanisms(name: str, text: str, tmp_path: Path) -> None:
    offer(tmp_path, "ours", "gavel_py.mechanisms", "largest = our_plugins:largest_first")
    assert text in refusal(played, name)


@pytest.mark.deep
def test_sweeps_take_mechanisms_by_name() -> None:
    spec = {"policies": ["max_min_fairness"], "traces": [{"generate": {"jobs": 3}}], "clusters": ["v100:8"]}
    rows = gp.sweep(spec, workers=1, settings={"mechanism": "our_plugins:largest_first"})
    assert [row["status"] for row in rows] == ["done"]
    text = refusal(gp.plan_sweep, spec, settings={"mechanism": "our_plugins:missing"})
    assert "settings.mechanism" in text
    assert "has no function 'missing'" in text


@pytest.mark.parametrize("name", ["deficit", "priority"])
def test_built_in_mechanisms_keep_the_contract(name: str) -> None:
    mechanism = resolve_mechanism(name, ["v100", "p100", "k80"])
    report = gp.testing.check_mechanism(mechanism, demands=400)
    assert not report.failures
    assert all(check.problems for check in report.checks)


def nothing(demand: gp.RoundDemand) -> NDArray[np.int64]:
    return np.full(len(demand.num_gpus), -1)


def too_many(demand: gp.RoundDemand) -> NDArray[np.int64]:
    return np.where(demand.possible.any(axis=1), demand.possible.argmax(axis=1), -1)


def writes(demand: gp.RoundDemand) -> NDArray[np.int64]:
    demand.deficits[:] = 0.0
    return nothing(demand)


def by_chance(demand: gp.RoundDemand, random: np.random.Generator = np.random.default_rng(0)) -> NDArray[np.int64]:  # noqa: B008
    selected = nothing(demand)
    pairs = np.argwhere(demand.possible & (demand.claims > 0))
    if len(pairs):
        job, column = pairs[random.integers(len(pairs))]
        selected[job] = column
    return selected


def fills(demand: gp.RoundDemand) -> NDArray[np.int64]:
    selected, free = nothing(demand), demand.capacities.copy()
    for job, column in np.argwhere(demand.possible):
        if selected[job] < 0 and demand.num_gpus[job] <= free[column]:
            selected[job] = column
            free[column] -= demand.num_gpus[job]
    return selected


@pytest.mark.parametrize(
    ("mechanism", "check"),
    [
        (nothing, "busy"),
        (too_many, "valid"),
        (writes, "unchanged"),
        (by_chance, "repeatable"),
        (fills, "promises"),
        (lambda demand: [0.5] * len(demand.num_gpus), "returns"),
        (lambda demand: demand.missing, "returns"),
    ],
)
def test_a_mechanism_that_breaks_a_rule(mechanism: object, check: str) -> None:
    with pytest.raises(gp.PolicyContractError) as error:
        gp.testing.check_mechanism(mechanism)  # type: ignore[arg-type]
    failed = {each.name: each for each in error.value.report.failures}
    assert check in failed
    values: dict[str, object] = {"mechanism": nothing}
    exec(failed[check].code, values)  # noqa: S102  the code that is shown runs
    assert isinstance(values["demand"], gp.RoundDemand)


def test_a_trace_format_is_given_named_or_offered_by_a_package(tmp_path: Path) -> None:
    import our_plugins

    assert "has no known format" in refusal(gp.read_trace, "trace.txt")
    expected = gp.read_trace("trace.txt", our_plugins.SITE)
    assert [each.job.num_gpus for each in expected] == [1, 2, 1, 8]
    assert list(gp.read_trace("trace.txt", "our_plugins:SITE")) == list(expected)
    offer(tmp_path, "ours", "gavel_py.trace_formats", "site = our_plugins:SITE")
    assert gp.trace_formats()["site"] == "of package ours 1.0"
    assert list(gp.read_trace("trace.txt")) == list(gp.read_trace("trace.txt", "site")) == list(expected)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("our_plugins:A_NUMBER", "must be a gavel_py.TraceFormat, found 3"),
        ("our_plugins:SIDE", "has no object 'SIDE'; did you mean 'SITE'"),
        ("our_plugins.SITE", "'our_plugins.SITE' is not a trace format; to use your own, write package.module:name"),
        ("philli", "'philli' is not a trace format; did you mean 'philly'"),
    ],
)
def test_wrong_names_of_trace_formats(name: str, text: str) -> None:
    assert text in refusal(gp.read_trace, "trace.txt", name)


def test_an_error_of_a_trace_format_is_an_error_of_the_format() -> None:
    def read(path: Path, intake: gp.Intake) -> None:  # noqa: ARG001
        raise KeyError("gpus")

    broken = gp.TraceFormat("broken", "fails", lambda head: 1 // 0 > 0, read)  # noqa: ARG005
    text = refusal(gp.read_trace, "trace.txt", broken)
    assert "trace format broken: failed to read trace.txt with KeyError: 'gpus'" in text


def test_our_trace_format_keeps_the_contract() -> None:
    import our_plugins

    report = gp.testing.check_trace_format(our_plugins.SITE, "trace.txt")
    assert all(check.problems for check in report.checks)
    assert str(report).startswith("trace format site fulfils the contract")


EXAMPLES = {
    "helios": """\
        job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
        1,u1,vcA,8,64,1,COMPLETED,2020-04-18 10:00:00,2020-04-18 10:05:00,2020-04-18 11:05:00,3600,300
        2,u1,vcA,4,4,1,COMPLETED,2020-04-18 10:00:00,2020-04-18 10:05:00,2020-04-18 11:05:00,3600,300
        3,u1,vcB,1,4,1,TIMEOUT,2020-04-18 10:01:00,2020-04-18 10:01:00,2020-04-18 10:02:00,60,0
        """,
    "philly-csv": """\
        timestamp,duration,num_gpus,gpu_time,cluster
        2017-10-09 07:01:55,66.0,1,66.0,11cb48
        2017-10-09 06:13:03,2951.0,16,47216.0,6214e9
        2017-09-29 07:58:32,860662.0,8,6885296.0,6c71a0
        """,
    "sacct": """\
        JobID|Account|Submit|Start|End|Elapsed|Timelimit|State|NCPUS|ReqTRES|AllocTRES
        1|a|2024-05-01T08:00:00|2024-05-01T08:10:00|2024-05-01T09:10:00|01:00:00|02:00:00|COMPLETED|8|gres/gpu=4|gres/gpu:a100=4
        2|a|2024-05-01T08:00:00|2024-05-01T08:10:00|2024-05-01T09:10:00|01:00:00|02:00:00|FAILED|8|gres/gpu=1|gres/gpu:a100=1
        3|b|2024-05-01T08:00:00|2024-05-01T08:10:00|2024-05-01T09:10:00|01:00:00|02:00:00|COMPLETED|8|gres/gpu=1|gres/gpu=1
        """,
    "csv": "job_id,num_gpus,arrival_seconds,recorded_run_seconds\na,1,0,60\nb,2,30,60\nc,8,60,90\nd,1,90,4\n",
    "json": '[{"job_id": "a", "arrival_seconds": 0}, {"job_id": "b", "arrival_seconds": 5, "recorded_run_seconds": 60}]',
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_built_in_formats_keep_the_contract(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"built_in.{name if name in ('csv', 'json') else 'txt'}"
    path.write_text(textwrap.dedent(EXAMPLES[name]))
    (trace_format,) = (each for each in FORMATS if each.name == name)
    assert not gp.testing.check_trace_format(trace_format, path).failures


def test_a_trace_format_that_breaks_rules() -> None:
    def read(path: Path, intake: gp.Intake) -> None:
        for line in path.read_text().splitlines()[1:]:  # one place for all entries, and no care for broken lines
            name, gpus, second = line.split(";")
            with intake.entry(name):
                intake.job({"job_id": name, "num_gpus": int(gpus), "arrival_seconds": float(second)})

    careless = gp.TraceFormat("careless", "splits each line", lambda head: True, read)  # noqa: ARG005
    with pytest.raises(gp.PolicyContractError) as error:
        gp.testing.check_trace_format(careless, "trace.txt")
    assert {each.name for each in error.value.report.failures} == {"recognised", "damaged", "one_line"}
    assert "ValueError" in str(error.value)
