"""gavel solve --html: what the page says, beside figures that are computed by hand, and what it refuses."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest

from tests.support.browser import needs_browser, open_tab
from tests.support.commands import Gavel, enter_folder, runner, written
from tests.support.pages import Page

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
HOSTILE = "<script>alert(1)</script>"
LOADED = """new Promise((done) => {
  const look = () => document.querySelector("svg") && document.readyState === "complete" ? done() : setTimeout(look, 20);
  look();
})"""


@pytest.fixture
def gavel(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gavel:
    enter_folder(tmp_path, monkeypatch)
    return runner(capsys)


def inputs(jobs: str = "", price: str = "{price_per_hour: 3}") -> list[str]:
    """Three jobs on two GPUs, each with 2 steps/s: max-min fairness gives each 2/3 of a GPU, so 4/3 steps/s."""
    rows = "a,1,vision,7200,3600\nb,1,vision,1440,7200\nc,1,speech,,\n" + jobs
    written("jobs.csv", "job_id,num_gpus,tenant,total_steps,deadline_seconds\n" + rows)
    names = [line.rpartition(",")[0].split(",")[0] for line in rows.splitlines()]
    written("speeds.csv", "job_id,v100\n" + "".join(f"{name},2\n" for name in names))
    nodes = "[{name: n, count: 2, accelerator: v100, num_gpus: 1}]"
    written("cluster.yaml", f"accelerator_types: {{v100: {price}}}\nnodes: {nodes}\n")
    return ["solve", "jobs.csv", "--cluster", "cluster.yaml", "--throughputs", "speeds.csv"]


def page_of(gavel: Gavel, *arguments: str) -> Page:
    done = gavel(*arguments, "--html", "page.html")
    assert (done.code, done.err) == (0, "The page is in page.html\n"), done.err
    return Page(Path("page.html").read_text())


def test_the_page_says_who_gets_what_and_when(gavel: Gavel) -> None:
    now = datetime.fromisoformat("2026-12-01T08:00+01:00")
    page = page_of(gavel, *inputs(), "--now", now.isoformat())
    assert page.sentences[:5] == [
        "3 jobs on 2 GPUs of type v100",
        "All 3 jobs have GPU time, and 1 of 2 deadlines is met. Late: a by 30 min.",  # after 7200 / (4 / 3) s instead of 3600
        "Proven optimal: the worst-off job gets 100 % of its fair share.",
        "All 2 GPUs are in use on average. Cost per hour: 6.00.",
        f"Policy max_min_fairness; as of {now.astimezone():%Y-%m-%d %H:%M %Z}, without new arrivals.",
    ]
    assert page.tables["Tenants"] == [
        ["tenant", "entitled", "promised", "GPUs", "cost per hour"],
        ["speech", "50.0 %", "33.3 %", "0.6667", "2.00"],
        ["vision", "50.0 %", "66.7 %", "1.333", "4.00"],
    ]
    assert page.tables["GPUs"] == [["type", "all", "held", "free"], ["v100", "2", "2", "0"]]
    assert page.tables["Deadlines"] == [
        ["job", "due", "ends", "that is"],
        ["a", "in 1 h", "in 1.5 h", "30 min late"],
        ["b", "in 2 h", "in 18 min", "1.7 h early"],
    ]
    titles, *jobs = page.tables["Jobs, worst off first"]
    assert titles[:7] == ["job", "tenant", "time on GPUs", "now on (node:GPU)", "ends in", "late", "deadline"]
    assert page.numbers["Jobs, worst off first"] == [False] * 4 + [True] * (len(titles) - 4)
    of_job = {job[0]: dict(zip(titles, job, strict=True)) for job in jobs}
    assert [job[0] for job in jobs] == ["a", "b", "c"]
    assert {(each["time on GPUs"], each["vs. fair share"], each["cost per hour"]) for each in of_job.values()} == {
        ("66.7% v100", "1.00", "2.00")
    }
    assert [(each["ends in"], each["late"]) for each in of_job.values()] == [
        ("90 minutes", "30 minutes"),
        ("18 minutes", "0 s"),
        ("-", "-"),
    ]
    assert sorted(each["now on (node:GPU)"] for each in of_job.values()) == ["", "n-0:0", "n-1:0"]
    assert "Waiting" not in page.tables
    assert "What if" not in page.sentences
    text = Path("page.html").read_text()
    assert "10 rounds of 6 min, 2 GPUs" in text
    assert "tenant vision" in text  # in the legend


def test_jobs_that_get_nothing_come_with_the_reason(gavel: Gavel) -> None:
    page = page_of(gavel, *inputs("d,1,speech,100,60\nbig,4,,100,60\n"), "--policy", "fifo")
    head, *waiting = page.tables["Waiting"]
    assert head == ["job", "tenant", "because", "GPUs"]
    assert [row[0] for row in waiting] == ["c", "d", "big"]
    assert waiting[0][1:] == ["speech", "it is promised no time now", "1"]
    assert waiting[2][1:] == ["", "its gang of 4 GPUs fits nowhere (largest gang that fits: v100: 2)", "4"]
    assert page.sentences[1] == "2 of 5 jobs have GPU time, and 2 of 4 deadlines are met. Late: d waits, big waits."
    assert [row[0] for row in page.tables["Jobs, worst off first"][1:]] == ["a", "b"]


def test_other_clusters_stand_beside_the_cluster_as_it_is(gavel: Gavel) -> None:
    page = page_of(gavel, *inputs(), "--what-if", "v100+1", "--what-if", "v100=1")
    titles, *rows = page.tables["Other clusters"]
    assert titles == ["figure", "as it is", "v100+1", "v100=1"]
    figures = {row[0]: [" ".join(cell.split()) for cell in row[1:]] for row in rows}
    assert figures["GPUs"] == ["2", "3", "1"]
    assert figures["deadlines met"] == ["1 of 2", "2 of 2", "1 of 2"]  # with a GPU each, a ends when it is due
    assert figures["cost per hour"] == ["6.00", "9.00 +50.0%", "3.00 -50.0%"]
    assert figures["last job ends in, hours"] == ["1.5", "1 -33.3%", "3 +100.0%"]
    assert figures["jobs that gain"] == ["-", "3", "0"]
    assert page.numbers["Other clusters"] == [False, True, True, True]
    assert any("last job ends in: at these speeds, without new arrivals" in text for text in page.sentences)
    assert "Rounds" in page.sentences


def test_failed_nodes_and_new_types_stand_there_too(gavel: Gavel) -> None:
    given = inputs()
    written("speeds.csv", "job_id,v100,p100\n" + "".join(f"{name},2,1\n" for name in "abc"))
    page = page_of(gavel, *given, "--what-if", "down:n-0", "--what-if", "p100+2", "--price", "p100=1")
    figures = {row[0]: [" ".join(cell.split()) for cell in row[1:]] for row in page.tables["Other clusters"]}
    assert figures["figure"] == ["as it is", "down:n-0", "p100+2"]
    assert figures["GPUs"] == ["2", "1", "4"]
    assert figures["deadlines met"][:2] == ["1 of 2", "1 of 2"]
    assert figures["total speed"][1].endswith("-50.0%")


def test_the_rounds_are_those_of_rounds(gavel: Gavel) -> None:
    page_of(gavel, *inputs(), "--rounds", "2", "--round-seconds", "600")
    assert "2 rounds of 10 min, 2 GPUs" in Path("page.html").read_text()


def test_names_are_text_and_nothing_is_loaded(gavel: Gavel) -> None:
    page = page_of(gavel, *inputs(f"{HOSTILE},1,<b>&amp;,100,60\n"), "--what-if", "v100+1")
    assert {"script", "b", "img", "link", "iframe"} & page.tags == {"b"}  # of the verdict
    assert HOSTILE in [row[0] for row in page.tables["Jobs, worst off first"]]
    assert "<b>&amp;" in [row[0] for row in page.tables["Tenants"]]
    assert page.addresses == []
    text = Path("page.html").read_text()
    assert "@import" not in text
    assert "@font-face" not in text
    assert "url(http" not in text


def test_the_page_of_thousands_of_jobs_is_small(gavel: Gavel) -> None:
    jobs = "".join(f"j{i:04},1,t{i % 90},1000,\n" for i in range(2000))
    page = page_of(gavel, *inputs(jobs))
    assert len(page.tables["Jobs, worst off first"]) == 51
    assert "and 1,953 others" in " ".join(page.sentences)
    assert len(page.tables["Tenants"]) == 51
    assert "and 42 others" in " ".join(page.sentences)
    assert Path("page.html").stat().st_size < 100_000


def test_the_page_agrees_with_the_document(gavel: Gavel) -> None:
    done = gavel("solve", str(EXAMPLES / "jobs.csv"), "-c", str(EXAMPLES / "cluster.yaml"), "--html", "page.html", "--json")
    page, document = Page(Path("page.html").read_text()), json.loads(done.out)
    jobs = {job["job_id"]: job for job in document["jobs"]}
    shown = [row[0] for row in page.tables["Jobs, worst off first"][1:]]
    shares = [round(jobs[name]["vs_fair_share"], 6) for name in shown]
    assert shares == sorted(round(job["vs_fair_share"], 6) for job in jobs.values())[: len(shown)]
    met = document["deadlines"]["met"]
    late = sorted((job["late"], name) for name, job in jobs.items() if job["late"])[::-1]
    assert f"and {met} of {sum(document['deadlines'].values())} deadlines are met. Late: {late[0][1]} by " in page.sentences[1]
    assert f"Cost per hour: {document['cost']['per_hour']:,.2f}." in page.sentences[3]
    assert sum(row[-1].endswith("late") for row in page.tables["Deadlines"]) == len(late)


def test_rounds_with_shared_gpus_are_not_drawn_but_said_so(gavel: Gavel) -> None:
    page = page_of(gavel, *inputs("h,0.5,,1000,\ni,0.5,,1000,\n"))
    assert any(text.startswith("The rounds are not drawn: ") for text in page.sentences)
    assert "svg" not in page.tags


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["-p", "fifo", "-p", "max_min_fairness", "--html", "page.html"], "--html is the page of one policy"),
        (["--workflows", "--html", "page.html"], "leave out --html"),
        (["--html", "page.pdf"], "page.pdf: must end in .html, the format of reports"),
        (["--html", "missing/page.html"], "there is no folder 'missing'"),
    ],
)
def test_what_a_page_cannot_show_is_refused_at_once(gavel: Gavel, options: list[str], problem: str) -> None:
    done = gavel(*inputs(), *options)
    assert done.code == 2
    assert problem in done.err
    assert done.out == ""


@needs_browser
@pytest.mark.deep
def test_the_page_fits_a_phone_a_tablet_and_a_screen(gavel: Gavel, tmp_path: Path) -> None:
    """In the light and in the dark, without a horizontal scroll bar and without complaints of the browser, and on paper."""
    long = f"{HOSTILE}{'x' * 120},1,{'tenant ' * 20},1000,60\n"
    page_of(gavel, *inputs(long + "".join(f"job-{i},1,t{i % 3},1000,\n" for i in range(60))), "--what-if", "v100+1")
    clipped = "[...document.querySelectorAll('caption, h1, h2, h3, p, li')].filter((each) => "
    clipped += "each.getBoundingClientRect().right > window.innerWidth).length"
    with open_tab(tmp_path) as tab:
        for width, dark in ((width, dark) for width in (390, 800, 1280) for dark in (False, True)):
            tab.show((tmp_path / "page.html").as_uri(), width, dark=dark)
            loaded = (
                "new Promise((done) => { const look = () => document.querySelector('svg') && document.readyState === 'complete' "
            )
            tab.evaluate(loaded + "? done() : setTimeout(look, 20); look(); })")
            assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
            assert tab.evaluate(clipped) == 0
            colour = tab.evaluate("getComputedStyle(document.body).backgroundColor")
            assert colour == ("rgb(22, 25, 29)" if dark else "rgb(255, 255, 255)")
            assert tab.evaluate("getComputedStyle(document.querySelector('.jobs td:last-child')).textAlign") == "right"
        tab.call("Emulation.setEmulatedMedia", media="print")
        cut = "[...document.querySelectorAll('.jobs .scroll')].filter((each) => each.clientHeight < each.scrollHeight).length"
        assert tab.evaluate(cut) == 0
        assert tab.complaints == []
