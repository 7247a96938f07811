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

from dataclasses import replace

import numpy as np

from gavel_py.errors import SolverError
from gavel_py.optimization.checking.certificates import PricedCertificate, Prices, gap, within_capacity
from gavel_py.optimization.formulation.linear_rows import shortfalls
from gavel_py.optimization.formulation.matrices import AllocationLP
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.optimization.solving.best_responses import BestResponses, Choices
from gavel_py.optimization.solving.cutting_planes import SHRINK, PriceBox, minimum
from gavel_py.optimization.solving.highs import NO_LIMIT, LinearSolver, TimeLimit, TimeLimitReached
from gavel_py.problem.arrays import Floats, Mask
from gavel_py.problem.tolerances import DERIVATIVE_STEP, SOLVER_TOLERANCE

ALGORITHM = "prices"

SAMPLES = (2_000, 20_000, 200_000)
"""Rows of the samples with which the search begins; a sample is used only if there are at least four times as many rows."""

SAMPLED = 5.0
"""Half the width of a box around the prices of a sample of n rows, relative to the prices, as a multiple of 1/√n."""

KEPT = 1.0
"""Half the width of a box around the prices of an earlier problem, relative to the prices."""

UNDECIDED = 600
"""Number of rows that is small enough for the last program."""

MOST_UNDECIDED = 20_000
"""Number of rows that is too large for the last program."""

MOST_BOXES, MOST_WIDER, MOST_MOVES = 60, 4, 10

ACCEPTED = 1e-7
"""Gap up to which an answer is accepted; the proof of the whole answer accepts slightly more."""


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
            return fractions, certificate, _one_sided(jobs, gains, dual, prices, gains_of_more, solver)
        box = box.moved(prices if is_proven else box.prices, SHRINK)
        dual.restart()
        dual.fix(box)
    return None


def _completed(
    jobs: JobClasses, gains: Floats, dual: DualFunction, box: PriceBox, solver: LinearSolver
) -> tuple[Floats, Floats, Floats]:
    """Return (G, K) the time of all jobs, with (K,) prices and shadow prices."""
    fractions, rows, exhausted = chosen_times(dual), dual.undecided, _exhausted(dual)
    if not len(rows):
        _scale_to_capacity(jobs, fractions)
        prices = np.where(exhausted, box.prices, 0.0)
        return fractions, prices, prices
    program = _last_program(jobs, gains, dual)
    try:
        solution = program.solve(solver, "prices")
        shadow_prices = program.shadow_prices(solver)
    except TimeLimitReached:
        raise stopped_at(dual.all, box.prices) from None  # the program's own candidates are for these rows only
    fractions[rows] = within_capacity(program.jobs, program.fractions_of(solution))
    _scale_to_capacity(jobs, fractions)
    # Where fixed jobs leave no GPUs, all prices in the box are optimal.
    prices, gains_of_more = (np.where(exhausted, box.prices, each) for each in (program.prices(solution), shadow_prices))
    return fractions, prices, gains_of_more


def _exhausted(dual: DualFunction) -> Mask:
    """Return (K,) of which types fixed jobs leave no GPUs."""
    return dual.used >= dual.capacities * (1 - SOLVER_TOLERANCE)


def _one_sided(
    jobs: JobClasses, gains: Floats, dual: DualFunction, prices: Floats, gains_of_more: Floats, solver: LinearSolver
) -> Floats:
    """Return (K,) shadow prices, with those of types of which fixed jobs leave no GPUs: the prices if there were slightly more."""
    has_gpus, exhausted = jobs.capacities > 0, _exhausted(dual)
    gains_of_more = np.where(has_gpus, gains_of_more, 0.0)
    if not (exhausted & has_gpus).any():
        return gains_of_more
    more = np.where(exhausted, dual.capacities * (1 + DERIVATIVE_STEP), dual.capacities)
    try:
        for start in (PriceBox.around(prices, 1.0), None):
            with_more, box = search(dual.all, more, start, solver)
            if len(with_more.undecided) <= UNDECIDED:
                break
        if len(with_more.undecided) > MOST_UNDECIDED:
            raise SolverError("too many jobs are indifferent at the prices of more GPUs")
        _, found, _ = _completed(jobs, gains, with_more, box, solver)
    except TimeLimitReached:  # the answer is proven, and its price is one of several
        return gains_of_more
    return np.where(exhausted & has_gpus, found, gains_of_more)


def _keeps_floors(jobs: JobClasses, fractions: Floats) -> bool:
    """Return whether all jobs have the throughputs of their floors."""
    if not jobs.floors.any():
        return True
    throughputs = np.einsum("gj,gj->g", jobs.throughputs, fractions)
    return float(shortfalls(jobs.floors, throughputs).max()) <= SOLVER_TOLERANCE / 2


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
