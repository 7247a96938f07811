"""Accounting: the promised and actual share of each tenant (`TenantShare`), and the end and cost of jobs (`Forecast`).

`tenant_shares` computes the shares from the GPUs of jobs, for allocations and rounds. `TenantTable` has the arithmetic on the tree:
sums over the tenants below, and promised shares. The simulator keeps a table, since its tenants have jobs at different times.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import InputError, faults_from, unknown_names
from gavel_py.io.names import natural_key
from gavel_py.io.tabular import Column
from gavel_py.problem.arrays import Floats, Mask
from gavel_py.problem.tolerances import PROOF_TOLERANCE, SOLVER_TOLERANCE

if TYPE_CHECKING:
    from gavel_py.problem.tenants import TenantTree


@dataclass(frozen=True, kw_only=True)
class TenantShare:
    """What a tenant is promised and what it gets, with all tenants below it.

    Of an allocation, GPUs are averages over its time fractions; of rounds and simulations, over the time that has passed. Jobs
    that share GPUs account for an equal part of them. Shares and GPUs of the tenants without others below them add up to those of
    the cluster.

    Attributes:
        tenant: The name, empty for jobs without a tenant.
        parent: Name of the tenant above, None at the top.
        weight: Relative share among the tenants with the same parent; 1 without a tree of tenants.
        share: The promised part of the cluster: weight over the sum of weights of the tenants with the same parent that have jobs,
            times the share of the parent. Below a fifo tenant, the first has all of it. For simulations, the mean over time.
        least_vs_fair_share: The least `vs_fair_share` of its jobs that can run; None if there are none. Of allocations only.
        throughput_share: The part of the throughput that it gets: Σ s_i v_i of its jobs over that of all jobs, with gang size s_i
            and normalised throughput v_i. None if unknown.
        gpu_share: The part of all GPUs of the cluster that it gets.
        gpu_shares: {accelerator type: part of its GPUs}.
        gpus: {accelerator type: GPUs}.
        jobs: Its number of jobs.
        gpus_wanted: GPUs of the gangs of all its jobs; None for simulations, where jobs come and go.
        running: Number of jobs with GPU time; for rounds and simulations, of jobs that hold GPUs at the end.
        waiting: Number of jobs that wait for GPU time.
        cost_per_hour: Cost of its GPUs, in the unit of their prices; None if the price of one of them is unknown.
        promised_gpu_seconds: GPU-seconds that allocations promised its jobs, of rounds and simulations.
        delivered_gpu_seconds: The part of these that rounds delivered, job by job; in `gavel rounds`, to the tenant as a whole.
        finished: Number of finished jobs, of simulations.
        mean_jct_seconds: Mean completion time of the finished jobs.
        cost: Cost of all its GPU time, of simulations.
    """

    COLUMNS: ClassVar[Mapping[str, Column]] = {
        "weight": Column("weight"),
        "share": Column("share", "share"),
        "gpu_share": Column("GPUs got", "share"),
        "throughput_share": Column("throughput got", "share"),
        "least_vs_fair_share": Column("least vs. fair share", form=".2f"),
        "jobs": Column("jobs", "count"),
        "running": Column("running", "count"),
        "waiting": Column("waiting", "count"),
        "finished": Column("finished", "count"),
        "mean_jct_seconds": Column("mean time", "time"),
        "gpus_wanted": Column("GPUs wanted"),
        "promised_gpu_seconds": Column("GPU-h due", "GPU time"),
        "delivered_gpu_seconds": Column("GPU-h got", "GPU time"),
        "cost": Column("cost", "money"),
        "cost_per_hour": Column("cost per hour", "money"),
    }

    tenant: str
    parent: str | None = None
    weight: float = 1.0
    share: float
    throughput_share: float | None = None
    gpu_share: float
    gpu_shares: dict[str, float]
    gpus: dict[str, float]
    jobs: int
    running: int
    waiting: int
    cost_per_hour: float | None = None
    promised_gpu_seconds: float | None = None
    delivered_gpu_seconds: float | None = None
    finished: int | None = None
    mean_jct_seconds: float | None = None
    cost: float | None = None
    gpus_wanted: float | None = None
    least_vs_fair_share: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the share as plain data (docs/file-formats.md)."""
        return asdict(self)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> TenantShare:
        """Return the share from the data of `to_dict`.

        Raises:
            InputError: A part is missing or unknown.
        """
        with faults_from("", "this is not a tenant share written by gavel", TypeError):
            return cls(**document)


