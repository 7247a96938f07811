"""What the cutting of GPUs costs: rows that keep fractions from being promised which no packing on single GPUs can deliver.

Let f be a function with f(s_1) + f(s_2) + ... <= 1 wherever s_1 + s_2 + ... <= 1 (a dual feasible function). At any one time a GPU
holds jobs whose fractions sum to at most 1, or is one of a whole gang's, so that Σ_i f(s_i) X_ij <= c_j with f(s) = s for whole
gangs, whatever is where. Such functions are

    cut_λ(s) = 0 below λ, 1 above 1 - λ, and s between, for 0 < λ <= 1/2:  nothing else fits beside a large job but small ones;
    part_k(s) = s where (k+1) s is whole, or else ⌊(k+1) s⌋ / k:  of jobs above 1/(k+1), k fit,

and what they make of each other (Martello and Toth, 1990; Fekete and Schepers, 2001). The same holds with the parts of the GPU's
memory that jobs take in place of their fractions.

The rows that an answer breaks, of those that are added only where they bind.

CPUs and host memory as rows of the program: jobs that need many of them per GPU leave GPUs without.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from gavel_py.optimization.colocation import PairColumns, lonely_rows
from gavel_py.optimization.columns import TwoKinds, two_kinds
from gavel_py.optimization.gang_cuts import gang_rows, kind_rows
from gavel_py.optimization.linear_rows import Load, Row, Rules
from gavel_py.optimization.mixes import LEAST_EXCESS, ONE_EACH
from gavel_py.optimization.packing_rows import packing_rows
from gavel_py.optimization.time_shares import ClassTimes, JobTimes
from gavel_py.problem.eligibility import GpuMemory
from gavel_py.problem.problem import AllocationProblem

__all__ = ["fraction_rows", "missing_rows", "node_rows"]

Floats = NDArray[np.float64]

MOST_PARTS = 20

"""The largest k. What jobs of a twentieth lose by rounding is at most as much again."""

MEMORY_PARTS = 64

"""Into which the memory of a GPU is divided: what jobs take of it may have any value, and there is a function for many of them."""

ROUNDING = 1e-9


def fraction_rows(
    problem: AllocationProblem, fractions: Floats, columns: Mapping[int, Mapping[int, float]] = ONE_EACH
) -> list[Load]:
    """Return the rows for each type that (N, K) `fractions` break most, of those that every packing keeps; none if they break none.

    columns: as in `gang_rows`. None for a problem that was not built from a cluster.
    """
    hosts = problem.hosts
    if hosts is None or (problem.num_gpus >= 1).all():
        return []
    parts = _Functions(problem.num_gpus)
    rows = []
    for j, gpus in enumerate(problem.capacities[: len(hosts.cpus)].tolist()):
        widths = columns.get(j, {j: 1.0})
        times = sum((fractions[:, column] * width for column, width in widths.items()), np.zeros(problem.num_jobs))
        memory = _memory_parts(problem.num_gpus, hosts.gpu_memory, j)
        for what, functions in (("fractions", parts), ("the memory of fractions", None if memory is None else _Functions(memory))):
            counted = None if functions is None else functions.most_broken(times, gpus)
            if counted is not None:
                loads = {column: counted * width for column, width in widths.items()}
                name = f"what {what} of {problem.accelerator_types[j]} can use"
                rows.append(Load(name, loads, len(problem.capacities), gpus))
    return rows


def _memory_parts(num_gpus: Floats, memory: GpuMemory | None, j: int) -> Floats | None:
    """(N,) the part of a GPU's memory that each job with a part of a GPU takes, rounded down, and the GPUs of whole gangs.

    None where nothing is known of it.
    """
    if memory is None or np.isnan(memory.there[j]):
        return None
    taken = np.nan_to_num(memory.needed[:, j]) / memory.there[j]
    taken = np.floor(np.minimum(taken, 1.0) * MEMORY_PARTS + ROUNDING) / MEMORY_PARTS
    small = num_gpus < 1
    return np.where(small, taken, num_gpus) if taken[small].any() else None


class _Functions:
    """What jobs with (N,) parts of a GPU, or whole GPUs, count for by each function."""

    def __init__(self, sizes: Floats) -> None:
        known, self._of = np.unique(sizes, return_inverse=True)
        self._table = np.zeros((1, len(known)))
        if known[-1] > 0:
            self._table = np.pad(_counted(known[known > 0]), ((0, 0), (int((known <= 0).sum()), 0)))

    def most_broken(self, times: Floats, gpus: float) -> Floats | None:
        """Return (N,) what each job counts for by the function by which these times exceed the GPUs most, None if by none."""
        asked = self._table @ np.bincount(self._of, times, self._table.shape[1])
        most = int(asked.argmax())
        if asked[most] <= gpus + LEAST_EXCESS * max(1.0, gpus):
            return None
        counted: Floats = self._table[most][self._of]
        return counted


def _counted(sizes: Floats) -> Floats:
    """(F, S) what a job of each size counts for by each function, by size itself for whole gangs."""
    small = sizes[sizes <= 1 / 2]
    cuts = [sizes, *(_cut(sizes, least) for least in small.tolist())]
    every = [*cuts, *(_part(each, k) for each in cuts for k in range(1, _most_parts(sizes) + 1))]
    return np.where(sizes >= 1, sizes, np.unique(every, axis=0))


def _most_parts(sizes: Floats) -> int:
    return min(MOST_PARTS, int(1 / sizes[0] + ROUNDING))


def _cut(sizes: Floats, least: float) -> Floats:
    return np.where(sizes < least - ROUNDING, 0.0, np.where(sizes > 1 - least + ROUNDING, 1.0, sizes))


def _part(sizes: Floats, k: int) -> Floats:
    multiples = (k + 1) * sizes
    whole = np.abs(multiples - np.round(multiples)) < ROUNDING
    return np.where(whole, sizes, np.floor(multiples) / k)


def missing_rows(
    problem: AllocationProblem, rules: Rules, times: JobTimes | ClassTimes, columns: TwoKinds | PairColumns | None
) -> tuple[list[Row], TwoKinds | PairColumns | None]:
    """Return rows that the time of jobs breaks, none if it breaks none, and the columns that these rows are about.

    columns: those that the times are in. Where nobody shares GPUs, types get a second column (`TwoKinds`) once the faster
    placement of gangs is promised more than nodes have room for.
    """
    if isinstance(columns, PairColumns):
        assert isinstance(times, ClassTimes)  # noqa: S101
        return _rows_of_pairs(columns, times), columns
    fractions = times.fractions
    of_type = columns.columns_of if columns else {}
    rows: list[Row] = [*_rows_of_types(problem, fractions, of_type)]
    if rows:
        return rows, columns
    rows = [*kind_rows(problem, fractions, columns.second if columns else {})]
    if rows and columns is None:
        columns = two_kinds(problem, rules)
        rows = [*kind_rows(columns.problem, columns.unfolded(fractions), columns.second)]
    return rows, columns


def _rows_of_pairs(columns: PairColumns, times: ClassTimes) -> list[Row]:
    """Rows about partners of jobs of their own kind, and, if none is missing, about what whole gangs and fractions can use."""
    lonely = lonely_rows(columns, times)
    if lonely or columns.base.hosts is None:
        return lonely
    parts = times.jobs.spread(columns.folded(times.fractions * columns.parts))
    return [columns.over_all(row) for row in _rows_of_types(columns.base, parts)]


def _rows_of_types(
    problem: AllocationProblem, fractions: Floats, columns: Mapping[int, Mapping[int, float]] = ONE_EACH
) -> list[Load]:
    """Rows about what whole gangs and fractions can use of types."""
    asked = problem, fractions, columns
    return [*gang_rows(*asked), *fraction_rows(*asked), *packing_rows(*asked)]


def node_rows(problem: AllocationProblem) -> list[Load]:
    """Return Σ_i s_i·cpus_per_gpu_i·X_ij <= CPUs of type j, and the same for memory, where jobs could need more than there is.

    None for a problem that was not built from a cluster. That each gang finds all it needs on its nodes is for placement to see to.
    """
    hosts = problem.hosts
    if hosts is None:
        return []
    rows = []
    for name, per_gpu, most in (("CPUs", hosts.cpus_per_gpu, hosts.cpus), ("memory", hosts.memory_gb_per_gpu, hosts.memory_gb)):
        for j in np.flatnonzero(np.isfinite(most)).tolist():
            needs = np.where(problem.runnable[:, j], per_gpu, 0.0)
            if needs.max(initial=0.0) * problem.capacities[j] > most[j]:
                text = f"the {name} of the nodes with {problem.accelerator_types[j]}"
                rows.append(Load(text, {j: needs * problem.num_gpus}, len(most), float(most[j])))
    return rows
