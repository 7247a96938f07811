"""Errors of usage: options that contradict each other, and values that are not of their form."""

from __future__ import annotations

import click

from gavel_py.errors import decimal_hint


def refuse(*cases: tuple[object, str]) -> None:
    """Raise `UsageError` with the text of the first case whose condition is true: contradictory options, or one without effect."""
    for text in (text for condition, text in cases if condition):
        raise click.UsageError(text)


def check_value(text: str, is_right: object, form: str) -> None:
    """Raise `BadParameter` unless the value of an option is right; form: "is not ...", what it should be."""
    if not is_right:
        raise click.BadParameter(f"{text!r} {form}{decimal_hint(text)}")
