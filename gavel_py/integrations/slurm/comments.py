"""What users say of their jobs in --comment: `gavel: type=bert steps=200000`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from gavel_py.errors import decimal_hint
from gavel_py.integrations.slurm.values import printable
from gavel_py.io.records import number_of

__all__ = ["HOLD", "Said", "said_in"]

HOLD = "gavel-hold"
"""A word in the comment of a job that its user holds; the plugin puts it there when somebody says `scontrol hold`."""

OURS = re.compile(r"(?:^|[\s;,])gavel:(.*)", re.DOTALL)
PAIR = re.compile(r"([A-Za-z_]+)=(\"[^\"]*\"|'[^']*'|[^\s;,]+)")


@dataclass(frozen=True)
class Said:
    """What a comment says: a job type, steps in all, whether its user holds the job, and what in it is wrong."""

    job_type: str = ""
    total_steps: float | None = None
    holds: bool = False
    wrong: str = ""


def said_in(comment: str) -> Said:
    """Return what a comment says; whatever it is, it is no error, since other tools write comments too.

    >>> said_in('gavel: type="ResNet-50 (batch size 64)" steps=2e5')
    Said(job_type='ResNet-50 (batch size 64)', total_steps=200000.0, holds=False, wrong='')
    """
    found = OURS.search(comment)
    pairs = {} if found is None else {key.lower(): value.strip("\"'") for key, value in PAIR.findall(found[1])}
    steps, wrong = _steps(pairs.get("steps", ""))
    strange = [key for key in pairs if key not in {"type", "steps"}]
    if strange:
        wrong = wrong or f"{printable(strange[0])}= is not known in a comment; known: type, steps"
    return Said(printable(pairs.get("type", "")), steps, HOLD in re.split(r"[\s;,]+", comment), wrong)


def _steps(text: str) -> tuple[float | None, str]:
    if not text:
        return None, ""
    steps = number_of(text)
    if math.isfinite(steps) and steps > 0:
        return steps, ""
    return None, f"steps={printable(text)} is not a number greater than 0{decimal_hint(text)}"
