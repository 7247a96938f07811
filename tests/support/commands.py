"""Runs command lines within the process of the test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gavel_py.cli import main

__all__ = ["Gavel", "Outcome", "enter_folder", "runner", "written"]


@dataclass
class Outcome:
    code: int
    out: str
    err: str


Gavel = Callable[..., Outcome]


def runner(capsys: pytest.CaptureFixture[str], *before: str) -> Gavel:
    """Return a function that runs `gavel` with these arguments before its own, and returns the outcome."""

    def run(*arguments: str) -> Outcome:
        with pytest.raises(SystemExit) as exit_:
            main([*before, *arguments])
        captured = capsys.readouterr()
        return Outcome(int(exit_.value.code or 0), captured.out, captured.err)

    return run


def enter_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a folder the working directory and the place of the profile store."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("GAVEL_PY_STORE", str(folder / "store.sqlite"))


def written(name: str, content: str) -> str:
    """Write a file into the working directory and return its name."""
    Path(name).write_text(content, encoding="utf-8")
    return name
