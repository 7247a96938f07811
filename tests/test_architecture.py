"""The layers of docs/architecture.md: imports point down, the command line uses the public API only, imports are light."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import gavel_py as gp

PACKAGE = Path(gp.__file__).parent

# From the ground floor up; a module may import from floors below its own and from its own package.
FLOORS = [
    {"errors", "locking", "ordering", "numbering", "service", "gpu_memory"},
    {"validation", "reading", "screening", "writing", "picture_files", "sqlite_files"},
    {"runs"},
    {"array_checks", "bases", "problem_arrays", "time_limit"},
    {"nodes", "jobs", "tenants"},
    {"cluster_files"},
    {"cluster"},
    {"throughput_profiles", "placement_speeds", "pair_speeds", "even_splits"},
    {"hosts", "job_arrays"},
    {"problem"},
    {"rules"},
    {"job_classes", "merging", "solver", "further_columns", "pair_rows"},
    {"two_kinds", "times"},
    {"pair_columns"},
    {"chambers", "proof", "pairing", "assembly"},
    {"program_matrices"},
    {"allocation_program", "penalties"},
    {"program", "levels"},
    {"factor_program", "tangents"},
    {"level_search", "free_times"},
    {"type_shares"},
    {"conic"},
    {"mixes", "packings"},
    {"node_rows", "whole_gangs"},
    {"fraction_rows", "packing_rows"},
    {"constraints", "feasibility", "starvation", "filling", "charged_level", "figures"},
    {"allocation"},
    {"policies"},
    {"limit_prices", "agnostic"},
    {"missing_rows", "stating"},
    {"incumbent"},
    {"allocator"},
    {"workloads"},
    {"rounds", "explanation"},
    {"simulator"},
    {"sweeps"},
    {"report"},
    {"integrations"},
    {"cli", "testing"},
    {"__main__"},
]
FLOOR_OF = {module: floor for floor, modules in enumerate(FLOORS) for module in modules}


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_parts(path: Path) -> set[str]:
    """The parts of gavel_py that a module imports anywhere, also inside functions and for type checking."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("gavel_py."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.ImportFrom) and node.module == "gavel_py":
            found |= {alias.name for alias in node.names if alias.name in FLOOR_OF}
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("gavel_py.")}
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    own = part_of(path)
    for imported in imported_parts(path) - {own}:
        assert FLOOR_OF[imported] < FLOOR_OF[own], f"{own} may not import {imported}"


@pytest.mark.parametrize("part", ["cli", "testing"])
def test_the_top_floor_uses_the_public_api_only(part: str) -> None:
    for path in (PACKAGE / part).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                assert not node.module.startswith("gavel_py.") or node.module.split(".")[1] in {part, "errors"}, path


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_module_says_what_it_is_and_what_it_exports(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree)
    targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    targets += [node.target for node in tree.body if isinstance(node, ast.AnnAssign)]
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    assert "__all__" in names or path.name == "__main__.py"


@pytest.mark.parametrize("name", gp.__all__)
def test_everything_public_is_documented(name: str) -> None:
    thing = getattr(gp, name)
    assert inspect.getdoc(thing)
    if inspect.isclass(thing):
        for attribute, value in vars(thing).items():
            if not attribute.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
                assert inspect.getdoc(getattr(thing, attribute)), f"{name}.{attribute}"


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
        ("import gavel_py as gp; gp.solve(gp.AllocationProblem.from_arrays([[1.0]], [1]), 'fifo')", ["cvxpy", "scipy", "highspy"]),
    ],
)
def test_heavy_imports_wait_until_they_are_needed(statement: str, heavy: list[str]) -> None:
    code = f"{statement}\nimport sys\nprint([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
