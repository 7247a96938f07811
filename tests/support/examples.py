"""How many examples a property test draws, and which, by hypothesis profile.

A test asks for the number that suits it, and the profile scales it: `test` for every change, `deep` for faults that only many
examples show. Choose one with `pytest --hypothesis-profile NAME`; the default is `test`.

`test` draws the same examples on every machine and in every run. `deep` draws others each time, or those of a seed
(`--hypothesis-seed`).
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers

__all__ = ["CHARACTERS", "DEEP", "examples", "fix_constants", "register_profiles", "seeds"]

DEEP = "deep"
PERCENT = {"test": 20, DEEP: 200}
"""Percentage of the requested examples that each profile draws. It is also the profile's `max_examples`, since tests that request
no number have the default of hypothesis, which is 100."""

SEEDS = "GAVEL_PY_SEEDS"
"""Environment variable with the number of seeds of each test that draws problems by seed."""

CHARACTERS = st.characters(exclude_categories=["Cs"])
"""The characters of `st.text` without any, which finds them, once in each checkout, by trying all: 200 MiB and a CPU second."""

COSTLY = 0.5
"""Further factor for tests whose single example takes more than 20 ms, except under `deep`."""


def register_profiles() -> None:
    """Register the profiles and load the default; none depends on the environment, as the built-in ones do on CI.

    There is no database of earlier failures, which would put its examples first; a failure prints `@reproduce_failure(...)`.
    """
    common: dict[str, Any] = {
        "database": None,
        "deadline": None,
        "print_blob": True,
        "suppress_health_check": [HealthCheck.too_slow],
    }
    for name, percent in PERCENT.items():
        parent = settings.get_profile("default")
        settings.register_profile(name, parent, max_examples=percent, derandomize=name != DEEP, **common)
    settings.load_profile("test")


def fix_constants() -> None:
    """Draw no constants of the product's modules, unless under `deep`.

    Hypothesis would draw those of all modules that happen to be loaded, except below a folder named `test`: other examples for a
    single test than in the whole run, and in another checkout.
    """
    if settings.get_current_profile_name() != DEEP:
        providers.is_local_module_file = lambda _: False


def examples(count: int, *, costly: bool = False) -> int:
    """Return the number of examples to draw where a test requests `count`; fewer if an example is `costly` (over 20 ms)."""
    percent = settings.default.max_examples
    factor = COSTLY if costly and percent < PERCENT[DEEP] else 1.0
    return max(1, round(count * percent * factor / 100))


def seeds(count: int) -> range:
    """Return the seeds of a `deep` test with problems of its own: `count`, or as many as the environment variable `SEEDS` says."""
    return range(int(os.environ.get(SEEDS, count)))
