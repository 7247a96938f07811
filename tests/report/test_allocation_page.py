"""The page of an allocation: what records become, names as text, and jobs in the order in which their deadlines press."""

from __future__ import annotations

import math
import re

import pytest

import gavel_py as gp
from gavel_py.report.allocation_page import MOST_ROWS, AllocationView, DueJob, TenantParts, TypeUse, WaitingJob, due_jobs
from gavel_py.report.rounds_plot import rounds_svg

SPEEDS = gp.ThroughputProfile.from_matrix([[2.0], [2.0], [2.0]], job_ids=["a", "b", "c"], accelerators=["v100"])


def texts(page: str) -> list[str]:
    body = re.sub(r"<(h1|h2|p|th|td|caption)\b[^>]*>", "\n", page.partition("<body>")[2])
    return [line for line in (each.strip() for each in re.sub(r"<[^>]*>", "", body).splitlines()) if line]


def test_records_become_tables() -> None:
    view = AllocationView(
        "gavel: x",
        ["One fact."],
        tenants=[TenantParts("vision", 0.5, 0.25, None), TenantParts("", None, 1.0, 0.125)],
        types=[TypeUse("v100", 4000, 3.5, 0)],
        waiting=[WaitingJob("a", "vision", 0.5, "others were owed more"), WaitingJob("b", "", None, "it waits for a")],
        due=[DueJob("a", 7200, 3600), DueJob("b", -60, 60), DueJob("c", 60, math.nan), DueJob("d", 3600, 3600 + 1e-6)],
    )
    page = view.html()
    assert texts(page) == [
        *("gavel: x", "One fact.", "Tenants", "tenant", "entitled", "promised", "delivered"),
        *("vision", "50.0 %", "25.0 %", "–", "no tenant", "–", "100.0 %", "12.5 %"),
        *("GPUs", "type", "all", "held", "free", "v100", "4,000", "3.5", "0"),
        *("Waiting", "2 jobs", "job", "tenant", "because", "GPUs"),
        *("a", "vision", "others were owed more", "0.5", "b", "it waits for a", "–"),
        *("Deadlines", "4 jobs, from the last solve on, at its speeds", "job", "due", "ends", "that is"),
        *("a", "in 2 h", "in 1 h", "1 h early", "b", "1 min ago", "in 1 min", "2 min late", "c", "in 1 min", "–", "–"),
        *("d", "in 1 h", "in 1 h", "0 s early"),
    ]
    assert re.findall(r'class="bar" style="width: ([\d.]+)%"', page) == [
        "50.0",
        "25.0",
        "0.0",
        "0.0",
        "100.0",
        "12.5",
        "100.0",
        "0.1",
        "0.0",
    ]
    assert "<script" not in page
    assert "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\"" in page
    assert view.html() == page


def test_names_are_text() -> None:
    name = "<b>&\"'\x00\u202e</script>"
    page = AllocationView(
        name,
        [name],
        [TenantParts(name, 0, 0, 0)],
        [TypeUse(name, 0, 0, 0)],
        [WaitingJob(name, name, 1, name)],
        [DueJob(name, 1, 1)],
    ).html("let x;", "nonce")
    assert "<b>" not in page
    assert page.count("</script>") == 1
    assert not {"\x00", "\u202e"} & set(page)
    assert '<script type="module" nonce="nonce">let x;</script>' in page
    assert "script-src 'nonce-nonce'; connect-src 'self'" in page


def test_long_tables_are_cut_and_say_so() -> None:
    page = AllocationView("x", [], waiting=[WaitingJob(f"j{n}", "", 1, "") for n in range(MOST_ROWS + 3)]).html()
    assert page.count('<th scope="row"') == MOST_ROWS
    assert "and 3 others" in page
    assert "53 jobs" in page


def test_jobs_with_the_least_time_to_spare_come_first() -> None:
    jobs = [gp.Job("a", total_steps=720, deadline_seconds=3600), gp.Job("b", total_steps=7200, deadline_seconds=3600), gp.Job("c")]
    problem = gp.AllocationProblem.from_jobs(jobs, gp.Cluster.from_counts({"v100": 3}), SPEEDS)
    assert due_jobs(gp.solve(problem)) == [DueJob("b", 3600, 3600), DueJob("a", 3600, 360)]


def test_rounds_are_drawn_in_the_colours_of_a_page() -> None:
    cluster = gp.Cluster.from_counts({"v100": 1})
    scheduler = gp.RoundScheduler(cluster, SPEEDS)
    scheduler.submit_all([gp.Job("a"), gp.Job("b")])
    svg = rounds_svg([scheduler.next_round() for _ in range(3)], cluster, round_seconds=360)
    assert svg.startswith("<svg ")
    assert "3 rounds of 6 min, 1 GPU" in svg
    assert "var(--ink)" in svg
    with pytest.raises(gp.InputError, match="there is nothing to draw: no rounds"):
        rounds_svg([], cluster, round_seconds=360)
