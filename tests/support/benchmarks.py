"""Benchmarks as modules, so that tests run their functions on small cases."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

__all__ = ["imported"]

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@contextmanager
def imported(name: str) -> Iterator[ModuleType]:
    """Import a script of the folder, which finds the modules beside it."""
    spec = importlib.util.spec_from_file_location(f"{name}_benchmark", BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    sys.path.insert(0, str(BENCHMARKS))
    try:
        made = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(made)
        yield made
    finally:
        sys.path.remove(str(BENCHMARKS))
