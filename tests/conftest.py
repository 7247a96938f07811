"""Fixtures of all tests: a fixed environment without a terminal width."""

from __future__ import annotations

import signal

import pytest

from tests.support.examples import register_profiles

register_profiles()


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
