"""Part of `make lint`, by pytest: sizes of the code that may only get better, documented names, and the words of the glossary.

Which package may import which is checked by `lint-imports`; its contracts are in pyproject.toml.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import runpy
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from scipy.sparse.csgraph import connected_components

import gavel_py as gp
from gavel_py.scheduling.options import SchedulerOptions

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "gavel_py"

RATCHET = Path(__file__).with_name("ratchet.json")
"""Figures of the code as a whole that may only get better; one that is better is written there."""

INSTANCES = ("policies.", "cli.", "workloads.formats.")
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


def code_lines(function: ast.FunctionDef) -> int:
    """Return the lines of a function without its docstring."""
    docstring = function.body[0] if ast.get_docstring(function) else None
    without = docstring.end_lineno - docstring.lineno + 1 if docstring and docstring.end_lineno else 0
    return (function.end_lineno or 0) - function.lineno + 1 - without


def modules_of(statement: ast.ImportFrom) -> Iterator[str]:
    """Yield the modules of gavel_py that a statement imports."""
    own = str(statement.module).removeprefix("gavel_py.")
    for name in (f"{own}.{alias.name}" for alias in statement.names) if own != statement.module else ():
        yield from [each for each in (name, f"{name}.__init__", own, f"{own}.__init__") if each in sources()][:1]


def imported_at_once(module: str) -> set[str]:
    """Return the modules that a module imports when it is imported itself: neither within a function, nor for types only."""
    found: set[str] = set()
    pending: list[ast.AST] = [sources()[module]]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.Lambda) or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)):
            continue
        if isinstance(node, ast.ImportFrom):
            found.update(modules_of(node))
        pending += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
    return found - {module}


CIRCLES = {
    ("workloads.durations", "workloads.trace"): "a trace predicts its durations, and a model of them is learned from traces",
}
"""Modules that may import each other, if only for types or on first use, and why."""


@cache
def import_circles() -> list[tuple[str, ...]]:
    """Return the modules that reach each other by imports, if only for types or within functions."""
    number = {module: n for n, module in enumerate(sources())}
    arrows = np.zeros((len(number), len(number)), dtype=bool)
    for module, tree in sources().items():
        found = (each for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for each in modules_of(node))
        arrows[number[module], [number[each] for each in found if each != module]] = True
    count, part_of = connected_components(arrows, connection="strong")
    parts = [tuple(sorted(module for module, n in number.items() if part_of[n] == part)) for part in range(count)]
    return [part for part in parts if len(part) > 1]


@cache
def import_chain(module: str) -> int:
    """Return the number of modules in the longest chain of imports that starts with a module."""
    return 1 + max(map(import_chain, imported_at_once(module)), default=0)


HOUSES = {
    "kueue": ("integrations.kueue", "cli.kueue"),
    "slurm": ("integrations", "cli.slurm"),
    "service": ("service", "cli.api", "cli.failures", "cli.schema", "cli.step"),
    "serving": ("serving", "cli.serve"),
    "estimates": ("estimates", "cli.estimates", "cli.profiles"),
    "planning": ("planning", "cli.plan"),
    "workbench": (
        "workloads",
        "simulator",
        "report",
        "sweeps",
        "testing",
        "cli.page",
        "cli.report",
        "cli.simulate",
        "cli.sweep",
        "cli.trace",
    ),
}
"""Parts of the houses beside the core: dotted names below gavel_py, and all that is below them."""

FEW_ARGUMENTS, FEW_METHODS, FEW_ATTRIBUTES = 8, 25, 15


def house_of(module: str) -> str:
    parts = [(part, house) for house, parts in HOUSES.items() for part in parts]
    return next((house for part, house in parts if f"{module}.".startswith(f"{part}.")), "core")


def arguments_of(function: ast.FunctionDef) -> int:
    found = function.args.posonlyargs + function.args.args + function.args.kwonlyargs
    return sum(each.arg not in ("self", "cls") for each in found)


def attributes_of(cls: ast.ClassDef) -> set[str]:
    """Return the fields that a class declares, and the attributes that its methods assign."""
    fields = {each.target.id for each in cls.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)}
    return fields | {
        node.attr
        for node in ast.walk(cls)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


SPELLED_EVERYWHERE = frozenset(
    {
        "arrival_seconds",
        "gpu_counts",
        "job_id",
        "job_type",
        "num_gpus",
        "restart_seconds",
        "round_seconds",
        "steps_done",
        "total_steps",
    }
)
"""What a job is, and how rounds pass: every part speaks of these."""


def declared_once() -> set[str]:
    """Return the names that one place declares and others should not repeat: job fields, options of rounds, two metrics.

    Names of one word are left out, since they have other meanings, too.
    """
    declared = [*inspect.signature(gp.Job).parameters, *SchedulerOptions.model_fields]
    return {name for name in declared if "_" in name} - SPELLED_EVERYWHERE | {"mean_jct_seconds", "makespan_seconds"}


def spelled(name: str) -> re.Pattern[str]:
    """Return the pattern of a name and its plurals: `deadline_seconds`, `deadlines_seconds`."""
    return re.compile(r"\b" + "_".join(f"{part}s?" for part in name.split("_")) + r"\b")


def measured() -> dict[str, Any]:
    """The figures of the ratchet."""
    trees = sources()
    texts = {module: (PACKAGE / (module.replace(".", "/") + ".py")).read_text() for module in trees}
    houses: dict[str, Counter[str]] = {house: Counter() for house in ("core", *HOUSES)}
    names: Counter[str] = Counter()
    for module, tree in trees.items():
        counts = houses[house_of(module)]
        counts["small_tolerances"] += len(re.findall(r"^[A-Z_]+(?:, [A-Z_]+)*(?:: \w+)? = .*\de-\d+", texts[module], re.MULTILINE))
        for node in ast.walk(tree):
            counts["statements"] += isinstance(node, ast.stmt) and not is_docstring(node)
            match node:
                case ast.FunctionDef():
                    counts[f"functions_of_over_{FEW_ARGUMENTS}_arguments"] += arguments_of(node) > FEW_ARGUMENTS
                case ast.ClassDef(name=name, body=body):
                    names[name] += 1
                    counts[f"classes_of_over_{FEW_METHODS}_methods"] += (
                        sum(isinstance(each, ast.FunctionDef) for each in body) > FEW_METHODS
                    )
                    counts[f"classes_of_over_{FEW_ATTRIBUTES}_attributes"] += len(attributes_of(node)) > FEW_ATTRIBUTES
    return {
        "houses": {house: dict(counts) for house, counts in houses.items()},
        "class_names_with_several_meanings": sum(count > 1 for count in names.values()),
        "type_import_circles": len(import_circles()),
        "longest_import_chain": max(map(import_chain, trees)),
        "longest_function": max(
            code_lines(node) for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
        ),
        "files_that_spell": {
            name: sum(bool(spelled(name).search(text)) for text in texts.values()) for name in sorted(declared_once())
        },
    }


def worse(kept: Any, now: Any, most: int = 0) -> Iterator[str]:
    """Yield what got worse; figures that are kept for the first time are at most `most`."""
    for name, value in now.items():
        if isinstance(value, dict):
            of_new = MOST_FILES_OF_A_NEW_NAME if name == "files_that_spell" else 0
            yield from (f"{name}: {each}" for each in worse(kept.get(name, {}), value, of_new))
        elif value > kept.get(name, most):
            yield f"{name} was {kept.get(name, most)}, is {value}"


MOST_FILES_OF_A_NEW_NAME = 8


def test_the_house_gets_no_worse() -> None:
    """Statements of a house beside the core may rise with a feature: by hand, in ratchet.json, with the reason in the commit."""
    now = measured()
    found = list(worse(json.loads(RATCHET.read_text()), now))

    assert not found, "these figures were better: " + "; ".join(found)
    RATCHET.write_text(json.dumps(now, indent=4) + "\n")


def test_modules_import_each_other_only_for_a_reason() -> None:
    assert set(import_circles()) == CIRCLES.keys()


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
    (after_one_left,) = map(int, re.findall(r"(\d+) after a job has left", page))
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
    for _ in range(3):
        scheduler.complete(next(iter(scheduler.running)))
        assert len(entered_by(scheduler.next_round)) <= after_one_left
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


def test_stubs_follow_from_the_records_of_options() -> None:
    stubs = runpy.run_path(str(ROOT / ".ci" / "option_stubs.py"))["stubs"]()
    old = [str(path.relative_to(ROOT)) for path, text in stubs.items() if not path.exists() or path.read_text() != text]
    assert not old, f"run python .ci/option_stubs.py: {', '.join(old)}"
