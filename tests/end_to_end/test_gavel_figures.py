"""The benchmark of the published comparison, in its quick version."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.deep

ROOT = Path(__file__).resolve().parents[2]


def run(*options: str | Path) -> str:
    command = [sys.executable, "benchmarks/gavel_figures.py", "--quick", *map(str, options)]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


@pytest.mark.deep
def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path) -> None:
    store = tmp_path / "cells.jsonl"
    whole = run("--only", "fifo", "--store", store)
    lines = store.read_text().splitlines()
    assert len(lines) == 7
    store.write_text("\n".join([*lines[:-1], lines[-1][:20]]))  # the last line was cut off
    assert "1/1" in run("--only", "fifo", "--store", store)
    shown = run("--only", "fifo", "--store", store, "--workers", "0")
    assert "1/1" not in shown
    assert shown.strip() == whole[whole.index("## ") :].strip()


@pytest.mark.deep
def test_all_jobs_on_v100_take_longer_than_on_all_types(tmp_path: Path) -> None:
    run("--only", "makespan", "--store", tmp_path / "cells.jsonl", "--pictures", tmp_path)
    records = [json.loads(line) for line in (tmp_path / "cells.jsonl").read_text().splitlines()]
    hours = {(each["cell"]["curve"], each["cell"]["x"]): each["played"]["hours"] for each in records}
    most = max(x for _, x in hours)
    assert hours["aware", most] < hours["fifo", most] < hours["fifo-bug", most]
    assert (tmp_path / "published-makespan.png").stat().st_size > 1000


def test_the_page_has_every_table_and_picture() -> None:
    page = (ROOT / "docs" / "published-comparison.md").read_text(encoding="utf-8")
    for figure in ("single", "gangs", "fifo", "makespan"):
        assert f"<!-- published-{figure}: begin -->" in page
        assert f"(published-{figure}.svg)" in page
        assert (ROOT / "docs" / f"published-{figure}.svg").exists()
