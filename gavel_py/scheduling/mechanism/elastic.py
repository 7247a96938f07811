"""Selection with numbers of GPUs: which jobs run in a round, on which type, and on how many GPUs.

Each job has options, (type, number of GPUs), each with a worth. `best_options` chooses at most one option per job within the GPUs
of each type, so that the total worth is largest. The linear relaxation over classes of equal jobs has nearly integral solutions,
with at most one split class per type; a small integer program decides on what remains after rounding down. `choose_promised`
delivers an allocation with such worths, and `choose_by_goodput` decides without one. `reduced_to_limits` takes GPUs away where
limits require it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from gavel_py.optimization.formulation.linear_rows import SparseMatrix
from gavel_py.optimization.solving.highs import LinearProgram, solve_whole, solved_once
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.row_hashing import number_equal
from gavel_py.problem.tolerances import DEFICIT_ROUNDING, WHOLE_TOLERANCE
from gavel_py.scheduling.mechanism.demand import GangSelection, RoundDemand, SizeDemand, raised_scores_of
from gavel_py.scheduling.mechanism.limits import RoundLimit

logger = logging.getLogger(__name__)

FEW_CLASSES = 60
"""Maximum number of classes in the integer program for the GPUs that rounding leaves over."""

FEW_JOBS = 60
"""Up to this number of jobs, the integer program decides on all of them, since rounding is worst if few jobs fill a type."""

MANY_CLASSES, SAMPLE, NEAR = 500, 150, 3
"""With more than `MANY_CLASSES`, the relaxation starts with the `NEAR` best entries of each class, at prices from about `SAMPLE`
classes."""

CLOSE, FEW_ENTRIES = 2e-5, 1000
"""If the gap is above `CLOSE`, an integer program decides on all entries that a better selection may contain, if these are at most
`FEW_ENTRIES`."""

MOST_NODES = 200
"""Limit on the search tree of integer programs, which nearly always end at the root."""

WAITING = 1.1
"""λ: the cost of a waiting job relative to one that runs in its slowest option (Sia, SOSP 2023, section 3.4)."""

POWER = -0.5
"""p: exponent of the relative goodput (Sia); the smaller it is, the less speed beyond that of the slowest option counts."""

KEEPS = 0.02
"""Worth of leaving a job where it runs, so that running jobs continue in preference to equal ones."""

FACTORS, FEW_FACTORS, MANY_JOBS = 32, 8, 100_000
"""Restart factors are rounded to multiples of 1/FACTORS (1/FEW_FACTORS for many jobs), so that jobs of similar age are equal."""

SMALLEST = 1e-9
"""Smallest relative speed whose power is taken, and smallest gain that counts."""

KEEPS_GPUS = 0.5
"""Worth of the present number of GPUs, in GPUs for each GPU-round that is promised per round, so that numbers change rarely."""


@dataclass(frozen=True, eq=False)
class SizeOptions:
    """The C options (type, number of GPUs) of G classes of equal jobs.

    index: (N,) the class of each job; sizes: (G,) number of jobs in each; types, gpus: (C,); worths: (G, C), 0 or less where a job
    should rather wait or cannot run.
    """

    index: Indices
    sizes: Indices
    types: Indices
    gpus: Indices
    worths: Floats


@dataclass(frozen=True, eq=False)
class Selection:
    """The chosen options. options: (N,), -1 for jobs that wait; worth: total worth; bound: an upper bound on the total worth."""

    options: Indices
    worth: float
    bound: float

    @property
    def gap(self) -> float:
        """The difference between worth and bound, relative to the bound."""
        return (self.bound - self.worth) / self.bound if self.bound > 0 else 0.0


def best_options(options: SizeOptions, capacities: Indices) -> Selection:
    """Return a selection of options of nearly or exactly the largest worth within (K,) GPUs, with an upper bound."""
    classes, columns = np.nonzero(options.worths > 0)
    if not len(classes):
        return Selection(np.full(len(options.index), -1, dtype=np.int64), 0.0, 0.0)
    program = _Program(options, capacities, classes, columns)
    if options.sizes.sum() <= FEW_JOBS:
        chosen = program.whole(np.zeros(len(classes)), np.ones(len(classes), dtype=bool))
        bound = program.worth(chosen)
    else:
        relaxed, losses = program.relaxed()
        kept = program.without_least(np.floor(relaxed + WHOLE_TOLERANCE))
        chosen, bound = program.whole(kept, program.left_over(kept)), program.worth(relaxed)
        useful = losses < bound - program.worth(chosen)  # a selection with any other entry is worse than the chosen one
        if bound - program.worth(chosen) > CLOSE * bound and useful.sum() <= FEW_ENTRIES:
            chosen = max(chosen, program.whole(np.zeros(len(classes)), useful), key=program.worth)
    taken = np.zeros(options.worths.shape, dtype=np.int64)
    taken[classes, columns] = chosen
    return Selection(_dealt(options, taken), program.worth(chosen), max(bound, program.worth(chosen)))


@dataclass(frozen=True, eq=False)
class _Program:
    """max Σ worth x with Σ_c x_gc <= n_g and Σ gpus x <= c_j, over the E pairs of classes and options with a positive worth."""

    options: SizeOptions
    capacities: Indices
    classes: Indices
    columns: Indices

    @cached_property
    def worths(self) -> Floats:
        """(E,)."""
        return self.options.worths[self.classes, self.columns]

    @cached_property
    def gpus(self) -> Floats:
        """(E,)."""
        return self.options.gpus[self.columns].astype(float)

    @cached_property
    def types(self) -> Indices:
        """(E,)."""
        return self.options.types[self.columns]

    def worth(self, values: Floats) -> float:
        """Return the sum of the worths of (E,) numbers of jobs."""
        return float(self.worths @ values)

    def relaxed(self) -> tuple[Floats, Floats]:
        """Return (E,) the best numbers of jobs, which need not be whole, and the (E,) reduced costs of entries, in worth.

        With many classes, the program starts with the entries that are best at the prices of a sample of classes. Entries that are
        better at its own prices are added until there are none (sifting).
        """
        jobs, gpus, values = self.options.sizes.astype(float), self.capacities.astype(float), np.zeros(len(self.worths))
        entries = np.arange(len(self.worths))
        if len(jobs) > MANY_CLASSES:
            sample = np.arange(len(jobs)) % (len(jobs) // SAMPLE) == 0
            some = np.flatnonzero(sample[self.classes])
            entries = self._best_at(self._prices(some, jobs, gpus * (jobs[sample].sum() / jobs.sum()))[1])
        while True:
            found, prices, gains = self._prices(entries, jobs, gpus)
            losses = gains[self.classes] + prices[self.types] * self.gpus - self.worths
            better = losses < -SMALLEST
            better[entries] = False
            if not better.any():
                values[entries] = found
                return values, losses
            entries = np.union1d(entries, np.flatnonzero(better))

    def _prices(self, entries: Indices, jobs: Floats, gpus: Floats) -> tuple[Floats, Floats, Floats]:
        """Return the optimum over some entries, its (K,) prices of GPUs, and (G,) the gain of a job of each class at them."""
        program = self._of(entries, jobs, gpus)
        solution, types = solved_once(program), len(gpus)
        gains = np.zeros(len(jobs))
        gains[np.unique(self.classes[entries])] = solution.duals[:-types]
        return solution.values, solution.duals[-types:] / np.maximum(gpus, 1.0), gains

    def _best_at(self, prices: Floats) -> Indices:
        """Return the `NEAR` entries of each class with the largest worth minus the price of their GPUs."""
        order = np.lexsort([prices[self.types] * self.gpus - self.worths, self.classes])
        ordered = self.classes[order]
        within = np.arange(len(order)) - np.searchsorted(ordered, ordered)
        return np.sort(order[within < NEAR])

    def without_least(self, values: Floats) -> Floats:
        """Return whole (E,) values less one job in each entry of least worth per GPU, so that the integer program has a choice."""
        taken = np.flatnonzero(values >= 1)
        fewer = values.copy()
        fewer[taken[np.argsort((self.worths / self.gpus)[taken], kind="stable")[: FEW_CLASSES // 2]]] -= 1
        return fewer

    def left_over(self, values: Floats) -> Mask:
        """Return (E,) the entries of the classes with waiting jobs that have most to gain."""
        count = len(self.options.sizes)
        waiting = self.options.sizes - np.bincount(self.classes, values, count) > WHOLE_TOLERANCE
        used = np.bincount(self.types, values * self.gpus, len(self.capacities))
        fits = self.gpus <= (self.capacities - used)[self.types] + WHOLE_TOLERANCE
        best = np.zeros(count)
        np.maximum.at(best, self.classes[fits], (self.worths / self.gpus)[fits])
        some = np.flatnonzero(waiting & (best > 0))
        return np.isin(self.classes, some[np.argsort(-best[some], kind="stable")[:FEW_CLASSES]])

    def whole(self, values: Floats, among: Mask) -> Floats:
        """Return whole (E,) values with jobs added in some entries, as far as the remaining GPUs allow."""
        own = np.flatnonzero(among)
        jobs: Floats = self.options.sizes - np.bincount(self.classes, values, len(self.options.sizes)).astype(float)
        gpus: Floats = self.capacities - np.bincount(self.types, values * self.gpus, len(self.capacities)).astype(float)
        own = own[self.gpus[own] <= gpus[self.types[own]] + WHOLE_TOLERANCE]
        if not len(own):
            return values
        found = solve_whole(self._of(own, jobs, gpus), np.ones(len(own), dtype=bool), nodes=MOST_NODES)
        more = values.copy()
        if found is not None:
            more[own] += found.values
        return more

    def _of(self, entries: Indices, jobs: Floats, gpus: Floats) -> LinearProgram:
        """Return the program of some entries, with (G,) jobs and (K,) GPUs."""
        present, rows = np.unique(self.classes[entries], return_inverse=True)
        count, types = len(present), len(gpus)
        scale = np.maximum(gpus, 1.0)
        places = np.stack([rows.ravel(), count + self.types[entries]], axis=1).ravel()
        values = np.stack([np.ones(len(entries)), self.gpus[entries] / scale[self.types[entries]]], axis=1).ravel()
        matrix = SparseMatrix(places, np.repeat(np.arange(len(entries)), 2), values, (count + types, len(entries)))
        limits = np.concatenate([jobs[present], gpus / scale])
        return LinearProgram(
            costs=-self.worths[entries],
            offset=0.0,
            matrix=matrix,
            limits=limits,
            equalities=0,
            lower=np.zeros(len(entries)),
            upper=jobs[self.classes[entries]],
        )


def _dealt(options: SizeOptions, taken: Indices) -> Indices:
    """Return (N,) the options of jobs, given the (G, C) numbers of jobs of each class in each option; first jobs first."""
    small = options.index.astype(np.uint16) if len(options.sizes) <= 1 << 16 else options.index
    order = np.argsort(small, kind="stable")  # a radix sort of small numbers
    first = np.concatenate([[0], np.cumsum(options.sizes)[:-1]])
    chosen = np.full(len(order), -1, dtype=np.int64)
    classes, columns = np.nonzero(taken)
    numbers = taken[classes, columns]
    before = np.cumsum(taken, axis=1)[classes, columns] - numbers
    starts = np.repeat(first[classes] + before, numbers)
    within = np.arange(len(starts)) - np.repeat(np.cumsum(numbers) - numbers, numbers)
    chosen[order[starts + within]] = np.repeat(columns, numbers)
    return chosen


def choose_by_goodput(demand: RoundDemand) -> GangSelection:
    """Return the jobs of a round with types and numbers of GPUs, by goodput and the cost of restarts (`goodput_options`).

    Raises:
        ValueError: The demand has no `sizes`.
    """
    if demand.sizes is None:
        raise ValueError("the mechanism direct needs a demand with sizes")
    options = goodput_options(demand.sizes, demand.runnable)
    return _selected(best_options(options, demand.capacities), options)


def goodput_options(sizes: SizeDemand, runnable: Mask) -> SizeOptions:
    """Return the options of jobs by goodput, w_i (λ − (r_ic f_ic)^p) with r_ic = T_ic / min_c T_ic.

    f_ic is 1 for the present option of a job, for a waiting job, and for a job that is younger than the time of a restart. For a
    change, it is the part of its age that is left after its restarts and one more, (age − restarts · cost) / (age + cost). So a job
    changes only if this pays off the restart. A waiting job costs λ = 1.1 times as much as one that runs in its slowest option, so
    that many jobs run.

    Source: Jayaram Subramanya et al., Sia (SOSP 2023), section 3.4.

    runnable: (N, K).
    """
    speeds, cost, age = sizes.speeds, sizes.restart_seconds, sizes.age_seconds
    running_on = np.where(sizes.held > 0, sizes.running_on, -1)
    now = speeds.place_of(running_on, sizes.held)
    kept = np.divide(np.maximum(age - sizes.restarts * cost, 0.0), age + cost, out=np.ones(len(age)), where=age + cost > 0)
    parts = FACTORS if len(age) <= MANY_JOBS else FEW_FACTORS
    levels = np.where((age < cost) | (now < 0), parts, np.round(kept * parts)).astype(np.int64)
    alike = number_equal([speeds.kinds, now, levels, sizes.weights, *np.packbits(runnable, axis=1).T], len(age))
    one = alike.first
    able = runnable[one][:, speeds.types]
    table = np.where(able, speeds.table[speeds.kinds[one]], 0.0)
    least = np.where(table > 0, table, np.inf).min(axis=1, keepdims=True, initial=np.inf)
    relative = np.divide(table, least, out=np.zeros(table.shape), where=table > 0)
    stays = now[one][:, None] == np.arange(table.shape[1])
    relative *= np.where(stays, 1.0, levels[one][:, None] / parts)
    worths = np.where(relative > 0, WAITING - np.maximum(relative, SMALLEST) ** POWER + KEEPS * stays, 0.0)
    worths *= sizes.weights[one][:, None]
    return SizeOptions(alike.index, alike.counts, speeds.types, speeds.gpus, worths)


def choose_promised(demand: RoundDemand) -> GangSelection:
    """Return the jobs of a round with types and numbers of GPUs, so that over rounds all get what the allocation promises.

    With `backfill`, GPUs left over go to waiting jobs, each where it is fastest.
    """
    assert demand.sizes is not None  # noqa: S101
    options = promised_options(demand, demand.sizes)
    selection = _selected(best_options(options, demand.capacities), options)
    return _backfilled(selection, demand, demand.sizes) if demand.backfill else selection


def promised_options(demand: RoundDemand, sizes: SizeDemand) -> SizeOptions:
    """Return the options in which jobs are promised time, with one class per job.

    With a claim of c GPU-rounds on a type, of which p are promised in each round, n GPUs are worth score · (2n − n²/c + h), where
    h = KEEPS_GPUS · p on the present number of GPUs and 0 on others. The sum is largest where numbers of GPUs are in proportion to
    claims, so if GPUs are scarce, jobs get fewer GPUs and do not wait: waiting would be followed by rounds on many GPUs, on which
    a GPU does less work. A fixed gang of s GPUs is worth score · s.

    `scores_of` counts an elastic job as a gang of one GPU, as allocations do: the hysteresis of a gang of s GPUs is divided by
    √s, so that elastic jobs on many GPUs would otherwise change types in nearly every round.
    """
    speeds, elastic, shape = sizes.speeds, sizes.is_elastic[:, None], demand.fractions.shape
    least, most = np.zeros(shape), np.zeros(shape)
    for option in np.argsort(speeds.gpus, kind="stable").tolist():
        j, size, there = int(speeds.types[option]), float(speeds.gpus[option]), sizes.promised[:, option]
        least[:, j] = np.where(there & (least[:, j] == 0), size, least[:, j])
        most[:, j] = np.where(there, size, most[:, j])
    claims = np.maximum(demand.claims, np.maximum(least, 1.0))
    rounds = np.where(elastic, np.minimum(claims, np.maximum(most, 1.0)), 1.0)
    scores = raised_scores_of(
        replace(
            demand,
            deficits=demand.deficits / rounds,
            fractions=np.minimum(demand.fractions / rounds, 1.0),
            runnable=demand.runnable & (most > 0),
            num_gpus=np.where(sizes.is_elastic, 1, np.maximum(most.max(axis=1, initial=0), 1)).astype(np.int64),
        )
    )
    types, gpus = speeds.types, speeds.gpus.astype(float)
    stays = (sizes.held[:, None] == speeds.gpus) & (sizes.running_on[:, None] == types)
    held = KEEPS_GPUS * np.maximum(demand.fractions, least)[:, types] * stays
    units = np.where(elastic, 2 * gpus - gpus**2 / claims[:, types] + held, gpus)
    possible = np.isfinite(scores)[:, types] & sizes.promised & (gpus <= demand.capacities[types])
    worths = np.where(possible, np.maximum(scores[:, types], DEFICIT_ROUNDING) * units, 0.0)
    count = len(scores)
    return SizeOptions(np.arange(count), np.ones(count, dtype=np.int64), types, speeds.gpus, worths)


def _selected(selection: Selection, options: SizeOptions) -> GangSelection:
    """Return a selection by type and number of GPUs."""
    logger.debug("numbers of GPUs: worth %.6g, gap %.1e", selection.worth, selection.gap)
    chosen, columns = selection.options, np.full(len(selection.options), -1, dtype=np.int64)
    gpus, runs = np.zeros_like(columns), np.flatnonzero(selection.options >= 0)
    columns[runs], gpus[runs] = options.types[chosen[runs]], options.gpus[chosen[runs]]
    return GangSelection(columns, gpus)


def _backfilled(selection: GangSelection, demand: RoundDemand, sizes: SizeDemand) -> GangSelection:
    """Return the selection with the remaining GPUs given to waiting jobs, largest claims first, each where it is fastest."""
    speeds, columns, gpus = sizes.speeds, selection.columns.copy(), selection.num_gpus.copy()
    free = demand.capacities - np.bincount(columns[columns >= 0], gpus[columns >= 0], len(demand.capacities)).astype(np.int64)
    waiting = np.flatnonzero((columns < 0) & demand.runnable.any(axis=1))
    for i in waiting[np.argsort(-demand.claims[waiting].max(axis=1, initial=-np.inf), kind="stable")].tolist():
        if not free.any():
            break
        able = demand.runnable[i][speeds.types] & (speeds.gpus <= free[speeds.types])
        rates = np.where(able, speeds.table[speeds.kinds[i]], 0.0)
        best = int(rates.argmax())
        if rates[best] > 0:
            columns[i], gpus[i] = speeds.types[best], speeds.gpus[best]
            free[columns[i]] -= gpus[i]
    return GangSelection(columns, gpus)


def reduced_to_limits(
    columns: Indices, num_gpus: Indices, scores: Floats, limits: Sequence[RoundLimit], sizes: SizeDemand | None
) -> tuple[Indices, Indices]:
    """Return a selection that keeps all limits: (N,) types and (N,) numbers of GPUs.

    Of the jobs that count, those with the best scores keep their GPUs; an elastic job may get fewer, one that does not fit waits.

    Args:
        columns: (N,) selected types, -1 for none.
        num_gpus: (N,) numbers of GPUs.
        scores: (N, K).
        limits: What is left of all limits.
        sizes: The data of elastic jobs, None without such jobs.
    """
    rows = np.flatnonzero(columns >= 0)
    if not any(limit.is_exceeded(float(limit.costs(rows, columns[rows], num_gpus[rows]).sum())) for limit in limits):
        return columns, num_gpus
    columns, num_gpus = columns.copy(), num_gpus.copy()
    left = list(limits)
    for row in rows[np.argsort(-scores[rows, columns[rows]], kind="stable")].tolist():
        j, least = columns[row], np.array([row])
        for size in _numbers_of_gpus(row, int(j), int(num_gpus[row]), sizes):
            costs = [float(limit.costs(least, columns[least], np.array([size]))[0]) for limit in left]
            if not any(cost > 0 and limit.is_exceeded(cost) for limit, cost in zip(left, costs, strict=True)):
                num_gpus[row] = size
                left = [limit.less(cost) for limit, cost in zip(left, costs, strict=True)]
                break
        else:
            columns[row] = -1
    return columns, num_gpus


def _numbers_of_gpus(row: int, column: int, size: int, sizes: SizeDemand | None) -> list[int]:
    """Return the numbers of GPUs that a job may have instead of this one, the largest first."""
    if sizes is None or not sizes.is_elastic[row]:
        return [size]
    speeds = sizes.speeds
    options = (speeds.types == column) & (speeds.gpus <= size) & sizes.promised[row] & (speeds.table[speeds.kinds[row]] > 0)
    return sorted({size, *speeds.gpus[options].tolist()}, reverse=True)
