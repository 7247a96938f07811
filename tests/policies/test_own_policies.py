"""Policies that are not built in: classes named as package.module:Class, and those that installed packages offer."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from textwrap import dedent

import pytest

import gavel_py as gp
from tests.support.commands import runner
from tests.support.fakes import refusal

MODULE = '''
from dataclasses import dataclass

import gavel_py as gp


class LargestGangFirst(gp.OrderedPolicy):
    """The largest gang first."""

    def sort_key(self, jobs):
        return -jobs.num_gpus.astype(float)


@dataclass(frozen=True, kw_only=True)
class Budgeted(LargestGangFirst):
    """Has one option with a default, and one without."""

    budget: float
    currency: str = gp.option("USD", "what the budget is counted in")


@dataclass(frozen=True, kw_only=True)
class Picky(LargestGangFirst):
    """Raises an error of its own when it is made."""

    def __post_init__(self):
        {}["key"]


class ByHand(LargestGangFirst):
    """Takes an argument that is no option."""

    def __init__(self, budget):
        super().__init__()


class Unfinished(gp.DemandPolicy):
    """Has no need."""


class Nothing:
    """Is no policy."""


class Outer:
    class Inner(LargestGangFirst):
        """Stands in another class."""


largest = LargestGangFirst()
LIMIT = 3
'''

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write files below a folder that Python looks through, and forget what was imported from there."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    def file(name: str, text: str = "") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
        return path

    yield file
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def install(write: Write) -> Callable[..., None]:
    """Put what an installed package leaves behind beside the modules: the folder with its metadata."""

    def package(name: str, entry_points: str, version: str = "1.2") -> None:
        folder = f"{name.replace('-', '_')}-{version}.dist-info"
        write(f"{folder}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        write(f"{folder}/entry_points.txt", "[gavel_py.policies]\n" + entry_points)

    return package


def gavel(*arguments: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command as it is installed: without the current directory among the places where Python looks."""
    command = [sys.executable, "-P", "-m", "gavel_py", *arguments]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env |= {"PYTHONPATH": str(Path(gp.__file__).parents[1])} | variables
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


@pytest.fixture
def jobs(tmp_path: Path) -> list[str]:
    """Arguments for a problem in which the largest gang takes all of the faster type."""
    (tmp_path / "jobs.csv").write_text("job_id,num_gpus,total_steps\na,1,100\nb,2,50\n")
    (tmp_path / "speeds.csv").write_text("job_id,v100,k80\na,4,1\nb,3,0\n")
    return ["jobs.csv", "--cluster", "v100:2,k80:1", "--throughputs", "speeds.csv"]


