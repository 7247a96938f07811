"""What a run of the suite costs: CPU seconds of each package beside its budget, and how far the run is.

With `--budget`, pytest prints at its start how many tests there are and about how long they take, once a minute how far they are,
and at the end the CPU seconds of each package, in units beside its budget in `tests/budgets.toml`. With `--budget=enforced` a run
fails if a package is above 110 % of its budget, or if a test without the mark `deep` or `guard` takes more than two units again
when it is run alone.

A unit is the CPU time of a fixed piece of work, which each worker does once before its first test: the same tests take as many
units on a slow machine, or beside other work, as on a fast one. The time of a test is that of its process and of the processes
that it has started and waited for.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
import tomllib
from collections import Counter
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

import highspy
import numpy as np
import pytest

__all__ = ["Budget", "add_options", "package_of", "register"]

BUDGETS = Path(__file__).parents[1] / "budgets.toml"
ALLOWED = 1.1
"""Share of its budget that a package may take."""

LONGEST = 2.0
"""Units that a test without the mark `deep` or `guard` may take."""

USUAL_UNIT = 1.0
"""CPU seconds of a unit, about, before it has been measured."""

PROPERTY = "cost"

UNITS_OF_RSS = 2**20 if sys.platform == "darwin" else 2**10
"""What `ru_maxrss` counts in a MiB: bytes on macOS, KiB elsewhere."""


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of the children that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def peak_memory() -> int:
    """Return the largest memory of this process, or of a child that it has waited for, in MiB."""
    return max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) // UNITS_OF_RSS


def unit() -> float:
    """Return the CPU seconds of the fixed piece of work: Python objects, arrays and a linear program, about a second in all."""
    start = time.process_time()
    random = np.random.default_rng(0)
    for _ in range(5):
        words = [f"job {number % 977}" for number in range(400_000)]
        assert len(Counter(words)) == len({word: len(word) for word in words}) == 977
        values = random.random((600, 600))
        for _ in range(4):
            values = np.sort(values @ values.T / 600, axis=0)
        solver = highspy.Highs()
        solver.silent()
        shares = [[solver.addVariable(0, 1, obj=-speed) for speed in row] for row in random.random((600, 3)) + 0.1]
        for row in shares:
            solver.addConstr(sum(row[1:], row[0]) <= 1)
        for column in zip(*shares, strict=True):
            solver.addConstr(sum(column[1:], column[0]) <= 100)
        solver.run()
    return time.process_time() - start


def package_of(test: str) -> str:
    """Return the package of a test, by its node id: the folder below `tests`, `root` for the files beside them, or `doctests`."""
    first, *rest = test.partition("::")[0].split("/")
    return "doctests" if first != "tests" else rest[0] if len(rest) > 1 else "root"


class Meter:
    """In each process that runs tests: measures each test, and the unit and the memory of the process."""

    def __init__(self, output: dict[str, Any], *, with_unit: bool) -> None:
        self.output = output
        self.with_unit = with_unit
        self.start, self.peak = 0.0, 0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        self.start, self.peak = cpu_seconds(), peak_memory()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.when == "teardown":
            cost = cpu_seconds() - self.start, max(0, peak_memory() - self.peak)
            report.user_properties = [*report.user_properties, (PROPERTY, cost)]
        return report

    def pytest_sessionstart(self) -> None:
        if self.with_unit:
            self.output["unit"] = unit()

    def pytest_sessionfinish(self) -> None:
        self.output["peak"] = peak_memory()


class Budget:
    """In the process that prints: how far the run is, and at its end what each package has cost."""

    def __init__(self, plugins: pytest.PytestPluginManager, *, deep: bool, enforced: bool) -> None:
        self.plugins = plugins
        self.name = "deep" if deep else "test"
        self.budgets: dict[str, float] = tomllib.loads(BUDGETS.read_text())[self.name]
        self.enforced = enforced
        self.outputs: list[dict[str, Any]] = []
        self.tests: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.costs: dict[str, float] = {}
        self.deep: set[str] = set()
        self.may_be_long: set[str] = set()
        self.too_long: dict[str, float] = {}
        self.unit = USUAL_UNIT
        self.start = self.printed = time.monotonic()

    def say(self, line: str) -> None:
        """Print a line; the reporter is registered later than this."""
        self.plugins.get_plugin("terminalreporter").write_line(line)

    def begin(self, tests: Iterable[str], workers: int) -> None:
        """Say how many tests there are and about how long they take, once."""
        if self.tests:
            return
        self.tests = Counter(map(package_of, tests))
        minutes = sum(self.budgets.get(package, 0.0) for package in self.tests) * USUAL_UNIT / workers / 60
        self.say(f"{counted(self.tests.total(), 'test')}, about {in_minutes(minutes)} on {counted(workers, 'core')}")

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        self.begin(ids, len(node.config.option.tx))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.items:
            self.begin([item.nodeid for item in session.items], 1)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.outputs.append(getattr(node, "workeroutput", {}))

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Count a result without printing a letter."""
        if report.failed:
            return "failed" if report.when == "call" else "error", "", ""
        return ("" if report.passed and report.when != "call" else report.outcome), "", ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.say(f"FAILED {report.nodeid}")
        if report.when != "teardown":
            return
        self.done[package_of(report.nodeid)] += 1
        self.costs[report.nodeid] = dict(report.user_properties)[PROPERTY][0]
        if "deep" in report.keywords:
            self.deep.add(report.nodeid)
        if {"deep", "guard"} & report.keywords.keys():
            self.may_be_long.add(report.nodeid)
        if time.monotonic() > self.printed + 60:
            self.printed = time.monotonic()
            self.say(self.progress())

    def progress(self) -> str:
        """Return how far the run is: by the budgets of what is done, since tests of some packages take longer."""
        all_, done = (sum(self.budgets.get(package, 0.0) * count / self.tests[package] for package, count in tests.items())
                      for tests in (self.tests, self.done))  # fmt: skip
        passed = self.printed - self.start
        left = f", about {in_minutes(passed * (all_ - done) / done / 60)} left" if 0 < done < all_ else ""
        return f"{self.done.total():,} of {self.tests.total():,} tests after {in_minutes(passed / 60)}{left}"

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Measure again, alone, what took too long, and fail where budgets are enforced."""
        self.unit = statistics.fmean([output["unit"] for output in self.outputs if "unit" in output] or [USUAL_UNIT])
        suspects = [test for test, cost in self.costs.items() if cost > LONGEST * self.unit and test not in self.may_be_long]
        if self.enforced and self.name == "test":
            again = {test: cost_alone(test) / self.unit for test in suspects}
            self.too_long = {test: units for test, units in again.items() if units > LONGEST}
            if (self.too_long or self.over()) and session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def units(self) -> Counter[str]:
        """Return the units of each package; of a run that is not deep, without the deep tests of what has changed."""
        found: Counter[str] = Counter()
        for test, cost in self.costs.items():
            if self.name == "deep" or test not in self.deep:
                found[package_of(test)] += cost / self.unit
        return found

    def over(self) -> list[str]:
        """Return the packages above their budgets."""
        return [package for package, units in self.units().items() if units > ALLOWED * self.budgets.get(package, 0.0)]

    def lines(self) -> list[str]:
        """Return the closing lines."""
        units = self.units()
        each = [f"{package} {units[package]:.0f} of {self.budgets.get(package, 0):g}" for package in sorted(units)]
        all_ = f"{units.total():.0f} of {sum(self.budgets.get(package, 0.0) for package in units):g} units"
        peak = max((output.get("peak", 0) for output in self.outputs), default=0)
        return [
            f"{all_} of {self.unit:.2f} CPU seconds: {sum(self.costs.values()):.0f} CPU seconds; largest process {peak} MiB",
            *textwrap.wrap("; ".join(each), 100, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False),
            *(f"over its budget by more than a tenth: {package}" for package in self.over()),
            *(
                f"neither deep nor guard, but {units:.1f} units (at most {LONGEST:g}): {test}"
                for test, units in self.too_long.items()
            ),
        ]

    def pytest_terminal_summary(self) -> None:
        for line in self.lines():
            self.say(line)


def in_minutes(minutes: float) -> str:
    """Return a time in whole minutes, at least one."""
    return counted(max(1, round(minutes)), "minute")


def counted(count: int, word: str) -> str:
    """Return a number of things."""
    return f"{count:,} {word}{'s' * (count != 1)}"


def cost_alone(test: str) -> float:
    """Return the CPU seconds of a test in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        costs = Path(folder) / "costs.json"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", f"--costs={costs}", test]
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
        return float(json.loads(costs.read_text())[test][0])


