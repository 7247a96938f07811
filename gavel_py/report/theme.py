"""The colours, dashes and markers of a report, in the light and in the dark.

Eight hues, those of Okabe and Ito, as light or dark as it takes for each to stand out from the page (a contrast of 3 at least) and
from each of the others with any kind of colour vision. Dashes and markers tell curves apart without any colour.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["DARK", "DASHES", "LIGHT", "MARKERS", "MOST_STYLES", "tone_names"]

LIGHT: Mapping[str, str] = {
    "page": "#ffffff",
    "ink": "#1f2328",
    "muted": "#57606a",
    "rule": "#d0d7de",
    "soft": "#f3f5f7",
    "good": "#1a6b3c",
    "link": "#0b57a4",
    "tone-0": "#003493",
    "tone-1": "#bc7505",
    "tone-2": "#23794e",
    "tone-3": "#b2819d",
    "tone-4": "#202020",
    "tone-5": "#573604",
    "tone-6": "#1a98ff",
    "tone-7": "#8a1e67",
}

"""By name, for the light page and for files of charts; no two are the same, so that each can be found again in a drawing."""

DARK: Mapping[str, str] = {
    "page": "#16191d",
    "ink": "#e6e9ed",
    "muted": "#a3acb7",
    "rule": "#3b424a",
    "soft": "#1f242a",
    "good": "#6fd49a",
    "link": "#7db8f0",
    "tone-0": "#8dcbff",
    "tone-1": "#f4d116",
    "tone-2": "#11ff98",
    "tone-3": "#cd788e",
    "tone-4": "#e8e8e8",
    "tone-5": "#f64323",
    "tone-6": "#2c79f3",
    "tone-7": "#e038ad",
}

"""The same names for the dark page."""

MOST_STYLES = 8

DASHES = (
    "solid",
    (0, (5, 1.5)),
    (0, (1.2, 1.2)),
    (0, (6, 1.5, 1.2, 1.5)),
    (0, (3, 1)),
    (0, (8, 2)),
    (0, (6, 1.5, 1.2, 1.5, 1.2, 1.5)),
    (0, (2.5, 2.5)),
)

"""In the way of matplotlib."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


def tone_names() -> dict[str, str]:
    """Return {colour of the light page: its name}."""
    return {colour: name for name, colour in LIGHT.items()}
