"""A run as plain data that JSON can hold, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from gavel_py.report.runs.numbers import array_of, list_of, values_of
from gavel_py.report.runs.run import OverTime, Run, Stay

__all__ = ["DAMAGED", "document_of", "labels_from", "run_from"]

DAMAGED = (KeyError, TypeError, ValueError, AttributeError)
"""What `run_from` raises for a document that is no run."""

KINDS = {"str": (str,), "int": (int,), "float": (int, float)}
STAY = {field.name: KINDS[str(field.type)] for field in fields(Stay)}
BY_TYPE = ("used", "prices")
OVER_ALL = ("seconds", "active_jobs", "promised_gpu_seconds", "delivered_gpu_seconds")


def document_of(run: Run) -> dict[str, Any]:
    """Return the run as plain data; a number that is not finite becomes None."""
    return {
        "labels": dict(run.labels),
        "metrics": values_of(dict(run.metrics)),
        "jct_seconds": list_of(run.jct_seconds),
        "fairness": list_of(run.fairness),
        "over_time": None if run.over_time is None else _over_time_document(run.over_time),
        "stays": [[getattr(stay, name) for name in STAY] for stay in run.stays],
        "shares": {job_type: dict(shares) for job_type, shares in run.shares.items()},
    }


def run_from(document: Mapping[str, Any]) -> Run:
    """Return what `document_of` described; raises one of `DAMAGED` for what is no run."""
    over_time = document["over_time"]
    return Run(
        labels=labels_from(document["labels"]),
        metrics=_metrics(document["metrics"]),
        jct_seconds=array_of(document["jct_seconds"]),
        fairness=array_of(document["fairness"]),
        over_time=None if over_time is None else _over_time(over_time),
        stays=tuple(map(_stay, document["stays"])),
        shares={job_type: {name: float(part) for name, part in each.items()} for job_type, each in document["shares"].items()},
    )


def _over_time_document(over_time: OverTime) -> dict[str, Any]:
    by_type = {part: {name: list_of(curve) for name, curve in getattr(over_time, part).items()} for part in BY_TYPE}
    return by_type | {part: list_of(getattr(over_time, part)) for part in OVER_ALL}


def _over_time(document: Mapping[str, Any]) -> OverTime:
    by_type = {part: {name: array_of(curve) for name, curve in document[part].items()} for part in BY_TYPE}
    over_all = {part: array_of(document[part]) for part in OVER_ALL}
    stretches = len(over_all["seconds"]) - 1
    curves = [*(each for part in by_type.values() for each in part.values()), *(over_all[name] for name in OVER_ALL[1:])]
    if stretches < 0 or any(len(curve) != stretches for curve in curves) or not np.isfinite(over_all["seconds"]).all():
        raise ValueError(f"curves over time must have {max(0, stretches)} stretches each, one fewer than there are limits")
    return OverTime(
        seconds=over_all["seconds"],
        used=by_type["used"],
        prices=by_type["prices"],
        active_jobs=over_all["active_jobs"],
        promised_gpu_seconds=over_all["promised_gpu_seconds"],
        delivered_gpu_seconds=over_all["delivered_gpu_seconds"],
    )


def _stay(values: Sequence[Any]) -> Stay:
    for (name, kinds), value in zip(STAY.items(), values, strict=True):
        if type(value) not in kinds or (isinstance(value, float) and not math.isfinite(value)):
            raise TypeError(f"{name!r} of a stay is {value!r}")
    return Stay(*values)


def labels_from(labels: Mapping[str, Any]) -> dict[str, str | float | None]:
    """Return the labels of a run, checked; raises one of `DAMAGED` for what are none."""
    return dict(_checked(each, (str, int, float)) for each in labels.items())


def _metrics(metrics: Mapping[str, Any]) -> dict[str, float | None]:
    return dict(_checked(each, (int, float)) for each in metrics.items())


def _checked(item: tuple[object, Any], kinds: tuple[type, ...]) -> tuple[str, Any]:
    name, value = item
    if not isinstance(name, str) or not (value is None or type(value) in kinds):
        raise TypeError(f"{name!r} is {value!r}")
    return name, value
