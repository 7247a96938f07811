"""How many examples a property test draws, by hypothesis profile.

A test asks for the number that suits it, and the profile scales it: `quick` while code is written, `ci` for every change, `deep`
for faults that only many examples show. Choose one with `pytest --hypothesis-profile NAME`; the default is `ci`.
"""

from __future__ import annotations

import os

from hypothesis import settings

__all__ = ["examples", "register_profiles"]

PERCENT = {"quick": 12, "ci": 55, "deep": 1000}
"""Percentage of the requested examples that each profile draws. It is also the profile's `max_examples`, since tests that request
no number have the default of hypothesis, which is 100."""

COSTLY = 0.5
"""Further factor for tests whose single example takes more than 20 ms, except under `deep`."""


def register_profiles() -> None:
    """Register the profiles and load the default. Continuous integration (CI is set) draws the same examples in every run."""
    for name, percent in PERCENT.items():
        settings.register_profile(name, max_examples=percent, derandomize="CI" in os.environ, deadline=None)
    settings.load_profile("ci")


def examples(count: int, *, costly: bool = False) -> int:
    """Return the number of examples to draw where a test requests `count`; fewer if an example is `costly` (over 20 ms)."""
    percent = settings.default.max_examples
    factor = COSTLY if costly and percent < PERCENT["deep"] else 1.0
    return max(1, round(count * percent * factor / 100))
