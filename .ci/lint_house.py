"""Part of `make lint`, by pytest: sizes of the code that may only get better, documented names, and the words of the glossary.

Which package may import which is checked by `lint-imports`; its contracts are in pyproject.toml.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import statistics
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import gavel_py as gp

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "gavel_py"

RATCHET = Path(__file__).with_name("ratchet.json")
"""Figures of the code as a whole that may only get better; one that is better is written there."""

INSTANCES = ("policies.", "cli.", "throughput_profiles.importers.", "workloads.formats.")
"""Where modules are instances of one interface, and small."""


@cache
def sources() -> dict[str, ast.Module]:
    """{module: its code} of all modules, by their dotted names below gavel_py."""
    return {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts): ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")
    }


def lines_of(module: str) -> int:
    return len((PACKAGE / (module.replace(".", "/") + ".py")).read_text().splitlines())


def is_package(module: str) -> bool:
    return module.endswith("__init__")


@cache
def importers() -> dict[str, set[str]]:
    """{module: those that import it}, packages left out."""
    found: dict[str, set[str]] = {module: set() for module in sources() if not is_package(module)}
    stub = ast.parse(Path(gp.__file__).with_suffix(".pyi").read_text())
    for importer, tree in [*sources().items(), ("__init__", stub)]:
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or not node.module:
                continue
            own = node.module.removeprefix("gavel_py.")
            for name in (own, *(f"{own}.{alias.name}" for alias in node.names)):
                if name in found:
                    found[name].add(importer)
    return found


def code_lines(function: ast.FunctionDef) -> int:
    """Return the lines of a function without its docstring."""
    docstring = function.body[0] if ast.get_docstring(function) else None
    without = docstring.end_lineno - docstring.lineno + 1 if docstring and docstring.end_lineno else 0
    return (function.end_lineno or 0) - function.lineno + 1 - without


def imported_at_once(module: str) -> set[str]:
    """Return the modules that a module imports when it is imported itself: neither within a function, nor for types only."""
    found: set[str] = set()
    pending: list[ast.AST] = [sources()[module]]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.Lambda) or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)):
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("gavel_py."):
            own = node.module.removeprefix("gavel_py.")
            for name in (f"{own}.{alias.name}" for alias in node.names):
                known = (name, f"{name}.__init__", own, f"{own}.__init__")
                found.add(next(each for each in known if each in sources()))
        pending += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
    return found - {module}


@cache
def import_chain(module: str) -> int:
    """Return the number of modules in the longest chain of imports that starts with a module."""
    return 1 + max(map(import_chain, imported_at_once(module)), default=0)


def measured() -> dict[str, float]:
    """The figures of the ratchet."""
    modules = [module for module in sources() if not is_package(module)]
    steps = [module for module in modules if not module.startswith(INSTANCES)]
    crowded = Counter(module.rpartition(".")[0] for module in modules)
    return {
        "modules": len(sources()),
        "modules_under_60_lines": sum(lines_of(module) < 60 for module in steps),
        "modules_over_400_lines": sum(lines_of(module) > 400 for module in modules),
        "modules_with_one_importer": sum(len(importers()[module]) == 1 for module in steps),
        "most_modules_in_a_package": max(count for package, count in crowded.items() if package != "policies"),
        "longest_import_chain": max(map(import_chain, sources())),
        "longest_function": max(
            code_lines(node) for tree in sources().values() for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
        ),
    }


def test_the_house_gets_no_worse() -> None:
    kept = json.loads(RATCHET.read_text())
    now = measured()
    assert now.keys() == kept.keys()
    worse = {name: (kept[name], value) for name, value in now.items() if value > kept[name]}
    assert not worse, f"these figures were better (before, now): merge or split until they are again: {worse}"
    RATCHET.write_text(json.dumps(now, indent=4) + "\n")


def test_modules_are_deep_enough_to_be_worth_opening() -> None:
    steps = [module for module in sources() if not is_package(module) and not module.startswith(INSTANCES)]
    assert statistics.median(lines_of(module) for module in steps) >= 150


def test_every_module_has_a_docstring() -> None:
    assert not [module for module, tree in sources().items() if not ast.get_docstring(tree)]


def entered_by(call: Callable[[], object]) -> set[str]:
    """Return the modules of which a call enters any function."""
    found: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            found.add(frame.f_code.co_filename)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return found


class InThisThread(Executor):
    """Runs each call at once, so that it can be traced."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def test_the_four_journeys_enter_as_many_modules_as_the_page_says(tmp_path: Path) -> None:
    """Of docs/architecture.md; warm: what is cached for further calls is there."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    solve, round_, job, cell = (
        int(found) for found in re.findall(r"^\*\*[^*]+\*\* \((?:`solve` enters )?(\d+) modules", page, re.MULTILINE)
    )
    assert max(solve, round_) <= 20
    gpus = {"v100": 24, "p100": 24, "k80": 24}
    profile, cluster = gp.ThroughputProfile.builtin("gavel-osdi20"), gp.Cluster.from_counts(gpus)
    jobs = [each.job for each in gp.generate_trace(60, profile, jobs_per_hour=None, seed=0)]
    scheduler = gp.RoundScheduler(cluster, profile)
    scheduler.submit_all(jobs)
    for _ in range(5):
        scheduler.next_round()
    problem = gp.AllocationProblem.from_jobs(jobs, cluster, profile)
    for policy in ("max_min_fairness", "max_total_throughput"):
        gp.solve(problem, policy)
        assert len(entered_by(lambda policy=policy: gp.solve(problem, policy))) <= solve
    assert min(len(entered_by(scheduler.next_round)) for _ in range(3)) <= round_  # in others, gangs move for others
    trace = gp.generate_trace(12, profile, jobs_per_hour=12, durations=gp.LogUniform(((1, 600, 7200),)), seed=0)
    gp.simulate(trace, cluster, profile)
    assert len(entered_by(lambda: gp.simulate(trace, cluster, profile))) <= job
    generated = {"generate": {"jobs": 12, "durations": [[1, 600, 7200]]}}
    spec: dict[str, Any] = {"policies": ["max_min_fairness"], "traces": [generated], "loads": [12], "seeds": [0]}
    spec |= {"mode": "simulate", "clusters": [{"name": "mixed", "cluster": gpus}]}
    gp.sweep(spec, executor=InThisThread(), results=str(tmp_path / "first"))
    assert len(entered_by(lambda: gp.sweep(spec, executor=InThisThread(), results=str(tmp_path / "second")))) <= cell


REPLACED = {
    "asks": "requests",
    "book": "jobs",
    "coming": "planned",
    "companies": "co-location promises",
    "company": "partners",
    "crew": "co-location group",
    "crews": "co-location groups",
    "crowd": "gang batch",
    "grounds": "topology",
    "holes": "free GPUs",
    "lonely": "self-pairing",
    "looker": "job profiler",
    "mended": "repaired",
    "newcomer": "new job",
    "newcomers": "new jobs",
    "owed": "deficit",
    "righting": "migration",
    "seat": "select",
    "seated": "selected",
    "seating": "type selection",
    "seats": "selection",
    "settled": "unchanged",
    "stating": "result",
    "stock": "free resources",
    "told": "reported",
    "traits": "job profile",
    "who": "jobs",
}
"""Words that names had before they had the field's own (docs/glossary.md)."""


