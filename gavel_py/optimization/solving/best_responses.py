"""The best responses of all jobs to prices of GPUs, computed in passes over columns of numbers.

At prices p, time on type j costs a job q_j = s p_j − G_j: the price of its GPUs, less the gain of the objective. Its best response
is the cheapest time with the throughput that it needs: one type, none, or a mix of two neighbouring corners of the lower hull of
the points (T_j, q_j) and (0, 0), as in `CheapestMix`. Points are numbered by type; number K is (0, 0), the idle time.

`greedy_times` and `tightest_prices` give a good allocation and a bound for a sum when its optimal prices are unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gavel_py.optimization.checking.certificates import CHUNK, priced_bound
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.tolerances import LAST_DIGITS

Points = NDArray[np.int8]

Part = Floats | None


@dataclass(frozen=True)
class Response:
    """The response of all jobs together to some prices.

    surplus: −Σ_i of their costs; usage: (K,) GPUs; growth: the increase of the costs per unit of η (`BestResponses.rates`).
    """

    surplus: float
    usage: Floats
    growth: float = 0.0


@dataclass(frozen=True)
class Choices:
    """The points that n jobs mix. left, right: (n,) the points below and above the need, equal if there is only one."""

    left: Points
    right: Points


@dataclass(frozen=True, eq=False)
class BestResponses:
    """The best responses of n rows of equal jobs.

    Attributes:
        gains: (K, n) the gain of the objective by all of the time of a row's jobs on a type, 0 where they cannot run; None without
            an objective.
        gpus: (n,) GPUs of a row's jobs.
        needs: (n,) least throughput of one of the jobs, None if no job needs any.
        throughputs: (K, n) throughput of one of the jobs, 0 where it cannot run.
        rates: (n,) the growth of each need per unit of η, None if needs are fixed.
    """

    gains: Floats | None
    gpus: Floats
    needs: Floats | None = None
    throughputs: Floats | None = None
    rates: Floats | None = None

    def __len__(self) -> int:
        return len(self.gpus)

    @property
    def _tables(self) -> tuple[Floats | None, Floats | None, Floats | None, Floats | None]:
        return self.gains, self.needs, self.throughputs, self.rates

    def part(self, rows: Indices | slice) -> BestResponses:
        """Return the responses of some rows."""
        gains, needs, throughputs, rates = (
            None if each is None else np.ascontiguousarray(each[..., rows]) for each in self._tables
        )
        return BestResponses(gains, np.ascontiguousarray(self.gpus[rows]), needs, throughputs, rates)

    def _chunks(self) -> Iterator[tuple[slice, BestResponses]]:
        for start in range(0, len(self), CHUNK):
            rows = slice(start, start + CHUNK)
            parts = [None if each is None else each[..., rows] for each in self._tables]
            yield rows, BestResponses(parts[0], self.gpus[rows], *parts[1:])

    def at(self, prices: Floats) -> Response:
        """Return the response to (K,) prices."""
        count = len(prices)
        surplus, usage, growth = 0.0, np.zeros(count + 1), 0.0
        for _, chunk in self._chunks():
            if chunk.needs is None:
                best, right = chunk._best_types(prices)
                surplus += float(best.sum())
                usage += np.bincount(right, chunk.gpus, count + 1)
                continue
            mix, share, costs, slopes = chunk._cheapest(prices)
            surplus -= float(costs.sum())
            usage += np.bincount(mix.right, chunk.gpus * share, count + 1)
            usage += np.bincount(mix.left, chunk.gpus * (1 - share), count + 1)
            growth += 0.0 if chunk.rates is None else float(slopes @ chunk.rates)
        return Response(surplus, usage[:count], growth)

    def certain(self, low: Floats, high: Floats, reach: float = 0.0) -> tuple[Mask, Choices]:
        """Return (n,) whether a row responds with the same points to all prices from `low` to `high`, and its choice in the middle.

        reach: the largest change of η, by which needs change.
        """
        sure = np.empty(len(self), dtype=bool)
        left, right = np.empty(len(self), dtype=np.int8), np.empty(len(self), dtype=np.int8)
        for rows, chunk in self._chunks():
            if chunk.needs is None:
                sure[rows], right[rows] = chunk._sure_types(low, high)
                left[rows] = right[rows]
            else:
                sure[rows], mix = chunk._sure_mixes(low, high, reach)
                left[rows], right[rows] = mix.left, mix.right
        return sure, Choices(left, right)

    def fixed(self, rows: Indices, choices: Choices) -> tuple[float, Floats, Floats]:
        """Return the gains, (K,) usage and (K,) growth of usage per unit of η of some rows that choose these points."""
        gpus = self.gpus[rows]
        left, right = choices.left[rows], choices.right[rows]
        share, rates = self._shares(rows, left, right)
        count = self._count
        used: list[Floats] = [np.zeros(count + 1), np.zeros(count + 1)]
        for sums, parts in zip(used, (share, rates), strict=True):
            for points, part in zip((right, left), parts, strict=True):
                sums += 0.0 if part is None else np.bincount(points, gpus * part, count + 1)
        gained = 0.0
        if self.gains is not None:
            for points, part in zip((right, left), share, strict=True):
                some = np.flatnonzero(points < count) if part is not None else np.zeros(0, dtype=np.int64)
                gained += float(self.gains[points[some], rows[some]] @ part[some]) if len(some) else 0.0
        return gained, used[0][:count], used[1][:count]

    def times_of(self, choices: Choices, rows: Indices) -> Floats:
        """Return (n, K) the time of these rows with their choices, 0 for all other rows."""
        times = np.zeros((len(self), self._count))
        left, right = choices.left[rows], choices.right[rows]
        share, _ = self._shares(rows, left, right)
        for points, part, some in (
            (right, share[0], right < self._count),
            (left, share[1], (left != right) & (left < self._count)),
        ):
            where = np.flatnonzero(some)
            times[rows[where], points[where]] += np.broadcast_to(part, len(rows))[where]
        return times

    def times_at(self, prices: Floats) -> Floats:
        """Return (n, K) the time of the best responses to (K,) prices."""
        return self.times_of(self.certain(prices, prices)[1], np.arange(len(self)))

    @property
    def _count(self) -> int:
        table = self.gains if self.gains is not None else self.throughputs
        assert table is not None  # noqa: S101
        return len(table)

    def _shares(self, rows: Indices, left: Points, right: Points) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
        """Return the time on the right and the left point, and how both change per unit of η."""
        one, zero = np.ones(len(rows)), np.zeros(len(rows))
        if self.needs is None or self.throughputs is None:
            return (one, zero), (zero, zero)
        speeds = [
            np.where(side < self._count, self.throughputs[np.minimum(side, self._count - 1), rows], 0.0) for side in (left, right)
        ]
        apart, mixed = speeds[1] - speeds[0], left != right
        share = np.divide(self.needs[rows] - speeds[0], apart, out=one, where=mixed)
        rate = zero if self.rates is None else np.divide(self.rates[rows], apart, out=zero.copy(), where=mixed)
        return (share, 1 - share), (rate, -rate)

    def _best_types(self, prices: Floats) -> tuple[Floats, Points]:
        """Return (n,) the best surplus and its type, for rows without needs."""
        assert self.gains is not None  # noqa: S101
        best, chosen = np.zeros(len(self)), np.full(len(self), len(prices), dtype=np.int8)
        for j, price in enumerate(prices.tolist()):
            surplus = self.gains[j] - self.gpus * price
            chosen[surplus > best] = j
            np.maximum(best, surplus, out=best)
        return best, chosen

    def _sure_types(self, low: Floats, high: Floats) -> tuple[Mask, Points]:
        """Return which rows without needs choose one type at all prices of a range, and the type with the best worst surplus."""
        assert self.gains is not None  # noqa: S101
        idle = len(low)
        least, chosen = np.zeros(len(self)), np.full(len(self), idle, dtype=np.int8)
        first, second, top = np.zeros(len(self)), np.zeros(len(self)), np.full(len(self), idle, dtype=np.int8)
        for j in range(idle):
            worst, best = self.gains[j] - self.gpus * high[j], self.gains[j] - self.gpus * low[j]
            chosen[worst > least] = j
            np.maximum(least, worst, out=least)
            top[best > first] = j
            np.maximum(second, np.minimum(first, best), out=second)
            np.maximum(first, best, out=first)
        rival = np.where(top == chosen, second, first)
        return least >= rival, chosen

    def _points(self, prices: Floats) -> tuple[Floats, Floats]:
        """Return (K + 1, n) the throughput and the cost of each point."""
        assert self.throughputs is not None  # noqa: S101
        count = len(prices)
        speeds, costs = np.zeros((count + 1, len(self))), np.zeros((count + 1, len(self)))
        speeds[:count] = self.throughputs
        np.multiply(self.gpus, prices[:, None], out=costs[:count])
        if self.gains is not None:
            costs[:count] -= self.gains
        return speeds, costs

    def _cheapest(self, prices: Floats) -> tuple[Choices, Floats, Floats, Floats]:
        """Return the cheapest mixes, (n,) the share of their right points, their costs, and the slopes of the costs in the need."""
        speeds, costs = self._points(prices)
        return _cheapest_mixes(speeds, costs, self.needs)  # type: ignore[arg-type]

    def _sure_mixes(self, low: Floats, high: Floats, reach: float) -> tuple[Mask, Choices]:
        """Return which rows choose the same points at all prices of a range, and the cheapest mixes in the middle."""
        assert self.needs is not None  # noqa: S101
        count, each = len(low), np.arange(len(self))
        speeds, costs = self._points((low + high) / 2)
        mix, *_ = _cheapest_mixes(speeds, costs, self.needs)
        widths = np.zeros((count + 1, 1))
        widths[:count, 0] = (high - low) / 2
        (slow, fast), (slow_cost, fast_cost), (slow_width, fast_width) = (
            (table[mix.left, each], table[mix.right, each]) for table in (speeds, costs, np.broadcast_to(widths, costs.shape))
        )
        mixed = mix.left != mix.right
        margin = 0.0 if self.rates is None else np.abs(self.rates) * reach
        sure = np.where(mixed, (slow <= self.needs - margin) & (fast >= self.needs + margin), slow >= self.needs + margin)
        rise, change = fast_cost - slow_cost, self.gpus * (fast_width + slow_width)
        # Otherwise, more than the need may be cheaper. If only needs count, it may cost the same, and later stages choose.
        sure &= ~mixed | (rise > change if self.gains is None else rise >= change)
        apart = np.where(mixed, fast - slow, 1.0)
        for point in range(count + 1):
            part = np.where(mixed, (speeds[point] - slow) / apart, 0.0)
            reduced = costs[point] - part * fast_cost - (1 - part) * slow_cost
            room = self.gpus * (widths[point, 0] + np.abs(part) * fast_width + np.abs(1 - part) * slow_width)
            worse = reduced >= room
            if self.gains is None:  # a type that costs the same may be better for later stages
                worse &= (reduced > room) | (speeds[point] <= 0)
            sure &= worse | (mix.left == point) | (mix.right == point)
        return sure, mix


def _cheapest_mixes(speeds: Floats, costs: Floats, needs: Floats) -> tuple[Choices, Floats, Floats, Floats]:
    """Return the cheapest mixes of (K + 1, n) points for (n,) needs, the share of the right one, the costs and their slopes.

    The lowest point, and the fastest of several lowest ones, is the best response if it is fast enough. Otherwise the edge of the
    lower hull over the need is found from the left and from the right in turns: the least slope from the left end, then the
    steepest slope to the right end, until neither end changes.
    """
    lowest = costs.argmin(axis=0).astype(np.int8)
    each = np.arange(len(needs))
    low_cost, low_speed = costs[lowest, each], speeds[lowest, each]
    for point in range(len(costs)):
        ties = (costs[point] == low_cost) & (speeds[point] > low_speed)
        if ties.any():
            lowest[ties] = point
            low_speed = np.where(ties, speeds[point], low_speed)
    left, right, share = lowest.copy(), lowest.copy(), np.ones(len(needs))
    total, slopes = low_cost.copy(), np.zeros(len(needs))
    short = np.flatnonzero(low_speed < needs)
    if len(short):
        start = lowest[short], low_cost[short], low_speed[short]
        found = _edges(speeds[:, short], costs[:, short], needs[short], *start)
        left[short], right[short], share[short], total[short], slopes[short] = found
    return Choices(left, right), share, total, slopes


def _edges(
    speeds: Floats, costs: Floats, needs: Floats, left: Points, cost: Floats, speed: Floats
) -> tuple[Points, Points, Floats, Floats, Floats]:
    """Return left and right ends, shares, costs and slopes of the hull's edges over the needs, given a left end below each need."""
    fast, right = speeds >= needs, np.zeros(len(needs), dtype=np.int8)
    for _ in range(2 * len(speeds)):
        slope, top_speed = np.full(len(needs), np.inf), speed
        for point in range(len(speeds)):
            rise = np.divide(costs[point] - cost, speeds[point] - speed, out=np.full(len(needs), np.inf), where=fast[point])
            better = rise < slope
            right[better] = point
            slope, top_speed = np.where(better, rise, slope), np.where(better, speeds[point], top_speed)
        top = cost + slope * (top_speed - speed)
        steepest, changed = slope + LAST_DIGITS * np.abs(slope), np.zeros(len(needs), dtype=bool)
        for point in range(len(speeds)):
            rise = np.divide(top - costs[point], top_speed - speeds[point], out=np.full(len(needs), -np.inf), where=~fast[point])
            better = rise > steepest
            if better.any():
                left[better] = point
                steepest, changed = np.where(better, rise, steepest), changed | better
                cost, speed = np.where(better, costs[point], cost), np.where(better, speeds[point], speed)
        if not changed.any():
            break
    share = (needs - speed) / (top_speed - speed)
    return left, right, share, cost + slope * (needs - speed), slope


