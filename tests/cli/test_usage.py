"""Help, misspelt names, standard input and unknown columns."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import gavel_py as gp
from gavel_py.cli import _gavel
from gavel_py.cli.inputs import Command
from tests.support.commands import Gavel, enter_folder, runner

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CLUSTER = (EXAMPLES / "cluster.yaml").read_text()
JOBS = "job_id,job_type,num_gpus\na,A3C,1\nb,LM (batch size 5),2\n"


@pytest.fixture
def gavel(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gavel:
    enter_folder(tmp_path, monkeypatch)
    (tmp_path / "jobs.csv").write_text(JOBS)
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    return runner(capsys)


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Iterator[type]:
    """Put a text into standard input."""

    class Typed:
        def __init__(self, text: str | bytes) -> None:
            data = text if isinstance(text, bytes) else text.encode()
            monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))

    return Typed  # type: ignore[return-value]


def commands(command: click.Command, name: str = "gavel") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(command, info_name=name)
    for subcommand in command.list_commands(context) if isinstance(command, click.Group) else ():
        found = command.get_command(context, subcommand)  # type: ignore[attr-defined]
        yield f"{name} {subcommand}", found
        yield from commands(found, f"{name} {subcommand}")


def test_help_has_a_short_line_for_each_command_and_a_text_for_each_option() -> None:
    found = list(commands(_gavel))
    assert len(found) > 20
    for name, command in found:
        assert 10 < len(command.get_short_help_str(1000)) < 60, name
        shown = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
        assert [each.opts for each in shown if not each.help] == [], name


LARGE = 20
"""Number of options from which a command shows only its main ones in --help."""


def shown_in(text: str) -> set[str]:
    """Return the long names of the options that a help lists."""
    return {*re.findall(r"^  (?:-\w, )?(--[\w-]+)", text, re.MULTILINE)}


def test_help_shows_the_main_options_and_help_all_shows_all_of_them(gavel: Gavel) -> None:
    for name, command in commands(_gavel):
        options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
        words = name.split()[1:]
        if not isinstance(command, Command):
            assert len(options) < LARGE, f"{name} has {len(options)} options: declare it with cls=Command"
            continue
        few, everything = gavel(*words, "--help").out, gavel(*words, "--help-all").out
        assert len(few.splitlines()) <= 48, name
        assert "--help-all" in few
        assert 8 <= len(shown_in(few)) <= 14, name
        assert shown_in(few) <= shown_in(everything)
        assert [each.opts for each in options if not shown_in(everything) & {*each.opts}] == []
        assert "\nInput:\n" in few
        assert "\nOutput:\n" in everything


def test_the_first_help_of_solve_fits_one_screen(gavel: Gavel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert len(gavel("solve", "--help").out.splitlines()) <= 45


def test_one_letter_has_one_meaning_in_all_commands() -> None:
    meanings: dict[str, set[str]] = {}
    for _, command in commands(_gavel):
        for each in command.params:
            for letter in (name for name in each.opts if len(name) == 2):
                meanings.setdefault(letter, set()).add(next(name for name in each.opts if name.startswith("--")))
    assert {letter: names for letter, names in meanings.items() if len(names) > 1} == {}
    assert meanings["-o"] == {"--out"}


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        *((f"--{name}-out", "it must end in .csv, .parquet") for name in ("jobs", "timeline", "tenants")),
        ("--run-out", "must end in .json"),
    ],
)
def test_files_of_simulations_have_the_suffix_of_their_format(gavel: Gavel, option: str, problem: str) -> None:
    done = gavel("simulate", "jobs.csv", "-c", "v100:4", option, "out.txt")
    assert (done.code, done.out) == (2, "")
    assert problem in done.err
    assert not Path("out.txt").exists()


@pytest.mark.parametrize("command", ["explain", "rounds"])
def test_one_policy_is_not_said_to_be_compared(gavel: Gavel, command: str) -> None:
    text = gavel(command, "--help").out
    assert "Policy, or package.module:Class" in text
    assert "several are compared" not in text
    assert "several are compared" in " ".join(gavel("solve", "--help").out.split())
    assert ("--csv" in text) == (command == "rounds")


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [
        (["slove"], "did you mean 'solve'"),
        (["polices"], "did you mean 'policies'"),
        (["trace", "descibe"], "did you mean 'describe'"),
        (["slurm", "instal"], "did you mean 'install'"),
        (["profiles", "lst"], "did you mean 'list'"),
        (["policies", "shw"], "did you mean 'show'"),
        (["solve", "jobs.csv", "--polcy", "fifo"], "--policy"),
        (["solve", "jobs.csv", "-c", "v100:1", "--by", "users"], "'tenant', 'type', 'node'"),
    ],
)
def test_misspelt_commands_are_named_with_the_nearest(gavel: Gavel, arguments: list[str], nearest: str) -> None:
    outcome = gavel(*arguments)
    assert outcome.code == 2
    assert nearest in outcome.err


def test_misspelt_names_of_the_package_are_named_with_the_nearest() -> None:
    with pytest.raises(AttributeError, match=r"^module 'gavel_py' has no attribute 'slove'. Did you mean: 'solve'\?$"):
        gp.slove  # noqa: B018
    with pytest.raises(AttributeError, match=r"^module 'gavel_py' has no attribute 'xyzzy'$"):
        gp.xyzzy  # noqa: B018
    assert not hasattr(gp, "__wrapped__")


def test_policies_are_one_plain_line_each(gavel: Gavel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = gavel("policies").out.splitlines()
    assert len(lines) == len(gp.policy_names()) + 3
    for line in lines[1:-2]:
        assert line.endswith(".")
        assert not set("Σθ·_=") & set(line.split(maxsplit=1)[1])
    shown = gavel("policies", "show", "max_min_fairness").out
    assert "max θ with thr_i >= θ · w_i · P_i / s_i" in " ".join(shown.split())


PROFILE = "job_type,num_gpus,accelerator,steps_per_second\nA3C,1,v100,2\nLM (batch size 5),2,v100,3\n"
FORMS = {
    "csv": JOBS,
    "json": json.dumps([{"job_id": "a", "job_type": "A3C"}, {"job_id": "b", "job_type": "LM (batch size 5)", "num_gpus": 2}]),
    "json in an object": json.dumps({"jobs": [{"job_id": "a", "job_type": "A3C"}]}, indent=2),
    "json lines": '{"job_id": "a", "job_type": "A3C"}\n{"job_id": "b", "job_type": "CycleGAN"}\n',
    "one line": '{"job_id": "a", "job_type": "A3C"}\n',
    "byte order mark": "\ufeff" + JOBS,
}


@pytest.mark.parametrize("form", FORMS)
def test_jobs_come_from_standard_input_in_any_format(gavel: Gavel, typed: type, form: str) -> None:
    typed(FORMS[form])
    document = json.loads(gavel("solve", "-", "-c", "v100:4", "--json").out)
    assert document["jobs"][0]["job_id"] == "a"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["solve", "jobs.csv", "-c", "-"], CLUSTER),
        (["solve", "jobs.csv", "-c", "-"], json.dumps({"nodes": [{"name": "n", "accelerator": "v100", "num_gpus": 4}]})),
        (["solve", "jobs.csv", "-c", "v100:4", "--throughputs", "-"], "job_id,v100\na,1\nb,2\n"),
        (["solve", "jobs.csv", "-c", "v100:4", "--profile", "-"], PROFILE),
        (["solve", "jobs.csv", "-c", "v100:4", "--constraints", "-"], "constraints:\n- {kind: max_gpus, gpus: 3, job: a}\n"),
        (["explain", "a", "-", "-c", "v100:4"], JOBS),
        (["rounds", "-", "-c", "v100:4"], JOBS),
        (["simulate", "-", "-c", "v100:4", "-p", "fifo"], "job_id,job_type,total_steps\na,A3C,100\n"),
        (["trace", "describe", "-"], JOBS),
        (["trace", "import", "-"], JOBS),
        (["trace", "sample", "-", "--jobs", "1"], JOBS),
        (["sweep", "-", "--dry-run"], "policies: [fifo]\ntraces: [{generate: {jobs: 3}}]\nloads: [1]\nclusters: ['v100:4']\n"),
        (["profiles", "import", "-", "--name", "mine"], "job_type,num_gpus,accelerator,steps_per_second\nx,1,v100,2\n"),
    ],
)  # fmt: skip
def test_every_command_reads_a_file_from_standard_input(gavel: Gavel, typed: type, arguments: list[str], text: str) -> None:
    typed(text)
    outcome = gavel(*arguments)
    assert outcome.code == 0, outcome.err
    assert "standard-input" not in outcome.out + outcome.err or "--throughputs" in arguments
    assert "gavel-" not in outcome.out + outcome.err
    assert sorted(path.name for path in Path().iterdir() if path.suffix != ".sqlite") == ["cluster.yaml", "jobs.csv"]


@pytest.mark.deep
def test_standard_input_is_read_once_and_named_in_messages(gavel: Gavel, typed: type) -> None:
    typed(JOBS)
    outcome = gavel("solve", "-", "-c", "-")
    assert outcome.code == 2
    assert "standard input (-) can be read only once; give a file for the other input" in outcome.err
    typed("job_id,job_type,num_gpus\na,A3C,0\n")
    outcome = gavel("solve", "-", "-c", "v100:1")
    assert outcome.code == 2
    assert outcome.err.startswith("Error: standard input, line 2 (job 'a'), field num_gpus: ")
    typed(PROFILE)
    assert "add --name NAME" in gavel("profiles", "import", "-").err
    typed("")
    assert (
        gavel("solve", "-", "-c", "v100:1").err == "Error: standard input: is empty; a header line with column names is required\n"
    )


def test_unknown_columns_are_ignored_by_name(gavel: Gavel, tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("job_id,job_type,owner,note\na,A3C,me,x\n")
    refused = gavel("solve", "jobs.csv", "-c", "v100:1", "--ignore-columns", "owner")
    assert refused.code == 2
    assert "field note: is not known" in refused.err
    assert "field owner" not in refused.err
    for names in (["--ignore-columns", "owner,note"], ["--ignore-columns", "owner", "--ignore-columns", "note"]):
        assert gavel("solve", "jobs.csv", "-c", "v100:1", *names).code == 0
    known = gavel("solve", "jobs.csv", "-c", "v100:1", "--ignore-columns", "weight")
    assert "'weight' is a field of a job, not an unknown column" in known.err
    (tmp_path / "jobs.json").write_text('[{"job_id": "a", "job_type": "A3C", "owner": 1}]')
    assert len(gp.JobSet.from_file("jobs.json", ignore=["owner"])) == 1
    trace = ["jobs.csv", "--ignore-columns", "owner,note"]
    assert "a,A3C,1,0" in gavel("trace", "import", *trace).out
    assert "1 job" in gavel("trace", "describe", *trace).out
    (tmp_path / "trace.csv").write_text("job_id,job_type,total_steps,owner\na,A3C,1e4,me\n")
    assert gavel("simulate", "trace.csv", "-c", "v100:1", "--ignore-columns", "owner").code == 0


def test_all_documents_have_the_version_of_their_schema(gavel: Gavel) -> None:
    solve = ["jobs.csv", "-c", "v100:4", "--json"]
    for arguments in (
        ["solve", *solve],
        ["solve", *solve, "-p", "fifo", "-p", "isolated"],
        ["rounds", *solve],
        ["explain", "a", *solve],
        ["policies", "--json"],
        ["profiles", "list", "--json"],
        ["trace", "describe", "jobs.csv", "--json"],
        ["trace", "formats", "--json"],
    ):
        document = json.loads(gavel(*arguments).out)
        assert all(each["schema_version"] == 2 for each in (document if isinstance(document, list) else [document])), arguments
    explanation = gp.Explanation.from_dict(json.loads(gavel("explain", "a", *solve).out))
    assert explanation.vs_fair_share is not None
