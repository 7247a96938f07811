"""Reports of runs: contents, escaping of names, and reproducibility."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import gavel_py as gp
from tests.report.some_runs import some_run, some_runs, some_stays

HOSTILE = "<script>alert(1)</script> & \"'$x$ \x00\u202e{{ 7 * 7 }} 漢字 </title></style></svg>"
VOID = {"meta", "br", "wbr", "link", "img", "hr"}


class Page(HTMLParser):
    """Parser that checks nesting and unique ids, and collects cells by table and text by tag."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.ids: Counter[str] = Counter()
        self.references: set[str] = set()
        self.addresses: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.words: dict[str, list[str]] = {}
        self.feed(text)
        self.close()
        assert not self.open
        assert max(self.ids.values()) == 1
        assert self.references <= set(self.ids)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.open += [] if tag in VOID else [tag]
        for name, value in attrs:
            if name == "id":
                self.ids[value or ""] += 1
            elif name in {"href", "src"}:
                (self.references.add(value[1:]) if (value or "").startswith("#") else self.addresses.append(value or ""))  # type: ignore[index]
            elif name == "clip-path":
                self.references.add((value or "")[5:-1])
            elif name in {"aria-labelledby"}:
                self.references |= set((value or "").split())
            assert not name.startswith("on")
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in {"td", "th"}:
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open:
            return
        self.words.setdefault(self.open[-1], []).append(data.strip())
        if "td" in self.open or "th" in self.open:
            self.tables[-1][-1][-1] = f"{self.tables[-1][-1][-1]} {data.strip()}".strip()


def report(path: Path, runs: list[gp.Run], **more: object) -> Page:
    gp.write_report(runs, path, **more)  # type: ignore[arg-type]
    return Page(path.read_text())


def bare(runs: list[gp.Run]) -> list[gp.Run]:
    """Return the runs without the data of most charts."""
    return [replace(run, over_time=None, shares={}) for run in runs]


def row(page: Page, first: str, table: int = 0) -> list[str]:
    return next(cells for cells in page.tables[table] if cells and cells[0].replace(" ", "") == first)


def plain(policy: str, seed: int = 0, load: float | None = None, **metrics: float | None) -> gp.Run:
    return gp.Run({"policy": policy, "seed": seed, "load": load}, metrics)


def test_the_summary_has_means_intervals_the_best_and_how_far_others_are(tmp_path: Path) -> None:
    runs = [plain("fifo", seed, makespan_seconds=3600.0 * hours, utilization=0.5) for seed, hours in enumerate((100, 104, 108))]
    runs += [plain("las", seed, makespan_seconds=3600.0 * 88, utilization=0.6) for seed in range(3)]
    page = report(tmp_path / "r.html", runs)
    assert page.tables[0][0] == ["policy", "makespan, days", "used GPU time, %"]
    # t(0.975, 2) = 4.3027 times the standard error 4 h / √3 is 9.94 h = 0.414 days
    assert row(page, "fifo") == ["fifo", "4.33 ± 0.414 +18 %", "50 ± 0 −17 %"]
    assert row(page, "las") == ["las", "3.67 ± 0 best", "60 ± 0 best"]
    # The differences 12, 16 and 20 h have the mean 16 h, the interval 16 ± 9.94 h and t = 6.93, so p = 0.02.
    assert (
        "<b>las</b> has the best makespan: 3.67 days. "
        "The next is <b>fifo</b> with +18 % (95 % interval +6.9 % to +29 %); 3 seeds, p ≤ 0.02."
    ) in (tmp_path / "r.html").read_text().replace("\xa0", " ")


def test_two_seeds_have_no_intervals_and_no_best_policy(tmp_path: Path) -> None:
    runs = [
        plain(policy, seed, cost=cost) for seed in range(2) for policy, cost in (("fifo", 2.0 + seed), ("las", 1.0), ("sjf", 1.0))
    ]
    page = report(tmp_path / "r.html", runs)
    assert [cells[-1] for cells in page.tables[0][1:]] == ["2.5 +150 %", "1 lowest", "1 lowest"]
    text = (tmp_path / "r.html").read_text().split("</style>")[1]
    assert "<b>las</b> has the lowest cost in these runs: 1\xa0price units. In these runs it equals <b>sjf</b>." in text
    assert "interval" not in text
    assert "best" not in text.replace("the best mean of the load", "")


