"""Classes of equal jobs: a policy's view of a problem, with one row for all jobs that are equal.

The reduction is exact (`classes_of`; docs/exact-reduction.md). `merged` clusters throughputs that differ slightly, for example
by measurement noise, so that there are fewer classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import Fault, InputError, UnknownNameError, nearest
from gavel_py.io.names import NumberedNames
from gavel_py.optimization.formulation.linear_rows import (
    NO_RULES,
    Floor,
    Limit,
    ObjectiveRow,
    Rules,
    SparseMatrix,
    entries_of,
    scale_of,
)
from gavel_py.problem.arrays import (
    ARRAYS,
    JOB_ATTRIBUTES,
    RULES,
    WORKFLOW_COLUMNS,
    ArrayChecker,
    Floats,
    Indices,
    Test,
    floats_of,
    isolated_throughputs,
)
from gavel_py.problem.row_hashing import Numbering, content_keys, number_equal, refined, size_numbers

if TYPE_CHECKING:
    from gavel_py.problem.problem import AllocationProblem

PRICED_ROWS = 3_000
"""Number of rows from which prices are faster than one program with all rows."""

PRICED_TYPES = 16
"""Maximum number of types for which prices are faster, since the number of cutting planes grows with the dimension."""

SAME_SPEED = 3e-7
"""Relative difference up to which speeds of a job may count as equal: more than the rounding of a few steps in single precision."""

MUST_BE_KNOWN = ("steps_remaining", "total_steps")
"""Attributes that may be unknown (NaN) unless a policy reads them."""


RETURNED: dict[str, tuple[str, Test]] = {
    "at least 0 or infinite": ("must be a number of at least 0, or infinite if no throughput suffices", lambda a: a >= 0),
    "a number": ("must not be NaN", lambda a: ~np.isnan(a)),
    "finite": RULES["finite"],
}
"""{rule: text, test} of the numbers that methods of policies return."""


@dataclass(frozen=True, eq=False)
class ColumnTable:
    """The K' columns of a program, several for types with several placements or sizes (`formulation/columns.py`).

    Attributes:
        base: The problem with one column for each type.
        problem: The problem that is solved.
        rules: The rules over all columns.
        source: (K',) the type of each column.
        parts: (K',) the part of a GPU that a job occupies in each column for each GPU that it requests.
        joint: {type: position in `Rules.hard_rows` of the row for the GPUs of all its columns}.
    """

    base: AllocationProblem
    problem: AllocationProblem
    rules: Rules
    source: Indices
    parts: Floats
    joint: Mapping[int, int]

    @property
    def accelerator_types(self) -> tuple[str, ...]:
        """The names of the columns."""
        return self.problem.accelerator_types

    @property
    def partner_groups(self) -> Indices | None:
        """(N,) groups of jobs with the same partner columns, None if no jobs share GPUs."""
        return None

    def widened(self, problem: AllocationProblem, rows: Indices) -> AllocationProblem | None:  # noqa: ARG002
        """Return the problem of one job of each class with all columns, None if `problem` has all columns."""
        return None

    def gpus(self, fractions: Floats, num_gpus: Floats) -> Floats:
        """Return (K,) the GPUs in use, Σ_i s_i Σ_columns part · X_i,column. num_gpus: (M,) of the jobs in each row."""
        used = num_gpus @ fractions * self.parts
        return np.bincount(self.source, used, len(self.base.capacities)).astype(float)


@dataclass(frozen=True, eq=False, repr=False)
class JobClasses:
    """The jobs of a problem that can run somewhere, in G classes of equal jobs: the input of a policy, one row per class.

    Two jobs are equal if throughputs, gang size, the types where they may run, and all attributes that the policy declares
    (`Policy.reads`) are the same. The optimum of a concave and symmetric program can be averaged over equal jobs, so a decision for
    classes is exact (docs/exact-reduction.md).

    The declared attributes are (G,) arrays of the same names as in `AllocationProblem`; reading one that is not declared raises
    `InputError`.

    Attributes:
        problem: The problem.
        policy_name: The name of the policy.
        reads: The attributes that the policy declares.
        jobs: (N,) rows of the jobs that can run, in the problem.
        rows: (G,) one job of each class, in the problem.
        index: (N,) the class of each job.
        counts: (G,) n_g, the number of jobs of each class; num_jobs: Σ n_g.
        keys: (G,) hashes of the content of each class.
        kinds: (G,) groups of classes with equal throughputs, gang, types and row coefficients.
        kind_keys: (G,) hashes of these groups.
        throughputs: (G, K) T_ij, steps/s, of a job of each class.
        rules: Side constraints.
        columns: The columns of the program, if there may be more than types; K is their number then.
        wide: One job of each class with all columns, None if the problem has all columns.
        where: (G, K) a further restriction of `runnable`, None without one.
        growth: (K,) factors on the GPUs of the problem, None if there are none (`with_more_gpus`).
    """

    problem: AllocationProblem
    policy_name: str
    reads: tuple[str, ...]
    jobs: Indices
    rows: Indices
    index: Indices
    counts: Indices
    keys: NDArray[np.uint64]
    kinds: Indices
    kind_keys: NDArray[np.uint64]
    throughputs: Floats
    rules: Rules = NO_RULES
    columns: ColumnTable | None = None
    wide: AllocationProblem | None = None
    where: NDArray[np.bool_] | None = None
    growth: Floats | None = None

    def __repr__(self) -> str:
        return f"JobClasses({self.num_jobs} jobs in {len(self)} classes)"

    def __len__(self) -> int:
        """G."""
        return len(self.rows)

    def __getattr__(self, name: str) -> Any:
        """Return a declared attribute of the jobs, one entry or row per class."""
        if name not in JOB_ATTRIBUTES:
            raise AttributeError(f"'JobClasses' has no attribute {name!r}")
        if name not in self.reads:
            text = f"reads {name!r} and must declare it, since jobs that differ in it are not equal: reads = ({name!r}, ...)"
            raise InputError(Fault(f"policy {self.policy_name}", "reads", text))
        picked = self._of_each(name)
        self.__dict__[name] = picked
        return picked

    def _of_each(self, name: str) -> Any:
        """Return an attribute of the problem's jobs, one entry or row per class."""
        if self.wide is not None:
            return getattr(self.wide, name)
        values = getattr(self.problem, name)
        return values[self.rows] if isinstance(values, np.ndarray) else tuple(values[i] for i in self.rows.tolist())

    @property
    def _by_type(self) -> AllocationProblem:
        """The problem that has the attributes of the K types."""
        return self.problem if self.wide is None else self.wide

    @property
    def num_jobs(self) -> int:
        """N, the number of jobs that can run somewhere."""
        return len(self.jobs)

    def is_suited_to_prices(self, rows: int) -> bool:
        """Return whether price decomposition is the fastest method for this many rows: only capacities may couple jobs."""
        if rows < PRICED_ROWS or not 1 < len(self.capacities) <= PRICED_TYPES or self.wide is not None or self.where is not None:
            return False
        return not (self.rules.rows or self.rules.kept or self.rules.has_penalties)

    @property
    def capacities(self) -> Floats:
        """(K,) c_j."""
        return self._by_type.capacities if self.growth is None else self._by_type.capacities * self.growth

    @property
    def prices_per_hour(self) -> Floats:
        """(K,) the cost of an hour of one GPU."""
        return self._by_type.prices_per_hour

    @property
    def gpu_parts(self) -> Floats:
        """(K,) the part of a GPU that a job occupies for each GPU that it requests."""
        parts = self._by_type.gpu_parts
        return np.ones(len(self.capacities)) if parts is None else parts

    @property
    def accelerator_types(self) -> tuple[str, ...]:
        """The names of the K types."""
        return self._by_type.accelerator_types

    @property
    def type_names(self) -> tuple[str, ...]:
        """(K,) the name of the accelerator type of each column."""
        if self.columns is None:
            return self.accelerator_types
        return tuple(self.columns.base.accelerator_types[j] for j in self.columns.source.tolist())

    @cached_property
    def runnable(self) -> NDArray[np.bool_]:
        """(G, K) whether a job of the class may have time on the type."""
        runnable: NDArray[np.bool_] = self._of_each("runnable")
        return runnable if self.where is None else runnable & self.where

    @property
    def real_throughputs(self) -> Floats:
        """(G, K) steps/s, independent of a policy's view."""
        real: Floats = self._of_each("throughputs")
        return real

    @cached_property
    def last_fractions(self) -> Floats:
        """(G, K) the time fractions of one job of each class in the last allocation."""
        last: Floats = self._of_each("previous_fractions")
        return last

    @cached_property
    def num_gpus(self) -> Floats:
        """(G,) s_g, GPUs of each gang."""
        return self.problem.num_gpus[self.rows]

    @cached_property
    def kin(self) -> NDArray[np.uint64]:
        """(G,) hashes that are equal for classes with equal throughputs, gangs and types, whatever their rules and attributes.

        Without constraints, these are the keys: there, the basis of kin leads to another optimum of several, and hardly faster.
        """
        return (
            content_keys([*self.throughputs.T, self.num_gpus, *self.runnable.T], len(self)) if self.rules.constraints else self.keys
        )

    @property
    def is_elastic(self) -> NDArray[np.bool_]:
        """(G,) whether the jobs of a class may run on several numbers of GPUs."""
        counts = self.problem.counts
        return np.zeros(len(self), dtype=bool) if counts is None else counts.kinds[self.rows] >= 0

    @cached_property
    def equal_share(self) -> Floats:
        """(G,) P_g = Σ_j T_gj c_j / C, steps/s, over all types, including those where the gang does not fit."""
        gpus = self._by_type.share_capacities
        shares: Floats = self.throughputs @ (gpus / gpus.sum())
        return shares

    @cached_property
    def isolated_throughput(self) -> Floats:
        """(G,) iso_g, steps/s in the isolated share, an N-th of each type: x_gj = (c_j / N) / s_g, divided by max(1, Σ_j x_gj).

        Raises `InputError` if a job is elastic: its part of the cluster may be more than one gang can use.
        """
        if self.is_elastic.any():
            text = "compares jobs with their isolated share, which is not defined for an elastic job"
            raise InputError(Fault(f"policy {self.policy_name}", "", text))
        return isolated_throughputs(self.throughputs, self.num_gpus, self._by_type.share_capacities, self.num_jobs)

    @cached_property
    def fastest(self) -> Floats:
        """(G,) max_j T_gj over the types where a job of the class can run, steps/s."""
        fastest: Floats = np.where(self.runnable, self.throughputs, 0.0).max(axis=1)
        return fastest

    @cached_property
    def floors(self) -> Floats:
        """(G,) the hard throughput floor of a job of each class, steps/s; 0 if there is none."""
        least = self.rules.least
        return np.zeros(len(self)) if least is None else least[self.rows]

    @cached_property
    def limits(self) -> tuple[SparseMatrix, Floats]:
        """(R, G·K) a and (R,) b of the hard rows, Σ_g n_g Σ_j a_rgj x_gj <= b_r, each divided by its scale (`scale_of`)."""
        places, values, most = [np.zeros(0, dtype=np.int64)], [np.zeros(0)], []
        for row in self.rules.hard_rows:
            there, costs = entries_of(row, self.rows, self.num_gpus)
            scale = scale_of(row.rhs, costs)
            places.append(there)
            values.append(costs / scale)
            most.append(row.rhs / scale)
        rows = np.repeat(np.arange(len(most)), [len(there) for there in places[1:]])
        shape = len(most), self.throughputs.size
        return SparseMatrix(rows, np.concatenate(places), np.concatenate(values), shape), np.array(most)

    @property
    def limits_grow(self) -> Floats:
        """(R,) 1 for limits that more GPUs relax, 0 for the others."""
        return np.array([row.grows for row in self.rules.hard_rows], dtype=float)

    @property
    def limit_tables(self) -> tuple[Floats, Floats]:
        """`limits` as dense (R, G, K) and (R,) arrays."""
        costs, most = self.limits
        return costs.toarray().reshape(len(most), *self.throughputs.shape), most

    @property
    def limit_marks(self) -> Floats:
        """(2 K, G) hashes of the coefficients of classes in all `limits`: random sums, almost surely equal only if these are."""
        costs, most = self.limits
        mixed = [costs.T @ random for random in np.random.default_rng(0).random((len(most), 2)).T]
        return np.stack(mixed, axis=1).reshape(*self.throughputs.shape, 2).transpose(1, 2, 0).reshape(-1, len(self))

    def by_job(self, by_class: Floats) -> Floats:
        """Return (G,) values of classes as (N,) values of all jobs of the problem, 0 for jobs that can run nowhere."""
        numbers = np.zeros(self.problem.num_jobs)
        numbers[self.jobs] = by_class[self.index]
        return numbers

    def floor(self, policy_name: str, throughputs: Floats) -> Floor:
        """Return the floor that keeps the (G,) throughputs of a job of each class under a policy."""
        return Floor(lambda i: f"what {policy_name} gives job {self.problem.job_ids[i]!r}", self.by_job(throughputs))

    def gains(self, name: str, table: Floats, least: float) -> ObjectiveRow:
        """Return the objective cut Σ_g n_g Σ_j G_gj x_gj >= least. table: (G, K) gains of the time of a job of each class."""
        index = np.full(self.problem.num_jobs, -1)
        index[self.jobs] = self.index
        return ObjectiveRow(name, table, least, index)

    def with_rules(self, rules: Rules) -> JobClasses:
        """Return the same classes under other rules, each class as a separate group (`kinds`)."""
        each = np.arange(len(self))
        return replace(self, rules=rules, kinds=each, kind_keys=self.keys)

    def with_more_gpus(self, j: int, part: float) -> JobClasses:
        """Return the same classes with 1 + part times the GPUs of type j in all its columns; normalisers and rules stay."""
        source = np.arange(len(self.capacities)) if self.columns is None else self.columns.source
        rules, place = self.rules, None if self.columns is None else self.columns.joint.get(j)
        if place is not None:  # the row for the GPUs of all columns
            joint = rules.hard_rows[place]
            assert isinstance(joint, Limit)  # noqa: S101
            wider = replace(joint, limit=joint.limit * (1 + part))
            rules = replace(rules, rows=tuple(wider if row is joint else row for row in rules.rows))
        return replace(self, rules=rules, growth=np.where(source == j, 1 + part, 1.0))

    def with_throughputs(self, throughputs: Floats) -> JobClasses:
        """Return the same classes with another (G, K) throughput matrix."""
        return replace(self, throughputs=throughputs)

    def with_equal_speeds(self) -> JobClasses:
        """Return the same classes with each speed up to 1 + `SAME_SPEED` times a slower one of the job made equal to it.

        From the slowest type on, the first speed that is not made equal is the next to be compared with. Groups with a floor keep
        their speeds, since only the fastest of them may meet it.
        """
        ordered = np.sort(self.throughputs, axis=1)
        apart, below = np.diff(ordered), ordered[:, :-1]
        nearly = np.flatnonzero(((apart > 0) & (apart <= SAME_SPEED * below)).any(axis=1))
        if not len(nearly):
            return self
        has_floor = np.bincount(self.kinds, self.floors > 0)[self.kinds] > 0
        usable, speeds, slower = self.runnable & ~has_floor[:, None], self.throughputs.copy(), np.zeros(len(nearly))
        for types in np.argsort(speeds[nearly], axis=1).T:
            there = nearly, types
            slower = np.where(usable[there] & (speeds[there] > slower * (1 + SAME_SPEED)), speeds[there], slower)
            speeds[there] = np.where(usable[there], slower, speeds[there])
        return self.with_throughputs(speeds)

    def regrouped(self, moved: int = 0) -> tuple[JobClasses, Indices]:
        """Return the same jobs in other rows, with the original row of each.

        In every second class of several jobs, one job gets a separate row; all rows are rotated by `moved` positions.
        """
        split = np.flatnonzero(self.counts > 1)[::2]
        counts = np.concatenate([self.counts, self.counts[split] - 1])
        counts[split] = 1
        rows = np.roll(np.concatenate([np.arange(len(self)), split]), moved)
        return self.rows_as(rows, np.roll(counts, moved), self.keys[rows]), rows

    def rows_as(self, rows: Indices, counts: Indices, keys: NDArray[np.uint64]) -> JobClasses:
        """Return classes of counts[m] jobs like those of row rows[m], with keys[m]."""
        return replace(
            self,
            rows=self.rows[rows],
            counts=counts,
            keys=keys,
            kinds=self.kinds[rows],
            kind_keys=self.kind_keys[rows],
            throughputs=self.throughputs[rows],
            wide=None if self.wide is None else self.wide.select(rows),
            where=None if self.where is None else self.where[rows],
        )

    def example(self, row: int) -> str:
        """Return the id of one job of a class."""
        return self.problem.job_ids[int(self.rows[row])]

    def names(self, which: NDArray[np.bool_]) -> list[str]:
        """Return the ids of the jobs in the classes where the (G,) mask holds."""
        return [self.problem.job_ids[i] for i in self.jobs[which[self.index]].tolist()]

    def expanded(self, by_class: Floats) -> Floats:
        """Return a (G, K) table as an (N, K) table over all jobs of the problem, 0 for jobs that can run nowhere."""
        if self.num_jobs == self.problem.num_jobs:
            return by_class.take(self.index, axis=0)  # much faster than by_class[self.index]
        table = np.zeros((self.problem.num_jobs, by_class.shape[1]))
        table[self.jobs] = by_class.take(self.index, axis=0)
        return table


def classes_of(
    problem: AllocationProblem, policy_name: str, reads: Sequence[str], rules: Rules = NO_RULES, columns: ColumnTable | None = None
) -> JobClasses:
    """Return the classes of jobs with equal throughputs, gangs, types, rules and attributes that a policy reads.

    columns: of the program, if there may be more than types; the rules are over all columns then.

    Raises `UnknownNameError` for a name that is not an attribute of a job, `InputError` with the jobs for which a required
    attribute is unknown.
    """
    jobs, part = _able(problem), _part_of(problem)
    attributes = [*_attributes(problem, policy_name, reads, part), *map(part, rules.class_columns(problem))]
    partners = None if columns is None else columns.partner_groups
    groups = [] if partners is None else [part(partners)]
    groups += [part(column) for column in rules.kind_columns() if column is not partners]
    if problem.type_index is None:
        rows: list[NDArray[Any]] = [part(problem.throughputs[:, j]) for j in range(len(problem.capacities))]
    else:
        rows = [part(problem.type_index)]
    where = [part(bits) for bits in np.packbits(problem.runnable, axis=1).T]
    kinds = number_equal([*rows, size_numbers(part(problem.num_gpus)), *where], len(jobs))
    if problem.type_index is not None:  # several type indices may have equal rows, and keys depend on content only
        kinds = _by_content(problem, jobs, kinds)
    kinds = refined(kinds, groups)
    return _built(problem, policy_name, reads, jobs, kinds, refined(kinds, attributes), rules, columns)


def separate_jobs(
    problem: AllocationProblem, policy_name: str, reads: Sequence[str], rules: Rules = NO_RULES, columns: ColumnTable | None = None
) -> JobClasses:
    """Return every job as a separate class, in the order of the problem."""
    jobs, part = _able(problem), _part_of(problem)
    _attributes(problem, policy_name, reads, part)
    each = np.arange(len(jobs))
    single = Numbering(each, each, np.ones_like(each), each.astype(np.uint64))
    return _built(problem, policy_name, reads, jobs, single, single, rules, columns)


def _built(
    problem: AllocationProblem,
    policy_name: str,
    reads: Sequence[str],
    jobs: Indices,
    kinds: Numbering,
    classes: Numbering,
    rules: Rules,
    columns: ColumnTable | None,
) -> JobClasses:
    kind = kinds.index[classes.first]
    rows = jobs[classes.first]
    wide = None if columns is None else columns.widened(problem, rows)
    return JobClasses(
        problem=problem,
        policy_name=policy_name,
        reads=tuple(reads),
        jobs=jobs,
        rows=rows,
        index=classes.index,
        counts=classes.counts,
        keys=classes.keys,
        kinds=kind,
        kind_keys=kinds.keys[kind],
        throughputs=problem.throughputs[rows] if wide is None else wide.throughputs,
        rules=rules,
        columns=columns,
        wide=wide,
    )


def _by_content(problem: AllocationProblem, jobs: Indices, kinds: Numbering) -> Numbering:
    one = jobs[kinds.first]
    columns = [*problem.throughputs[one].T, size_numbers(problem.num_gpus[one]), *np.packbits(problem.runnable[one], axis=1).T]
    alike = number_equal(columns, len(one))
    counts = np.bincount(alike.index, kinds.counts, len(alike.first)).astype(np.int64)
    return Numbering(alike.index[kinds.index], kinds.first[alike.first], counts, alike.keys)


def _able(problem: AllocationProblem) -> Indices:
    """Return the rows of the jobs that can run somewhere."""
    return np.flatnonzero(problem.runnable.any(axis=1)) if problem.excluded else np.arange(problem.num_jobs)


def _part_of(problem: AllocationProblem) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """Return a function that selects the entries of the jobs that can run somewhere."""
    if not problem.excluded:
        return lambda column: column
    able = _able(problem)
    # A broadcast default remains one number in memory, which shows that it is constant.
    return lambda column: np.broadcast_to(column[:1], able.shape) if column.strides == (0,) else column[able]


def _attributes(
    problem: AllocationProblem, policy_name: str, reads: Sequence[str], part: Callable[[NDArray[Any]], NDArray[Any]]
) -> list[NDArray[Any]]:
    """Return all attributes that are read, of the jobs that can run, as columns of numbers."""
    if isinstance(reads, str) or not isinstance(reads, Iterable):
        hint = f"; write ({reads!r},)" if isinstance(reads, str) else ""
        raise InputError(Fault(f"policy {policy_name}", "reads", f"must be a tuple of names, found {reads!r}{hint}"))
    return [column for name in reads for column in _columns(problem, policy_name, name, part)]


def _columns(
    problem: AllocationProblem, policy_name: str, name: str, part: Callable[[NDArray[Any]], NDArray[Any]]
) -> list[NDArray[Any]]:
    """Return an attribute of the jobs that can run as columns of numbers."""
    if name not in JOB_ATTRIBUTES:
        text = f"names {name!r}, which is not an attribute of a job{nearest(name, JOB_ATTRIBUTES)}"
        raise UnknownNameError(Fault(f"policy {policy_name}", "reads", text))
    values = getattr(problem, name)
    if name in WORKFLOW_COLUMNS and _is_constant(values):
        return []  # without workflows, classes and their order do not depend on whether the policy reads it
    if name in ARRAYS and len(ARRAYS[name].axes) == 2:
        return [part(values[:, j]) for j in range(values.shape[1])]
    if name == "job_ids" and isinstance(values, NumberedNames):
        return [part(np.arange(len(values)))]
    if name in ("job_ids", "tenants"):
        number = {text: i for i, text in enumerate(sorted(set(values)))}
        return [part(np.array([number[text] for text in values], dtype=np.int64))]
    if name in MUST_BE_KNOWN:
        unknown = part(np.arange(problem.num_jobs))[np.isnan(part(values))].tolist()
        text = f"is unknown, but {policy_name} needs it"
        InputError.raise_any([Fault(f"job {problem.job_ids[i]!r}", name, text) for i in unknown])
    return [part(values)]


def _is_constant(values: Floats) -> bool:
    return values.strides == (0,) or np.array_equal(values, np.broadcast_to(values[:1], values.shape), equal_nan=True)


def rounded(problem: AllocationProblem) -> AllocationProblem:
    """Return the problem with all throughputs rounded to 24 binary digits, about 1e-7 of them: nearly equal ones become equal."""

    def near(speeds: Floats) -> Floats:
        mantissas, exponents = np.frexp(speeds)
        nearest: Floats = np.ldexp(np.rint(np.ldexp(mantissas, 23)), exponents - 23)
        return nearest

    counts, pairs, hosts, speeds = problem.counts, problem.pairs, problem.hosts, problem.speeds
    if speeds is not None and hosts is not None:
        hosts = replace(hosts, speeds=replace(speeds, consolidated=near(speeds.consolidated), spread=near(speeds.spread)))
    return replace(
        problem,
        throughputs=near(problem.throughputs),
        counts=None if counts is None else replace(counts, speeds=near(counts.speeds)),
        pairs=None if pairs is None else replace(pairs, speeds=near(pairs.speeds), alone=near(pairs.alone)),
        hosts=hosts,
    )


def merged(problem: AllocationProblem, tolerance: float) -> AllocationProblem:
    """Return the problem with nearly equal rows of throughputs made equal; the same problem if no two rows are.

    The throughputs on each type are cut into intervals whose ends differ by the factor 1 + tolerance. Jobs with rows in the
    same intervals get the midpoint of their smallest and largest throughputs on each type, so that none changes by more than
    tolerance/2 of itself.
    """
    table = problem.throughputs
    steps = np.floor(np.log(np.where(table > 0, table, 1.0)) / np.log1p(tolerance)).astype(np.int64)
    columns = [np.where(table[:, j] > 0, steps[:, j], np.iinfo(np.int64).min // 2) for j in range(table.shape[1])]
    alike = number_equal([column.astype(float) for column in columns], problem.num_jobs)
    order = np.argsort(alike.index, kind="stable")
    starts = np.concatenate([[0], np.cumsum(alike.counts)[:-1]])
    by_row = table[order]
    least, most = np.minimum.reduceat(by_row, starts), np.maximum.reduceat(by_row, starts)
    if np.array_equal(least, most):
        return problem
    middle = (least + most) / 2
    return replace(problem, throughputs=middle[alike.index], type_index=alike.index)


def returned_numbers(values: object, count: int, where: str, method: str, rule: str, job_of: Callable[[int], str]) -> Floats:
    """Return the result of a policy's method as a (count,) array; raises `InputError` if it has another shape or breaks the rule.

    job_of: returns the name of a job in a row.
    """
    text, test = RETURNED[rule]
    if type(values) is np.ndarray and values.dtype == float and values.shape == (count,) and test(values).all():
        return values.copy()
    check = ArrayChecker()
    try:
        numbers = floats_of(check.in_order(method, values, [("row", NumberedNames("", count))]))
    except (TypeError, ValueError):
        numbers = np.zeros(())
    if check.faults or numbers.shape != (count,):
        raise InputError(Fault(where, method, f"must return one number for each of the {count} rows of jobs, returned {values!r}"))
    wrong = np.flatnonzero(~test(numbers))[:1].tolist()
    InputError.raise_any([Fault(where, method, f"{text}, returned {numbers[row]:g} for job {job_of(row)!r}") for row in wrong])
    return numbers
