"""gavel serve simulate: placement, replay and pictures from files."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tests.support.commands import Gavel, enter_folder, runner

SERVICES = """services:
  - {name: chat, model: bert, rate: 4, cv: 3, slo_seconds: 0.45}
  - {name: mail, model: bert, rate: 2, slo_seconds: 1.0}
"""
RATES = """model,accelerator,operator_parallel,pipeline_parallel,stage_seconds,memory_gb
bert,v100,1,1,0.148,5.2
bert,v100,1,2,0.075;0.076,2.6
"""
PLACE = ["serve", "simulate", "services.yaml", "--rates", "rates.csv", "-c", "v100:2", "--gpu-memory", "v100=13"]
QUICK = ["--search-requests", "500", "--changes", "64", "--seeds", "3"]


@pytest.fixture
def gavel(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gavel:
    enter_folder(tmp_path, monkeypatch)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "services.yaml").write_text(SERVICES)
    (tmp_path / "rates.csv").write_text(RATES)
    return runner(capsys)


def test_a_placement_is_shown_with_what_is_promised_and_found(gavel: Gavel) -> None:
    shown = gavel(*PLACE, *QUICK)
    assert shown.code == 0
    assert "found on 3 other traces" in shown.out
    assert "chat, mail" in shown.out


def test_groups_of_an_earlier_run_are_replayed_with_the_same_figures(gavel: Gavel) -> None:
    assert gavel(*PLACE, *QUICK, "--json", "--out", "placement.json", "--save-trace", "seen.csv").code == 0
    placed = json.loads(Path("placement.json").read_text())
    again = ["serve", "simulate", "services.yaml", "--groups", "placement.json", "--trace", "seen.csv", *QUICK]
    replayed = json.loads(gavel(*again, "--json").out)
    assert {name: replayed[name] for name in placed} == placed
    assert replayed["trace"]["requests"] > 300
    rows = list(csv.DictReader(io.StringIO(gavel(*again, "--csv").out)))
    assert [row["service"] for row in rows] == ["chat", "mail"]
    assert float(rows[0]["found"]) == placed["services"][0]["found"]
    assert "Requests of seen.csv: attainment" in gavel(*again).out


@pytest.mark.deep
@pytest.mark.parametrize("over", ["slo", "rate", "cv"])
def test_the_attainment_is_drawn(gavel: Gavel, over: str) -> None:
    pytest.importorskip("matplotlib")
    assert gavel(*PLACE, *QUICK, "--plot", "attainment.svg", "--plot-over", over).code == 0
    assert "requests within their SLO" in Path("attainment.svg").read_text()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["services.yaml"], "give --cluster and --rates"),
        (["services.yaml", "--groups", "g.json", "-c", "v100:2"], "leave out --cluster and --rates"),
        ([*PLACE[2:], "--plot-over", "cv"], "--plot-over needs --plot"),
        (PLACE[2:-2], "field memory_gb: is required"),
        ([*PLACE[2:-1], "k80=12"], "the cluster has no 'k80', only v100"),
        ([*PLACE[2:-1], "v100=1"], "fits no group of GPUs"),
        ([*PLACE[2:], "--trace", "other.csv", *QUICK], "has requests of 'spam', which is none of the services"),
        ([*PLACE[2:], "--trace", "late.csv", *QUICK], "late.csv, line 3: arrives before the request above it"),
    ],
)
def test_mistakes_are_named_without_a_traceback(gavel: Gavel, arguments: list[str], problem: str) -> None:
    Path("g.json").write_text('{"groups": [{"stage_seconds": {"chat": [0.1]}}]}')
    Path("other.csv").write_text("seconds,service\n0,spam\n1,spam\n")
    Path("late.csv").write_text("seconds,service\n1,chat\n0,chat\n")
    shown = gavel("serve", "simulate", *arguments)
    assert shown.code == 2
    assert problem in " ".join(shown.err.split())
