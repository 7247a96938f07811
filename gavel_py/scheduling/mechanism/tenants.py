"""Tenants in rounds: a tenant is served like a job. It has an account of GPU time and a claim in each round.

A GPU within the claim of a tenant raises the score of its job, one beyond it lowers it; GPUs are counted in the order of the scores
of jobs. So of equal jobs, the k-th of each tenant have equal scores, and tenants get their GPUs in each round, not only on average.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from gavel_py.io.names import natural_key
from gavel_py.io.snapshots import decode_array, encode
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.tenants import TenantTree
from gavel_py.problem.tolerances import WHOLE_TOLERANCE
from gavel_py.scheduling.delivery import TenantDelivery, shortage
from gavel_py.scheduling.ledger import MAX_DEFICIT_ROUNDS

REACH = 3.0
"""Largest change of a score, as far as urgency begins: a tenant comes before others no more than a job does."""

PAYBACK = 0.25
"""Part of its deficit that a tenant claims in a round. Without it, whole gangs may miss the promise of a tenant in the same way in
every round; with all of it, a tenant catches up in one round what the next one then misses. What it is owed beyond a round of its
promise counts in full."""

ANY = -1.0
"""Multiple of tenants that may receive any GPU time: with elastic jobs or fractions of GPUs, or after starts within rounds."""


class TenantLevel(NamedTuple):
    """Claims of the tenants of one level of the tree.

    names: (A,) the tenants; of: (N,) the tenant of each job at this level, -1 for none; claims: (A,) in GPUs, for this round.
    """

    names: tuple[str, ...]
    of: Indices
    claims: Floats


@dataclass(frozen=True, eq=False)
class TenantClaims:
    """Claims of all tenants with jobs.

    Attributes:
        gpus: (N,) the GPUs of each job that count for its tenant: its gang, a part of a GPU, or what an elastic job is promised.
        levels: The levels with several tenants, the lowest first.
    """

    gpus: Floats
    levels: tuple[TenantLevel, ...]

    def without(self, rows: Indices | Mask, gpus: Floats) -> TenantClaims:
        """Return the claims that are left when these jobs hold these GPUs."""
        levels = tuple(
            level._replace(claims=level.claims - _sums(level.of[rows], gpus, len(level.claims))) for level in self.levels
        )
        return TenantClaims(self.gpus, levels)

    def joined(self, groups: Iterable[Sequence[int]], fractions: Floats) -> TenantClaims:
        """Return the claims where the first job of each group of jobs on the same GPUs stands for those of its tenant.

        fractions: (N,) as for `RoundLimit.joined`.
        """
        gpus, of = self.gpus.copy(), self.levels[0].of
        for rows in map(list, groups):
            shares = self.gpus[rows] / np.where(fractions[rows] < 1, 1, len(rows))
            gpus[rows[0]] = shares[of[rows] == of[rows[0]]].sum()
        return TenantClaims(gpus, self.levels)

    def raised(self, scores: Floats) -> Floats:
        """Return (N, K) scores, -inf where a job is not due, raised by 2·REACH at most for jobs of tenants with a claim.

        At each level, score_i += REACH + clip((C_g − n_i)/√s_i, ±REACH) for the jobs of tenant g with a claim of C_g GPUs, where
        n_i counts the GPUs of g in the order of the best scores of jobs, up to the middle of job i. Others are raised by REACH.
        """
        for level in self.levels:
            claimed = level.claims[level.of] - _counted(self.gpus, scores, level.of)
            scores = scores + _within_reach(level, claimed / np.sqrt(self.gpus))[:, None]
        return scores

    def marginal(self, scores: Floats, runs: Mask) -> Floats:
        """Return (N, K) scores raised as if only the jobs that run counted, and a waiting job came after them; runs: (N,).

        Here, score_i += REACH + clip(C_g − n_i, ±REACH), so that the sum over the jobs that run is −½ Σ_g (C_g − Σ s_i)² and a
        constant, as long as no tenant is further than REACH from its claim.
        """
        for level in self.levels:
            held = _sums(level.of[runs], self.gpus[runs], len(level.claims))
            among = _counted(np.where(runs, self.gpus, 0.0), scores, level.of)
            claimed = level.claims[level.of] - np.where(runs, among, held[level.of] + self.gpus / 2)
            scores = scores + _within_reach(level, claimed)[:, None]
        return scores


def _within_reach(level: TenantLevel, claimed: Floats) -> Floats:
    """Return (N,) what scores gain; claimed: (N,) what is left of the claim of each job's tenant at the middle of the job."""
    return np.where(level.of >= 0, np.clip(claimed, -REACH, REACH), 0.0) + REACH