class _Arrays(NamedTuple):
    """The rows of a table of tenants as arrays. fifo: of the cluster, then of each row; levels: the rows of each depth."""

    parents: NDArray[np.int64]
    weights: Floats
    fifo: Mask
    levels: list[NDArray[np.int64]]


class TenantTable:
    """Tenants as rows of a table, each below its parent; a row is added when its name is first seen.

    With an empty tree, each tenant of jobs has a row with weight 1.
    """

    def __init__(self, tree: TenantTree) -> None:
        self._tree = tree
        self._known = {tenant.name: tenant for tenant in tree.tenants}
        self.names: list[str] = []
        self._rows: dict[str, int] = {}
        self._parents: list[int] = []
        self._weights: list[float] = []
        self._depths: list[int] = []
        self._fifo: list[bool] = [tree.policy == "fifo"]  # of the cluster, then of each row
        self._cached: _Arrays | None = None

    def __len__(self) -> int:
        return len(self.names)

    def row(self, name: str) -> int:
        """Return the row of the tenant of a job. A tenant that is not in the tree is at the top, with weight 1."""
        return self._rows[name] if name in self._rows else self._add(name)

    def check(self, names: Iterable[str]) -> None:
        """Raise `InputError` if one of these tenants of jobs is not a leaf of the tree."""
        if not self._known:
            return
        leaves = {name: None for name in self._known if name not in self._tree.parents}
        wrong = [name for name in dict.fromkeys(names) if name not in leaves]
        above = [name for name in wrong if name in self._known]
        faults = unknown_names("jobs", "tenant", above, leaves, "has tenants below it, so it cannot have jobs")
        absent = [name for name in wrong if name not in self._known]
        InputError.raise_any(faults + unknown_names("jobs", "tenant", absent, leaves, "is not in the tenant tree"))

    def _add(self, name: str) -> int:
        tenant = self._known.get(name)
        above = None if tenant is None else tenant.parent
        parent = -1 if above is None else self._rows[above] if above in self._rows else self._add(above)
        self._rows[name] = len(self.names)
        self.names.append(name)
        self._parents.append(parent)
        self._weights.append(1.0 if tenant is None else tenant.weight)
        self._depths.append(0 if parent < 0 else self._depths[parent] + 1)
        self._fifo.append(tenant is not None and tenant.policy == "fifo")
        self._cached = None
        return self._rows[name]

    @property
    def _arrays(self) -> _Arrays:
        if self._cached is None:
            depths = np.array(self._depths, dtype=np.int64)
            levels = [np.flatnonzero(depths == depth) for depth in range(int(depths.max(initial=-1)) + 1)]
            self._cached = _Arrays(np.array(self._parents, dtype=np.int64), np.array(self._weights), np.array(self._fifo), levels)
        return self._cached

    def totals(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return (M, ...) sums over each tenant and all below it."""
        sums, arrays = values.copy(), self._arrays
        for rows in reversed(arrays.levels[1:]):
            np.add.at(sums, arrays.parents[rows], sums[rows])
        return sums

    def least(self, values: Floats) -> Floats:
        """Return (M,) the least value of each tenant and all below it."""
        found, arrays = values.copy(), self._arrays
        for rows in reversed(arrays.levels[1:]):
            np.minimum.at(found, arrays.parents[rows], found[rows])
        return found

    def shares(self, has_jobs: Mask, since: Floats) -> Floats:
        """Return (M,) the promised shares.

        has_jobs: (M,) the tenants of jobs; since: (M,) time of the first job of each, the order in which a fifo tenant serves those
        below.
        """
        arrays = self._arrays
        active, first = self.totals(has_jobs.astype(np.int64)) > 0, self.least(np.where(has_jobs, since, np.inf))
        shares = np.zeros(len(self) + 1)
        shares[0] = 1.0  # the cluster
        for level in arrays.levels:
            rows = level[active[level]]
            above = arrays.parents[rows] + 1
            weights = self._served_weights(rows, arrays.weights[rows], above, first)
            shares[rows + 1] = shares[above] * weights / np.bincount(above, weights)[above]
        return shares[1:]

    def _served_weights(self, rows: NDArray[np.int64], weights: Floats, above: NDArray[np.int64], first: Floats) -> Floats:
        """Return the weights, 0 for all but the first tenant below each fifo tenant; above: one more than the row of the parent."""
        fifo = self._arrays.fifo[above]
        if not fifo.any():
            return weights
        order = sorted(range(len(rows)), key=lambda k: (above[k], first[rows[k]], natural_key(self.names[rows[k]])))
        is_first = np.zeros(len(rows), dtype=bool)
        is_first[[k for at, k in enumerate(order) if at == 0 or above[order[at - 1]] != above[k]]] = True
        return np.where(fifo & ~is_first, 0.0, weights)

    def records(
        self, types: Sequence[str], capacities: Floats, shares: Floats, gpus: Floats, columns: Mapping[str, NDArray[Any]]
    ) -> tuple[TenantShare, ...]:
        """Return a record for each tenant, parents before the tenants below them, siblings by name.

        shares: (M,); gpus: (M, K) of the jobs of each tenant; columns: {attribute: (M,) sums over the jobs of each tenant, or least
        values if its name begins with "least_"}, NaN for unknown ones. "work" is Σ s_i v_i, and "jct_seconds" the sum of the
        completion times of the finished jobs.
        """
        held, total = self.totals(gpus), float(capacities.sum())
        sums = {name: self.least(each) if name.startswith("least_") else self.totals(each) for name, each in columns.items()}
        work = sums.pop("work", None)
        if work is not None:
            whole = np.full(len(self), columns["work"].sum())
            sums["throughput_share"] = np.where(np.isnan(whole), np.nan, _ratio(work, whole))
        jct = sums.pop("jct_seconds", None)
        if jct is not None:
            sums["mean_jct_seconds"] = np.where(sums["finished"] > 0, _ratio(jct, sums["finished"]), np.nan)
        parts = _ratio(held, np.broadcast_to(capacities, held.shape))
        return tuple(
            TenantShare(
                tenant=self.names[row],
                parent=None if self._parents[row] < 0 else self.names[self._parents[row]],
                weight=self._weights[row],
                share=float(shares[row]),
                gpu_share=float(held[row].sum()) / total if total else 0.0,
                gpu_shares=dict(zip(types, parts[row].tolist(), strict=True)),
                gpus=dict(zip(types, held[row].tolist(), strict=True)),
                **{name: _plain(values[row]) for name, values in sums.items()},
            )
            for row in self._in_order()
        )

    def _in_order(self) -> Iterator[int]:
        below: dict[int, list[int]] = {}
        for row, parent in enumerate(self._parents):
            below.setdefault(parent, []).append(row)
        left = sorted(below.get(-1, ()), key=lambda row: natural_key(self.names[row]), reverse=True)
        while left:
            row = left.pop()
            yield row
            left += sorted(below.get(row, ()), key=lambda each: natural_key(self.names[each]), reverse=True)


def _ratio(values: NDArray[Any], whole: NDArray[Any]) -> Floats:
    ratio: Floats = np.divide(values, whole, out=np.zeros(values.shape), where=whole > 0)
    return ratio


def _plain(value: Any) -> Any:
    """Return a number of an array as a plain one, None for one that is not finite."""
    plain = value.item()
    return plain if math.isfinite(plain) else None


def tenant_shares(
    tenants: Iterable[str],
    gpus: Floats,
    capacities: Floats,
    *,
    accelerator_types: Sequence[str],
    is_running: Mask,
    can_run: Mask | None = None,
    tree: TenantTree | None = None,
    arrival_seconds: Floats | None = None,
    prices_per_hour: Floats | None = None,
    vs_fair_share: Floats | None = None,
    **columns: Floats,
) -> tuple[TenantShare, ...]:
    """Return the promised and actual share of each tenant of N jobs; empty if no job has a tenant.

    Args:
        tenants: (N,) the tenant of each job, empty for none.
        gpus: (N, K) GPUs of each job.
        capacities: (K,) GPUs of the cluster.
        accelerator_types: K names.
        is_running: (N,) the jobs that count as running; the others wait.
        can_run: (N,) the jobs that entitle a tenant to a share; by default all.
        tree: The tenants with their weights; None for the tenants of the jobs, with equal weights.
        arrival_seconds: (N,) arrivals, the order in which fifo tenants serve those below.
        prices_per_hour: (K,) price of one GPU of each type, NaN if unknown; by default, all are unknown.
        vs_fair_share: (N,) normalised throughputs over fair shares; each tenant gets the least of its jobs.
        **columns: (N,) further figures to sum, named as attributes of `TenantShare`, or "work"; NaN for unknown ones.

    Raises:
        InputError: The tenant of a job that can run is not a leaf of the tree.
    """
    from gavel_py.problem.tenants import TenantTree

    table = TenantTable(TenantTree() if tree is None else tree)
    names = list(tenants)
    if not any(names):
        return ()
    served = np.ones(len(names), dtype=bool) if can_run is None else can_run
    table.check(name for name, counts in zip(names, served.tolist(), strict=True) if counts)
    rows = np.array([table.row(name) for name in names], dtype=np.int64)
    size = len(table)
    since = np.full(size, np.inf)
    np.minimum.at(since, rows[served], (np.zeros(len(rows)) if arrival_seconds is None else arrival_seconds)[served])
    held = np.zeros((size, gpus.shape[1]))
    np.add.at(held, rows, gpus)
    counts = np.bincount(rows, minlength=size)
    running = np.bincount(rows[is_running], minlength=size)
    sums: dict[str, NDArray[Any]] = {"jobs": counts, "running": running, "waiting": counts - running}
    if prices_per_hour is not None:
        columns["cost_per_hour"] = hourly_costs(gpus, prices_per_hour)
    sums |= {name: np.bincount(rows, values, minlength=size) for name, values in columns.items()}
    if vs_fair_share is not None:
        sums["least_vs_fair_share"] = np.full(size, np.inf)
        np.minimum.at(sums["least_vs_fair_share"], rows[served], vs_fair_share[served])
    return table.records(accelerator_types, capacities, table.shares(since < np.inf, since), held, sums)


@dataclass(frozen=True, eq=False)
class Forecast:
    """When N jobs end, and what they cost, while an allocation stands.

    The forecast assumes no new arrivals and an unchanged allocation, so the end of a job is an upper estimate if others leave
    earlier and make room. `gavel rounds --until-done` solves again as jobs leave.

    Attributes:
        start_seconds: (N,) Start of the job, from now: 0 with GPU time, NaN for a job that waits while the allocation stands.
        end_seconds: (N,) Its end, from now: remaining steps over throughput; NaN if steps are unknown or the job waits.
        cost_per_hour: (N,) Mean cost of its GPUs over time, in the unit of their prices; NaN if the price of one of them is
            unknown.
        cost_until_done: (N,) Cost until the job ends; NaN if its end or a price is unknown.
        deadline: (N,) Its deadline, in seconds from now, below 0 where it has passed; NaN for none.
        late: (N,) Seconds after its deadline at which it ends, 0 if it meets it; NaN without a deadline or a known end.
    """

    COLUMNS: ClassVar[Mapping[str, Column]] = {
        "start_seconds": Column(""),
        "end_seconds": Column("ends in", "time", 5),
        "cost_per_hour": Column("cost per hour", "money", 6),
        "cost_until_done": Column(""),
        "deadline": Column("deadline", "time", 4),
        "late": Column("late", "time", 2),
    }

    start_seconds: Floats
    end_seconds: Floats
    cost_per_hour: Floats
    cost_until_done: Floats
    deadline: Floats
    late: Floats

    @classmethod
    def of(
        cls, throughputs: Floats, steps_remaining: Floats, gpus: Floats, prices_per_hour: Floats, deadlines: Floats | None = None
    ) -> Forecast:
        """Return the forecast of jobs at constant speeds.

        Args:
            throughputs: (N,) steps/s.
            steps_remaining: (N,) NaN if unknown.
            gpus: (N, K) GPUs of each job on average over time.
            prices_per_hour: (K,) of one GPU of each type, NaN if unknown.
            deadlines: (N,) seconds from now, NaN for none; by default, no job has one.
        """
        runs, is_done = throughputs > 0, steps_remaining == 0
        end = np.divide(steps_remaining, throughputs, out=np.full(len(throughputs), np.nan), where=runs)
        end[is_done] = 0.0
        costs = hourly_costs(gpus, prices_per_hour)
        start = np.where(runs | is_done, 0.0, np.nan)
        due = np.full(len(throughputs), np.nan) if deadlines is None else deadlines
        late = np.where(is_done & ~np.isnan(due), 0.0, lateness(end, due))  # when a job has ended is not known
        return cls(start, end, costs, np.where(is_done & ~np.isnan(costs), 0.0, costs * end / 3600.0), due, late)

    @property
    def deadlines(self) -> DeadlineCounts:
        """The number of deadlines that are met and missed, and of those that cannot be checked."""
        return DeadlineCounts.of(self.deadline, self.late, ~np.isnan(self.start_seconds) & np.isnan(self.end_seconds))

    @property
    def has_prices(self) -> bool:
        """Whether the cost of any job is known."""
        return not bool(np.isnan(self.cost_per_hour).all())

    @property
    def total_cost_per_hour(self) -> float | None:
        """The cost of all jobs together; None if that of one is unknown."""
        return known_sum(self.cost_per_hour)

    @property
    def total_cost_until_done(self) -> float | None:
        """The cost until all jobs have ended; None if that of one is unknown."""
        return known_sum(self.cost_until_done)


class DeadlineCounts(NamedTuple):
    """Numbers of deadlines.

    Attributes:
        met: Of jobs that end in time.
        missed: Of jobs that end too late, or that wait.
        unknown: Of jobs that run, but whose steps are unknown.
    """

    met: int
    missed: int
    unknown: int

    @classmethod
    def of(cls, deadlines: Floats, late: Floats, unknown: Mask) -> DeadlineCounts:
        """Return the numbers of N jobs.

        Args:
            deadlines: (N,) NaN for none.
            late: (N,) as in `Forecast`.
            unknown: (N,) the jobs that run, but whose end is unknown.
        """
        due = ~np.isnan(deadlines)
        met, open_ = int((late == 0).sum()), int((due & unknown).sum())
        return cls(met, int(due.sum()) - met - open_, open_)

    @property
    def all(self) -> int:
        """The number of all deadlines."""
        return sum(self)


def is_rounding(price: float, objective: float | None) -> bool:
    """Return whether a price is 0, or no more than rounding beside the objective: at most 1e-9 of it.

    Args:
        price: Of a GPU or of a unit of a limit.
        objective: `Allocation.objective_value`.
    """
    return abs(price) <= SOLVER_TOLERANCE * abs(objective or 0.0)


def lateness(ends: Floats | float, deadlines: Floats | float) -> Floats:
    """Return (N,) the seconds by which jobs miss their deadlines, 0 for those that meet them, NaN for what is unknown."""
    late = np.subtract(ends, deadlines)
    return np.where(late <= PROOF_TOLERANCE * np.abs(deadlines), 0.0, late)


def hourly_costs(gpus: Floats, prices_per_hour: Floats) -> Floats:
    """Return (N,) the cost per hour of (N, K) GPUs, NaN if the price of one of them, or of all types, is unknown."""
    if np.isnan(prices_per_hour).all():
        return np.full(len(gpus), np.nan)
    costs: Floats = np.where(gpus > 0, gpus * prices_per_hour, 0.0).sum(axis=1)
    return costs


def known_sum(values: Floats) -> float | None:
    """Return the sum, None if a value is NaN; there are no partial sums."""
    total = float(values.sum())
    return None if math.isnan(total) else total
