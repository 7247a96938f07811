"""Fixtures of all tests, a fixed environment without a terminal width, and the closing lines of a run."""

from __future__ import annotations

import gc
import os
import re
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.changes import changed_files, packages_of
from tests.support.costs import add_options, package_of, register
from tests.support.examples import DEEP, fix_constants, register_profiles
from tests.support.skips import lines_of_skips

register_profiles()

ALL_DEEP = re.compile(r"^pytestmark = .*\bdeep\b", re.MULTILINE)


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """After the profile has been chosen on the command line."""
    fix_constants()
    register(config, deep=settings.get_current_profile_name() == DEEP)


def is_changed(package: str) -> bool:
    """Return whether a package differs from the commit that GAVEL_PY_SINCE names; without it, none does."""
    return "GAVEL_PY_SINCE" in os.environ and package in packages_of(changed_files(), [package])


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spare the garbage collector the modules and tests, which stay: it would go through all of them again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out modules of which all tests are deep where these do not run, since importing them takes seconds."""
    if "not deep" not in config.option.markexpr or collection_path.suffix != ".py":
        return None
    package = package_of(collection_path.relative_to(config.rootpath).as_posix())
    return True if ALL_DEEP.search(collection_path.read_text(encoding="utf-8")) and not is_changed(package) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of packages that have changed."""
    changed = {package: is_changed(package) for package in {package_of(item.nodeid) for item in items}}
    for item in items:
        if changed[package_of(item.nodeid)]:
            item.add_marker("changed")


@pytest.fixture(autouse=True)
def _no_terminal_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables have the width of a pipe, also in subprocesses, whatever the environment of the test runner."""
    for name in ("COLUMNS", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session", autouse=True)
def _restore_sigint() -> None:
    """Restore the handler of SIGINT, which shells set to ignore for background processes and all their children."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say why tests were skipped, how each failing example is drawn again, and what random examples were drawn from."""
    for line in lines_of_skips([each.longrepr for each in terminalreporter.getreports("skipped") if not hasattr(each, "wasxfail")]):
        terminalreporter.write_line(line)
    for report in terminalreporter.getreports("failed"):
        for decorator in re.findall(r"@reproduce_failure\(.*\)", report.longreprtext):
            terminalreporter.write_line(f"{decorator}  # above {report.nodeid}")
    if settings.get_current_profile_name() == DEEP and (seed := config.getoption("--hypothesis-seed")) is not None:
        terminalreporter.write_line(f"The same random examples again: make deep SEED={seed}")
