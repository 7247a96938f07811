"""Factorization of rows: equal rows get the same number, in an order that depends on their content alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gavel_py.problem.arrays import Floats, Indices

Column = NDArray[np.generic]
Keys = NDArray[np.uint64]

MIXERS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)
"""Odd multipliers for hashing; the second and further ones are used only if two different rows collide."""


SAMPLE, MANY, FEW = 20_000, 4, 300
"""Rows that are numbered first if there are more than `MANY` times as many, and largest number of classes for a look-up.

Two of 300 keys agree in the 20 bits that are looked up in 4 % of all cases, and the rows are sorted then.
"""


@dataclass(frozen=True)
class Numbering:
    """N rows in G classes of equal rows.

    index: (N,) the class of each row; first: (G,) one row of each class; counts: (G,) number of its rows;
    keys: (G,) a hash of the content of each class, the same in every process.
    """

    index: Indices
    first: Indices
    counts: Indices
    keys: Keys


def number_equal(columns: Sequence[Column], count: int) -> Numbering:
    """Number `count` rows so that two have the same number exactly if they agree in every column, bit for bit.

    columns: (count,) arrays of numbers or booleans; 0.0 and -0.0 are equal, and so are NaNs with the same bits.
    Classes are in the order of their keys, so that a permutation of the rows permutes `index` and changes nothing else.
    """
    code, others = _small_codes(columns, count)
    found = _by_code(code, int(code.max(initial=0)) + 1) if not others else _by_hash([code, *others], count)
    keys = content_keys([column[found.first] for column in columns], len(found.first))
    return _reordered(Numbering(found.index, found.first, found.counts, keys), np.argsort(keys, kind="stable"))


def refined(coarse: Numbering, columns: Sequence[Column]) -> Numbering:
    """Split the classes of `coarse` by further columns (partition refinement); the parts of a class stay adjacent, in its order."""
    columns = [column for column in columns if not _is_constant(column)]
    if not columns:
        return coarse
    if len(coarse.first) == len(coarse.index):  # no two rows are equal, so there is nothing to split
        keys = content_keys([coarse.keys, *(column[coarse.first] for column in columns)], len(coarse.first))
        return replace(coarse, keys=keys)
    parts = number_equal([coarse.index, *columns], len(coarse.index))
    whole = coarse.index[parts.first]
    keys = content_keys([coarse.keys[whole], *(column[parts.first] for column in columns)], len(whole))
    by_key = np.argsort(keys, kind="stable")
    order = by_key[np.argsort(whole[by_key], kind="stable")]
    return _reordered(Numbering(parts.index, parts.first, parts.counts, keys), order)


def content_keys(columns: Sequence[Column], count: int, mixer: int = MIXERS[0]) -> Keys:
    """Return (count,) 64-bit hashes of the rows."""
    keys = np.full(count, mixer, dtype=np.uint64)
    for column in columns:
        keys ^= _bits(column)
        keys *= np.uint64(mixer)
        keys ^= keys >> np.uint64(29)
    return keys


def position_keys(count: int, of: str) -> Keys:
    """Return keys for columns or rows that only their position identifies."""
    tag = np.full(count, hash_of(of), dtype=np.uint64)
    return content_keys([tag, np.arange(count)], count)


def hash_of(text: str) -> int:
    """Return a hash of a word, the same in every process."""
    return int.from_bytes(text.encode()[:8].ljust(8, b"\0"), "little")


def _bits(column: Column) -> Keys:
    if column.dtype.kind == "f":
        return (column.astype(np.float64) + 0.0).view(np.uint64)  # adding 0.0 turns -0.0 into 0.0
    return column.astype(np.uint64, copy=False)


def _is_constant(column: Column) -> bool:
    """Return whether an array is one broadcast number, as defaults are."""
    return column.strides == (0,)


def _small_codes(columns: Sequence[Column], count: int) -> tuple[Indices, list[Column]]:
    """Return the columns of small integers combined into one, and the other columns that are not constant."""
    code, size, others = np.zeros(count, dtype=np.int64), 1, []
    for column in columns:
        if _is_constant(column) or not count:
            continue
        if column.dtype.kind not in "iub" or column.dtype == np.uint64:
            if not (column == column[0]).all():
                others.append(column)
            continue
        least, values = int(column.min()), int(column.max()) - int(column.min()) + 1
        if size * values > 4 * count + 1024:
            others.append(column)
        else:
            size *= values
            code = code * values + (column.astype(np.int64) - least)
    return code, others


def _by_code(code: Indices, size: int) -> Numbering:
    counts = np.bincount(code, minlength=size)
    first = np.zeros(size, dtype=np.int64)
    first[code[::-1]] = np.arange(len(code))[::-1]  # written backwards, so that the first row remains
    present = np.flatnonzero(counts)
    number = np.zeros(size, dtype=np.int64)
    number[present] = np.arange(len(present))
    return Numbering(number[code], first[present], counts[present], np.zeros(0, dtype=np.uint64))


def _by_hash(columns: Sequence[Column], count: int) -> Numbering:
    bits = [_bits(column) for column in columns]
    for mixer in MIXERS:
        keys = content_keys(bits, count, mixer)
        if (found := _as_in_sample(bits, keys)) is not None:
            return found
        order = np.argsort(keys, kind="stable")
        ranked = keys[order]
        starts = np.flatnonzero(np.concatenate([[True], ranked[1:] != ranked[:-1]]))
        counts = np.diff(np.append(starts, count))
        index = np.empty(count, dtype=np.int64)
        index[order] = np.repeat(np.arange(len(starts)), counts)
        first = order[starts]
        if len(first) == count or all(np.array_equal(column, column[first[index]]) for column in bits):
            return Numbering(index, first, counts, ranked[starts])
    raise AssertionError("four independent hashes collided")  # pragma: no cover


def _as_in_sample(bits: Sequence[Keys], keys: Keys) -> Numbering | None:
    """Number rows by looking up those of a sample, which is faster than sorting; None unless each row equals one of them."""
    sample = np.linspace(0, len(keys) - 1, SAMPLE if len(keys) > MANY * SAMPLE else 0).astype(np.int64)
    known, first = np.unique(keys[sample], return_index=True)
    if not 0 < len(known) <= FEW:
        return None
    slots, number, rows = (keys >> np.uint64(44)).view(np.int64), np.zeros(2**20, dtype=np.int64), sample[first]
    number[slots[rows]] = np.arange(len(known))
    index = number.take(slots)
    same = all(np.array_equal(column, column[rows].take(index)) for column in bits)
    return _by_code(index, len(known)) if same else None


def _reordered(found: Numbering, order: Indices) -> Numbering:
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return Numbering(rank[found.index], found.first[order], found.counts[order], found.keys[order])


def size_numbers(num_gpus: Floats) -> Indices:
    """Return an integer for each gang, equal exactly for equal sizes; small integers make equal rows fast to find.

    Whole gangs have their number of GPUs, fractions their bit pattern, which is larger. A broadcast array stays one number in
    memory.
    """
    if num_gpus.strides == (0,) and len(num_gpus) > 1:
        return np.broadcast_to(size_numbers(num_gpus[:1].copy()), num_gpus.shape)
    return np.where(num_gpus >= 1, num_gpus, 0).astype(np.int64) | np.where(num_gpus >= 1, 0.0, num_gpus).view(np.int64)
