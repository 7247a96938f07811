"""Price decomposition: linear programs of a large number of different jobs, coupled only by the K capacities.

The dual prices of an allocation come from this module only for such programs, otherwise from `level_search.py` or
`formulation/matrices.py`.

At prices p of the GPUs each job decides alone (`BestResponses`), and weak duality gives the dual function

    D(p) = Σ_j p_j c_j + Σ_i max over x_i of (gain of x_i − price of x_i),

which is convex; its minimum is the optimum. `search` finds it by cutting planes in a box of prices that shrinks around the
minimum, first on samples of jobs, then on all jobs. A job with the same response at all prices of the box is fixed and leaves the
search, so that most passes are over few jobs. A small program shares the remaining GPUs among the jobs that are still undecided
when the box is small (`finish`). docs/exact-reduction.md has the proof and an example.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from gavel_py.errors import SolverError
from gavel_py.optimization.checking.certificates import VIOLATION_TOLERANCE, PricedCertificate, Prices, gap, within_capacity
from gavel_py.optimization.formulation.linear_rows import shortfalls
from gavel_py.optimization.formulation.matrices import AllocationLP
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.optimization.solving.best_responses import BestResponses, Choices
from gavel_py.optimization.solving.highs import (
    ALGORITHMS,
    NO_LIMIT,
    OPTIONS,
    Algorithm,
    LinearSolver,
    TimeLimit,
    TimeLimitReached,
    new_highs,
)
from gavel_py.problem.arrays import Floats, Mask

ALGORITHM = "prices"

SAMPLES = (2_000, 20_000, 200_000)
"""Rows of the samples with which the search begins; a sample is used only if there are at least four times as many rows."""

SAMPLED = 5.0
"""Half the width of a box around the prices of a sample of n rows, relative to the prices, as a multiple of 1/√n."""

KEPT = 1.0
"""Half the width of a box around the prices of an earlier problem, relative to the prices."""

PRECISION = 1e-4
"""Accepted distance from the minimum in a box, relative to the change of the dual function over the box."""

SHRINK = 10.0
"""Factor by which a box becomes smaller."""

UNDECIDED = 600
"""Number of rows that is small enough for the last program."""

MOST_UNDECIDED = 20_000
"""Number of rows that is too large for the last program."""

MOST_PLANES, MOST_BOXES, MOST_WIDER, MOST_MOVES = 300, 60, 4, 10

SMALL = 1e-10
"""Relative tolerance of the dual function."""

ACCEPTED = 1e-7
"""Gap up to which an answer is accepted; the proof of the whole answer accepts slightly more."""


@dataclass(frozen=True)
class PriceBox:
    """The prices from `low` to `high`, and the best known prices between them."""

    low: Floats
    high: Floats
    prices: Floats

    @classmethod
    def around(cls, prices: Floats, part: float) -> PriceBox:
        """Return the box that extends by a part of each price plus a tenth of their mean, so that a price of 0 may rise as well."""
        half = part * np.maximum(prices, prices.mean() / 10)
        return cls(np.maximum(0.0, prices - half), prices + half, prices)

    def moved(self, prices: Floats, factor: float) -> PriceBox:
        """Return a box around other prices that is larger by a factor."""
        half = (self.high - self.low) * (factor / 2)
        return PriceBox(np.maximum(0.0, prices - half), prices + half, prices)

    def contains(self, prices: Floats) -> bool:
        """Return whether prices are strictly inside; the end 0 counts as inside."""
        return bool((((prices > self.low) | (self.low <= 0)) & ((prices < self.high) | (self.high <= 0))).all())

    def shrunk(self, prices: Floats) -> PriceBox:
        """Return the smaller box around other prices, within this one."""
        half = (self.high - self.low) / SHRINK
        return PriceBox(np.maximum(self.low, prices - half), np.minimum(self.high, prices + half), prices)


@dataclass(frozen=True)
class Minimum:
    """The minimum of the dual function in a box.

    slack: the largest possible distance from the true minimum; boundary_gain: (K,) the decrease of the minimum if the box
    were wider by half in a price; size: the value that counts as large.
    """

    prices: Floats
    value: float
    slack: float
    boundary_gain: Floats
    size: float

    @property
    def is_inside(self) -> bool:
        """Whether a wider box would not lower the minimum."""
        return bool((self.boundary_gain <= SMALL * self.size).all())


class DualFunction:
    """The dual function of some jobs. More and more of them are fixed as the box of prices shrinks.

    Each pass over the jobs checks the time limit first.
    """

    def __init__(self, responses: BestResponses, capacities: Floats, limit: TimeLimit = NO_LIMIT) -> None:
        self.all, self.capacities, self.limit = responses, capacities, limit
        self.restart()

    def restart(self) -> None:
        """Release all fixed jobs."""
        count, idle = len(self.all), len(self.capacities)
        self.active, self.undecided = self.all, np.arange(count)
        self.choices = Choices(np.full(count, idle, dtype=np.int8), np.full(count, idle, dtype=np.int8))
        self.gained, self.used, self.growing = 0.0, np.zeros(idle), np.zeros(idle)

    def fix(self, box: PriceBox, reach: float = 0.0) -> None:
        """Fix the jobs with the same response in all of the box."""
        self.limit.check()
        sure, found = self.active.certain(box.low, box.high, reach)
        rows = self.undecided[sure]
        self.choices.left[rows], self.choices.right[rows] = found.left[sure], found.right[sure]
        gained, used, growing = self.all.fixed(rows, self.choices)
        self.gained, self.used, self.growing = self.gained + gained, self.used + used, self.growing + growing
        rest = np.flatnonzero(~sure)
        self.active, self.undecided = self.active.part(rest), self.undecided[rest]

    def renew(self, responses: BestResponses) -> None:
        """Replace the responses by those to other needs, at which fixed jobs choose the same points."""
        self.all, self.active = responses, responses.part(self.undecided)
        self.gained, self.used, self.growing = responses.fixed(np.flatnonzero(self.is_fixed), self.choices)

    @property
    def is_fixed(self) -> Mask:
        """(n,) whether a row is fixed."""
        fixed = np.ones(len(self.all), dtype=bool)
        fixed[self.undecided] = False
        return fixed

    def at(self, prices: Floats) -> tuple[float, Floats]:
        """Return the value of the dual function and its gradient."""
        self.limit.check()
        left, response = self.capacities - self.used, self.active.at(prices)
        return self.gained + float(left @ prices) + response.surplus, left - response.usage


def minimum(
    function: Callable[[Floats], tuple[float, Floats]], box: PriceBox, normal: Floats | None = None, size: float = 0.0
) -> Minimum:
    """Return the minimum of a convex function in a box by cutting planes (Kelley 1960).

    Every second point is halfway to the best one so far, since with few planes the lowest point may be far from the minimum.
    normal: (K,) n if only prices with n·p = 1 count; size: a value that counts as large, by default the minimum.
    """
    best = point = box.prices if normal is None else box.prices / float(normal @ box.prices)
    value, gradient = function(point)
    half = np.maximum((box.high - box.low) / 2, 1e-300)
    change = max(float(np.abs(gradient) @ half), 1e-13 * (size or abs(value)), 1e-300)
    planes, base, least = CuttingPlanes((box.low + box.high) / 2, half, change, normal), value, value
    for count in range(MOST_PLANES):
        planes.add(point, value - base, gradient)
        lowest, bound, boundary_gain = planes.lowest()
        if least - (bound + base) <= PRECISION * change:
            break
        point = np.clip(lowest if count % 2 else (lowest + best) / 2, box.low, box.high)
        point = point if normal is None else point / float(normal @ point)
        value, gradient = function(point)
        if value < least:
            least, best = value, point
    boundary_gain = np.where((boundary_gain > 0) & (box.low <= 0), 0.0, np.abs(boundary_gain))  # no price is below 0
    return Minimum(best, least, least - bound - base, boundary_gain, size or abs(least))


def largest_gains(jobs: JobClasses, gains: Floats, solver: LinearSolver) -> tuple[Floats, PricedCertificate, Floats] | None:
    """Return max Σ_g n_g Σ_j G_gj x_gj with floors: (G, K) time fractions, their certificate, and (K,) shadow prices.

    None if the gap of the proof exceeds `ACCEPTED`.
    """
    responses = responses_of(jobs, gains, np.minimum(jobs.floors, jobs.fastest) if jobs.floors.any() else None)
    starts: list[PriceBox | None] = [None]
    if solver.prices is not None and solver.prices.shape == jobs.capacities.shape:
        starts.insert(0, PriceBox.around(solver.prices, KEPT / np.sqrt(len(jobs))))
    for start in starts:  # old prices may be those of a very different problem
        try:
            found = finish(jobs, gains, *search(responses, jobs.capacities, start, solver), solver)
        except SolverError:
            continue
        if found is not None:
            return found
    return None


def responses_of(jobs: JobClasses, gains: Floats, needs: Floats | None) -> BestResponses:
    """Return the best responses of job classes. gains: (G, K); needs: (G,), None for no needs."""
    counts = jobs.counts.astype(float)
    table = np.multiply(gains.T, counts, order="C")
    if not jobs.runnable.all():
        table[~jobs.runnable.T] = 0.0
    gpus = jobs.num_gpus * counts
    if needs is None:
        return BestResponses(table, gpus)
    speeds = np.where(jobs.runnable, jobs.throughputs, 0.0).T
    return BestResponses(table, gpus, needs, np.ascontiguousarray(speeds))


def search(
    responses: BestResponses, capacities: Floats, start: PriceBox | None, solver: LinearSolver
) -> tuple[DualFunction, PriceBox]:
    """Return the dual function with few undecided jobs, if possible, and the last box."""
    count, sizes, unknown = len(responses), [len(responses)], None
    if start is None:
        sizes = [size for size in SAMPLES if 4 * size <= len(responses)] + sizes
        start = unknown = _first_box(responses)
    box = start
    try:
        for size in sizes:
            step = count // size
            sample = responses if step == 1 else responses.part(slice(0, step * size, step))
            dual = DualFunction(sample, capacities * (len(sample) / count), solver.limit)
            box = _narrowed(dual, box, is_last=size == count)
            if size < count:
                box = PriceBox.around(box.prices, SAMPLED / np.sqrt(size))
    except TimeLimitReached:
        if box is not unknown:  # the prices of a sample or of the last solve are close to those of all jobs
            raise stopped_at(responses, box.prices) from None
        raise
    return dual, box


def stopped_at(responses: BestResponses, prices: Floats) -> TimeLimitReached:
    """Return an exception with the state at prices near the best ones: the responses of all jobs, which use about all GPUs."""
    return TimeLimitReached(None, (responses.times_at(prices),), (Prices(prices, np.zeros(0)),))


def _first_box(responses: BestResponses) -> PriceBox:
    """Return the box of prices from 0 to the largest gain per GPU of some rows."""
    assert responses.gains is not None  # noqa: S101
    some = slice(None, None, max(1, len(responses) // SAMPLES[0]))
    most = np.maximum(0.0, (responses.gains[:, some] / responses.gpus[some]).max(axis=1))
    return PriceBox(np.zeros(len(most)), most, most / SHRINK)


def _narrowed(dual: DualFunction, box: PriceBox, *, is_last: bool) -> PriceBox:
    """Return the box after narrowing it around the minimum until few rows are undecided; on a sample, one step is enough."""
    moves, before = 0, -1
    for _ in range(MOST_BOXES):
        dual.fix(box)
        found = minimum(dual.at, box)
        undecided = len(dual.undecided)
        if not found.is_inside:
            moves += 1
            if moves > MOST_MOVES:
                raise SolverError("prices grow without bound")
            dual.restart()
            box = box.moved(found.prices, 2.0**moves)
        elif not is_last or undecided <= UNDECIDED or undecided == before:  # if their number has not fallen, all are indifferent
            return replace(box, prices=found.prices)
        else:
            before, box = undecided, box.shrunk(found.prices)
    return box


def finish(
    jobs: JobClasses, gains: Floats, dual: DualFunction, box: PriceBox, solver: LinearSolver
) -> tuple[Floats, PricedCertificate, Floats] | None:
    """Return the answer in which fixed jobs keep their choices and the others share the remaining GPUs; None without a proof.

    Jobs are fixed for the prices in the box only. If the prices of the answer leave it, the box was too small.
    """
    for _ in range(MOST_WIDER):
        if len(dual.undecided) > MOST_UNDECIDED:
            return None
        fractions, prices, gains_of_more = _completed(jobs, gains, dual, box, solver)
        certificate = PricedCertificate(jobs, gains, Prices(prices, np.zeros(0)))
        bound = float(prices @ jobs.capacities) + dual.all.at(prices).surplus
        is_proven = gap(certificate.value(fractions), bound, certificate.scale(fractions)) <= ACCEPTED and _keeps_floors(
            jobs, fractions
        )
        if is_proven and box.contains(prices) and box.contains(gains_of_more):
            solver.prices = prices
            return fractions, certificate, gains_of_more
        box = box.moved(prices if is_proven else box.prices, SHRINK)
        dual.restart()
        dual.fix(box)
    return None


def _completed(
    jobs: JobClasses, gains: Floats, dual: DualFunction, box: PriceBox, solver: LinearSolver
) -> tuple[Floats, Floats, Floats]:
    """Return (G, K) the time of all jobs, with (K,) prices and shadow prices."""
    fractions, rows = chosen_times(dual), dual.undecided
    program = _last_program(jobs, gains, dual)
    try:
        solution = program.solve(solver, "prices")
        shadow_prices = program.shadow_prices(solver)
    except TimeLimitReached:
        raise stopped_at(dual.all, box.prices) from None  # the program's own candidates are for these rows only
    fractions[rows] = within_capacity(program.jobs, program.fractions_of(solution))
    _scale_to_capacity(jobs, fractions)
    has_gpus = program.jobs.capacities > 0
    prices, gains_of_more = (np.where(has_gpus, each, box.prices) for each in (program.prices(solution), shadow_prices))
    return fractions, prices, gains_of_more


def _keeps_floors(jobs: JobClasses, fractions: Floats) -> bool:
    """Return whether all jobs have the throughputs of their floors."""
    if not jobs.floors.any():
        return True
    throughputs = np.einsum("gj,gj->g", jobs.throughputs, fractions)
    return float(shortfalls(jobs.floors, throughputs).max()) <= VIOLATION_TOLERANCE / 2


def _scale_to_capacity(jobs: JobClasses, fractions: Floats) -> None:
    """Reduce the time on types where it exceeds the GPUs by the solver's tolerance."""
    used = (jobs.counts * jobs.num_gpus) @ fractions
    for j in np.flatnonzero(used > jobs.capacities).tolist():
        fractions[:, j] *= jobs.capacities[j] / used[j]


