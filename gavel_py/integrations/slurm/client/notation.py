"""Parsers for the notations in the fields of Slurm's JSON.

These are --constraint expressions, generic resources such as gpu:v100:4(S:0-1), gres:gpu:2 or gres/gpu=4, node lists such as
rack1-[0-3,07]-gpu,login, and numbers, states and texts, whose form depends on the version of Slurm.
"""

from __future__ import annotations

import math
import re
import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from itertools import product
from typing import Any, NamedTuple

from gavel_py.io.names import CONTROL

PLAIN = re.compile(r"[A-Za-z0-9_.:=-]+(?:[&|][A-Za-z0-9_.:=-]+)*")


def is_plain(constraint: str) -> bool:
    """Return whether a constraint is empty or consists of feature names joined by & and |, evaluated from left to right."""
    return not constraint or PLAIN.fullmatch(constraint) is not None


def satisfies(features: Set[str], constraint: str) -> bool:
    """Return whether node features satisfy a plain constraint.

    >>> satisfies({"v100", "ib"}, "v100&ib"), satisfies({"v100"}, "a100|v100"), satisfies({"k80"}, "v100")
    (True, True, False)
    """
    if not constraint:
        return True
    first, *rest = re.split(r"([&|])", constraint)
    result = first in features
    for operator, name in zip(rest[::2], rest[1::2], strict=True):
        result = (result and name in features) if operator == "&" else (result or name in features)
    return result


PLACES = re.compile(r"\([^()]*\)")
"""Sockets and indices of generic resources, such as (S:0-1) and (IDX:0,2)."""

GPU = re.compile(r"(?:^|,)\s*(?:gres[:/])?gpu(?:[:=]([^:=,()]*?))?(?:[:=](\d+))?\s*(?=,|$)")


def gpus_in(text: str) -> dict[str, int]:
    """Return {type: GPUs} in a list of generic resources; the type is "" if none is named.

    >>> gpus_in("gpu:v100:4(S:0-1),nic:1"), gpus_in("gres:gpu:2"), gpus_in("gpu"), gpus_in("gpu:a100")
    ({'v100': 4}, {'': 2}, {'': 1}, {'a100': 1})
    """
    found: Counter[str] = Counter()
    for name, count in GPU.findall(PLACES.sub("", text)):
        name, count = ("", name) if name.isdecimal() and not count else (name, count)
        found[name] += int(count or 1)
    return dict(found)


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
ELEMENT = r"(?:[^,\[\]]|\[[^\[\]]*\])+"
NODE_LIST = re.compile(f"{ELEMENT}(?:,{ELEMENT})*")

MAX_NODES = 100_000
"""Maximum number of nodes in a list, far above the largest clusters; a malformed list must not exhaust memory."""


def is_node_name(text: str) -> bool:
    """Return whether a text is a valid node name; only valid names are used in commands."""
    return NAME.fullmatch(text) is not None


def expand(text: str) -> list[str]:
    """Return the names of a node list in order. Raises `ValueError` for an invalid list.

    >>> expand("a[0-2,10]-[x,y],b")
    ['a0-x', 'a0-y', 'a1-x', 'a1-y', 'a2-x', 'a2-y', 'a10-x', 'a10-y', 'b']
    """
    if not text:
        return []
    elements = re.findall(ELEMENT, text) if NODE_LIST.fullmatch(text) else [""]
    names = [name for element in elements for name in _expanded(element)]
    if not all(map(is_node_name, names)):
        raise ValueError(f"is not a list of nodes: {text[:80]!r}")
    return names


def _expanded(element: str) -> Iterator[str]:
    """Yield the names of one element of a list, with its ranges expanded."""
    pieces = re.split(r"\[([^\]]*)\]", element)
    choices = [[piece] if n % 2 == 0 else list(_range(piece)) for n, piece in enumerate(pieces)]
    if math.prod(map(len, choices)) > MAX_NODES:
        raise ValueError(f"names more than {MAX_NODES:,} nodes: {element[:80]!r}")
    return map("".join, product(*choices))


