"""Seeds of sweeps: runs into which none enters count once, in grid, table, file, store and report; others are replications."""

from __future__ import annotations

import csv
import html
import json
import re
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from scipy import stats

import gavel_py as gp
from gavel_py.report.run_report import section_of
from gavel_py.report.settings import settings_of
from gavel_py.report.verdict import verdict_of
from tests.support.commands import runner
from tests.sweeps.support import simulations, solves

LM = "LM (batch size 80)"
ROWS = [
    f"{name},{LM},{gpus},{steps},{arrival}"
    for name, gpus, steps, arrival in [("a", 4, 9e5, 0), ("b", 4, 3e5, 0), ("c", 2, 1e5, 60)]
]
HEAD = "job_id,job_type,num_gpus,total_steps,arrival_seconds"
SPEC = "policies: [fifo, shortest_job_first]\ntraces: [t.csv]\nclusters: [{v100: 4}]\nseeds: [0, 1, 2]\nresults: s.sqlite\n"


@pytest.fixture
def recorded(tmp_path: Path) -> str:
    (tmp_path / "t.csv").write_text("\n".join([HEAD, *ROWS, ""]))
    return str(tmp_path / "t.csv")


def page_text(path: Path) -> str:
    body = re.sub("<svg.*?</svg>", "", path.read_text().split("<main", 1)[1], flags=re.DOTALL)
    return re.sub(r"\s+", " ", html.unescape(re.sub("<[^>]*>", "", body)))


def keys(path: Path) -> list[tuple[Any, str]]:
    """Return (policy, key) of each cell that was run."""
    with sqlite3.connect(path) as store:
        places = store.execute("SELECT labels, key FROM grid JOIN cells USING (key)").fetchall()
    return sorted({(json.loads(labels)["policy"], key) for labels, key in places})


