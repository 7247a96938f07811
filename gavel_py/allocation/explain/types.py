"""What the columns and rows of a proof are about, where some types have several columns: types, in the words of the user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gavel_py.optimization.certificates import Evidence, Prices
from gavel_py.optimization.colocation import Balance, Company

__all__ = ["Types", "types_of"]

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Types:
    """names, gpus: of the K types; source: (K',) the type of each column; joint: {type: the row of `Rules.hard_rows` for its GPUs};
    partners: the rows that say of jobs that share GPUs that partners have each other.
    """

    names: tuple[str, ...]
    gpus: Floats
    source: Indices
    joint: Mapping[int, int]
    partners: frozenset[int]

    def any_of(self, columns: Mask) -> Mask:
        """Return (..., K) whether that is so in any column of each type, from (..., K')."""
        found = np.zeros((*columns.shape[:-1], len(self.names)), dtype=bool)
        for column, j in enumerate(self.source.tolist()):
            found[..., j] |= columns[..., column]
        return found

    def scarce(self, prices: Prices) -> Mask:
        """Return (K,) the types whose GPUs have a price."""
        scarce = self.any_of(prices.gpus > 0)
        for j, row in self.joint.items():
            scarce[j] |= row < len(prices.limits) and prices.limits[row] > 0
        return scarce

    def is_limit(self, row: int) -> bool:
        """Return whether a row is one of the user's, and says nothing of types or partners alone."""
        return row not in self.partners and row not in self.joint.values()


def types_of(evidence: Evidence) -> Types:
    """Return what the columns of a proof are about."""
    asked, kinds = evidence.asked, evidence.kinds
    rows = () if kinds is None else evidence.rules.hard_rows
    partners = frozenset(r for r, row in enumerate(rows) if isinstance(row, Balance | Company))
    source = np.arange(len(asked.capacities)) if kinds is None else kinds.source
    return Types(asked.accelerator_types, asked.capacities, source, {} if kinds is None else kinds.joint, partners)