def greedy_times(jobs: JobClasses, gains: Floats) -> Floats:
    """Return (G, K) time fractions by a greedy pass over jobs in descending gain per GPU, each on its best type with free GPUs."""
    left, waiting, fractions = jobs.capacities.astype(float), jobs.counts.astype(float), np.zeros(gains.shape)
    while (left > 0).any():
        best, largest = _best_of_free(jobs, gains, left > 0)
        before = left.copy()
        for j in np.flatnonzero(left > 0).tolist():
            some = np.flatnonzero((best == j) & (waiting > 0))
            some = some[descending(largest[some], waiting[some] * jobs.num_gpus[some], left[j])]
            wanted = waiting[some] * jobs.num_gpus[some]
            sold = np.cumsum(wanted)
            given = np.clip(left[j] - (sold - wanted), 0.0, wanted)
            fractions[some, j] += given / (jobs.num_gpus * jobs.counts)[some]
            waiting[some] -= given / jobs.num_gpus[some]
            left[j] = max(0.0, left[j] - sold[-1]) if len(some) else left[j]
        if (left > 0).sum() == (before > 0).sum():  # no further type has run out of GPUs
            break
    return fractions


def _best_of_free(jobs: JobClasses, gains: Floats, free: Mask) -> tuple[Indices, Floats]:
    """Return (G,) the free type with the largest gain per GPU of each row, -1 if no type has a gain, and that gain."""
    best, largest = np.full(len(jobs), -1), np.zeros(len(jobs))
    for j in np.flatnonzero(free).tolist():
        gain = gains[:, j] / jobs.num_gpus
        better = jobs.runnable[:, j] & (gain > largest)
        best[better] = j
        largest[better] = gain[better]
    return best, largest


