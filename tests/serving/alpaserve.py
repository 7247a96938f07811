"""Cases of AlpaServe (Li et al., OSDI 2023) as traces and groups: 24 models of 2.6 B parameters on 16 GPUs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import gavel_py as gp

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "alpaserve"

OVERHEADS = gp.ServingOverheads(request_seconds=0.011, per_stage=0.009)
"""Of their simulator."""

LATENCY = 0.238
"""Of one bert-2.6b on one V100: table 1 of the paper."""

STAGES = {(1, 1): [LATENCY], (4, 1): [0.0890], (1, 8): [0.0329] * 8}
"""By operator and pipeline parallelism; the last two were not published, and are fitted to their results."""

RATES = {f"bert-{n}": 40 * (n + 1) ** -0.5 / sum((m + 1) ** -0.5 for m in range(24)) for n in range(24)}
"""40 requests/s by a power law."""


class Case(NamedTuple):
    """A row of their table: scale of the SLO, shape and groups, attainment in their simulator and on 16 GPUs."""

    scale: float
    shape: tuple[int, int]
    groups: list[gp.ModelGroup]
    simulated: float
    measured: float


def published() -> Iterator[Case]:
    """Yield the cases of the published tables."""
    simulated, measured = ((DATA / name).read_text().splitlines() for name in ("res_sim.tsv", "res_real.tsv"))
    for row, real in zip(simulated, measured, strict=True):
        cells = row.split("\t")
        shapes = [(int(op), int(pp)) for op, pp in re.findall(r"dp=1, op=(\d+), pp=(\d+)", row)]
        held = ast.literal_eval(row[row.index("group_models=") + 13 : row.rindex(")\t")])
        groups = [gp.ModelGroup({f"bert-{m}": STAGES[shape] for m in ms}, shape[0]) for shape, ms in zip(shapes, held, strict=True)]
        yield Case(float(cells[9]), shapes[0], groups, float(cells[-2]), float(real.split("\t")[-2]))
