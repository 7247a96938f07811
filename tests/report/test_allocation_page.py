"""The page of an allocation: what records become, names as text, and jobs in the order in which their deadlines press."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

import gavel_py as gp
from gavel_py import AllocationView, PageTable, rounds_svg
from gavel_py.report.allocation_page import MOST_ROWS, DueJob, TenantParts, TypeUse, WaitingJob, due_jobs
from tests.support.pages import Page

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
        *("gavel: x", "One fact.", "Tenants", "parts of all GPUs", "tenant", "entitled", "promised", "delivered"),
        *("vision", "50.0 %", "25.0 %", "–", "no tenant", "–", "100.0 %", "12.5 %"),
        *("GPUs", "number of GPUs", "type", "all", "held", "free", "v100", "4,000", "3.5", "0"),
        *("Waiting", "2 jobs", "job", "tenant", "because", "GPUs"),
        *("a", "vision", "others were owed more", "0.5", "b", "it waits for a", "–"),
        *("Deadlines", "4 jobs, from the last solve on, at its speeds", "job", "due", "ends", "that is"),
        *("a", "in 2 h", "in 1 h", "1 h early", "b", "1 min ago", "in 1 min", "2 min late", "c", "in 1 min", "–", "–"),
        *("d", "in 1 h", "in 1 h", "0 s early"),
    ]
    assert re.findall(r'class="bar" style="width: ([\d.]+)%"', page) == [
        "50.0",
        "25.0",
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
        verdict=[name],
        tenants=[TenantParts(name, 0, 0, 0)],
        types=[TypeUse(name, 0, 0, 0)],
        jobs=PageTable(name, name, [(name, [name])]),
        waiting=[WaitingJob(name, name, 1, name)],
        due=[DueJob(name, 1, 1)],
        what_ifs=[PageTable(name, name, [(name, [name])])],
    ).html("let x;", "nonce")
    assert page.count("<b>") == 1  # of the verdict
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


def test_tables_have_their_names_first_and_no_empty_columns() -> None:
    columns = [("job", ["<i>", "b"]), ("speed", ["1", "2"]), (gp.Column("tenant", "name"), ["x", ""]), ("late", ["", ""])]
    page = Page(AllocationView("x", [], jobs=PageTable("Jobs", "units", columns)).html())
    assert page.tables["Jobs"] == [["job", "tenant", "speed"], ["<i>", "x", "1"], ["b", "", "2"]]
    assert page.numbers["Jobs"] == [False, False, True]
    assert "i" not in page.tags


def test_services_have_their_place_between_deadlines_and_rounds() -> None:
    services = PageTable("Services", "requests/s", [("service", ["chat"]), ("rate", ["60"])])
    found = AllocationView("x", [], due=[DueJob("a", 1, 1)], services=services, rounds="<svg></svg>").html()
    assert [text for text in Page(found).sentences if text in ("Deadlines", "Services", "Rounds")] == [
        "Deadlines",
        "Services",
        "Rounds",
    ]
    assert "Services" not in Page(AllocationView("x", []).html()).sentences


def test_tenants_below_others_are_named_with_them() -> None:
    jobs = [gp.Job("a", tenant="train"), gp.Job("b", tenant="ops")]
    problem = gp.AllocationProblem.from_jobs(jobs, gp.Cluster.from_counts({"v100": 2}), SPEEDS)
    tree = {"tenants": {"ml": {"weight": 3, "tenants": {"train": {}}}, "ops": {}}}
    page = Page(AllocationView.of(gp.solve(problem, "hierarchical", tenants=tree["tenants"]), "x").html())
    assert [row[:3] for row in page.tables["Tenants"][1:]] == [
        ["ml", "75.0 %", "50.0 %"],
        ["ml › train", "75.0 %", "50.0 %"],
        ["ops", "25.0 %", "50.0 %"],
    ]


def test_deadlines_of_unknown_ends_are_neither_met_nor_missed() -> None:
    problem = gp.AllocationProblem.from_jobs([gp.Job("a", deadline_seconds=60)], gp.Cluster.from_counts({"v100": 1}), SPEEDS)
    view = AllocationView.of(gp.solve(problem), "x", "An answer.")
    text = "1 of 1 job has GPU time, and 0 of 1 deadline is met. 1 deadline cannot be checked, since steps are unknown."
    assert view.verdict == [text, "An answer.", "1 of 1 GPU is in use on average."]
    assert view.is_good


def test_jobs_that_have_finished_do_not_wait() -> None:
    jobs = [gp.Job("a", total_steps=10, steps_done=10), gp.Job("b", total_steps=10), gp.Job("c", total_steps=10, num_gpus=4)]
    problem = gp.AllocationProblem.from_jobs(jobs, gp.Cluster.from_counts({"v100": 2}), SPEEDS)
    view = AllocationView.of(gp.solve(problem), "x")
    assert view.verdict[0] == "1 of 2 jobs has GPU time, beside 1 that has finished."
    assert [each.job_id for each in view.waiting] == ["c"]
    assert not view.is_good


def test_the_page_is_written_once_it_can_be(tmp_path: Path) -> None:
    AllocationView("x", []).write(tmp_path / "page.html")
    assert Page((tmp_path / "page.html").read_text()).sentences == ["x"]
    with pytest.raises(gp.InputError, match=r"must end in \.html"):
        AllocationView("x", []).write(tmp_path / "page.pdf")


def some_rounds(jobs: list[gp.Job], gpus: int, *down: str) -> tuple[list[gp.Round], gp.Cluster]:
    cluster = gp.Cluster([gp.Node(name=f"n-{i}", accelerator="v100", num_gpus=1) for i in range(gpus)])
    scheduler = gp.RoundScheduler(cluster, SPEEDS)
    for name in down:
        scheduler.node_down(name)
    scheduler.submit_all(jobs)
    return [scheduler.next_round() for _ in range(2)], cluster


def test_rounds_have_the_colours_of_tenants_or_else_of_job_types() -> None:
    rounds, cluster = some_rounds([gp.Job(name) for name in "abc"], 3)
    tenants, types = {"a": "x", "b": "x", "c": "<y>"}, {"a": "lm", "b": "gan", "c": ""}
    svg = rounds_svg(rounds, cluster, round_seconds=360, tenants=tenants, job_types=types)
    assert "tenant x" in svg
    assert "tenant &lt;y&gt;" in svg
    svg = rounds_svg(rounds, cluster, round_seconds=360, tenants=dict.fromkeys("abc", "x"), job_types=types)
    assert "tenant x" not in svg
    assert ">gan<" in svg
    assert ">no job type<" in svg
    assert "lm" not in rounds_svg(rounds, cluster, round_seconds=360, job_types=dict.fromkeys("abc", "lm"))


def test_nodes_that_are_down_are_hatched() -> None:
    rounds, cluster = some_rounds([gp.Job("a")], 3, "n-1")
    svg = rounds_svg(rounds, cluster, round_seconds=360, down=["n-1"])
    assert "node that is down" in svg
    assert svg.count("<pattern") == 1
    assert svg.count("url(#h") == 2  # the node and the legend
    assert "down" not in rounds_svg(rounds, cluster, round_seconds=360)


def test_rounds_of_too_many_gpus_are_not_drawn() -> None:
    rounds, _ = some_rounds([gp.Job("a")], 1)
    with pytest.raises(gp.InputError, match="more than 1,000 GPUs"):
        rounds_svg(rounds, gp.Cluster.from_counts({"v100": 1001}), round_seconds=360)