def tightest_prices(jobs: JobClasses, gains: Floats, several: Sequence[Floats], least: Floats | None = None) -> Floats:
    """Return the (K,) prices with the lowest `priced_bound` among `several`, the best equal price of all GPUs, and zero prices."""
    count = len(jobs.capacities)
    tried = [*several, np.full(count, _best_equal_price(jobs, gains)), np.zeros(count)]
    return min(tried, key=lambda prices: priced_bound(jobs, gains, prices, least))


def _best_equal_price(jobs: JobClasses, gains: Floats) -> float:
    """Return the best equal price of all GPUs: the gain per GPU of the last job that can be served, in descending order."""
    best = np.zeros(len(jobs))
    for j in range(gains.shape[1]):
        np.maximum(best, gains[:, j], out=best, where=jobs.runnable[:, j])
    best /= jobs.num_gpus
    sizes, capacity = jobs.counts * jobs.num_gpus, float(jobs.capacities.sum())
    order = descending(best, sizes, capacity)
    last = int(np.searchsorted(np.cumsum(sizes[order]), capacity))
    return float(best[order[last]]) if last < len(order) else 0.0


def descending(values: Floats, sizes: Floats, enough: float) -> Indices:
    """Return rows in descending, stable order of their values: all, or only the first whose sizes add up to `enough`.

    In the latter case, most rows of a large problem need not be sorted.
    """
    count = 1 + int(enough / sizes.mean()) if len(sizes) else 0
    while 2 * count < len(values):
        first = np.flatnonzero(values >= np.partition(values, -count)[-count])
        if sizes[first].sum() > enough:
            return first[np.argsort(-values[first], kind="stable")]
        count *= 3
    return np.argsort(-values, kind="stable")
