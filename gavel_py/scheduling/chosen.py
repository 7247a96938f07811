"""The jobs that were chosen for a round as gangs to be placed, and their places as assignments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from gavel_py.scheduling.assignment import Assignment
from gavel_py.scheduling.mechanism.demand import RoundDemand, rounded
from gavel_py.scheduling.mechanism.scores import hysteresis_of
from gavel_py.scheduling.placement.crowd import Crowd
from gavel_py.scheduling.placement.ground import Ground
from gavel_py.scheduling.placement.kinds import Kind
from gavel_py.scheduling.placement.placement import Places

__all__ = ["Chosen"]

Indices = NDArray[np.int64]


class Chosen:
    """rows: (M,) the jobs that were chosen, in the order of their gangs in the crowd: by type, the largest claims first.

    Who runs goes before who would only take over its place. columns: (N,) the types that were chosen.
    """

    def __init__(
        self,
        columns: Indices,
        demand: RoundDemand,
        ground: Ground,
        accelerator_types: Sequence[str],
        previous: Mapping[str, Assignment],
    ) -> None:
        layout, asks = ground.layout, ground.asks
        types = np.array([layout.type_number.get(name, -1) for name in accelerator_types], dtype=np.int64)
        rising = np.flatnonzero(columns >= 0)
        self._order = np.lexsort((-_weights(rising, columns[rising], demand), types[columns[rising]]))
        self.rows = rows = rising[self._order]
        self._layout, self._accelerators, self._columns = layout, accelerator_types, columns[rows]
        # Jobs in their own order lie in a row in memory; jumping to and fro between many takes several times as long.
        self._job_ids = [asks.ids[row] for row in rising.tolist()]
        self._before = list(map(previous.get, self._job_ids))
        held, owners = self._held()
        kinds = demand.kinds[rows, self._columns]
        self.crowd = Crowd(
            sizes=demand.num_gpus[rows],
            types=types[self._columns],
            scopes=asks.scopes[rows],
            evens=asks.evens[rows],
            kinds=kinds,
            fewest=self._fewest(kinds, demand.num_gpus[rows], ground),
            needs=asks.needs_of(rows),
            held=held,
            owners=owners,
        )

    def assigned(self, places: Places) -> dict[str, Assignment]:
        """Return {job_id: Assignment} of those that have a place, in the order of the jobs.

        It is the same object as before for a gang that stays, which makes long lists of them cheap.
        """
        now = self._before.copy()
        for i in self._order[~places.stays].tolist():
            now[i] = None
        named = iter(self._layout.named(list(chain.from_iterable(places.found.values()))))
        order, columns = self._order.tolist(), self._columns.tolist()
        for gang, numbers in places.found.items():
            before = self._before[order[gang]]
            found = Assignment(self._accelerators[columns[gang]], list(islice(named, len(numbers))))
            now[order[gang]] = before if before is not None and before == found else found
        return {job_id: held for job_id, held in zip(self._job_ids, now, strict=True) if held is not None}

    def _fewest(self, kinds: NDArray[np.int8], sizes: Indices, ground: Ground) -> Indices:
        """(M,) the fewest nodes of the gangs whose kind matters."""
        fewest = np.ones(len(kinds), dtype=np.int64)
        for gang in np.flatnonzero(kinds != Kind.ANY).tolist():
            fewest[gang] = ground.spans.fewest(self._accelerators[self._columns[gang]], int(sizes[gang]))
        return fewest

    def _held(self) -> tuple[Indices, Indices]:
        """(H,) the GPUs that they had until now, by number, and (H,) whose they were, gangs as in the crowd."""
        gpus = [() if before is None else before.gpus for before in self._before]
        lengths = np.array(list(map(len, gpus)), dtype=np.int64)
        numbers = self._layout.numbers(list(chain.from_iterable(gpus)))
        starts, lengths = (np.cumsum(lengths) - lengths)[self._order], lengths[self._order]
        owners = np.repeat(np.arange(len(lengths)), lengths)
        within = np.arange(len(owners)) - (np.cumsum(lengths) - lengths)[owners]
        return numbers[starts[owners] + within], owners


def _weights(rows: Indices, columns: Indices, demand: RoundDemand) -> NDArray[np.float64]:
    """(M,) the claims of these pairs, with the hysteresis of those that run."""
    at = rows, columns
    fractions = demand.fractions[at]
    kept_for = hysteresis_of(fractions, demand.num_gpus[rows], demand.restart_rounds[rows])
    weights: NDArray[np.float64] = rounded(demand.deficits[at] + fractions) + kept_for * (demand.running_on[rows] == columns)
    return weights
