"""Results as tables: a dictionary of arrays, a pandas DataFrame, and a short table in notebooks."""

from __future__ import annotations

import csv
import html
import io
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    Array = NDArray[Any]

SHOWN = 10
"""Rows that a notebook shows of a longer table."""


Quantity = Literal["number", "count", "share", "time", "clock", "GPU time", "money"]
"""What a figure measures: a part of 1, seconds of jobs or of the computer, GPU-seconds, or an amount in the unit of prices."""


class Column(NamedTuple):
    """A column of a table on the terminal, and how a figure of a result is shown there.

    Attributes:
        title: Its heading; "" for a figure that only files and data frames have.
        kind: What it measures; numbers are right-aligned and never cut. "text" is left-aligned and never cut, names are shortened,
            "prose" is folded.
        optional: Columns with the highest number are left out first if the table is too wide; 0 for never.
        form: A format of its values, by default that of the kind.
        name: Its name in files and data frames, by default that of the attribute.
        is_key: Whether it names the rows, like the first column, and is repeated with it if a table is divided.
    """

    title: str
    kind: Quantity | Literal["text", "name", "prose"] = "number"
    optional: int = 0
    form: str = ""
    name: str = ""
    is_key: bool = False


class Tabular(ABC):
    """Base class of results with a table. Subclasses define `to_columns`."""

    @abstractmethod
    def to_columns(self) -> dict[str, Array]:
        """Return the table as {column: (rows,) array}, which polars, pyarrow and pandas accept.

        Missing numbers are NaN, missing texts None.
        """

    def to_pandas(self) -> pd.DataFrame:
        """Return the table of `to_columns` as a pandas DataFrame.

        Raises:
            InputError: pandas is not installed; `pip install 'gavel-py[pandas]'` installs it.
        """
        from gavel_py.io.writing import check_libraries

        check_libraries("data frames", "pandas", "pandas")
        import pandas as pd

        return pd.DataFrame(self.to_columns())

    def _repr_html_(self) -> str:
        """Return the first rows as HTML, for notebooks."""
        columns = self.to_columns()
        count = len(next(iter(columns.values()), ()))
        head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
        rows = (zip(*(values[:SHOWN].tolist() for values in columns.values()), strict=True)) if columns else ()
        body = "".join("<tr>" + "".join(f"<td>{html.escape(_cell(cell))}</td>" for cell in row) + "</tr>" for row in rows)
        more = f"<p>{count - SHOWN} more rows: to_pandas()</p>" if count > SHOWN else ""
        title = html.escape(self._title())
        return f"<p>{title}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"

    def _title(self) -> str:
        return repr(self)


class Rows(list[dict[str, Any]], Tabular):
    """A list of rows, {column: value}, that is also a table."""

    def to_columns(self) -> dict[str, Array]:
        return columns_of(self)

    def _title(self) -> str:
        return f"{len(self)} rows"


def csv_text(columns: Mapping[str, Array]) -> str:
    """Return a table as CSV; columns: as `Tabular.to_columns` returns them."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(values.tolist() for values in columns.values()), strict=True))
    return text.getvalue()


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Array]:
    """Return {column: (rows,) array} with the columns of all rows, in the order of their first occurrence."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: array_of(row.get(name) for row in rows) for name in names}


def array_of(values: Iterable[Any]) -> Array:
    """Return values as an array of bools, integers, floats (None becomes NaN), or objects if any of them is text."""
    import numpy as np  # not above: jobs and their files are read without it

    items = list(values)
    types = {type(item) for item in items}
    if types and types <= {bool}:
        return np.array(items, dtype=bool)
    if types and types <= {int}:
        return np.array(items, dtype=np.int64)
    if types & {int, float} and types <= {int, float, type(None)}:
        return np.array([np.nan if item is None else item for item in items], dtype=float)
    found = np.empty(len(items), dtype=object)
    found[:] = items
    return found


def _cell(value: object) -> str:
    if value is None or value != value:  # NaN
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
