"""gavel simulate --learn: what is compared, what is known at first, and options that do not go together."""

import json
import re
from pathlib import Path

import pytest

import gavel_py as gp
from tests.simulator.support import saved_state
from tests.simulator.test_keeping import interrupted, told
from tests.support.commands import Gavel, runner
from tests.support.profiles import OSDI

CLUSTER = ("-c", "v100:2,k80:2")


@pytest.fixture
def gavel(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gavel:
    """Run `gavel simulate` beside a small trace, with an empty store."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GAVEL_PY_STORE", str(tmp_path / "store.sqlite"))
    trace = gp.generate_trace(12, OSDI, jobs_per_hour=6, durations=gp.LogUniform(((1, 600, 7200),)), gang_mix={1: 1.0}, seed=1)
    (tmp_path / "jobs.csv").write_text(gp.trace_text(trace))
    return runner(capsys, "simulate")


@pytest.mark.deep
def test_each_policy_is_compared_with_learning_and_agnosticism(gavel: Gavel) -> None:
    found = gavel("jobs.csv", *CLUSTER, "--learn").out
    table = found[found.index("Simulation (") :]
    assert max(map(len, table.splitlines())) <= 80
    assert re.search(r"Simulation \(\* best\) +max_min_fairness +learning +agnostic", found)
    assert re.search(r"completion time relative to known speeds +100\.0% ", found)
    assert "max_min_fairness (learning): 0 speeds were known at first," in found


@pytest.mark.deep
def test_results_as_json(gavel: Gavel) -> None:
    document = json.loads(
        gavel("--learn", "jobs.csv", *CLUSTER, "--known", "0.5", "-p", "fifo", "-p", "min_makespan", "--json").out
    )
    labels = [(each["policy"], each["options"].get("agnostic", False), "learning" in each) for each in document["policies"]]
    assert labels == [
        (policy, agnostic, learns)
        for policy in ("fifo", "min_makespan")
        for agnostic, learns in ((False, False), (False, True), (True, False))
    ]
    known, learned = document["policies"][:2]
    assert known["jct_over_known"] == 1
    assert learned["jct_over_known"] == pytest.approx(learned["summary"]["jct"]["mean"] / known["summary"]["jct"]["mean"])
    assert learned["learning"]["explore"] == "optimistic"
    assert learned["learning"]["measured"] > 0
    assert learned["learning"]["contradictions"] == 0
    assert (document["settings"]["learn"], document["settings"]["known"]) == ("optimistic", "0.5")


@pytest.mark.guard
def test_a_profile_that_knows_all_makes_learning_free(gavel: Gavel) -> None:
    text = gavel("jobs.csv", *CLUSTER, "--learn=median", "--known", "gavel-osdi20", "--csv").out
    header, known, learned, _ = (line.split(",") for line in text.strip().splitlines())
    column = header.index("jct_over_known")
    assert float(known[column]) == float(learned[column]) == 1


@pytest.mark.deep
def test_what_was_learned_is_saved_and_continued(gavel: Gavel, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["jobs.csv", *CLUSTER, "--learn", "--until", "1h", "-p", "max_min_fairness", "-p", "fifo", "--json"]
    whole = gavel(*options)
    with monkeypatch.context() as patched:
        interrupted(patched, 40)  # within the fifth of six simulations, of which the second and the fifth learn
        stopped = gavel(*options, "--save-state", "state")
    assert stopped.code == 130
    assert len(saved_state("state")["note"]["played"]) == 4
    again = gavel(*options, "--continue", "state")
    assert (again.code, told(again.out)) == (0, told(whole.out))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--known", "0.5"], "add --learn"),
        (["--learn", "--known", "1.5"], "neither a fraction from 0 to 1 nor a profile"),
        (["--learn", "--known", "nonsense"], "has no profile 'nonsense'"),
        (["--learn", "2"], "is neither optimistic, median, nor a share"),
    ],
)
def test_options_that_do_not_go_together(gavel: Gavel, arguments: list[str], message: str) -> None:
    result = gavel("jobs.csv", *CLUSTER, *arguments)
    assert result.code == 2
    assert message in " ".join(result.err.split())
