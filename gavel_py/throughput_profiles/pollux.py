"""The tables of Pollux (OSDI 2021) and Sia (SOSP 2023) of jobs that adapt their batch size: progress per second by number of GPUs.

A folder has a folder for each model, with placements.csv (step and synchronisation time by placement and local batch size),
scalability.csv (the same by nodes and GPUs) and validation-BATCH.csv (progress and gradient statistics of each epoch). The
accelerator is in the names of the first two (placements-rtx.csv), or t4 without one.

A step on batches of b examples is worth E_b(epoch) = (var + sqr) / (var / (b / b_0) + sqr) steps on the smallest batch b_0
(McCandlish et al., An empirical model of large-batch training, 2018). Progress per second is E_b over the time of a step, by the
best b of each epoch, and over all epochs the total progress over the total time. It is the throughput of the job type named
after the model. Job types "MODEL (batch size b)" keep one batch size.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gavel_py.errors import Fault, InputError, refuse
from gavel_py.io import reading
from gavel_py.io.records import number_of
from gavel_py.problem.arrays import Floats

EPOCHS = {"bert": 2, "cifar10": 100, "deepspeech2": 80, "imagenet": 90, "ncf": 10, "yolov3": 50}
"""Epochs until the models reach the accuracy that their papers report, of petuum/adaptdl, branch osdi21-artifact; else all."""

ACCELERATOR = "t4"
"""Accelerator of files that name none: that of Pollux's cluster."""

BATCH_SIZES = 24
"""Number of batch sizes that are tried for each number of GPUs."""

MAX_NODES = 16
"""The measurements extend to 16 nodes."""

FILE = re.compile(r"placements(?:-(.+))?\.csv")

Placed = tuple[str, dict[str, Any]]
"""Place for messages and fields of a `Measurement`."""

TIMES = ("step_time", "sync_time")


def _table(path: Path, columns: Iterable[str]) -> Floats:
    """Return (rows, columns) of a CSV file as numbers. Raises `InputError` with all cells that are not numbers."""
    found, faults = [], []
    for where, row in reading.csv_rows(path, required=tuple(columns)):
        values = [number_of(row.get(name, "")) for name in columns]
        faults += [
            Fault(where, name, f"must be a number, found {row.get(name, '')!r}")
            for name, value in zip(columns, values, strict=True)
            if not math.isfinite(value)
        ]
        found.append(values)
    InputError.raise_any(faults)
    return np.array(found, dtype=float)


@dataclass(frozen=True, eq=False)
class _MeasuredModel:
    """What is known of one model, on any accelerator: the progress and the gradient statistics of each epoch, by batch size."""

    name: str
    by_batch: dict[int, Floats]

    @classmethod
    def of(cls, folder: Path) -> _MeasuredModel:
        files = {int(path.stem.split("-")[1]): path for path in folder.glob("validation-*.csv") if path.stem[11:].isdigit()}
        refuse(str(folder), (not files, "", "has no validation-BATCH.csv, which has the statistical efficiency"))
        columns = "progress", "grad_sqr", "grad_var"
        return cls(folder.name, {batch: _table(path, columns) for batch, path in sorted(files.items())})

    @cached_property
    def epochs(self) -> int:
        known = min(len(table) for table in self.by_batch.values())
        return min(known, EPOCHS.get(self.name, known))

    @cached_property
    def steps(self) -> Floats:
        """(E,) steps on the smallest batch that each epoch takes."""
        progress = np.min([table[: self.epochs, 0] for table in self.by_batch.values()], axis=0)
        return np.diff(progress, prepend=0.0)

    @property
    def batches(self) -> list[int]:
        return list(self.by_batch)

    def efficiency(self, batch: float) -> Floats:
        """Return (E,) what a step on this batch is worth in each epoch, in steps on the smallest batch."""
        low = max(each for each in self.batches if each <= batch)
        high = min(each for each in self.batches if each >= batch)
        part = 0.0 if low == high else (batch - low) / (high - low)
        below, above = self.by_batch[low][: self.epochs, 1:], self.by_batch[high][: self.epochs, 1:]
        sqr, var = ((1 - part) * below + part * above).T
        worth: Floats = (var + sqr) / (var / (batch / self.batches[0]) + sqr)
        return worth


