"""How many examples a property test draws, and the profiles of hypothesis that say so.

A test asks for the number that suits it, and a profile scales it: `quick` while code is written, `ci` for every change, `deep` for
faults that few examples show. Choose one with `pytest --hypothesis-profile NAME`; the default is `ci`.
"""

from __future__ import annotations

import os

from hypothesis import settings

__all__ = ["examples", "register_profiles"]

PERCENT = {"quick": 12, "ci": 75, "deep": 1000}
"""The part of the examples asked for that each profile draws. `max_examples` of a profile, for tests that ask for none, is the same
number, which is the default of hypothesis times this part."""


def register_profiles() -> None:
    """Register the profiles and load the default. Continuous integration (CI is set) draws the same examples in every run."""
    for name, percent in PERCENT.items():
        settings.register_profile(name, max_examples=percent, derandomize="CI" in os.environ, deadline=None)
    settings.load_profile("ci")


def examples(count: int) -> int:
    """Return how many examples a test draws that asks for `count` of them."""
    return max(1, round(count * settings.default.max_examples / 100))
