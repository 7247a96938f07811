"""GPUs in Slurm's lists of generic resources: gpu:v100:4(S:0-1), gres:gpu:2, gres/gpu=4."""

from __future__ import annotations

import re

__all__ = ["gpus_in"]

AFTER = re.compile(r"\([^()]*\)")
"""Which sockets and which numbers, as in (S:0-1) and (IDX:0,2)."""

GPU = re.compile(r"(?:^|,)\s*(?:gres[:/])?gpu(?:[:=]([^:=,()]*?))?(?:[:=](\d+))?\s*(?=,|$)")


def gpus_in(text: str) -> dict[str, int]:
    """Return {type: GPUs}, the type "" where none is named; what is no GPU does not count.

    >>> gpus_in("gpu:v100:4(S:0-1),nic:1"), gpus_in("gres:gpu:2"), gpus_in("gpu"), gpus_in("gpu:a100")
    ({'v100': 4}, {'': 2}, {'': 1}, {'a100': 1})
    """
    found: dict[str, int] = {}
    for name, count in GPU.findall(AFTER.sub("", text)):
        if name.isdecimal() and not count:
            name, count = "", name
        found[name] = found.get(name, 0) + int(count or 1)
    return found
