"""The numbers of one allocation: who asks, how fast each job runs where, and how many GPUs there are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from numbers import Real
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from gavel_py.errors import Fault, InputError, nearest
from gavel_py.io.names import NumberedNames
from gavel_py.problem.array_validation import ArrayChecker, labels_of
from gavel_py.problem.arrays import (
    JOB_COLUMNS,
    UNKNOWN_WORK,
    Floats,
    Indices,
    Mask,
    OptionalArrays,
    RunningOn,
    isolated_throughputs,
    size_numbers,
    table_shape,
)
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.eligibility import GpuMemory, screen
from gavel_py.problem.from_jobs import Hosts, Profile, hosts_of, job_arrays
from gavel_py.problem.job import Job, JobSet
from gavel_py.problem.pair_throughputs import PairSpeeds, PlacementSpeeds, given_pairs
from gavel_py.problem.row_hashing import number_equal


@dataclass(frozen=True, eq=False, kw_only=True)
class AllocationProblem:
    """N jobs and K accelerator types as arrays; build one with `from_arrays`, `from_types` or `from_jobs`.

    throughputs: (N, K) T_ij, steps/s of the whole gang, 0 = cannot run; capacities: (K,) c_j, GPUs;
    num_gpus: (N,) s_i, whole numbers, or fractions of one GPU; runnable: (N, K) where a job may be given time;
    excluded: {job_id: reason} of the jobs that get none.
    All other arrays are (N,) but prices_per_hour (K,) and previous_fractions (N, K). Unknown numbers are NaN.
    type_index: (N,) jobs with the same number have the same throughputs; None where nobody has said so;
    share_capacities: (K,) the GPUs from which the normalisers are taken, `capacities` but in `with_capacities`;
    hosts: the nodes of the cluster that the problem was built from, None where it has no nodes, or they are not to count;
    pairs: the speeds of jobs that share GPUs, None where nobody is to share; gpu_parts: (K,) the part of a GPU that a job has for
    each that it asks for, ½ in columns for pairs, None where it is all of them.
    """

    job_ids: Sequence[str]
    accelerator_types: tuple[str, ...]
    throughputs: Floats
    capacities: Floats
    runnable: Mask
    excluded: dict[str, str]
    prices_per_hour: Floats
    tenants: Sequence[str]
    num_gpus: Floats
    weights: Floats
    priorities: Floats
    steps_remaining: Floats
    total_steps: Floats
    arrival_seconds: Floats
    elapsed_seconds: Floats
    waiting_seconds: Floats
    isolated_seconds: Floats
    attained_gpu_seconds: Floats
    deadlines_seconds: Floats
    running_on: Indices
    previous_fractions: Floats
    type_index: Indices | None = None
    share_capacities: Floats
    hosts: Hosts | None = None
    pairs: PairSpeeds | None = None
    gpu_parts: Floats | None = None

    @property
    def num_jobs(self) -> int:
        """N, excluded jobs included."""
        return len(self.job_ids)

    @property
    def speeds(self) -> PlacementSpeeds | None:
        """What is known of both placements of gangs, on few nodes and on more; None where nobody knows of a difference."""
        return None if self.hosts is None else self.hosts.speeds

    @cached_property
    def equal_share(self) -> Floats:
        """(N,) P_i = Σ_j T_ij c_j / C, steps/s of a job that spends its time over the types in proportion to their counts.

        The normaliser of Gavel (OSDI 2020, section 4.1), independent of N, gang sizes and weights.
        """
        total = self.share_capacities.sum()
        return self.throughputs @ (self.share_capacities / total) if total else np.zeros(self.num_jobs)

    @cached_property
    def isolated_throughput(self) -> Floats:
        """(N,) iso_i, steps/s in the isolated share, an N-th of the cluster; N: jobs that can run (`isolated_throughputs`)."""
        able = self.num_jobs - len(self.excluded)
        return isolated_throughputs(self.throughputs, self.num_gpus, self.share_capacities, able)

    @cached_property
    def fastest(self) -> Floats:
        """(N,) max_j T_ij over the types where the job can run; 0 for excluded jobs."""
        fastest: Floats = np.where(self.runnable, self.throughputs, 0.0).max(axis=1, initial=0.0)
        return fastest

    def __repr__(self) -> str:
        counts = ", ".join(f"{n}: {c:g}" for n, c in zip(self.accelerator_types, self.capacities, strict=True))
        return f"AllocationProblem({self.num_jobs} jobs, {len(self.excluded)} of them excluded; GPUs {counts})"

    def with_capacities(self, capacities: ArrayLike, *, largest_gangs: ArrayLike | None = None) -> AllocationProblem:
        """Return the same problem with other numbers of GPUs and the normalisers as they are: what would more GPUs be worth?

        largest_gangs: (N, K) GPUs of each type that one gang may span under its locality, by default all. A gang that no longer
        fits a type loses it; a type on which it did not fit before stays closed to it.
        Raises `InputError`.
        """
        check = ArrayChecker()
        kinds = ("accelerator type", self.accelerator_types)
        counts = check.numbers("capacities", capacities, 0, "at least 0", [kinds])
        spans = check.numbers("largest_gangs", largest_gangs, np.inf, "at least 0", [("job", self.job_ids), kinds])
        check.finish()
        done = np.zeros(self.num_jobs, dtype=bool)
        runnable, excluded = screen(
            self.job_ids, self.accelerator_types, self.throughputs, self.runnable, self.num_gpus, np.minimum(spans, counts), done
        )
        return replace(self, capacities=counts, runnable=runnable, excluded=excluded | self.excluded)

    def select(self, rows: Indices | Mask) -> AllocationProblem:
        """Return the problem of these jobs only, in this order; `rows` may also be an (N,) mask, a labelled one by job id."""
        check = ArrayChecker()
        if np.ma.is_masked(rows):
            check.add("", "rows", "must have no masked entries")
        elif np.asarray(rows).dtype == bool:
            rows = check.in_order("rows", rows, [("job", self.job_ids)])
        check.finish()
        rows = np.arange(self.num_jobs)[rows]
        picked = {f.name: _picked(getattr(self, f.name), rows) for f in fields(self) if f.name not in _NOT_BY_JOB}
        excluded = {job: self.excluded[job] for job in picked["job_ids"] if job in self.excluded}
        hosts = None if self.hosts is None else self.hosts.select(rows)
        pairs = None if self.pairs is None else self.pairs.select(rows)
        return replace(self, excluded=excluded, hosts=hosts, pairs=pairs, **picked)

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                value.setflags(write=False)

    @classmethod
    def from_arrays(cls, throughputs: ArrayLike, capacities: ArrayLike, **arrays: Unpack[OptionalArrays]) -> AllocationProblem:
        """Build a problem from arrays; each fault in them is reported with its job and field, all together.

        throughputs: (N, K) steps/s of the whole gang, 0 = cannot run; capacities: (K,) GPUs.
        Optional, (N,) unless said: accelerator_types (K,), prices_per_hour (K,) of one GPU, job_ids, tenants,
        num_gpus (1; whole numbers, or fractions of one GPU), weights (1), priorities (0), steps_remaining (total_steps if
        given, else unknown), total_steps (unknown), arrival_seconds (0), elapsed_seconds since arrival (0),
        waiting_seconds (0), isolated_seconds (0),
        attained_gpu_seconds (0), deadlines_seconds from now (NaN = none), running_on (type name or column, None or -1 =
        not running), previous_fractions (N, K) (0).
        Of a pandas Series or DataFrame the labels count, job ids and accelerator types, and not the order; labels that are not
        these are refused, and a default index 0, 1, 2, ... counts positions. A DataFrame of throughputs names jobs and types. What
        is masked or missing is as NaN; a missing tenant is none.
        Jobs share GPUs where pair_kinds, whole numbers, -1 = never, and pair_throughputs (kinds, kinds, K) are given: steps/s of a
        job of the first kind while it shares each of its GPUs with one of the second, 0 = they cannot.

        Raises `InputError`.
        """
        jobs, types = table_shape("throughputs", "jobs", throughputs, capacities)
        return cls._from_table(ArrayChecker(), throughputs, None, jobs, types, capacities, arrays)

    @classmethod
    def from_types(
        cls, type_throughputs: ArrayLike, type_index: ArrayLike, capacities: ArrayLike, **arrays: Unpack[OptionalArrays]
    ) -> AllocationProblem:
        """Build a problem of many jobs of few types: job i has the throughputs in row type_index[i] of a table.

        type_throughputs: (C, K) steps/s of a gang of each job type, 0 = cannot run; type_index: (N,) whole numbers from 0
        to C - 1; capacities and all optional arrays are those of `from_arrays`, with one entry per job. The same as
        from_arrays(type_throughputs[type_index], capacities, ...), and quicker, since equal jobs need not be found.

        >>> import gavel_py as gp
        >>> problem = gp.AllocationProblem.from_types([[4.0, 1.0], [1.0, 1.0]], [0, 1, 1, 0], [2, 1])
        >>> problem.throughputs[:, 0].tolist()
        [4.0, 1.0, 1.0, 4.0]

        Raises `InputError`.
        """
        check = ArrayChecker()
        rows, types = table_shape("type_throughputs", "job types", type_throughputs, capacities)
        index = check.indices("type_index", type_index, rows)
        return cls._from_table(check, type_throughputs, (index, type_index), len(index), types, capacities, arrays)

    @classmethod
    def _from_table(
        cls,
        check: ArrayChecker,
        table: ArrayLike,
        type_index: tuple[Indices, ArrayLike] | None,
        num_jobs: int,
        num_types: int,
        capacities: ArrayLike,
        arrays: OptionalArrays,
    ) -> AllocationProblem:
        """type_index: as numbers, and as it was given; names that are not given are the labels of the table, if it has any."""
        known = OptionalArrays.__annotations__
        for name in set(arrays) - set(known):
            raise TypeError(f"unexpected keyword argument {name!r}{nearest(name, known)}")
        names, kinds = arrays.get("job_ids"), arrays.get("accelerator_types")
        names = labels_of(table) if names is None and type_index is None else names
        kinds = labels_of(table, 1) if kinds is None else kinds  # type: ignore[assignment]
        ids = check.unique_names("job_ids", names, num_jobs, "", "job")
        types = tuple(check.unique_names("accelerator_types", kinds, num_types, "type-", "accelerator type"))
        index = None if type_index is None else check.in_order("type_index", type_index[0], [("job", ids)], type_index[1])
        pair_kinds = check.in_order("pair_kinds", arrays.get("pair_kinds"), [("job", ids)])
        counts = check.numbers("capacities", capacities, 0, "at least 0", [("accelerator type", types)])
        made = cls._assembled(
            check,
            ids,
            types,
            throughputs=table,
            type_index=index,
            capacities=counts,
            prices_per_hour=arrays.get("prices_per_hour"),
            tenants=check.texts("tenants", arrays.get("tenants"), ("job", ids)),
            running_on=arrays.get("running_on"),
            previous_fractions=arrays.get("previous_fractions"),
            allowed=np.broadcast_to(np.True_, (num_jobs, num_types)),
            largest_gangs=np.broadcast_to(counts, (num_jobs, num_types)),
            rules=JOB_COLUMNS,
            by_job={name: arrays.get(name) for name in JOB_COLUMNS},  # type: ignore[misc]
        )
        pair_speeds = arrays.get("pair_throughputs")
        if pair_kinds is None and pair_speeds is None:
            return made
        return replace(made, pairs=given_pairs(pair_kinds, pair_speeds, made.num_gpus, made.throughputs))

    @classmethod
    def from_jobs(
        cls,
        jobs: Iterable[Job],
        cluster: Cluster,
        profile: Profile,
        *,
        now_seconds: float = 0.0,
        waiting_seconds: ArrayLike | None = None,
        isolated_seconds: ArrayLike | None = None,
        attained_gpu_seconds: ArrayLike | None = None,
        running_on: RunningOn = None,
        previous_fractions: ArrayLike | None = None,
        whole_gangs: bool = True,
        sharing: bool = False,
        min_gain: float = 1.0,
        allow_unknown_types: bool = False,
    ) -> AllocationProblem:
        """Build the problem of these jobs on this cluster, with throughputs from the profile.

        Accelerator types that the profile lacks are an error, or with `allow_unknown_types` left out, with a `GavelWarning`
        (`Cluster.known_to`). A type that the job does not allow, on which no set of nodes within its locality can hold its gang, or
        whose GPUs have less memory than it takes, gets none of its time.
        The optional arrays are those of `from_arrays`, in the order of the jobs.
        whole_gangs: no more is promised than patterns of whole gangs can deliver, nor than CPUs and memory of the nodes allow
        (`gang_rows`, `node_rows`), and a gang has the throughput of its faster placement, on the fewest nodes or spread over
        more, where the profile knows both (`placement_speeds`); false: as published, where three GPUs are worth one and a half
        gangs of two, and all gangs are consolidated.
        sharing: jobs of equal gangs may share GPUs two by two where the profile knows how fast both are then (`PairSpeeds`);
        min_gain: only pairs that do more than so many times what one of them does alone. With 1 no pair is missing that could help.

        Raises `MissingThroughputError` for throughputs that the profile lacks, `InputError` for anything else that is wrong.
        """
        _check_number("now_seconds", now_seconds)
        _check_number("min_gain", min_gain, least=1)
        job_set = jobs if isinstance(jobs, JobSet) else JobSet(jobs)
        cluster = cluster.known_to(profile, allow_unknown_types=allow_unknown_types)
        arrays = job_arrays(job_set, cluster, profile, now_seconds)
        speeds = arrays.speeds if whole_gangs else None
        past = {
            "waiting_seconds": waiting_seconds,
            "isolated_seconds": isolated_seconds,
            "attained_gpu_seconds": attained_gpu_seconds,
        }
        return cls._assembled(
            ArrayChecker(),
            tuple(job.job_id for job in job_set),
            cluster.accelerator_names,
            throughputs=arrays.throughputs if speeds is None else speeds.faster,
            capacities=cluster.capacities,
            prices_per_hour=cluster.prices_per_hour,
            tenants=tuple(job.tenant for job in job_set),
            running_on=running_on,
            previous_fractions=previous_fractions,
            allowed=arrays.allowed,
            largest_gangs=arrays.largest_gangs,
            memory=arrays.memory,
            rules=JOB_COLUMNS | UNKNOWN_WORK,
            by_job=arrays.columns(job_set, now_seconds) | past,
            hosts=hosts_of(job_set, cluster, speeds, arrays.memory) if whole_gangs else None,
            pairs=arrays.pairs(job_set, cluster.accelerator_names, profile, min_gain) if sharing else None,
        )

    @classmethod
    def _assembled(
        cls,
        check: ArrayChecker,
        ids: Sequence[str],
        types: tuple[str, ...],
        *,
        throughputs: ArrayLike,
        type_index: Indices | None = None,
        capacities: Floats,
        prices_per_hour: ArrayLike | None,
        tenants: Sequence[str],
        running_on: RunningOn,
        previous_fractions: ArrayLike | None,
        allowed: Mask,
        largest_gangs: Floats,
        rules: Mapping[str, tuple[float, str]],
        by_job: Mapping[str, ArrayLike | None],
        memory: GpuMemory | None = None,
        hosts: Hosts | None = None,
        pairs: PairSpeeds | None = None,
    ) -> AllocationProblem:
        """Check what is left to check, find out who can run where, and freeze it all."""
        jobs, kinds = ("job", ids), ("accelerator type", types)
        rows = jobs if type_index is None else ("job type", NumberedNames("", len(np.asarray(throughputs))))
        table = check.numbers("throughputs", throughputs, 0, "at least 0", [rows, kinds])
        columns = {name: check.numbers(name, values, *rules[name], [jobs]) for name, values in by_job.items()}
        if by_job["steps_remaining"] is None:
            columns["steps_remaining"] = columns["total_steps"]
        prices = check.numbers("prices_per_hour", prices_per_hour, np.nan, "at least 0 or NaN", [kinds])
        previous = check.numbers("previous_fractions", previous_fractions, 0, "from 0 to 1", [jobs, kinds])
        running = check.columns_of("running_on", running_on, ids, types)
        check.finish()
        gangs = columns["num_gpus"]
        finished = columns["steps_remaining"] == 0
        if type_index is None:
            runnable, excluded = screen(ids, types, table, allowed, gangs, largest_gangs, finished, memory=memory)
        else:  # jobs of one type and gang size run in the same places: what holds for one holds for all
            alike = number_equal([type_index, size_numbers(gangs), finished], len(ids))
            one = alike.first
            runnable, excluded = screen(
                ids, types, table[type_index[one]], allowed[one], gangs[one], largest_gangs[one], finished[one], alike.index
            )
        return cls(
            job_ids=ids,
            accelerator_types=types,
            throughputs=table if type_index is None else table[type_index],
            type_index=type_index,
            capacities=capacities,
            share_capacities=capacities,
            runnable=runnable,
            excluded=excluded,
            prices_per_hour=prices,
            tenants=tenants,
            running_on=running,
            previous_fractions=previous,
            hosts=hosts,
            pairs=pairs,
            **columns,
        )


_NOT_BY_JOB = frozenset(
    {"accelerator_types", "capacities", "share_capacities", "prices_per_hour", "excluded", "hosts", "pairs", "gpu_parts"}
)


def _check_number(name: str, value: float, least: float = -math.inf) -> None:
    """Raise `InputError` for an argument that is not a finite number, or is less than it may be."""
    if not (isinstance(value, Real) and math.isfinite(value) and value >= least):
        bound = "" if least == -math.inf else f" of at least {least:g}"
        raise InputError(Fault("", name, f"must be a finite number{bound}, found {value!r}"))


def _picked(value: Any, rows: Indices) -> Any:
    if value is None or isinstance(value, np.ndarray):
        return None if value is None else value[rows]
    return tuple(value[i] for i in rows.tolist())