def test_a_difference_that_the_seeds_do_not_show_is_a_tie(tmp_path: Path) -> None:
    costs = {"fifo": (100.0, 120.0, 90.0), "las": (100.1, 119.9, 90.1), "sjf": (1500.0, 1700.0, 1400.0)}
    page = report(tmp_path / "r.html", [plain(p, seed, cost=each) for p, of in costs.items() for seed, each in enumerate(of)])
    marks = [cells[-1].split(" ", 3)[3:] for cells in page.tables[0][1:]]
    assert marks == [["tied"], ["tied +0.032 %"], ["14.8 ×"]]


def test_runs_are_compared_at_each_load_and_in_each_setting(tmp_path: Path) -> None:
    runs = [plain(policy, 0, load, cost=load * rank) for load in (4.0, 2.0) for rank, policy in enumerate(("a", "b"), 1)]
    page = report(
        tmp_path / "r.html", [replace(run, labels={**run.labels, "cluster": c}) for run in runs for c in ("big", "small")]
    )
    assert [cells[0] for cells in page.tables[0]] == ["policy", "load 2 jobs/h", "a", "b", "load 4 jobs/h", "a", "b"]
    costs = [cells[1] for cells in page.tables[0] if len(cells) > 1]
    assert costs == ["cost, price units", "2 lowest", "4 +100 %", "4 lowest", "8 +100 %"]
    assert [text for text in page.words["h2"] if text.startswith("cluster")] == ["cluster big", "cluster small"]


def test_prices_of_0_make_no_cost(tmp_path: Path) -> None:
    page = report(tmp_path / "r.html", [plain(policy, cost=0.0, makespan_seconds=s) for policy, s in (("a", 60.0), ("b", 0.0))])
    assert page.tables[0][0] == ["policy", "makespan, s"]
    assert "cost" not in " ".join([*page.words["h4"], *page.words["li"], *page.words["dt"]])


def test_the_other_metrics_have_tables_of_their_own_none_too_wide(tmp_path: Path) -> None:
    page = report(tmp_path / "r.html", bare(some_runs(["fifo", "las"], [3.0], seeds=1, jobs=20)))
    summaries = [table for table in page.tables if table[0][0] == "policy" and any("h" not in cell for cell in table[0])]
    headings = [heading for table in summaries for heading in table[0][1:]]
    assert max(len(table[0]) for table in summaries) <= 6
    for heading in ("median completion time, h", "used GPU time, %", "preemptions", "time to solve, s"):
        assert headings.count(heading) == 1
    assert headings.index("median completion time, h") < headings.index("jobs finished"), "counts follow the other metrics"
    assert page.tables[0][0][1:3] == ["mean completion time, h", "makespan, days"]


def share(tenant: str, promised: float, got: float, **more: float) -> gp.TenantShare:
    return gp.TenantShare(
        tenant=tenant, share=promised, gpu_share=got, gpu_shares={}, gpus={}, jobs=3, running=0, waiting=0, **more
    )


def test_tenants_have_what_they_were_promised_and_got_under_each_policy(tmp_path: Path) -> None:
    runs = [
        replace(
            plain(policy, seed, cost=1.0),
            tenants=[
                share("vision", 0.4, got + seed / 100, mean_jct_seconds=3600.0 * (seed + 1), throughput_share=0.5),
                share("", 0.6, 0.5, mean_jct_seconds=7200.0, throughput_share=0.5),
            ],
        )
        for policy, got in (("fifo", 0.2), ("las", 0.41))
        for seed in range(3)
    ]
    page = report(tmp_path / "r.html", runs)
    # The standard error of 1, 2, 3 is 1 / √3, and t(0.975, 2) is 4.3027.
    assert page.tables[1] == [
        ["policy", "promised share, %", "share of GPUs, %", "mean completion time, min"],
        ["vision"],
        ["fifo", "40 ± 0", "21 ± 2.48", "120 ± 149"],
        ["las", "40 ± 0", "42 ± 2.48", "120 ± 149"],
        ["no tenant"],
        ["fifo", "60 ± 0", "50 ± 0", "120 ± 0"],
        ["las", "60 ± 0", "50 ± 0", "120 ± 0"],
    ]
    assert "comparison-tenants" in page.references
    one = report(tmp_path / "o.html", [replace(runs[0], tenants=[share("vision", 0.4, 0.1, throughput_share=0.5)])])
    heading = ["tenant", "promised share, %", "share of GPUs, %", "share of throughput, %"]
    assert one.tables[1] == [heading, ["vision", "40", "10", "50"]]