class _Speeds:
    """Times of steps of one model on one accelerator, by the GPUs on each node and the batch size of each GPU."""

    def __init__(self, model: _MeasuredModel, placements: Path) -> None:
        self.model = model
        suffix = placements.name.removeprefix("placements")
        raw = _table(placements, ("placement", "local_bsz", *TIMES))
        rows = [([int(digit) for digit in str(int(row[0]))], row[1:]) for row in raw]
        self.per_node = max(max(gpus) for gpus, _ in rows)
        self._lines: dict[tuple[int, ...], Floats] = {}
        for gpus, row in rows:
            self._lines.setdefault(tuple(gpus), np.zeros((0, 3)))
            self._lines[tuple(gpus)] = np.vstack([self._lines[tuple(gpus)], row])
        self.least, self.most = int(raw[:, 1].min()), int(raw[:, 1].max())
        self._scaled = _table(placements.with_name(f"scalability{suffix}"), ("num_nodes", "num_replicas", "local_bsz", *TIMES))
        means: dict[tuple[float, ...], list[Floats]] = {}
        for gpus, row in rows:
            means.setdefault((len(gpus), sum(gpus), row[0]), []).append(row[1:])
        self._points = np.array([*means, *map(tuple, self._scaled[:, :3].tolist())])
        self._values = np.vstack([[np.mean(each, axis=0) for each in means.values()], self._scaled[:, 3:]])

    @cached_property
    def _between(self) -> Any:
        from scipy.interpolate import LinearNDInterpolator

        return LinearNDInterpolator(self._points, self._values)

    def _line(self, gpus: tuple[int, ...]) -> Floats | None:
        """Return the measured times of a placement, by local batch size."""
        found = self._lines.get(min(gpus[i:] + gpus[:i] for i in range(len(gpus))))
        return None if found is None or len(found) < 2 else found[np.argsort(found[:, 0])]

    def _seconds(self, gpus: tuple[int, ...], local: int) -> tuple[float, float]:
        """Return the time of a step and the part of it for synchronisation; NaN if unknown."""
        line = self._line(gpus)
        if line is not None:
            step, sync = (float(np.interp(local, line[:, 0], line[:, n], left=np.nan, right=np.nan)) for n in (1, 2))
            return step, sync
        step, sync = self._between([[min(len(gpus), MAX_NODES), sum(gpus), local]])[0].tolist()
        return step, sync

    def _most_local(self, gpus: tuple[int, ...]) -> int:
        """Return the largest batch size of one GPU in a placement, 0 if none was measured."""
        found = self._lines.get(min(gpus[i:] + gpus[:i] for i in range(len(gpus))))
        if found is not None:
            return min(int(found[:, 0].max()), self.most)
        fitting = self._scaled[(self._scaled[:, 0] >= len(gpus)) & (self._scaled[:, 1] >= sum(gpus)), 2]
        return min(int(fitting.max()), self.most) if len(fitting) else 0

    def progress(self, count: int, batch: int | None = None) -> float:
        """Return the progress per second on this many GPUs on as few nodes as possible, 0 if it cannot run.

        batch: the batch size to keep, by default the best of each epoch.
        """
        model, gpus = self.model, (self.per_node,) * (count // self.per_node)
        gpus = (*gpus, count % self.per_node) if count % self.per_node else gpus
        most, (first, *_, last) = self._most_local(gpus), (model.batches * 2)
        if not most or (batch is None and self.least * count > last):
            return 0.0
        sizes = np.geomspace(max(first, self.least * count), last, BATCH_SIZES) if batch is None else [batch]
        best = np.zeros(model.epochs)
        for size in sorted({round(float(each)) for each in sizes}):
            local = math.ceil(size / count - 1e-8)
            passes = math.ceil(local / most - 1e-8)
            passes = max(2, passes) if count == 1 and size > first else passes  # gradients of one pass have no variance
            each = min(math.ceil(local / passes - 1e-8), last // (count * passes))
            if each < self.least:
                if batch is None:
                    continue
                each = self.least
            step, sync = self._seconds(gpus, each)
            if step > 0:
                total = min(max(count * each * passes, first), last)
                best = np.maximum(best, model.efficiency(total) / (step + (passes - 1) * (step - sync)))
        return float(model.steps.sum() / (model.steps / best).sum()) if (best > 0).all() else 0.0


def _counts(per_node: int) -> tuple[list[int], list[int]]:
    """Return the numbers of GPUs of elastic jobs, powers of two within a node and whole nodes, and of those of one batch size."""
    whole = [per_node * nodes for nodes in range(1, MAX_NODES + 1)]
    return [1 << n for n in range(per_node.bit_length()) if 1 << n < per_node] + whole, [*range(1, 17), *range(18, 65, 2)]


def rows(path: Path) -> list[Placed]:
    """Return the measurements of all models, each with its place for messages. Raises `InputError`, also if there are none."""
    placed: list[Placed] = []
    for folder in sorted({file.parent for file in path.glob("*/placements*.csv")}):
        model = _MeasuredModel.of(folder)
        for file in sorted(folder.glob("placements*.csv")):
            if match := FILE.fullmatch(file.name):
                placed += _measured(model, file, match[1] or ACCELERATOR)
    refuse(str(path), (not placed, "", "must be a folder that has a folder with placements.csv for each model"))
    return placed


def _measured(model: _MeasuredModel, file: Path, accelerator: str) -> Iterator[Placed]:
    speeds = _Speeds(model, file)
    elastic, fixed = _counts(speeds.per_node)
    for batch, counts in ((None, elastic), *((batch, fixed) for batch in model.batches)):
        for count in counts:
            rate = speeds.progress(count, batch)
            if rate > 0:
                yield (
                    str(file),
                    {
                        "job_type": model.name if batch is None else f"{model.name} (batch size {batch})",
                        "num_gpus": count,
                        "accelerator": accelerator,
                        "steps_per_second": rate,
                        "source": f"{model.name}/{file.name}",
                        "family": model.name,
                        "batch_size": batch,
                    },
                )