class Costs:
    """Writes of each test the CPU seconds, and the MiB by which it has raised the largest memory, into a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.costs: dict[str, tuple[float, int]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            self.costs[report.nodeid] = dict(report.user_properties)[PROPERTY]

    def pytest_sessionfinish(self) -> None:
        self.path.write_text(json.dumps(self.costs, indent=0) + "\n")


def add_options(parser: pytest.Parser) -> None:
    """Add the options of this module to those of pytest."""
    group = parser.getgroup("costs", "CPU time of tests")
    choices = ("printed", "enforced")
    group.addoption("--budget", nargs="?", choices=choices, const="printed", help="print progress and costs, or fail above budgets")
    group.addoption("--costs", type=Path, metavar="FILE", help="write the CPU seconds and the further memory of each test")


def register(config: pytest.Config, *, deep: bool) -> None:
    """Let the process of a configuration measure its tests, and print or write their costs as its options say."""
    worker = getattr(config, "workeroutput", None)
    output: dict[str, Any] = {} if worker is None else worker
    distributed = worker is None and config.getoption("tx", None)
    if not distributed:
        config.pluginmanager.register(Meter(output, with_unit=bool(config.option.budget)))
    if worker is not None:
        return
    if config.option.budget:
        budget = Budget(config.pluginmanager, deep=deep, enforced=config.option.budget == "enforced")
        if not distributed:
            budget.outputs.append(output)
        config.pluginmanager.register(budget)
    if config.option.costs:
        config.pluginmanager.register(Costs(config.option.costs))