def test_of_many_tenants_those_with_the_largest_shares_are_listed(tmp_path: Path) -> None:
    tenants = [share(f"team-{number}", number / 1000, 0.01) for number in range(30)]
    page = report(tmp_path / "r.html", [replace(plain("fifo", cost=1.0), tenants=tenants)])
    assert [cells[0].replace("- ", "-") for cells in page.tables[1][1:]] == [f"team-{number}" for number in range(10, 30)]
    assert any("20 of 30 tenants" in text for text in page.words["p"])


@pytest.mark.deep
def test_the_contents_lead_to_every_part(tmp_path: Path) -> None:
    page = report(tmp_path / "r.html", some_runs(["fifo", "las"], [3.0], seeds=1, jobs=20), failures=[({"policy": "x"}, "lost")])
    parts = ["Verdict", "Numbers", "Charts", "Other metrics", "Failed runs", "What the numbers mean"]
    assert [word for word in page.words["a"] if word in parts] == parts
    assert page.words["a"][0] == "Skip to the results"
    assert {"main", "comparison-verdict", "comparison-charts", "failed", "method", "makespan"} <= page.references


@pytest.mark.deep
def test_a_whole_report_has_its_charts_each_with_title_description_and_table(tmp_path: Path) -> None:
    page = report(tmp_path / "r.html", some_runs())
    assert [*filter(None, page.words["h3"])] == ["Verdict", "Numbers", "Charts", "Other metrics"]
    assert [*filter(None, page.words["h4"])] == [
        "Mean completion time against load",
        "Mean completion time against load, relative to fifo",
        "Makespan, load 4 jobs/h",
        "Mean completion time and makespan, load 4 jobs/h",
        "Mean completion time and finish-time fairness ρ, load 4 jobs/h",
        "Mean completion time and cost, load 4 jobs/h",
        "Completion times, load 4 jobs/h",
        "Finish-time fairness ρ, load 4 jobs/h",
        "GPUs in use, load 4 jobs/h",
        "Promised and delivered, load 4 jobs/h",
        "Price of one more GPU, load 4 jobs/h",
        "Jobs in the system, load 4 jobs/h",
        *(f"Time by accelerator: {p}, load 4 jobs/h, seed 0" for p in ("fifo", "max_min_fairness", "min_makespan")),
    ]
    assert page.tags["svg"] == page.tags["figure"] == page.tags["desc"] == page.tags["details"] - 1 == 15
    of_charts = page.tables[1:16]
    assert len(page.tables) == 1 + 15 + 2
    assert all(len(cells) == len(table[0]) for table in of_charts for cells in table)


@pytest.mark.deep
def test_numbers_in_tables_of_charts_are_those_of_the_runs(tmp_path: Path) -> None:
    run = some_run("fifo", 4.0, 0, jobs=500)
    page = report(tmp_path / "r.html", [run])
    times = next(table for table in page.tables if table[0] == ["part of the jobs", "fifo"])
    shown = {cells[0]: float(cells[1]) for cells in times[1:]}
    for part, name in ((0.5, "50%"), (0.99, "99%")):
        assert shown[name] == pytest.approx(float(np.quantile(run.jct_seconds, part)) / 3600, rel=0.01)
    shares = next(table for table in page.tables if table[0][0] == "job type")
    assert [float(cells[1]) for cells in shares[1:]] == pytest.approx([each["v100"] for each in run.shares.values()], abs=0.005)


@pytest.mark.deep
def test_a_report_of_one_run_shows_its_gangs_without_comparison(tmp_path: Path) -> None:
    page = report(tmp_path / "r.html", [replace(some_run("fifo", 4.0, 0), stays=some_stays())])
    assert page.tables[0][0] == ["metric", "value"]
    assert "GPUs over time" in page.words["h4"]
    text = (tmp_path / "r.html").read_text()
    assert "best" not in text.split("</style>")[1]
    assert "confidence" not in text
    assert "A run of fifo" in page.words["h1"]


