"""The options by which jobs share GPUs, and which of them do, as text."""

from __future__ import annotations

from collections.abc import Mapping

import click

import gavel_py as gp
from gavel_py.cli.output import counted, number, table_text

__all__ = ["check_known", "min_gain_of", "min_gain_option", "sharing_option", "sharing_text"]

sharing_option = click.option(
    "--sharing", is_flag=True, help="Let jobs share GPUs two by two, where the profile knows how fast they are then."
)
min_gain_option = click.option(
    "--min-gain",
    type=click.FloatRange(1.0),
    metavar="G",
    help="With --sharing: only pairs that do more than G times what one of them does alone [1].",
)

MOST_PAIRS = 10
"""Pairs that are listed, those with the most GPUs; the JSON has them all."""


def min_gain_of(sharing: bool, min_gain: float | None) -> float:
    """Return the least gain of pairs; raises `UsageError` where nobody is to share."""
    if min_gain is not None and not sharing:
        raise click.UsageError("--min-gain says which pairs of jobs may share GPUs; give --sharing with it")
    return min_gain or 1.0


def check_known(profile: gp.Profile, pairs: object) -> None:
    """Raise unless something is known of pairs: what came of asking the profile."""
    if pairs is None:
        raise gp.InputError(f"profile {profile.name!r} knows no speeds of jobs that share GPUs, which --sharing needs")


def sharing_text(label: str, allocation: gp.Allocation, num_gpus: Mapping[str, float]) -> str:
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