def _counted(gpus: Floats, scores: Floats, of: Indices) -> Floats:
    """Return (N,) n_i: the GPUs of the tenant of each job up to the middle of the job."""
    best = scores.max(axis=1, initial=-np.inf)
    order = np.lexsort([-best, of])
    sizes, firsts = gpus[order], np.flatnonzero(np.diff(of[order], prepend=-2))
    middles = np.cumsum(sizes) - sizes / 2
    before = middles[firsts] - sizes[firsts] / 2
    counted = np.empty(len(order))
    counted[order] = middles - np.repeat(before, np.diff(np.append(firsts, len(order))))
    return counted


class TenantLedger:
    """Accounts of all tenants that have had jobs, with the tenants above them.

    A deficit is the balance D_g += Σ s_i X_ij − GPUs received, in GPU-rounds, within ±MAX_DEFICIT_ROUNDS · max(1, GPUs promised).
    GPUs beyond the promises of all tenants of a level were idle, and count for none. It is dropped when a tenant has no jobs.

    Attributes:
        names: (A,) the tenants.
        deficits: (A,) D_g.
        promised: (A,) GPU-seconds promised in all rounds.
        received: (A,) GPU-seconds received.
        latest: (A,) GPUs promised in the latest round in which any were.
        first_rounds: (A,) the first round in which they held GPUs, -1 before.
        multiples: (A,) the greatest common divisor of the gang sizes of all their jobs, 0 before the first, `ANY` if they may
            receive any GPU time.
    """

    TABLES: ClassVar[Mapping[str, float]] = {
        "deficits": 0.0,
        "promised": 0.0,
        "received": 0.0,
        "latest": 0.0,
        "first_rounds": -1.0,
        "multiples": 0.0,
    }
    """{table: its entry for a new account}."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.deficits, self.promised, self.received = np.zeros(0), np.zeros(0), np.zeros(0)
        self.latest, self.first_rounds, self.multiples = np.zeros(0), np.zeros(0), np.zeros(0)
        self._round_seconds = 0.0
        self._parents: dict[str, str | None] | None = None
        self._paths: Indices = np.zeros((0, 0), dtype=np.int64)  # (levels, tenants of the job table): their accounts, -1 for none

    def arrange(self, tree: TenantTree) -> None:
        """Arrange the tenants in a tree; those that it does not have are at the top."""
        parents = {tenant.name: tenant.parent for tenant in tree.tenants}
        if self._parents not in (None, parents):
            self.multiples[:] = ANY  # the accounts of one level have jobs in common
        self._parents = parents
        self._paths = np.zeros((0, 0), dtype=np.int64)

    def claims(self, tenants: Mapping[str, int], of: Indices, promised: Floats, gpus: Floats) -> TenantClaims | None:
        """Return the claims in a round; None if no level has several tenants with jobs.

        With P_g = Σ s_i X_ij, C_g = P_g + PAYBACK·D_g + (1 − PAYBACK)·max(0, D_g − max(1, P_g)).

        Args:
            tenants: {tenant: its number in the job table}.
            of: (N,) the number of each job's tenant, -1 for none.
            promised: (N,) Σ_j s_i X_ij of the jobs.
            gpus: (N,) as in `TenantClaims`.
        """
        levels = []
        for at in reversed(self._levels(tenants, of)):
            if np.count_nonzero(self._have_jobs(at)) > 1:
                due = _sums(at, promised, len(self.names))
                beyond = (1.0 - PAYBACK) * np.maximum(0.0, self.deficits - np.maximum(1.0, due))
                levels.append(TenantLevel(tuple(self.names), at, due + PAYBACK * self.deficits + beyond))
        return TenantClaims(gpus, tuple(levels)) if levels else None

    def record(
        self,
        tenants: Mapping[str, int],
        of: Indices,
        promised: Floats,
        received: Floats,
        sizes: Floats,
        index: int,
        round_seconds: float,
    ) -> None:
        """Enter one round.

        Args:
            tenants: As for `claims`.
            of: As for `claims`.
            promised: As for `claims`.
            received: (N,) GPUs that jobs hold.
            sizes: (N,) gang sizes, NaN where jobs may hold other numbers of GPUs.
            index: The index of the round.
            round_seconds: Its length.
        """
        levels = self._levels(tenants, of)
        if round_seconds != self._round_seconds:
            self.multiples[self.multiples > 0] = ANY
            self._round_seconds = round_seconds
        has_jobs = np.zeros(len(self.names), dtype=bool)
        for at in levels:
            due, got = _sums(at, promised, len(self.names)), _sums(at, received, len(self.names))
            self.promised += due * round_seconds
            self.received += got * round_seconds
            self.latest = np.where(due > 0, due, self.latest)
            self._note_first(got, index)
            beyond = np.maximum(0.0, got - due)
            idle = min(max(0.0, float(got.sum() - due.sum())), float(beyond.sum()))
            counted = got - beyond * (idle / beyond.sum()) if idle else got
            bound = MAX_DEFICIT_ROUNDS * np.maximum(1.0, due)
            here = self._have_jobs(at)
            self.deficits[here] = np.clip(self.deficits + due - counted, -bound, bound)[here]
            has_jobs |= here
            self._note_sizes(at, sizes)
        self.deficits[~has_jobs] = 0.0

    def receive(
        self, tenants: Mapping[str, int], of: Indices, gpus: Floats, rounds: float, seconds: float, index: int | None = None
    ) -> None:
        """Enter (N,) GPUs that jobs get for a part of the round in progress; negative if they lose them.

        index: the index of the round if jobs start.
        """
        for at in self._levels(tenants, of):
            got = _sums(at, gpus, len(self.names))
            self.received += got * seconds
            self.deficits -= got * rounds
            if index is not None:
                self._note_first(got, index)
                self.multiples[at[at >= 0]] = ANY

    def leaves_no_room(self, tenants: Mapping[str, int], of: Indices, promised: Floats, received: Floats, sizes: Floats) -> Mask:
        """Return (N,) the jobs whose gangs would give their tenant, or one above, more GPUs in this round than it is promised.

        Levels with only one tenant do not count. sizes: (N,) the GPUs of the gangs; the other arguments as for `record`.
        """
        lacks = np.zeros(len(of), dtype=bool)
        for at in self._levels(tenants, of):
            if np.count_nonzero(self._have_jobs(at)) > 1:
                left = _sums(at, promised, len(self.names)) - _sums(at, received, len(self.names))
                lacks |= (at >= 0) & (sizes > left[at] + WHOLE_TOLERANCE)
        return lacks

    def report(self, offered: float) -> tuple[dict[str, TenantDelivery], float]:
        """Return the accounts, and the least shortfall of the tenants at the top (`least_tenant_shortfall`), in GPU-seconds.

        offered: GPU-seconds that the rounds could give.
        """
        short = np.maximum(0.0, self.promised - self.received)
        behind = short / (np.maximum(1.0, self.latest) * (self._round_seconds or 1.0))
        parents = self._parents or {}
        found = {
            name: TenantDelivery(
                tenant=name,
                parent=parents.get(name),
                promised_gpu_seconds=self.promised.item(i),
                delivered_gpu_seconds=self.received.item(i),
                undelivered_gpu_seconds=short.item(i),
                rounds_behind=behind.item(i),
                first_round=first if (first := int(self.first_rounds[i])) >= 0 else None,
            )
            for i, name in sorted(enumerate(self.names), key=lambda each: natural_key(each[1]))
        }
        top = np.array([i for i, name in enumerate(self.names) if parents.get(name) is None], dtype=np.int64)
        multiples = np.maximum(0.0, self.multiples[top]) * self._round_seconds
        return found, least_tenant_shortfall(self.promised[top], multiples, offered)

    def _note_first(self, got: Floats, index: int) -> None:
        """Enter the round in which tenants held these GPUs, (A,), as their first one."""
        self.first_rounds[(got > 0) & (self.first_rounds < 0)] = index

    def _note_sizes(self, at: Indices, sizes: Floats) -> None:
        """Enter the gang sizes of jobs, (N,), in the common divisors of their tenants; at: (N,)."""
        known = self.multiples[at]
        is_new = (at >= 0) & (known >= 0) & ~(np.remainder(sizes, np.where(known > 0, known, np.inf)) == 0)
        for account in set(at[is_new].tolist()):
            found = sizes[is_new & (at == account)]
            whole = np.equal(np.mod(found, 1.0), 0.0).all()
            self.multiples[account] = math.gcd(int(self.multiples[account]), *found.astype(int).tolist()) if whole else ANY

    def _have_jobs(self, at: Indices) -> Mask:
        """Return (A,) the tenants of one level that have jobs; at: (N,)."""
        return np.bincount(at + 1, minlength=len(self.names) + 1)[1:] > 0

    def _levels(self, tenants: Mapping[str, int], of: Indices) -> Indices:
        """Return (levels, N) the account of the tenant of each job at each level, the top first; -1 for none."""
        if self._paths.shape[1] < len(tenants) or not len(self._paths):
            self._paths = self._numbered(tenants)
        return np.where(of >= 0, self._paths[:, of], -1) if len(tenants) else np.zeros((0, len(of)), dtype=np.int64)

    def _numbered(self, tenants: Iterable[str]) -> Indices:
        """Return the accounts on the path from the top to each tenant, with accounts for new names."""
        paths = []
        for name in tenants:
            path = [name]
            while (above := (self._parents or {}).get(path[-1])) is not None:
                path.append(above)
            paths.append(path[::-1])
        number = {name: i for i, name in enumerate(self.names)}
        for name in (name for path in paths for name in path):
            number.setdefault(name, len(number))
        self.names = list(number)
        for table, entry in self.TABLES.items():
            setattr(self, table, np.append(getattr(self, table), np.full(len(number) - len(getattr(self, table)), entry)))
        depth = max(map(len, paths), default=0)
        rows = [[number[name] for name in path] + [-1] * (depth - len(path)) for path in paths]
        return np.array(rows, dtype=np.int64).reshape(len(paths), depth).T

    def to_dict(self) -> dict[str, Any]:
        """Return the accounts as plain data; the tree follows from the policy."""
        if not self.names:
            return {}
        tables = {name: encode(getattr(self, name)) for name in self.TABLES}
        return {"names": self.names, **tables, "round_seconds": self._round_seconds}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> TenantLedger:
        """Restore the accounts from `to_dict`."""
        ledger = cls()
        if document:
            ledger.names, ledger._round_seconds = list(document["names"]), float(document["round_seconds"])
            for name in cls.TABLES:
                setattr(ledger, name, decode_array(document[name], (len(ledger.names),)).astype(float))
        return ledger


def least_tenant_shortfall(promised: Floats, multiples: Floats, offered: float) -> float:
    """Return a lower bound on the sum of the shortfalls of tenants that any choice of whole gangs leaves, in GPU-seconds.

    Tenant t was promised P_t GPU-rounds, and the size of each of its gangs is a multiple of g_t. Tenants have no jobs in common, so
    in whole rounds they receive R_t = g_t r_t GPU-rounds, with whole numbers r_t and Σ_t g_t r_t <= C, the GPU-rounds offered. Of
    Σ_t max(0, P_t − g_t r_t) = Σ_t P_t − Σ_t min(P_t, g_t r_t), each of the first ⌊P_t/g_t⌋ multiples gains g_t, and the next one
    g_t (P_t/g_t − ⌊P_t/g_t⌋). This is the gain of a gang of g_t GPUs with P_t/g_t rounds on a single type, so the relaxed knapsack
    problem of `least_shortfall` bounds it. A tenant that loses a part of a round receives less than R_t and gains no more.

    Args:
        promised: (T,) P_t in GPU-seconds.
        multiples: (T,) GPU-seconds of one round of g_t GPUs; 0 for a tenant that may receive any GPU time.
        offered: C in GPU-seconds.
    """
    sizes = np.where(multiples > 0, multiples, 1.0)
    rounds = promised / sizes
    whole = np.where(multiples > 0, np.floor(rounds), rounds)
    return shortage(sizes, whole, rounds - whole, offered)


def _sums(at: Indices, values: Floats, count: int) -> Floats:
    """Return (A,) the sums of (N,) values by account; at: (N,), -1 for none."""
    return np.bincount(at + 1, values, count + 1)[1:].astype(float)