class TestNamedClasses:
    def test_a_user_class_is_accepted_wherever_a_name_is(self, write: Write) -> None:
        write("acme/fair/__init__.py")
        write("acme/fair/gangs.py", MODULE)
        problem = gp.AllocationProblem.from_arrays([[1.0], [1.0]], [4], num_gpus=[1, 4])
        assert gp.solve(problem, "acme.fair.gangs:LargestGangFirst").time_fractions.tolist() == [[0], [1]]
        assert gp.solve(problem, "acme.fair.gangs:LargestGangFirst", backfill="false").options == {"backfill": False}
        assert gp.Solver("acme.fair.gangs:LargestGangFirst").policy.name == "largest_gang_first"
        assert gp.policy_class("acme.fair.gangs:Outer.Inner").__name__ == "Inner"
        assert gp.policy_source("acme.fair.gangs:LargestGangFirst") == "acme.fair.gangs"

    def test_an_option_without_a_default_must_be_given(self, write: Write) -> None:
        write("gangs.py", MODULE)
        policy = gp.resolve_policy("gangs:Budgeted", budget="2.5")
        assert policy.label == "budgeted,budget=2.5"
        assert refusal(gp.resolve_policy, "gangs:Budgeted") == (
            "policy gangs:Budgeted, field option budget: is required, since it has no default"
        )
        options = gp.policy_options(gp.policy_class("gangs:Budgeted"))
        assert [name for name, option in options.items() if option.required] == ["budget"]

    def test_the_type_of_an_option_must_be_importable(self, write: Write) -> None:
        write("gangs.py", "from __future__ import annotations\n" + MODULE.replace("budget: float", "budget: Money"))
        assert refusal(gp.resolve_policy, "gangs:Budgeted", budget=1) == (
            "policy Budgeted: the type of an option cannot be read: name 'Money' is not defined; import it outside of "
            "`if TYPE_CHECKING`"
        )

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("nowhere:Fair", "Python finds no module 'nowhere'"),
            ("gangs.fair:Fair", "Python finds no module 'gangs.fair'"),
            ("gangs.py:Fair", "Python finds no module 'gangs.py'; give the module without the ending .py"),
            ("gangs:LargestGang", "module gangs ({folder}/gangs.py) has no class 'LargestGang'; did you mean 'LargestGangFirst'?"),
            ("gangs:Fair", "no class 'Fair'; known: LargestGangFirst, Budgeted, Picky, ByHand"),
            ("empty:Fair", "module empty ({folder}/empty.py) has no class 'Fair', nor any other policy"),
        ],
    )
    def test_an_unknown_name_is_reported(self, write: Write, tmp_path: Path, name: str, message: str) -> None:
        write("gangs.py", MODULE)
        write("empty.py")
        with pytest.raises(gp.UnknownNameError) as error:
            gp.policy_class(name)
        assert str(error.value).startswith(f"policy {name}: ")
        assert message.format(folder=tmp_path) in str(error.value)

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("gangs:Unfinished", "policy gangs:Unfinished: is abstract: it does not define `need`"),
            ("gangs:Nothing", "policy gangs:Nothing: is a class, but not a policy; a policy is a subclass of gavel_py.SumPolicy"),
            ("gangs:LIMIT", "policy gangs:LIMIT: is not a class (it is 3); a policy is a subclass of"),
            ("gangs:largest", "policy gangs:largest: is a policy object; give its class, as in gangs:LargestGangFirst"),
            ("gangs:ByHand", "`budget` is an argument of its class, but not an option; options are fields of a dataclass"),
            ("gangs:Picky", "policy gangs:Picky: creating it failed with KeyError: 'key' ({folder}/gangs.py, line 27)"),
            ("gangs:", "policy gangs:: must be of the form package.module:Class, found 'gangs:'"),
            ("./gangs.py:Fair", "must be of the form package.module:Class, found './gangs.py:Fair'"),
        ],
    )
    def test_what_cannot_be_a_policy_is_refused(self, write: Write, tmp_path: Path, name: str, message: str) -> None:
        write("gangs.py", MODULE)
        assert message.format(folder=tmp_path) in refusal(gp.resolve_policy, name)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("x = 1\ny = x / 0\n", "ZeroDivisionError: division by zero ({folder}/broken.py, line 2)"),
            ("import acme_nowhere\n", "ModuleNotFoundError: No module named 'acme_nowhere' ({folder}/broken.py, line 1)"),
            ("\ndef policy(:\n", "SyntaxError: invalid syntax ({folder}/broken.py, line 2)"),
            (
                "import json\njson.loads('')\n",
                "JSONDecodeError: Expecting value: line 1 column 1 (char 0) ({folder}/broken.py, line 2)",
            ),
            ("raise SystemExit(3)\n", "SystemExit: 3 ({folder}/broken.py, line 1)"),
        ],
    )
    def test_a_failing_import_is_reported_with_its_place(self, write: Write, tmp_path: Path, text: str, message: str) -> None:
        write("broken.py", text)
        told = refusal(gp.policy_class, "broken:Fair")
        assert told.startswith("policy broken:Fair: importing broken failed with ")
        assert told.endswith(message.format(folder=tmp_path))

    def test_a_class_without_its_module_gets_a_hint(self) -> None:
        assert refusal(gp.policy_class, "gangs.LargestGangFirst") == (
            "there is no policy 'gangs.LargestGangFirst'; to use your own class, write package.module:Class"
        )

    def test_the_library_does_not_look_in_the_current_directory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "gangs_here.py").write_text(MODULE)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [place for place in sys.path if place not in ("", ".")])
        assert "finds no module 'gangs_here'" in refusal(gp.policy_class, "gangs_here:LargestGangFirst")


