"""Text from outside that goes into a report: names of policies, traces and jobs, which may hold anything."""

from __future__ import annotations

__all__ = ["UNKNOWN", "clean", "label_text", "shortened"]

UNKNOWN = "–"
"""What stands for a label that a run does not have."""


def clean(text: str) -> str:
    """Return the text with a sign for each character that cannot be shown: control characters, and those that turn the line round.

    >>> clean("a\\x00b")
    'a\N{REPLACEMENT CHARACTER}b'
    """
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


def label_text(value: object) -> str:
    """Return a label as it is shown; whole numbers without a fraction.

    >>> label_text(4.0), label_text("fifo"), label_text(None)
    ('4', 'fifo', '–')
    """
    if value is None or value == "":
        return UNKNOWN
    return f"{value:.10g}" if isinstance(value, float) else clean(str(value))


def shortened(text: str, most: int) -> str:
    """Return a text without its middle, if it is longer than `most` characters.

    >>> shortened("max_min_fairness", 9)
    'max_…ness'
    """
    if len(text) <= most:
        return text
    head = most // 2
    return f"{text[:head]}…{text[len(text) - (most - head - 1) :]}"