@pytest.mark.guard
def test_names_with_markup_are_escaped(tmp_path: Path) -> None:
    first, *others = some_runs([HOSTILE, "fifo"], seeds=2, jobs=20, **{f"trace{HOSTILE}": HOSTILE})
    stays = [replace(stay, job_id=HOSTILE, node=HOSTILE, job_type=HOSTILE, accelerator=HOSTILE) for stay in some_stays()[:3]]
    shares = {HOSTILE: {HOSTILE: 0.5}}
    over_time = first.over_time
    assert over_time is not None
    over_time = replace(over_time, used={HOSTILE: over_time.used["v100"]})
    odd = replace(first, stays=stays, shares=shares, over_time=over_time, metrics={**first.metrics, HOSTILE: 1.0})
    page = report(tmp_path / "r.html", [odd, *others], title=HOSTILE, failures=[({"policy": HOSTILE, HOSTILE: 1.0}, HOSTILE)])
    assert page.tags["script"] == 0
    assert page.tags["title"] == 1 + page.tags["svg"]
    text = (tmp_path / "r.html").read_text()
    assert "\x00" not in text
    assert "\u202e" not in text
    assert "{{ 7 * 7 }}" in text
    assert row(page, HOSTILE.replace("\x00", "�").replace("\u202e", "�").replace(" ", ""))


@pytest.mark.guard
def test_a_report_is_self_contained(tmp_path: Path) -> None:
    page = report(tmp_path / "r.html", [replace(some_run("fifo", 4.0, 0), stays=some_stays(80, 8, 100))])
    assert all(address.startswith("data:image/png;base64,") for address in page.addresses)
    assert len(page.addresses) == 1
    text = re.sub(r"data:image/png;base64,[A-Za-z0-9+/=]*", "", (tmp_path / "r.html").read_text())
    assert set(re.findall(r"https?://[^\s\"]*", text)) <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"@import|url\((?!#)", text)


@pytest.mark.deep
def test_the_same_runs_make_the_same_bytes(tmp_path: Path) -> None:
    runs = [replace(run, stays=some_stays()) for run in some_runs(["fifo", "las"], [3.0], seeds=2)]
    for name in ("a", "b"):
        gp.write_report(bare(runs), tmp_path / "charts.html", charts=tmp_path / name)
        gp.write_report(runs, tmp_path / f"{name}.html")
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files
    assert files == sorted(path.name for path in (tmp_path / "b").iterdir())
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in files)


@pytest.mark.deep
def test_charts_are_written_as_files_too(tmp_path: Path) -> None:
    written = gp.write_report(bare(some_runs(["fifo", "las"], [3.0], seeds=1)), tmp_path / "r.html", charts=tmp_path / "charts")
    assert written[0] == tmp_path / "r.html"
    assert {path.suffix for path in written[1:]} == {".svg", ".png"}
    assert all(path.stat().st_size > 1000 for path in written)
    svg = (tmp_path / "charts" / "makespan.svg").read_text()
    assert "var(--" not in svg
    assert ">Makespan<" in svg


@pytest.mark.deep
def test_more_policies_than_styles(tmp_path: Path) -> None:
    page = report(tmp_path / "r.html", bare(some_runs([f"policy-{n}" for n in range(12)], [3.0], seeds=1)))
    assert len(page.tables[0]) == 1 + 1 + 12
    bars = next(table for table in page.tables[1:] if table[0][1].startswith("makespan"))
    means = {f"policy-{n}": some_run(f"policy-{n}", 3.0, 0, place=n).metrics["mean_jct_seconds"] for n in range(12)}
    assert {cells[0].replace("- ", "-") for cells in bars[1:]} == set(sorted(means, key=lambda name: means[name])[:8])
    assert any("8 of 12 policies" in text for text in page.words["p"])


def test_more_settings_than_charts(tmp_path: Path) -> None:
    runs = [plain("fifo", cost=1.0), plain("las", cost=2.0)]
    page = report(tmp_path / "r.html", [replace(r, labels={**r.labels, "cluster": str(n)}) for n in range(9) for r in runs])
    assert len([text for text in page.words["h2"] if text.startswith("cluster")]) == 9
    assert sum("No charts" in text for text in page.words["p"]) == 5


