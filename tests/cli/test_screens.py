"""Screens of the command line: their size at 80 and 40 columns, names of any form, and what they say."""

from __future__ import annotations

import csv
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gavel_py as gp
from gavel_py.cli import tables
from gavel_py.cli.output import price_text
from tests.support.commands import Gavel, enter_folder, runner

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
EXAMPLE = [str(EXAMPLES / "jobs.csv"), "--cluster", str(EXAMPLES / "cluster.yaml")]
SCREEN = 40
"""Lines of a screen."""


@pytest.fixture
def gavel(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gavel:
    enter_folder(tmp_path, monkeypatch)
    monkeypatch.setenv("COLUMNS", "80")
    return runner(capsys)


def widest(text: str) -> int:
    return max(map(tables.cell_width, text.splitlines()))


def thousand_jobs(path: Path) -> str:
    with open(EXAMPLES / "jobs.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    drawn = [rows[i * i % 997 % len(rows)] for i in range(1000)]
    lines = [f"job-{i:04},{row['job_type']},{row['num_gpus']},{row['weight']}\n" for i, row in enumerate(drawn)]
    path.write_text("job_id,job_type,num_gpus,weight\n" + "".join(lines))
    return str(path)


def test_the_demonstration_is_one_screen(gavel: Gavel) -> None:
    """Runs the commands of `make demo`, and counts the lines that it prints itself."""
    recipe = (ROOT / "Makefile").read_text().split("\ndemo:")[1].split("\n\n")[0].replace("$(EXAMPLE)", " ".join(EXAMPLE))
    shown = []
    for line in recipe.splitlines()[1:]:
        program, *words = line.strip().removeprefix("@").split()
        shown += gavel(*words).out.splitlines() if program == "$(BIN)/gavel" else [" ".join(words)]
    assert len(shown) + 1 <= SCREEN  # the first time, a line before the installation
    assert max(map(tables.cell_width, shown)) <= 80
    text = "\n".join(shown)
    for part in ("120 jobs on 112 GPUs", "agnostic=true", "(* best)", "113 more: --all", "████", "Round 0", "v100-a-0", "Next:"):
        assert part in text


@pytest.mark.parametrize("policy", ["max_min_fairness", "fifo", "max_total_throughput", "min_makespan", "isolated"])
def test_a_thousand_jobs_are_one_screen(gavel: Gavel, tmp_path: Path, policy: str) -> None:
    jobs = thousand_jobs(tmp_path / "many.csv")
    if policy == "min_makespan":
        jobs = EXAMPLE[0]
    out = gavel("solve", jobs, "-c", EXAMPLE[2], "-p", policy).out
    assert len(out.splitlines()) <= SCREEN
    assert widest(out) <= 80


def test_equal_jobs_are_one_row_unless_all_are_wanted(gavel: Gavel, tmp_path: Path) -> None:
    jobs = thousand_jobs(tmp_path / "many.csv")
    out = gavel("solve", jobs, "-c", EXAMPLE[2], "--top", "3").out
    table = out.split("Jobs, worst off first")[1].splitlines()
    counts = [int(line.split()[1]) for line in table if line.startswith("  job-")]
    assert len(counts) == 3
    assert table[0] == f": {sum(counts) + 3} of 1,000; {1000 - sum(counts) - 3} more: --all"
    everything = gavel("solve", jobs, "-c", EXAMPLE[2], "--all").out
    assert sum(line.startswith("  job-") for line in everything.splitlines()) == 1000


@pytest.mark.deep
def test_sums_by_tenant_and_type_count_every_job(gavel: Gavel) -> None:
    for by, first in (("tenant", "vision"), ("type", "A3C")):
        out = gavel("solve", *EXAMPLE, "--by", by).out
        title = "Tenants (GPUs on average)" if by == "tenant" else "Jobs by job type"
        rows = [line.split() for line in out.split(title)[1].splitlines()]
        assert any(row and row[0] == first for row in rows)
    tenants = [row for row in rows if row]
    assert tenants
    assert "give --rounds N" in gavel("solve", *EXAMPLE, "--by", "node").err
    nodes = gavel("solve", *EXAMPLE, "--by", "node", "--rounds", "1").out
    assert all(f"  {name}" in nodes for name in ("v100-a-0", "v100-b-1", "p100-9", "k80-b-3"))


def test_wide_output_has_all_columns_and_whole_names(gavel: Gavel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out = gavel("solve", *EXAMPLE, "--wide", "--all").out
    assert "Recommendation (batch size 2048)" in out
    header = next(line for line in out.splitlines() if line.startswith("  job "))
    for title in ("tenant", "on v100", "on k80", "weight", "steps/s", "speed", "vs. fair share"):
        assert title in header


@pytest.mark.deep
@pytest.mark.parametrize("columns", ["40", "80"])
def test_names_of_any_form_fit(gavel: Gavel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    names = ["n" * 120, "訓練" * 40, "e\u0301" * 30, "job with spaces", "-", "\U0001f680" * 20]
    (tmp_path / "jobs.csv").write_text("job_id,job_type,tenant\n" + "".join(f"{name},A3C,{name}\n" for name in names))
    compared, nodes = ["-p", "fifo", "-p", "isolated"], ["--rounds", "2", "--by", "node"]
    for more in ([], ["--rounds", "2"], ["--all"], ["--by", "tenant"], compared, nodes):
        outcome = gavel("solve", "jobs.csv", "-c", "v100:1,k80:1", *more)
        assert outcome.code == 0
        assert widest(outcome.out) <= int(columns)
    assert widest(gavel("rounds", "jobs.csv", "-c", "v100:1,k80:1", "-n", "3").out) <= int(columns)
    jobs = json.loads(gavel("solve", "jobs.csv", "-c", "v100:1,k80:1", "--json").out)["jobs"]
    assert [job["job_id"] for job in jobs] == names


def test_control_characters_are_refused_in_files_and_shown_as_a_question_mark(gavel: Gavel, tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("job_id,job_type\na\x1b[31mb,A3C\n")
    outcome = gavel("solve", "jobs.csv", "-c", "v100:1")
    assert (outcome.code, "\x1b" in outcome.err) == (2, False)
    assert tables.table_text("", ["a"], [["x\x07y\nz"]]).splitlines()[-1] == "  x?y?z"


@pytest.mark.deep
def test_nothing_to_show_is_shown(gavel: Gavel, tmp_path: Path) -> None:
    (tmp_path / "none.csv").write_text("job_id,job_type\n")
    (tmp_path / "large.csv").write_text("job_id,job_type,num_gpus\na,A3C,16\nb,A3C,32\n")
    reason = "its gang of 16 GPUs fits nowhere (largest gang that fits: v100: 4)"
    texts = {"none.csv": "There is nothing to allocate", "large.csv": f"Left out:\n  a: {reason}"}
    said = " ".join(gavel("solve", "large.csv", "-c", "v100:4").out.split())
    assert said.startswith(
        f"2 jobs on 4 GPUs of type v100, policy max_min_fairness There is nothing to allocate: none of 2 jobs can run; a: {reason}."
    )
    for jobs, text in texts.items():
        for more in ([], ["--rounds", "2"], ["--all"], ["--by", "tenant"], ["--wide"], ["--top", "1"]):
            outcome = gavel("solve", jobs, "-c", "v100:4", *more)
            assert outcome.code == 0
            assert text in outcome.out
        assert gavel("solve", jobs, "-c", "v100:4", "-p", "fifo", "-p", "max_min_fairness").code == 0
        assert gavel("rounds", jobs, "-c", "v100:4").code == 0


def test_the_sentence_states_what_the_policy_maximises(gavel: Gavel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "speeds.csv").write_text("job_id,v100,k80\na,4,1\nb,2,1\nc,1,1\n")
    (tmp_path / "jobs.csv").write_text("job_id,total_steps,deadline_seconds\na,100,\nb,50,\nc,40,1000\n")
    small = ["jobs.csv", "--throughputs", "speeds.csv", "-c"]

    def sentence(cluster: str, *more: str) -> str:
        return gavel("solve", *small, cluster, *more).out.splitlines()[1]

    assert sentence("v100:1,k80:1") == "Proven optimal: the worst-off job gets 120 % of its fair share."
    assert sentence("v100:9") == "Proven optimal: the worst-off job does the work of 1 average GPU per unit of weight."
    assert sentence("v100:1,k80:1", "-p", "min_makespan") == "Proven optimal: the last job ends after 46.7 s."
    assert sentence("v100:1,k80:1", "-p", "min_lateness").startswith("Proven optimal: ")
    assert sentence("v100:1,k80:1", "-p", "fifo") == "No objective: jobs are served in the order of the policy."
    out = gavel("solve", *small, "v100:1,k80:1").out
    assert "Deadlines met at these speeds: 1 of 1." in out
    (tmp_path / "open.csv").write_text("job_id,job_type,deadline_seconds\na,A3C,100\nb,A3C,\n")
    out = gavel("solve", "open.csv", "-c", "v100:1").out
    assert "Deadlines met at these speeds: 0 of 1; 1 cannot be checked, since total_steps is unknown." in out
    assert "deadlines met" in gavel("solve", *small, "v100:1,k80:1", "-p", "fifo", "-p", "isolated").out


def test_no_fair_share_is_claimed_to_be_optimal_that_another_allocation_exceeds(gavel: Gavel) -> None:
    """With more GPUs than jobs, single-GPU jobs cannot use their shares, and max-min fairness counts these shares all the same."""
    lab = [str(ROOT / "examples" / "lab.csv"), "-c", "v100:8/4,k80:8/4"]
    assert "the worst-off job gets 80.2 % of its share by weight." in gavel("solve", *lab).out
    problem = gp.AllocationProblem.from_jobs(
        gp.JobSet.from_file(lab[0]), gp.Cluster.from_inline(lab[2]), gp.ThroughputProfile.builtin("gavel-osdi20")
    )
    least = [gp.solve(problem, "max_min_fairness", agnostic=each).vs_fair_share.min() for each in (False, True)]
    assert least == pytest.approx([0.8015, 1.0], abs=1e-4)


def test_jobs_that_limit_all_others_are_named(gavel: Gavel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job of one GPU that runs all the time on the only type has no more to gain; the gangs get what is left."""
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "speeds.csv").write_text("job_id,v100\nsmall,1\nfast,3\nslow,3\n")
    (tmp_path / "jobs.csv").write_text("job_id,num_gpus\nsmall,1\nfast,4\nslow,4\n")
    given = ["jobs.csv", "--throughputs", "speeds.csv", "-c"]
    said = "small has all that it can use, which limits the guarantee for all; -p water_filling shares the rest fairly"
    assert f"{said} among the others." in gavel("solve", *given, "v100:5").out
    assert "has all that it can use" not in gavel("solve", *given, "v100:9").out, "all have all that they can use"
    assert "has all that it can use" not in gavel("solve", *given, "v100:2").out, "more GPUs would raise the level"
    assert "has all that it can use" not in gavel("solve", *given, "v100:5", "-p", "water_filling").out


def in_terminal(*arguments: str, **environment: str) -> str:
    """Return what a command prints on a terminal."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "gavel_py", *arguments]
    surroundings = os.environ | {"TERM": "xterm"} | environment
    with subprocess.Popen(command, stdout=slave, stderr=slave, cwd=ROOT, env=surroundings) as process:
        os.close(slave)
        shown = b""
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:
                break
            if not part:
                break
            shown += part
        assert process.wait() == 0
    os.close(master)
    return shown.decode()


@pytest.mark.deep
def test_colours_are_for_terminals_only_and_can_be_switched_off() -> None:
    command = ("solve", *EXAMPLE, "-p", "fifo", "-p", "max_min_fairness")
    assert "\x1b[32m" in in_terminal(*command, COLUMNS="80", NO_COLOR="")
    assert "\x1b" not in in_terminal(*command, COLUMNS="80", NO_COLOR="1")
    done = subprocess.run([sys.executable, "-m", "gavel_py", *command], capture_output=True, text=True, check=True, cwd=ROOT)
    assert "\x1b" not in done.stdout


def test_json_and_csv_together_are_an_error(gavel: Gavel) -> None:
    outcome = gavel("solve", *EXAMPLE, "--json", "--csv")
    assert (outcome.code, outcome.err) == (2, "")
    (fault,) = json.loads(outcome.out)["faults"]
    assert fault["problem"] == "--json and --csv are two formats of the same output; give only one of them"


@pytest.mark.parametrize(
    "options",
    [
        ["--all", "--top", "3"],
        ["--by", "tenant", "--top", "3"],
        ["--by", "node"],
        ["--top", "3", "-p", "fifo", "-p", "isolated"],
        ["--json", "--top", "3"],
        ["--csv", "--wide"],
    ],
)
def test_options_of_tables_without_effect_are_errors(gavel: Gavel, options: list[str]) -> None:
    outcome = gavel("solve", *EXAMPLE, *options)
    assert outcome.code == 2
    told = " ".join(fault["problem"] for fault in json.loads(outcome.out)["faults"]) if "--json" in options else outcome.err
    assert "; leave" in told or "; give" in told


@pytest.mark.parametrize("room", [8, 12, 20, 80])
def test_sentences_are_folded_with_colours_and_wide_characters(room: int) -> None:
    text = "  \x1b[32mProven optimal\x1b[0m: 訓練訓練訓練訓練訓練 " + "x" * 50 + " and the rest of it"
    lines = tables.folded(text, room, indent=" ")
    assert max(map(tables.cell_width, lines)) <= room
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert lines[0].startswith("  ")


def test_names_are_shortened_in_their_middle_and_numbers_never() -> None:
    assert tables.shortened("language-model-0017", 11) == "langu…-0017"
    assert tables.shortened("short", 5) == "short"
    assert tables.cell_width(tables.shortened("訓練" * 9, 10)) <= 10


def test_shortened_names_of_rows_stay_distinct(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"a model with a long name ({kind}, batch size 64)" for kind in ("full", "mixed")]
    columns = [tables.Column("name", "name"), tables.Column("again", "name", is_key=True), tables.Column("number")]
    for room, shown in ((50, [columns[0], columns[2]]), (100, columns)):
        monkeypatch.setenv("COLUMNS", str(room))
        rows = [[*[name] * (len(shown) - 1), "1234567"] for name in names]
        text = tables.table_text("", shown, rows)
        assert widest(text) <= room
        assert all(len(set(cells)) == 2 for cells in zip(*(line.split("  ")[1:-1] for line in text.splitlines()[-2:]), strict=True))
        assert "…" in text
    monkeypatch.setenv("COLUMNS", "20")
    assert widest(tables.table_text("", [columns[0], columns[2]], [[name, "1234567"] for name in names])) <= 20


def test_words_of_titles_are_not_cut_as_long_as_the_table_can_be_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    titles = ["throughput", "utilisation", "throughput got", "long_and_longer"]
    text = tables.table_text("", ["tenant", *titles], [["blue", "1", "2", "3", "4"]])
    assert "…" not in text
    assert widest(text) <= 40


def test_all_gpu_types_of_job_types_are_shown(gavel: Gavel) -> None:
    words = gavel("solve", *EXAMPLE, "--by", "type").out.split("Jobs by job type (GPUs held on average)")[1].split()
    assert {"v100", "p100", "k80"} <= set(words)
    assert words.count("held") == 3


def test_zero_has_no_sign(gavel: Gavel) -> None:
    assert "-0" not in re.findall(r"proven bound (\S+)", gavel("solve", *EXAMPLE, "-p", "min_cost").out)


def test_hosts_are_folded_as_slurm_does() -> None:
    assert tables.folded_names(["n-0", "n-1", "n-3", "m09", "m10", "login"]) == ["n-[0-1,3]", "m09", "m10", "login"]
    assert tables.gpus_text([("n-0", 0), ("n-0", 1), ("n-1", 0), ("n-1", 1), ("n-2", 3)]) == "n-[0-1]:0-1 n-2:3"


def test_a_table_that_is_too_wide_is_divided_with_the_names_of_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    names = [tables.Column("policy", "name"), tables.Column("load", "text", is_key=True)]
    numbers = [tables.Column(f"figure {i}") for i in range(8)]
    text = tables.table_text("", [*names, *numbers], [["fifo", "6", *(f"{10**6 + i}" for i in range(8))]])
    assert widest(text) <= 40
    blocks = text.split("\n\n")
    assert len(blocks) > 1
    assert all(block.splitlines()[-1].split()[:2] == ["fifo", "6"] for block in blocks)
    assert [cell for block in blocks for cell in block.splitlines()[-1].split()[2:]] == [str(10**6 + i) for i in range(8)]


def test_the_best_policy_is_marked_where_policies_differ() -> None:
    metrics = [
        tables.ComparisonRow("speed", [1.0, 3.0, None], "{:.1f}".format, "most"),
        tables.ComparisonRow("time", [2.0, 2.0, 4.0], "{:.0f}".format, "least"),
        tables.ComparisonRow("same", [5.0, 5.0, 5.0], "{:.0f}".format, "most"),
        tables.ComparisonRow("other", [1.0, 2.0, 3.0], "{:.0f}".format),
    ]
    rows = [line.split() for line in tables.comparison_text("Compared", ["a", "b", "c"], metrics).splitlines()]
    assert rows == [
        ["Compared", "(*", "best)", "a", "b", "c"],
        ["speed", "1.0", "3.0*", "-"],
        ["time", "2*", "2*", "4"],
        ["same", "5", "5", "5"],
        ["other", "1", "2", "3"],
    ]


def test_the_figures_of_the_sentences_follow_from_the_allocation(gavel: Gavel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recomputed from the time fractions, without the objective of the policy."""
    monkeypatch.setenv("COLUMNS", "200")
    jobs, cluster = gp.JobSet.from_file(EXAMPLE[0]), gp.Cluster.from_file(EXAMPLE[2])
    problem = gp.AllocationProblem.from_jobs(jobs, cluster, gp.ThroughputProfile.builtin("gavel-osdi20"))
    capacities, weights, sizes = problem.capacities, problem.weights, problem.num_gpus

    def figures(policy: str) -> tuple[str, np.ndarray, np.ndarray]:
        sentence = gavel("solve", *EXAMPLE, "-p", policy).out.splitlines()[1]
        fractions = gp.solve(problem, policy).time_fractions
        return sentence, fractions, (problem.throughputs * fractions).sum(axis=1)

    mix = problem.throughputs @ capacities / capacities.sum()
    sentence, _, throughputs = figures("water_filling")
    share = np.minimum(1, weights * capacities.sum() / (sizes * weights.sum()))
    assert (share == 1).any()  # so the policy, which counts shares that jobs cannot use, need not maximise the least of these
    assert f"gets {100 * (throughputs / mix / share).min():.3g} % of its share by weight" in sentence
    sentence, _, throughputs = figures("max_total_throughput")
    assert sentence.endswith(f"add up to {(throughputs / mix).sum():.4g}.")
    sentence, _, throughputs = figures("nash_welfare")
    mean = np.exp((weights * np.log(throughputs / mix)).sum() / weights.sum())
    assert f"geometric mean of the speeds is {mean:.4g}, by weight" in sentence
    sentence, _, throughputs = figures("min_makespan")
    assert f"ends after {(problem.steps_remaining / throughputs).max() / 86400:.3g} days" in sentence
    sentence, fractions, _ = figures("min_cost")
    assert f"cost {(fractions * sizes[:, None] * problem.prices_per_hour).sum():.4g} an hour" in sentence


def test_prices_that_are_rounding_are_nothing(gavel: Gavel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On six GPUs for three jobs, one more is worth nothing; a used-up type has a price, in tables and in explanations alike."""
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "speeds.csv").write_text("job_id,v100,k80\na,4,1\nb,2,1\nc,1,1\n")
    (tmp_path / "jobs.csv").write_text("job_id\na\nb\nc\n")
    small = ["solve", "jobs.csv", "--throughputs", "speeds.csv", "-c"]

    def worth(cluster: str, *more: str) -> list[str]:
        lines = gavel(*small, cluster, *more).out.splitlines()
        head = next(at for at, line in enumerate(lines) if "GPU type" in line)
        return [line.split()[-1] for line in lines[head + 1 : head + 3]]

    assert worth("v100:3,k80:3") == ["nothing", "nothing"]
    scarce = json.loads(gavel(*small, "v100:1,k80:1", "--json").out)["shadow_prices"]
    assert min(scarce.values()) > 0
    assert worth("v100:1,k80:1") == [f"{scarce[name]:.4g}" for name in ("v100", "k80")]
    text = gavel(*small, "v100:1,k80:1", "--what-if", "v100+3").out
    row = [line.split() for line in text.splitlines() if line.split()[:1] == ["v100+3"]][-1]
    assert row[1:] == ["nothing", "nothing"]
    tiny = [price_text(price, 0.5) for price in (0.0, 2e-16, -2e-16, 4e-10, 6e-10, 0.25, None)]
    assert tiny == ["nothing", "nothing", "nothing", "nothing", "6e-10", "0.25", "-"]
    assert [price_text(price, None) for price in (0.0, 1e-12)] == ["nothing", "1e-12"], "there is nothing to compare with"