def names_in(tree: ast.Module) -> set[str]:
    """Return the names of a module's classes, functions, arguments, variables and attributes."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.arg(arg=name):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                found.add(name)
    return found


def test_names_have_the_words_of_the_glossary() -> None:
    public = {name for cls in map(gp.__getattr__, gp.__all__) if inspect.isclass(cls) for name in vars(cls)}
    found = []
    for module, tree in sources().items():
        for name in (*module.split("."), *names_in(tree) - public):
            words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+", name)}
            found += [f"{module}: {name}, say {REPLACED[word]}" for word in words & REPLACED.keys()]
    assert not found


def test_classes_that_docstrings_and_comments_name_exist() -> None:
    code = {path: path.read_text() for path in PACKAGE.rglob("*.py")}
    known = {word for text in code.values() for word in re.findall(r"\w+", re.sub(r"`[^`]*`", "", text))}
    named = {(path.name, name) for path, text in code.items() for name in re.findall(r"`(_?[A-Z][a-z]\w*)[`.(]", text)}
    assert not {each for each in named if each[1] not in known}


def test_everything_public_is_documented() -> None:
    without = [name for name in gp.__all__ if not inspect.getdoc(getattr(gp, name))]
    for name in gp.__all__:
        thing = getattr(gp, name)
        if inspect.isclass(thing):
            without += [
                f"{name}.{attribute}"
                for attribute, value in vars(thing).items()
                if not attribute.startswith("_")
                and (inspect.isfunction(value) or isinstance(value, property))
                and not inspect.getdoc(getattr(thing, attribute))
            ]
    assert not without
