"""The variables of an allocation's program, and the rows that make it valid, as matrices."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gavel_py.optimization.assembly import Columns, Rows, assembled
from gavel_py.optimization.bases import LinearProgram
from gavel_py.optimization.job_classes import JobClasses

__all__ = ["CAPACITY", "FACTOR", "LIMITS", "OWN", "PARTS", "TIME", "TOP", "ProgramMatrices"]

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

PARTS, FACTOR = "parts", "factor"
"""Names of columns."""

TIME, CAPACITY, LIMITS, OWN = "time", "capacity", "limits", "own"
"""Names of rows."""

TOP = 2.0
"""No bound but those of the rows, whose dual values it would take over; but without any, the dual simplex method has a far longer
way, hence twice as much as can be.
"""


LEAST_EXPONENT = -29
"""Of the least part of what there is that a variable is measured in: HiGHS takes coefficients of up to 1e-9 for 0. Parts are
powers of 2, so that nothing is rounded.
"""


class ProgramMatrices:
    """A variable for each of P pairs of a class and a type where it can run: x_gj in parts of the most that it can be.

    So HiGHS's absolute tolerances mean the same for 2 GPUs and for 10^7, and for one job and for a million; capacities are 1.
    rows, columns: (P,) classes and types of the pairs; most: (P,) min(1, c_j / (n_g s_g)); units: (K,) c_j, 1 where there are none.

    enough: (G,) steps/s beyond which a job gains nothing. Where that takes less time, variables are in parts of about that time:
    what a job needs could be too little for the tolerances otherwise. sizes: (P,) the time of one part.
    """

    def __init__(self, jobs: JobClasses, enough: Floats | None = None) -> None:
        self._jobs = jobs
        self.rows, self.columns = np.nonzero(jobs.runnable)
        self._gpus = (jobs.counts * jobs.num_gpus)[self.rows]
        self.units: Floats = np.where(jobs.capacities > 0, jobs.capacities, 1.0)
        self.most: Floats = np.minimum(1.0, self.units[self.columns] / self._gpus)
        self.sizes: Floats = self.most
        if enough is not None:
            parts = enough[self.rows] / (jobs.throughputs[self.rows, self.columns] * self.most)
            least = LEAST_EXPONENT + np.maximum(0.0, np.log2(self.units[self.columns] / self._gpus))
            with np.errstate(divide="ignore"):  # what needs nothing is in the least parts
                exponents = np.clip(np.ceil(np.log2(parts)), np.minimum(0.0, np.ceil(least)), 0.0)
            self.sizes = self.most * 2**exponents

    @property
    def tops(self) -> Floats:
        """(P,) bounds of the variables, twice as much as each can be."""
        return TOP * self.most / self.sizes

    def by_job(self, coefficients: Floats) -> sp.csr_array:
        """(G, P) Σ_j a_gj x_gj; coefficients: (P,) a_gj."""
        return self._matrix(self.rows, coefficients * self.sizes, len(self._jobs))

    @cached_property
    def used(self) -> sp.csr_array:
        """(K, P) what each variable takes of the capacities, in parts of them."""
        return self._matrix(self.columns, self._gpus * self.sizes / self.units[self.columns], len(self.units))

    def of_limits(self, limits: sp.csr_array) -> sp.csr_array:
        """(R, P) what each variable takes of (R, G·K) limits."""
        own = limits[:, self.rows * len(self.units) + self.columns]
        return sp.csr_array(own @ sp.diags_array(self._jobs.counts[self.rows] * self.sizes))

    def table(self, values: Floats) -> Floats:
        """Return one value per pair as a (G, K) table with 0 elsewhere."""
        table = np.zeros(self._jobs.throughputs.shape)
        table[self.rows, self.columns] = values
        return table

    def best(self, constant: float, worth: Floats, floors: sp.csr_array) -> LinearProgram:
        """Return the program max constant + Σ worth·part over valid allocations; floors: (F, P) what must be at least 1."""
        own = {OWN: Rows({PARTS: -floors}, -np.ones(floors.shape[0]))} if floors.shape[0] else {}
        parts = Columns(-worth, np.zeros(len(worth)), self.tops)
        return assembled({PARTS: parts}, self._valid_rows() | own, -constant)

    def factor(self, own: sp.csr_array, least: Floats, time_limits: Floats | float) -> LinearProgram:
        """Return the program min ϕ >= 0 such that own rows are at least so much with ϕ times all GPUs.

        Limits grow with ϕ as `limits_grow` says. own: (R, P); least: (R,); time_limits: (G,) in place of 1.
        """
        count = len(self.rows)
        factor = Columns(np.ones(1), np.zeros(1), np.full(1, np.inf))
        parts = Columns(np.zeros(count), np.zeros(count), TOP / self.sizes)
        rows = self._valid_rows() | {OWN: Rows({PARTS: -own}, -least)}
        rows[TIME] = rows[TIME]._replace(limits=np.broadcast_to(time_limits, len(self._jobs)).astype(float))
        grows = {CAPACITY: np.ones(len(self.units)), LIMITS: self._jobs.limits_grow}
        for name in rows.keys() & grows.keys():
            with_factor = {**rows[name].blocks, FACTOR: sp.csr_array(-grows[name][:, None])}
            rows[name] = Rows(with_factor, rows[name].limits - grows[name])
        return assembled({FACTOR: factor, PARTS: parts}, rows)

    def _valid_rows(self) -> dict[str, Rows]:
        """Σ_j x_gj <= 1, Σ_g n_g s_g x_gj <= c_j, and what the rules limit."""
        limits, most = self._jobs.limits
        rows = {
            TIME: Rows({PARTS: self.by_job(np.ones(len(self.rows)))}, np.ones(len(self._jobs))),
            CAPACITY: Rows({PARTS: self.used}, np.ones(len(self.units))),
        }
        return rows | ({LIMITS: Rows({PARTS: self.of_limits(limits)}, most)} if len(most) else {})

    def _matrix(self, positions: Indices, coefficients: Floats, count: int) -> sp.csr_array:
        """The (count, P) matrix with each pair's coefficient in the row at its position."""
        pairs = np.arange(len(self.rows))
        return sp.csr_array((coefficients, (positions, pairs)), shape=(count, len(pairs)))