@pytest.mark.deep
def test_solves_and_simulations_have_separate_sections_and_omit_missing_metrics(tmp_path: Path) -> None:
    solve = gp.Run({"policy": "fifo", "mode": "solve"}, {"objective": 1.5, "gap": None}, shares={"lm": {"v100": 0.5}})
    simulated = replace(some_run("fifo", 4.0, 0), labels={"policy": "fifo", "mode": "simulate"}, metrics={"cost": np.nan})
    page = report(tmp_path / "r.html", [solve, simulated])
    assert [text for text in page.words["h2"] if text.startswith("mode")] == ["mode solve", "mode simulate"]
    assert page.tables[0][1:] == [["objective", "1.5"]]
    empty = report(tmp_path / "e.html", [gp.Run({}, {})])
    assert empty.tags["svg"] == 0


def test_runs_of_one_seed_count_once(tmp_path: Path) -> None:
    page = report(tmp_path / "r.html", [plain("fifo", 7, cost=cost) for cost in (1.0, 2.0)] + [plain("las", 7, cost=3.0)])
    assert row(page, "fifo") == ["fifo", "1.5 lowest"]


def test_means_over_different_jobs_are_pointed_out(tmp_path: Path) -> None:
    page = report(tmp_path / "r.html", [plain("fifo", finished=9.0, cost=1.0), plain("las", finished=10.0, cost=2.0)])
    assert any("fewer finished under fifo" in text for text in page.words["p"])


def test_means_over_different_seeds_are_pointed_out(tmp_path: Path) -> None:
    runs = [plain("fifo", seed, cost=1.0) for seed in range(3)] + [plain("las", seed, cost=2.0) for seed in range(2)]
    message = "Not all policies have run on the same seeds"
    assert any(message in text for text in report(tmp_path / "r.html", runs).words["p"])
    assert not any(message in text for text in report(tmp_path / "s.html", [*runs, plain("las", 2, cost=2.0)]).words["p"])


def test_failed_runs_are_listed_with_their_errors(tmp_path: Path) -> None:
    failures = [({"policy": "las", "seed": 3.0}, "SolverError: no optimum\nafter 3 tries"), ({"policy": "fifo"}, "killed")]
    page = report(tmp_path / "r.html", [plain("fifo", cost=1.0)], failures=failures)
    assert page.tables[-1] == [
        ["policy", "seed", "error"],
        ["las", "3", "after 3 tries all of it SolverError: no optimum\nafter 3 tries"],
        ["fifo", "–", "killed"],
    ]
    only = report(tmp_path / "f.html", [], failures=failures)
    assert len(only.tables) == 1
    assert only.tags["svg"] == 0


def without(module: str) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setitem(sys.modules, module, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "patch", "message"),
    [
        ("r.pdf", None, "must end in .html"),
        ("no/r.html", None, "there is no folder"),
        ("r.html", without("jinja2"), "reports need jinja2"),
        ("r.html", without("matplotlib"), "reports need matplotlib"),
    ],
)
def test_obstacles_are_reported_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, patch: Callable[[pytest.MonkeyPatch], None] | None, message: str
) -> None:
    if patch is not None:
        patch(monkeypatch)
    with pytest.raises(gp.InputError, match=re.escape(message)):
        gp.write_report([plain("fifo", cost=1.0)], tmp_path / name)
    assert not [*tmp_path.iterdir()]


def test_invalid_runs_and_chart_folders_are_errors(tmp_path: Path) -> None:
    with pytest.raises(gp.InputError, match=r"run 2: must be a gavel_py\.Run, found 'fifo'"):
        gp.write_report([plain("fifo"), "fifo"], tmp_path / "r.html")  # type: ignore[list-item]
    with pytest.raises(gp.InputError, match="nothing to report"):
        gp.write_report([], tmp_path / "r.html")
    (tmp_path / "file").write_text("")
    with pytest.raises(gp.InputError, match="is a file, but must be a folder"):
        gp.write_report([plain("fifo")], tmp_path / "r.html", charts=tmp_path / "file")


@pytest.mark.deep
def test_many_runs_of_many_jobs_make_a_small_file(tmp_path: Path) -> None:
    runs = some_runs([f"p{n}" for n in range(10)], [1.0, 2.0, 4.0, 8.0], seeds=5, jobs=1000)
    runs[0] = replace(runs[0], stays=some_stays(150, 8, 300))
    gp.write_report(runs, tmp_path / "r.html")
    assert len(runs) == 200
    assert (tmp_path / "r.html").stat().st_size < 2_000_000
