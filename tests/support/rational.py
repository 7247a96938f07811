"""Small linear programs solved exactly in fractions, for any orders of magnitude."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

__all__ = ["least"]

Row = list[Fraction]


def least(costs: Sequence[Fraction], rows: Sequence[Sequence[Fraction]], limits: Sequence[Fraction]) -> Fraction | None:
    """Return min costs·x such that rows·x <= limits and x >= 0, by the simplex method with Bland's rule; None if infeasible.

    The program must be bounded.
    """
    count, slacks = len(costs), len(rows)
    negative = [m for m, limit in enumerate(limits) if limit < 0]
    width = count + slacks + len(negative)
    table: list[Row] = []
    basis: list[int] = []
    for m, (row, limit) in enumerate(zip(rows, limits, strict=True)):
        sign = -1 if limit < 0 else 1
        line = [sign * Fraction(entry) for entry in row] + [Fraction(0)] * (width - count) + [sign * Fraction(limit)]
        line[count + m] = Fraction(sign)
        basis.append(count + m)
        if limit < 0:
            basis[m] = count + slacks + negative.index(m)
            line[basis[m]] = Fraction(1)
        table.append(line)
    if negative:
        helpers = [Fraction(column >= count + slacks) for column in range(width)]
        if _optimize(table, basis, helpers) != 0:
            return None
        for m, column in enumerate(basis):  # an artificial variable in the basis at 0 is replaced by any other
            others = [j for j in range(count + slacks) if table[m][j] != 0]
            if column >= count + slacks and others:
                _pivot(table, basis, m, others[0])
        table = [line[: count + slacks] + line[-1:] for line in table]
    return _optimize(table, basis, [*map(Fraction, costs), *[Fraction(0)] * slacks])


def _optimize(table: list[Row], basis: list[int], costs: Row) -> Fraction:
    """Pivot until no column reduces the costs; return the minimum costs."""
    while True:
        prices = [costs[column] if column < len(costs) else Fraction(0) for column in basis]
        reduced = [cost - sum(p * line[j] for p, line in zip(prices, table, strict=True) if p) for j, cost in enumerate(costs)]
        entering = next((j for j, cost in enumerate(reduced) if cost < 0), None)
        if entering is None:
            return sum((price * line[-1] for price, line in zip(prices, table, strict=True)), Fraction(0))
        ratios = [(line[-1] / line[entering], basis[m], m) for m, line in enumerate(table) if line[entering] > 0]
        _pivot(table, basis, min(ratios)[2], entering)


def _pivot(table: list[Row], basis: list[int], row: int, column: int) -> None:
    pivot = table[row][column]
    table[row] = [entry / pivot for entry in table[row]]
    for m, line in enumerate(table):
        factor = line[column]
        if m != row and factor != 0:
            table[m] = [entry - factor * other for entry, other in zip(line, table[row], strict=True)]
    basis[row] = column
