"""What all tests share: surroundings in which the width of a terminal is not told."""

from __future__ import annotations

import signal

import pytest

from tests.support.examples import register_profiles

register_profiles()


@pytest.fixture(autouse=True)
def _no_width_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are as wide as into a pipe, also in commands that a test starts, whatever the shell or the test runner says."""
    for name in ("COLUMNS", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session", autouse=True)
def _can_be_interrupted() -> None:
    """A shell that starts the tests in the background lets them ignore Ctrl-C, and all that they start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