@pytest.mark.deep
@pytest.mark.parametrize("mode", ["simulate", "solve"])
@pytest.mark.usefixtures("recorded")
def test_copies_count_once_everywhere(
    mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.yaml").write_text(f"mode: {mode}\n{SPEC}")
    sweep = runner(capsys, "sweep")
    done = sweep("s.yaml", "--workers", "1", "--export", "c.csv")
    assert re.search(r"^ *cells +1 +1$", done.out, re.MULTILINE)
    assert "nothing is random in 2 cells: run once, not with each seed\n" in done.out
    with open("c.csv") as file:
        assert [(row["policy"], row["seed"]) for row in csv.DictReader(file)] == [("fifo", ""), ("shortest_job_first", "")]
    runs = gp.read_runs("s.sqlite")
    assert [run.labels["policy"] for run in runs] == [policy for policy, _ in keys(Path("s.sqlite"))]
    assert {run.labels["seed"] for run in runs} == {None}
    assert "2 runs" in runner(capsys, "report")("s.sqlite").err
    text = page_text(Path("report.html"))
    if mode == "simulate":
        best, other = sorted((run.metrics["mean_jct_seconds"] or 0.0, run.labels["policy"]) for run in runs)
        assert f"{best[1]} has a mean completion time of" in text
        assert "the lowest in this one run; nothing here is random." in text
        assert f"The next is {other[1]} with +{100 * (other[0] / best[0] - 1):.0f} %." in text
        assert "lowest in this one run; nothing here is random" in text  # the mark of the table
    assert "gavel trace sample" in text
    assert not re.search("±|p [<≤]|[0-9] seed|each seed|whiskers", text)


@pytest.mark.guard
def test_a_recorded_and_a_generated_trace_in_one_sweep(recorded: str, tmp_path: Path) -> None:
    policies = ["fifo", "shortest_job_first"]
    spec = simulations(*policies, seeds=3, results=str(tmp_path / "s.sqlite"))
    generated = {"generate": {"jobs": 20, "gangs": {1: 1.0}, "durations": [[1, 600, 72000]]}}
    with ThreadPoolExecutor(1) as executor:
        rows = gp.sweep(spec | {"traces": [recorded, generated], "loads": [8], "clusters": ["v100:4"]}, executor=executor)
    seeds = {
        (row["trace"], policy): [r["seed"] for r in rows if (r["trace"], r["policy"]) == (row["trace"], policy)]
        for row in rows
        for policy in policies
    }
    assert seeds == {("t.csv", p): [None] for p in policies} | {("20 generated jobs", p): [0, 1, 2] for p in policies}
    assert len(rows) == len(keys(tmp_path / "s.sqlite"))
    once, drawn = (section_of(9, setting, is_only=False) for setting in settings_of(gp.read_runs(tmp_path / "s.sqlite")))
    assert "the lowest in this one run; nothing here is random" in once.findings[0].text
    assert (once.seeds, drawn.seeds) == ("1 run", "3 seeds")
    values = {p: [r["mean_jct_seconds"] for r in rows if r["policy"] == p and r["load"]] for p in policies}
    p_value = stats.ttest_rel(*values.values()).pvalue
    assert 0.001 < p_value < 0.05
    assert drawn.findings[0].text.endswith(f"3 seeds, p ≤ {p_value:.2g}.")
    assert not any("nothing here is random" in finding.text for finding in drawn.findings)


@dataclass(frozen=True, kw_only=True)
class Lottery(gp.OrderedPolicy):
    """Jobs in a random order."""

    is_random: ClassVar[bool] = True
    reads = ("job_ids",)

    seed: int = gp.option(0, "seed of the order")

    def sort_key(self, jobs: gp.JobClasses) -> np.ndarray:
        return np.random.default_rng(self.seed).random(len(jobs))


@dataclass(frozen=True, kw_only=True)
class Dice(gp.OrderedPolicy):
    """Jobs in a random order that no seed repeats."""

    is_random: ClassVar[bool] = True
    reads = ("job_ids",)

    def sort_key(self, jobs: gp.JobClasses) -> np.ndarray:
        return np.random.default_rng().random(len(jobs))


CASES: dict[str, tuple[dict[str, Any], bool]] = {
    "nothing": ({}, False),
    "failures of jobs": ({"settings": {"job_failures": 0.5}}, True),
    "recorded failures": ({"settings": {"job_failures": "recorded"}}, False),
    "failures of nodes": ({"settings": {"node_mtbf_hours": 9, "node_repair_hours": 1}}, True),
    "types to draw": ({"traces": ["untyped.csv"]}, True),
    "steps from types": ({"traces": ["timed.csv"]}, False),
    "speeds by job": ({"traces": ["untyped.csv"], "throughputs": "speeds.csv"}, False),
    "gandiva with its own seed": ({"policies": ["gandiva"]}, False),
    "own policy with a seed": ({"policies": [Lottery()]}, True),
    "own policy with a seed of its own": ({"policies": [Lottery(seed=7)]}, False),
    "own policy without a seed": ({"policies": [Dice()]}, True),
}


@pytest.mark.parametrize("case", CASES)
def test_where_seeds_enter(case: str, recorded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    changes, is_random = CASES[case]
    Path("untyped.csv").write_text("job_id,num_gpus,total_steps\na,1,1000\nb,1,2000\n")
    Path("timed.csv").write_text(f"job_id,job_type,num_gpus,duration_seconds,duration_accelerator\na,{LM},1,1000,v100\n")
    Path("speeds.csv").write_text("job_id,v100\na,1\nb,2\n")
    spec = {"policies": ["fifo"], "traces": [recorded], "clusters": ["v100:4"], "seeds": [3, 4, 5]} | changes
    plan = gp.plan_sweep(spec)
    assert [labels["seed"] for labels in plan.labels] == ([3, 4, 5] if is_random else [None])
    assert (len(plan), plan.fixed) == ((3, 0) if is_random else (1, 1))


def test_a_random_policy_gets_the_seed_and_is_compared_with_a_run_that_is_not_random(recorded: str, tmp_path: Path) -> None:
    jobs = "".join(f"j{n},{LM},4,{steps},0\n" for n, steps in enumerate((9e5, 1e5, 2e5, 8e5, 4e5)))
    Path(recorded).write_text(f"{HEAD}\n{jobs}")
    policies = ["shortest_job_first", Lottery(), {"policy": Lottery(seed=4), "name": "four"}]
    spec = {"policies": policies, "traces": [recorded], "clusters": ["v100:4"], "seeds": [1, 2, 3, 4]}
    with ThreadPoolExecutor(1) as executor:
        rows = gp.sweep(spec | {"results": str(tmp_path / "s.sqlite")}, executor=executor)
    assert [(row["policy"], row["seed"]) for row in rows] == [("shortest_job_first", None), ("lottery", 1), ("four", None)] + [
        ("lottery", seed) for seed in (2, 3, 4)
    ]
    found = {(row["policy"], row["seed"]): row["mean_jct_seconds"] for row in rows}
    assert found["four", None] == found["lottery", 4]
    runs = [run for run in gp.read_runs(tmp_path / "s.sqlite") if run.labels["policy"] != "four"]
    (setting,) = settings_of(runs)
    expected = stats.ttest_1samp([found["lottery", seed] for seed in (1, 2, 3, 4)], found["shortest_job_first", None])
    text = verdict_of(setting)[0].text
    assert expected.pvalue <= 0.05
    assert text.endswith(f"4 seeds, p ≤ {expected.pvalue:.2g}.")
    section = section_of(9, setting, is_only=True)
    assert section.seeds == ""  # so rows have their own, 0 for "not random"
    assert {row.name: row.seeds for _, rows in section.summaries[0].blocks for row in rows} == {
        "shortest_job_first": 0,
        "lottery": 4,
    }
    assert not any("different traces" in note for note in section.notes)


def test_stores_with_a_place_for_each_copy_are_read_and_continued(recorded: str, tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    spec = solves("fifo", "max_min_fairness") | {"traces": [recorded], "results": str(path)}
    with ThreadPoolExecutor(1) as executor:
        first = gp.sweep(spec, executor=executor)
        with sqlite3.connect(path) as store:  # as written by earlier versions
            places = store.execute("SELECT key, labels FROM grid ORDER BY place").fetchall()
            store.execute("DELETE FROM grid")
            copies = [(key, json.dumps(json.loads(labels) | {"seed": seed})) for seed in range(3) for key, labels in places]
            store.executemany("INSERT INTO grid (key, labels) VALUES (?, ?)", copies)
        runs = gp.read_runs(path)
        assert [(run.labels["policy"], run.labels["seed"]) for run in runs] == [("fifo", None), ("max_min_fairness", None)]
        with sqlite3.connect(path) as store:
            store.execute("UPDATE cells SET status = 'failed', error = 'a slip'")
        assert [labels["policy"] for labels, _ in gp.read_failures(path)] == ["fifo", "max_min_fairness"]
        with sqlite3.connect(path) as store:
            store.execute("UPDATE cells SET status = 'done', error = NULL")
        assert gp.sweep(spec, executor=executor) == first  # computing times included, so nothing was run again


def test_equal_runs_are_never_tested() -> None:
    runs = [
        gp.Run({"policy": policy, "seed": seed}, {"makespan_seconds": 60.0 * length, "wall_seconds": 0.1 * seed + length})
        for policy, length in (("fifo", 3), ("las", 2))
        for seed in range(4)
    ]
    (setting,) = settings_of(runs)
    assert not any(word in verdict_of(setting)[0].text for word in ("p <", "p ≤", "best", "seeds"))
    (varied,) = settings_of(
        [
            *runs,
            gp.Run({"policy": "fifo", "seed": 4}, {"makespan_seconds": 170.0}),
            gp.Run({"policy": "las", "seed": 4}, {"makespan_seconds": 121.0}),
        ]
    )
    p_value = stats.ttest_rel([180, 180, 180, 180, 170], [120, 120, 120, 120, 121]).pvalue
    assert p_value < 0.001
    assert verdict_of(varied)[0].text.endswith("5 seeds, p < 0.001.")