def chosen_times(dual: DualFunction) -> Floats:
    """Return (G, K) the time of fixed jobs, 0 for the others."""
    return dual.all.times_of(dual.choices, np.flatnonzero(dual.is_fixed))


def _last_program(jobs: JobClasses, gains: Floats, dual: DualFunction) -> AllocationLP:
    """Return the compiled program of the undecided jobs on the GPUs that fixed ones leave."""
    rows = dual.undecided
    left = np.maximum(0.0, dual.capacities - dual.used)
    part = jobs.rows_as(rows, jobs.counts[rows], jobs.keys[rows])
    program = AllocationLP(replace(part, problem=replace(part.problem, capacities=left)))
    worth = (jobs.counts[rows, None] * gains[rows])[program.rows, program.columns]
    program.compile_linear(0.0, worth * program.sizes)
    return program


class CuttingPlanes:
    """The lower envelope of a convex function of K prices from planes that support it, over a box, with one kept HiGHS.

    Prices are scaled to -1 .. 1 and values to `size`, the change of the function over the box: HiGHS's tolerances are then relative
    to the box, even if it is very small. Planes need values relative to a base that cancels out most digits.
    """

    def __init__(self, middle: Floats, half: Floats, size: float, normal: Floats | None = None) -> None:
        """middle, half: (K,) the box; normal: (K,) n if only prices with n·p = 1 count."""
        self._middle, self._half, self._size = middle, half, size
        self._columns = np.arange(len(middle) + 1, dtype=np.int32)
        self._highs = new_highs(OPTIONS | ALGORITHMS[Algorithm.SIMPLEX])
        count = len(middle)
        for _ in range(count):
            self._highs.addVar(-1.0, 1.0)
        self._highs.addVar(-np.inf, np.inf)
        self._highs.changeColCost(count, 1.0)
        if normal is not None:
            slopes = normal * half
            scale = float(np.abs(slopes).max()) or 1.0
            rest = float(1.0 - normal @ middle) / scale
            self._highs.addRow(rest, rest, count, self._columns[:-1], slopes / scale)

    def add(self, prices: Floats, value: float, gradient: Floats) -> None:
        """Add the plane that touches the function at these prices."""
        at_middle = (value - float(gradient @ (prices - self._middle))) / self._size
        row = np.append(-gradient * self._half / self._size, 1.0)
        self._highs.addRow(at_middle, np.inf, len(row), self._columns, row)

    def lowest(self) -> tuple[Floats, float, Floats]:
        """Return the prices of the lowest point, its value, and (K,) its change if prices and the box rose by half of the box.

        The change is positive for prices at the lower end of the box, and negative at the upper end.
        """
        self._highs.run()
        answer = self._highs.getSolution()
        if not answer.value_valid:
            raise SolverError("HiGHS found no minimum of the cutting planes")
        values, duals = np.array(answer.col_value), np.array(answer.col_dual)
        return self._middle + values[:-1] * self._half, float(values[-1]) * self._size, duals[:-1] * self._size
