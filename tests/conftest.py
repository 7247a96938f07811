"""Fixtures of all tests, a fixed environment without a terminal width, and the closing lines of a run."""

from __future__ import annotations

import re
import signal

import pytest
from hypothesis import settings

from tests.support.examples import DEEP, fix_constants, register_profiles
from tests.support.skips import lines_of_skips

register_profiles()


def pytest_configure() -> None:
    """After the profile has been chosen on the command line."""
    fix_constants()


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
    for line in lines_of_skips([report.longrepr for report in terminalreporter.getreports("skipped")]):
        terminalreporter.write_line(line)
    for report in terminalreporter.getreports("failed"):
        for decorator in re.findall(r"@reproduce_failure\(.*\)", report.longreprtext):
            terminalreporter.write_line(f"{decorator}  # above {report.nodeid}")
    if settings.get_current_profile_name() == DEEP and (seed := config.getoption("--hypothesis-seed")) is not None:
        terminalreporter.write_line(f"The same random examples again: make deep SEED={seed}")
