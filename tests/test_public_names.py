"""The stub of gavel_py lists the public names once; the running package, type checkers and built distributions follow it."""

from __future__ import annotations

import ast
import importlib
import pickle
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import gavel_py as gp

ROOT = Path(__file__).parents[1]


def exports() -> Iterator[tuple[str, str, str | None]]:
    """(module, name, alias) of each import of the stub."""
    for node in ast.parse(Path(gp.__file__).with_suffix(".pyi").read_text()).body:
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("gavel_py"):
            for name in node.names:
                yield str(node.module), name.name, name.asname


def test_the_stub_names_the_objects_of_the_running_package() -> None:
    for module, name, _ in exports():
        assert getattr(gp, name) is getattr(importlib.import_module(module), name)


def test_the_stub_exports_each_name_once() -> None:
    names = [name for _, name, _ in exports()]
    assert gp.__all__ == sorted(set(names))
    assert len(names) == len(set(names)) >= 122
    assert [alias for _, _, alias in exports()] == names  # without the alias, type checkers take an import of a stub for private


def test_a_star_import_gives_the_public_names_and_no_others() -> None:
    namespace: dict[str, object] = {}
    exec("from gavel_py import *", namespace)  # noqa: S102
    assert namespace.keys() - {"__builtins__"} == set(gp.__all__)


def test_dir_lists_the_public_names_before_they_are_imported() -> None:
    code = "import gavel_py; print(set(gavel_py.__all__) <= set(dir(gavel_py)), 'solve' in vars(gavel_py))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


def test_a_misspelt_name_is_an_attribute_error_that_suggests_the_name() -> None:
    done = subprocess.run([sys.executable, "-c", "import gavel_py as gp; gp.slove"], capture_output=True, text=True, check=False)
    expected = "AttributeError: module 'gavel_py' has no attribute 'slove'. Did you mean: 'solve'?"
    assert done.stderr.splitlines()[-1] == expected


PACKAGES = (
    "allocation",
    "estimates",
    "policies",
    "problem",
    "report",
    "scheduling",
    "service",
    "serving",
    "simulator",
    "sweeps",
    "throughput_profiles",
    "workloads",
)


@pytest.mark.deep
@pytest.mark.parametrize("package", [*PACKAGES, "errors", "integrations.slurm"])
def test_public_names_are_grouped_by_package(package: str) -> None:
    code = f"import gavel_py as gp; print(*dir(gp.{package}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = [name for module, name, _ in exports() if f"{module}.".startswith(f"gavel_py.{package}.")]
    assert names
    assert set(names) <= set(done.stdout.split())
    for name in names:
        assert getattr(importlib.import_module(f"gavel_py.{package}"), name) is getattr(gp, name)


def test_the_first_screen_of_help_lists_the_packages() -> None:
    assert gp.__doc__ is not None
    assert len(gp.__doc__.splitlines()) <= 32
    listed = [line.split()[0] for line in gp.__doc__.splitlines() if line.startswith("    ") and "  " in line.strip()]
    assert set(listed) >= {*PACKAGES, "errors", "integrations.slurm", "testing"}


def test_the_citation_has_the_version() -> None:
    assert f"\nversion: {gp.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_public_classes_and_functions_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps((gp.Job, gp.solve))) == (gp.Job, gp.solve)  # noqa: S301


@pytest.mark.deep
def test_distributions_hold_the_stub_and_the_marker_of_types(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", tmp_path], cwd=ROOT, capture_output=True, check=True)
    (wheel,), (sdist,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    wanted = {"gavel_py/__init__.pyi", "gavel_py/py.typed"}
    assert wanted <= set(zipfile.ZipFile(wheel).namelist())
    with tarfile.open(sdist) as archive:
        assert wanted <= {name.partition("/")[2] for name in archive.getnames()}


@pytest.mark.deep
@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        ("import gavel_py", ["numpy", "pydantic", "cvxpy", "scipy", "highspy", "rich", "yaml", "matplotlib"]),
        ("from gavel_py.cli import main", ["numpy", "pydantic", "cvxpy", "scipy", "highspy", "rich", "yaml", "matplotlib"]),
        (  # as `gavel --help` does
            "import importlib; from gavel_py.cli import COMMANDS\n"
            "for name in COMMANDS.values(): importlib.import_module(f'gavel_py.cli.{name}')",
            ["numpy", "pydantic", "cvxpy", "scipy", "highspy", "rich", "yaml", "matplotlib"],
        ),
        ("import gavel_py as gp; gp.policy_options(gp.policy_class('max_min_fairness'))", ["cvxpy", "scipy", "highspy"]),
        (
            "import gavel_py as gp; gp.solve(gp.AllocationProblem.from_arrays([[1.0]], [1]), 'fifo')",
            ["pydantic", "cvxpy", "scipy", "highspy"],
        ),
        ("import gavel_py as gp; gp.solve(gp.AllocationProblem.from_arrays([[1.0]], [1]))", ["pydantic", "cvxpy", "scipy", "yaml"]),
    ],
)
def test_heavy_imports_wait_until_they_are_needed(statement: str, heavy: list[str]) -> None:
    code = f"{statement}\nimport sys\nprint([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