def _range(text: str) -> Iterator[str]:
    for piece in text.split(","):
        first, dash, last = piece.partition("-")
        if not (dash and first.isdecimal() and last.isdecimal()):
            yield piece
            continue
        if int(last) - int(first) >= MAX_NODES:
            raise ValueError(f"names more than {MAX_NODES:,} nodes: {text[:80]!r}")
        yield from (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))


SIGNAL = re.compile(r"(?:(B):)?(?:SIG)?([A-Z0-9]+)(?:@(\d{1,6}))?")

CATCHABLE = frozenset(each.name.removeprefix("SIG") for each in signal.Signals) - {"KILL", "STOP"}


class StopSignal(NamedTuple):
    """A signal that warns a job before it is stopped.

    name: such as USR1; seconds: time until the stop, None if not given; to_script: whether it goes to the batch script rather than
    to the steps that the script runs with srun.
    """

    name: str
    seconds: float | None = None
    to_script: bool = False


def signal_in(text: str) -> StopSignal | None:
    """Return the signal in the notation of sbatch --signal, without a relative time or a reservation; None if it is invalid.

    >>> signal_in("USR1@60"), signal_in("b:SIGURG"), signal_in("KILL")
    (StopSignal(name='USR1', seconds=60.0, to_script=False), StopSignal(name='URG', seconds=None, to_script=True), None)
    """
    found = SIGNAL.fullmatch(text.upper())
    if found is None:
        return None
    script, name, seconds = found.groups()
    if name.isdecimal():
        name = signal.Signals(int(name)).name.removeprefix("SIG") if int(name) in set(signal.Signals) else ""
    return StopSignal(name, None if seconds is None else float(seconds), script is not None) if name in CATCHABLE else None


def seconds_in(text: str) -> float | None:
    """Return the seconds in Slurm's notation of a time, None if the text is not a time.

    >>> seconds_in("1-02:00:00"), seconds_in("05:00"), seconds_in("")
    (93600.0, 300.0, None)
    """
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text)
    if found is None:
        return None
    days, hours, minutes, seconds = (int(each or 0) for each in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


MAX_TEXT = 200
"""Maximum number of characters of a user's text in output."""

NO_VALUE = 4_294_967_294
"""Slurm's NO_VAL, which stands for no value; the next number, INFINITE, stands for no limit."""


def as_number(value: Any) -> float | None:
    """Return the number in 3 or {"set": true, "infinite": false, "number": 3}; None if it has no value or no limit.

    >>> as_number(3), as_number({"set": True, "infinite": False, "number": 4}), as_number({"set": False, "number": 0})
    (3.0, 4.0, None)
    """
    if isinstance(value, Mapping):
        if not value.get("set") or value.get("infinite"):
            return None
        value = value.get("number")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return None if NO_VALUE <= value <= NO_VALUE + 1 else float(value)


def as_words(value: Any) -> frozenset[str]:
    """Return the states in "RUNNING", "idle+drain" or ["RUNNING", "COMPLETING"], in upper case.

    >>> sorted(as_words(["RUNNING", "COMPLETING"])), sorted(as_words("idle"))
    (['COMPLETING', 'RUNNING'], ['IDLE'])
    """
    texts = value if isinstance(value, list) else [value]
    return frozenset(word.upper() for text in texts if isinstance(text, str) for word in re.findall(r"[A-Za-z_]+", text))


def as_text(value: Any) -> str:
    """Return a string, or a list of strings (as some versions write it) joined by commas; "" for anything else."""
    if isinstance(value, list):
        return ",".join(item for item in value if isinstance(item, str))
    return value if isinstance(value, str) else ""


def printable(text: str) -> str:
    """Return a user's text without control characters and cut to `MAX_TEXT`, safe for terminals and logs."""
    clean = re.sub(f"[{CONTROL}\\u200b-\\u200f\\u202a-\\u202e\\u2066-\\u2069\\ufeff\\ud800-\\udfff]", " ", text).strip()
    return clean if len(clean) <= MAX_TEXT else clean[: MAX_TEXT - 3] + "..."