class TestCommand:
    @pytest.mark.deep
    def test_takes_a_class_from_the_current_directory(self, tmp_path: Path, jobs: list[str]) -> None:
        (tmp_path / "mine.py").write_text(MODULE)
        done = gavel("solve", *jobs, "-p", "mine:LargestGangFirst,backfill=false", "-p", "fifo", "--json", folder=tmp_path)
        own, fifo = json.loads(done.stdout)
        assert (own["policy"], own["options"]) == ("largest_gang_first", {"backfill": False})
        assert [own["jobs"][1]["time_fractions"]["v100"], fifo["jobs"][1]["time_fractions"]["v100"]] == [1.0, 0.0]
        assert done.stderr == ""

    @pytest.mark.deep
    def test_set_changes_options_of_a_user_class(self, tmp_path: Path, jobs: list[str]) -> None:
        (tmp_path / "mine.py").write_text(MODULE)
        done = gavel("solve", *jobs, "-p", "mine:Budgeted", "--set", "budget=2", "--csv", folder=tmp_path)
        assert '"budgeted,budget=2",b,1.0,0.0' in done.stdout
        unknown = gavel("solve", *jobs, "-p", "mine:Budgeted,budjet=2", folder=tmp_path)
        assert (unknown.returncode, "there is no option 'budjet'; did you mean 'budget'?" in unknown.stderr) == (2, True)

    @pytest.mark.deep
    def test_methods_may_import_neighbouring_modules(self, tmp_path: Path, jobs: list[str]) -> None:
        (tmp_path / "helper.py").write_text("sign = -1.0\n")
        text = MODULE.replace("return -jobs", "import helper\n        return helper.sign * jobs")
        (tmp_path / "mine.py").write_text(text)
        assert gavel("solve", *jobs, "-p", "mine:LargestGangFirst", folder=tmp_path).returncode == 0

    @pytest.mark.deep
    def test_a_local_file_does_not_shadow_imports_of_gavel(self, tmp_path: Path, jobs: list[str]) -> None:
        for name in ("scipy", "highspy", "gavel_py", "colorsys"):
            (tmp_path / f"{name}.py").write_text("raise RuntimeError\n")
        (tmp_path / "mine.py").write_text(MODULE)
        done = gavel("solve", *jobs, "-p", "mine:LargestGangFirst", "-p", "max_min_fairness", folder=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")

    @pytest.mark.deep
    def test_a_mistake_is_reported_without_a_traceback(self, tmp_path: Path, jobs: list[str]) -> None:
        (tmp_path / "mine.py").write_text("1 / 0\n")
        done = gavel("solve", *jobs, "-p", "mine:LargestGangFirst", folder=tmp_path)
        text = "Error: policy mine:LargestGangFirst: importing mine failed with ZeroDivisionError: division by zero"
        assert (done.returncode, done.stderr) == (2, f"{text} ({tmp_path}/mine.py, line 1)\n")

    @pytest.mark.deep
    def test_show_explains_a_class(self, tmp_path: Path) -> None:
        (tmp_path / "mine.py").write_text(MODULE)
        lines = gavel("policies", "show", "mine:Budgeted", folder=tmp_path).stdout.splitlines()
        assert lines[0] == "mine:Budgeted (ordered family, from mine)"
        assert lines[2] == "Has one option with a default, and one without."
        assert "  budget = (required):" in lines
        assert "  currency = USD: what the budget is counted in" in lines
        unknown = gavel("policies", "show", "mine:Budget", folder=tmp_path)
        assert (unknown.returncode, "did you mean 'Budgeted'?" in unknown.stderr) == (2, True)

    @pytest.mark.deep
    def test_a_policy_of_no_family_is_shown_too(self, tmp_path: Path) -> None:
        text = (
            'import gavel_py as gp\nclass Own(gp.Policy):\n    """Decides by itself."""\n    def decide(self, jobs, solver): ...\n'
        )
        (tmp_path / "mine.py").write_text(text)
        shown = gavel("policies", "show", "mine:Own", folder=tmp_path).stdout
        assert shown.startswith("mine:Own (own family, from mine)\n\nDecides by itself.\n")

    def test_rounds_run_under_a_user_class(self, tmp_path: Path, jobs: list[str]) -> None:
        (tmp_path / "mine.py").write_text(MODULE)
        done = gavel("rounds", *jobs, "-p", "mine:LargestGangFirst", "-n", "1", "--json", folder=tmp_path)
        assert json.loads(done.stdout)["policy"] == "largest_gang_first"


class TestInstalledPackages:
    @pytest.fixture(autouse=True)
    def acme(self, write: Write, install: Callable[..., None]) -> None:
        write("acme_gangs.py", MODULE)
        install("acme-policies", "largest_gang = acme_gangs:LargestGangFirst\nbudgeted = acme_gangs : Budgeted [money]\n")

    def test_policies_of_packages_follow_the_built_in_ones(self) -> None:
        names = gp.policy_names()
        assert names[-2:] == ("budgeted", "largest_gang")
        assert names[0] == "max_min_fairness"
        assert "acme_gangs" not in sys.modules  # a list of names imports nothing

    def test_policies_of_packages_are_used_by_name(self) -> None:
        problem = gp.AllocationProblem.from_arrays([[1.0], [1.0]], [4], num_gpus=[1, 4])
        assert gp.solve(problem, "largest_gang", backfill=False).time_fractions.tolist() == [[0], [1]]
        assert gp.resolve_policy("budgeted", budget=1).label == "budgeted,budget=1"
        assert gp.policy_source("largest_gang") == "acme-policies 1.2"
        assert gp.policy_source("fifo") == "gavel_py"

    def test_a_similar_name_of_a_package_is_suggested(self) -> None:
        assert refusal(gp.policy_class, "largest_gangs") == ("there is no policy 'largest_gangs'; did you mean 'largest_gang'?")
        assert refusal(gp.policy_source, "nothing like it").startswith("there is no policy 'nothing like it'; known: max_min")

    def test_a_built_in_policy_does_not_read_entry_points(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(metadata, "distributions", lambda: pytest.fail("looked"))
        assert gp.resolve_policy("fifo", backfill=True).label == "fifo,backfill=true"
        assert gp.policy_source("fifo") == "gavel_py"
        with pytest.raises(pytest.fail.Exception, match="looked"):
            gp.policy_names()

    def test_a_package_cannot_replace_a_built_in_name(self, install: Callable[..., None]) -> None:
        install("zeta", "fifo = acme_gangs:LargestGangFirst\n")
        with pytest.warns(gp.GavelWarning, match=r"package zeta 1\.2 offers a policy 'fifo', but a built-in one has this name"):
            names = gp.policy_names()
        assert names.count("fifo") == 1
        assert gp.policy_class("fifo").__module__ == "gavel_py.policies.fifo"

    def test_a_name_that_cannot_be_typed_causes_a_warning(self, install: Callable[..., None]) -> None:
        install("zeta", "most,fair = acme_gangs:LargestGangFirst\n")
        with pytest.warns(gp.GavelWarning, match=r"'most,fair', but names may contain only letters.*; use acme_gangs:Largest"):
            assert "most,fair" not in gp.policy_names()

    def test_a_name_of_two_packages_is_ambiguous(self, install: Callable[..., None]) -> None:
        install("zeta", "largest_gang = zeta.fair:Gangs\n", version="0.3")
        assert gp.policy_names().count("largest_gang") == 1
        assert refusal(gp.resolve_policy, "largest_gang") == (
            "policy largest_gang: is offered by several packages; select one by its class: "
            "acme_gangs:LargestGangFirst (of acme-policies 1.2) or zeta.fair:Gangs (of zeta 0.3)"
        )

    def test_the_first_of_two_installations_counts(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        older = tmp_path / "older" / "acme_policies-1.1.dist-info"
        older.mkdir(parents=True)
        (older / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-policies\nVersion: 1.1\n")
        (older / "entry_points.txt").write_text("[gavel_py.policies]\nlargest_gang = acme_old:Gangs\n")
        monkeypatch.setattr(sys, "path", [*sys.path, str(older.parent)])
        assert gp.policy_source("largest_gang") == "acme-policies 1.2"

    @pytest.mark.deep
    @pytest.mark.parametrize(
        ("target", "message"),
        [
            ("zeta_nowhere:Gangs", "Python finds no module 'zeta_nowhere'"),
            ("zeta_broken:Gangs", "importing zeta_broken failed with ZeroDivisionError: division by zero"),
            ("acme_gangs:Gangs", "has no class 'Gangs'"),
            ("acme_gangs:Unfinished", "is abstract: it does not define `need`"),
            ("acme_gangs", "must be of the form package.module:Class, found 'acme_gangs'"),
            ("?!", "must be of the form package.module:Class, found '?!'"),
        ],
    )
    def test_a_broken_policy_is_an_error_in_use_and_a_warning_in_a_list(
        self, write: Write, install: Callable[..., None], tmp_path: Path, target: str, message: str
    ) -> None:
        write("zeta_broken.py", "1 / 0\n")
        install("zeta", f"gangs = {target}\n")
        text = refusal(gp.resolve_policy, "gangs")
        assert text.startswith("policy gangs of package zeta 1.2: ")
        assert message in text
        listed = gavel("policies", folder=tmp_path, PYTHONPATH=str(tmp_path))
        assert (listed.returncode, listed.stderr) == (0, f"warning: {text}\n")
        assert "largest_gang" in listed.stdout
        assert "gangs " not in listed.stdout.replace("_gangs", "")

    def test_a_package_whose_entry_points_cannot_be_read_hides_no_other(self, install: Callable[..., None]) -> None:
        install("zeta", "gangs\n")
        with pytest.warns(gp.GavelWarning, match="the entry points of package zeta cannot be read"):
            assert gp.policy_names()[-1] == "largest_gang"

    def test_damaged_metadata_hide_no_other(self, write: Write) -> None:
        write("eta-1.0.dist-info/entry_points.txt", "[gavel_py.policies]\neta = acme_gangs:LargestGangFirst\n")
        (write("theta-1.0.dist-info/METADATA").parent / "entry_points.txt").write_bytes(b"[gavel_py.policies]\n\xff = \xfe:x\n")
        assert gp.policy_names()[-2:] == ("eta", "largest_gang")
        assert gp.policy_source("eta") == "without a name"

    @pytest.mark.deep
    def test_the_list_shows_the_source_of_each_policy(self, tmp_path: Path) -> None:
        done = gavel("policies", folder=tmp_path, PYTHONPATH=str(tmp_path))
        rows = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
        assert rows["policy"].split() == ["policy", "what", "it", "does", "from"]
        assert re.match(r" *largest_gang +.* +acme-policies 1\.2$", rows["largest_gang"])
        assert rows["fifo"].split()[-1] == "gavel_py"
        documents = json.loads(gavel("policies", "--json", folder=tmp_path, PYTHONPATH=str(tmp_path)).stdout)
        by_name = {document["name"]: document for document in documents}
        assert by_name["budgeted"]["from"] == "acme-policies 1.2"
        assert by_name["budgeted"]["options"]["budget"] == {"default": None, "required": True, "help": ""}
        assert by_name["fifo"]["options"]["backfill"]["required"] is False

    @pytest.mark.guard
    def test_the_command_takes_them(self, tmp_path: Path, jobs: list[str]) -> None:
        done = gavel("solve", *jobs, "-p", "largest_gang,backfill=false", "--csv", folder=tmp_path, PYTHONPATH=str(tmp_path))
        assert '"largest_gang_first,backfill=false",b,1.0,0.0' in done.stdout
        shown = gavel("policies", "show", "largest_gang", folder=tmp_path, PYTHONPATH=str(tmp_path)).stdout
        assert shown.startswith("largest_gang (ordered family, from acme-policies 1.2)\n\nThe largest gang first.\n")

    @pytest.mark.deep
    def test_the_shell_completes_them(self, install: Callable[..., None], tmp_path: Path) -> None:
        install("zeta", "fifo = acme_gangs:LargestGangFirst\n")
        variables = {"_GAVEL_COMPLETE": "bash_complete", "COMP_WORDS": "gavel solve --policy l", "COMP_CWORD": "3"}
        done = gavel(folder=tmp_path, PYTHONPATH=str(tmp_path), **variables)
        assert "plain,largest_gang" in done.stdout.splitlines()
        assert done.stderr == ""


def test_without_other_packages_the_list_has_no_column_for_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert " from " not in runner(capsys)("policies").out.splitlines()[0]
