"""Which jobs share GPUs, as text."""

from __future__ import annotations

from collections.abc import Mapping

import gavel_py as gp
from gavel_py.cli.output import counted, number, table_text

__all__ = ["sharing_text"]

MOST_PAIRS = 10
"""Pairs that are listed, those with the most GPUs; the JSON has them all."""


def sharing_text(label: str, allocation: gp.Allocation, num_gpus: Mapping[str, int]) -> str:
    """Return the pairs that share the most, and how many there are in all; label: the policy, where there are several."""
    pairs = allocation.pairs
    heading = f" under {label}" if label else ""
    if pairs is None or not len(pairs):
        return f"No two jobs share GPUs{heading}.\n"
    found = [
        (num_gpus[each["jobs"][0]] * each["time_fraction"], each)
        for each in pairs.to_list(allocation.job_ids, allocation.accelerator_types)
    ]
    most = sorted(found, key=lambda pair: -pair[0])[:MOST_PAIRS]
    rows = [[*each["jobs"], each["accelerator"], f"{each['time_fraction']:.1%}", f"{each['gain']:.2f}"] for _, each in most]
    table = table_text(f"Jobs that share GPUs{heading}", ["job", "with", "on", "time", "gain"], rows, text_columns=3)
    more = f", the first {MOST_PAIRS} of them are shown" if len(pairs) > MOST_PAIRS else ""
    told = f"{counted(len(pairs), 'pair')} on {number(sum(gpus for gpus, _ in found))} GPUs on average{more}\n"
    told += "gain: what both do together, in parts of what one of them does alone\n"
    return table + told
