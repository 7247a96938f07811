"""Small linear programs solved exactly, for any orders of magnitude: for one objective, or one level after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["fill", "least"]

Numbers = Sequence[Fraction]
Floats = NDArray[np.float64]


def least(costs: Numbers, rows: Sequence[Numbers], limits: Numbers) -> Fraction | None:
    """Return min costs·x such that rows·x <= limits and x >= 0; None if infeasible. The program must be bounded."""
    table = _Table(rows, limits)
    return table.minimize(dict(enumerate(costs))) if table.has_start() else None


def fill(gains: Floats, rates: Callable[[list[int]], Floats], rows: Floats, limits: Floats) -> Floats:
    """Return (N,) the values gains_i·x that are reached if all rise together until some cannot, then the others, and so on.

    x >= 0 with rows·x <= limits. In each step, all rise by θ times `rates`, which depends on the numbers of those that can rise,
    with the largest θ. Where a row has a price, it is tight in all optima, so its value can rise no further; where a column has a
    reduced cost, it is 0 in all of them. So the next step starts from the last basis, without these columns. Values without a gain
    above 0 stay at 0.
    """
    count, first = len(gains), len(rows)
    table = _Table(_exact(np.vstack([rows, -gains])), _exact(np.append(limits, np.zeros(count))))
    assert table.has_start(), "nothing satisfies all rows"
    rising, reached = np.flatnonzero((gains > 0).any(axis=1)).tolist(), [Fraction(0)] * count
    while rising:
        rate = _exact(rates(rising))
        step = table.add({first + i: rate[i] for i in range(count)})
        rise = -table.minimize({step: Fraction(-1)})
        reached = [value + rise * each for value, each in zip(reached, rate, strict=True)]
        priced = table.drop_priced()
        assert any(first + i in priced for i in rising), f"nothing stops at {reached}"
        rising = [i for i in rising if first + i not in priced]
    return np.array(reached, dtype=float)


def _exact(numbers: Floats) -> Any:
    return np.vectorize(Fraction, otypes=[object])(numbers).tolist()


class _Table:
    """rows·x + slack = limits with x, slack >= 0, at a basis: whole numbers over one denominator, with the costs as the last row.

    Since all entries are minors of the first table, pivots keep them whole without greatest common divisors (Edmonds).
    """

    def __init__(self, rows: Sequence[Numbers], limits: Numbers) -> None:
        self.count, self.size, self.denominator = len(rows[0]), len(rows), 1
        self.scales = [lcm(limit.denominator, *(each.denominator for each in row)) for row, limit in zip(rows, limits, strict=True)]
        self.names = list(range(self.count + self.size))  # of the columns; column `count + m` is the slack of row m
        self.units: dict[int, int] = {}  # the number by which each variable is divided, if not 1
        self.basis = self.names[self.count :]
        self.lines = []
        for m, (row, limit, scale) in enumerate(zip(rows, limits, self.scales, strict=True)):
            slacks = [int(m == other) for other in range(self.size)]
            self.lines.append([*(int(each * scale) for each in row), *slacks, int(limit * scale)])
        self.lines.append([0] * (len(self.names) + 1))

    def add(self, entries: Mapping[int, Fraction]) -> int:
        """Add a column with these entries by row, and return its name."""
        name = max(self.names) + 1
        unit = self.units[name] = lcm(*(entry.denominator for entry in entries.values()))
        parts = {self.names.index(self.count + m): int(entry * unit) * self.scales[m] for m, entry in entries.items() if entry}
        for line in self.lines:
            line.insert(-1, sum(line[at] * part for at, part in parts.items()))
        self.names.append(name)
        return name

    def drop_priced(self) -> set[int]:
        """Drop all columns with a reduced cost; return the rows whose slack is among them, those with a price."""
        costs = self.lines[-1]
        kept = [at for at, cost in enumerate(costs) if cost == 0 or at == len(self.names)]
        priced = {name - self.count for name, cost in zip(self.names, costs, strict=False) if cost}
        self.names = [self.names[at] for at in kept[:-1]]
        self.lines = [[line[at] for at in kept] for line in self.lines]
        return priced.intersection(range(self.size))

    def has_start(self) -> bool:
        """Make all limits at least 0, and return whether that is possible."""
        short = [m for m in range(self.size) if self.lines[m][-1] < 0]
        helpers = []
        for m in short:
            self.lines[m] = [-entry for entry in self.lines[m]]
            helpers.append(max(self.names) + 1)
            for other, line in enumerate(self.lines):
                line.insert(-1, int(other == m))
            self.names.append(helpers[-1])
            self.basis[m] = helpers[-1]
        if self.minimize(dict.fromkeys(helpers, Fraction(1))) != 0:
            return False
        for m, name in enumerate(self.basis):  # a helper in the basis at 0 is replaced by any other column
            at = next((at for at, entry in enumerate(self.lines[m][: len(self.names) - len(helpers)]) if entry), None)
            if name in helpers and at is not None:
                self._pivot(m, at)
        for line in self.lines:
            del line[len(self.names) - len(helpers) : -1]
        del self.names[len(self.names) - len(helpers) :]
        return True

    def minimize(self, costs: Mapping[int, Fraction]) -> Fraction:
        """Return the minimum of these costs by column, by the simplex method with Bland's rule."""
        scale = lcm(*(cost.denominator for cost in costs.values()))
        whole = {name: int(cost * self.units.get(name, 1) * scale) for name, cost in costs.items()}
        priced = [(whole[name], line) for name, line in zip(self.basis, self.lines, strict=False) if whole.get(name)]
        own = [self.denominator * whole.get(name, 0) for name in self.names] + [0]
        self.lines[-1] = [cost - sum(part * line[at] for part, line in priced) for at, cost in enumerate(own)]
        while (entering := next((at for at, cost in enumerate(self.lines[-1][:-1]) if cost < 0), None)) is not None:
            rows = [m for m in range(self.size) if self.lines[m][entering] > 0]
            ratios = ((Fraction(self.lines[m][-1], self.lines[m][entering]), self.basis[m], m) for m in rows)
            self._pivot(min(ratios)[2], entering)
        return Fraction(-self.lines[-1][-1], self.denominator * scale)

    def _pivot(self, row: int, at: int) -> None:
        pivot, own = self.lines[row][at], self.lines[row]
        for m, line in enumerate(self.lines):
            factor = line[at]
            if m != row:
                pairs = zip(line, own, strict=True)
                self.lines[m] = [(entry * pivot - factor * other) // self.denominator for entry, other in pairs]
        self.basis[row], self.denominator = self.names[at], pivot
        if pivot < 0:
            self.lines, self.denominator = [[-entry for entry in line] for line in self.lines], -pivot
