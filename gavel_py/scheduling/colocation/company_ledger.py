"""The accounts of time in company: what was promised with partners of each kind, and what was had."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gavel_py.scheduling.colocation.companies import CompanyKey
from gavel_py.scheduling.ledger import LONGEST_PAYBACK_ROUNDS, MOST_OWED_ROUNDS

__all__ = ["CompanyLedger"]

Floats = NDArray[np.float64]


class CompanyLedger:
    """A_i(b,j) += S_i(b,j) − received so, in rounds: the part of a job's deficit on a type that is owed with partners of kind b.

    It is kept between the bounds of deficits, and as long as allocations promise such time: what they no longer do is owed alone.
    """

    def __init__(self) -> None:
        self._owed: dict[CompanyKey, float] = {}

    def owed(self, keys: Sequence[CompanyKey]) -> Floats:
        """Return (A,) rounds owed, 0 for what was not promised before."""
        return np.array([self._owed.get(key, 0.0) for key in keys], dtype=float)

    def record(self, keys: Sequence[CompanyKey], fractions: Floats, received: Floats) -> None:
        """Enter one round: (A,) what was promised, and (A,) what was had."""
        most_ahead = -np.maximum(1.0, LONGEST_PAYBACK_ROUNDS * fractions)
        balance = np.clip(self.owed(keys) + fractions - received, most_ahead, MOST_OWED_ROUNDS)
        self._owed.update(zip(keys, balance.tolist(), strict=True))

    def take_back(self, key: CompanyKey) -> None:
        """Enter that a round was not had after all."""
        if key in self._owed:
            self._owed[key] = min(self._owed[key] + 1.0, MOST_OWED_ROUNDS)

    def keep(self, keys: Iterable[CompanyKey]) -> None:
        """Drop all but these."""
        self._owed = {key: self._owed[key] for key in keys if key in self._owed}

    def forget(self, job_ids: Set[str]) -> None:
        """Drop the accounts of jobs."""
        self._owed = {key: owed for key, owed in self._owed.items() if key.job_id not in job_ids}

    def to_list(self) -> list[Any]:
        """Return the accounts as plain data."""
        return [[*key, owed] for key, owed in self._owed.items()]

    @classmethod
    def from_list(cls, data: Iterable[Sequence[Any]]) -> CompanyLedger:
        """Return the accounts that `to_list` described."""
        made = cls()
        made._owed = {CompanyKey(*key): float(owed) for *key, owed in data}
        return made
