"""Layout of text on a terminal: tables, comparisons of policies, bars, lists of hosts, and colour.

80 columns is the design width. A table that is too wide first leaves out its optional columns, then shortens names in the middle,
and finally becomes several tables with the same first column. Numbers are never cut. Names of rows stay distinct, unless even a
table with only one more column would be too wide. In pipes and files, names are complete.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import click

from gavel_py import Column as Column

DESIGN_WIDTH = 80
"""Width for which tables are laid out in pipes and files, in characters."""

PIPE_WIDTH = 1_000_000
"""Width of sentences in pipes and files, so that each stays on one line."""

FIRST_NAME, MIN_NAME, MIN_PROSE = 14, 12, 20
"""Minimum widths of a first column of names, of other names, and of sentences."""

MIN_CUT = 6
"""Width to which the first column is cut if nothing else helps."""

MIN_TITLE = 8
"""Width below which the title of a column is not narrowed, as long as it takes at most two lines."""

MAX_WORD = 12
"""Length of words in titles that are cut only if nothing else helps; longer words may be cut at any time."""

BEST = "*"
"""Marks the best policy in a row of a comparison."""

BAR_WIDTH = 24

LEFT = ("text", "name", "prose")
"""Kinds of columns that are left-aligned; the others are numbers."""

_CONTROL = re.compile(r"(?!\x1b\[[0-9;]*m)[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_SGR = re.compile(r"\x1b\[[0-9;]*m")


def is_screen() -> bool:
    """Return whether the width of the output is known."""
    return sys.stdout.isatty() or "COLUMNS" in os.environ


def width() -> int:
    """Return the width of sentences in characters: that of the terminal, or `PIPE_WIDTH` in pipes and files."""
    return max(20, shutil.get_terminal_size().columns) if is_screen() else PIPE_WIDTH


def line_width() -> int:
    """Return the width of tables and lists in characters: that of the terminal, or `DESIGN_WIDTH` in pipes and files."""
    return width() if is_screen() else DESIGN_WIDTH


def wrapped(lines: Iterable[str], indent: str = "    ") -> str:
    """Return the lines wrapped to the width of the terminal, with an indent in continuation lines."""
    return "".join("\n".join(folded(line, width(), indent) if is_screen() else [line.rstrip()]) + "\n" for line in lines)


def folded(text: str, room: int, indent: str = "") -> list[str]:
    """Return the text in lines of at most `room` characters, not counting colours; continuation lines have the indent."""
    lines, is_new = [text[: len(text) - len(text.lstrip())]], True
    for each in text.split():
        word = each
        if not is_new and cell_width(f"{lines[-1]} {word}") > room:
            lines.append(indent)
            is_new = True
        while is_new and cell_width(lines[-1] + word) > room and len(word) > 1:  # a word that is longer than a line
            part = _start(word, room - cell_width(lines[-1])) or word[0]
            lines[-1] += part
            lines.append(indent)
            word = word[len(part) :]
        lines[-1] += word if is_new else f" {word}"
        is_new = False
    return lines


def parts_text(parts: Iterable[str]) -> str:
    """Return the parts that are not empty, with a blank line between them."""
    return "\n".join(part for part in parts if part)


def has_colour() -> bool:
    """Return whether standard output shows colours, and the user wants them (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def styled(text: str, meaning: Literal["good", "warn", "bad", "title"]) -> str:
    """Return the text in the colour of its meaning, or unchanged without colours."""
    style = {"good": {"fg": "green"}, "warn": {"fg": "yellow"}, "bad": {"fg": "red"}, "title": {"bold": True}}[meaning]
    return click.style(text, **style) if text and has_colour() else text  # type: ignore[arg-type]


def cell_width(text: str) -> int:
    """Return the number of characters that a text takes on a terminal; wide characters take two."""
    if _is_plain(text):
        return len(text)
    from rich.cells import cell_len

    return cell_len(_SGR.sub("", text))


def shortened(text: str, room: int) -> str:
    """Return the text with "…" in its middle if it takes more than `room` characters.

    >>> shortened("language-model-0017", 11)
    'langu…-0017'
    """
    if cell_width(text) <= room:
        return text
    head, tail = _start(text, room // 2), _start(text[::-1], (room - 1) // 2)[::-1]
    return f"{head}…{tail}"


def _is_plain(text: str) -> bool:
    """Return whether each character of the text certainly takes one cell of a terminal; most texts are plain."""
    return text.isascii() and text.isprintable()


def _start(text: str, room: int) -> str:
    if _is_plain(text):
        return text[: max(0, room)]
    taken = 0
    for index, character in enumerate(text):
        taken += cell_width(character)
        if taken > room:
            return text[:index]
    return text


def listed(items: Sequence[str], room: int) -> str:
    """Return as many of the items as fit on one line, at least one, and the number of the remaining ones."""
    text = ""
    for index, item in enumerate(items):
        longer, rest = f"{text}, {item}" if text else item, len(items) - index - 1
        more = f" and {rest} more" if rest else ""
        if text and cell_width(longer + more) > room:
            return f"{text} and {rest + 1} more"
        text = longer
    return shortened(text, room) if is_screen() else text


def table_text(
    title: str, columns: Sequence[str | Column], rows: Iterable[Sequence[str]], text_columns: int = 1, *, wide: bool = False
) -> str:
    """Return a table that fits the terminal.

    Of columns given only by their titles, the first `text_columns` are names and the others numbers. wide: show all columns, with
    complete names.
    """
    given = [c if isinstance(c, Column) else Column(c, "name" if i < text_columns else "number") for i, c in enumerate(columns)]
    cells = [[_CONTROL.sub("?", cell) for cell in row] for row in rows]
    room = PIPE_WIDTH if wide else line_width()
    parts = [_Part(given[i], [row[i] for row in cells], is_first=i == 0) for i in range(len(given))]
    while sum(part.least + 2 for part in parts) > room and any(part.column.optional for part in parts):
        parts.remove(max(parts, key=lambda part: part.column.optional))
    heading = "".join(styled(line, "title") + "\n" for line in folded(title, width())) if title else ""
    is_whole = wide or not is_screen()
    blocks = [parts] if is_whole else _blocks(parts, room)
    return heading + "\n".join(_grid(block, room, is_whole=is_whole) for block in blocks)


Columns = Iterable[tuple[str | Column, Iterable[str]]]
"""Columns of a table with their cells."""


def columns_text(title: str, columns: Columns, *, wide: bool = False) -> str:
    """Return a table of columns with their cells, without those in which no cell has a text; wide: as for `table_text`."""
    listed = [(column, list(cells)) for column, cells in columns]
    shown = [(column, cells) for column, cells in listed if any(cells)] or listed
    return table_text(title, [column for column, _ in shown], zip(*(cells for _, cells in shown), strict=True), wide=wide)


class _Part:
    """A column with its cells and its widths: that of complete cells, that with the title on one line, and two minimums.

    forced: the minimum if nothing else helps, at which a title may be cut and different names may look the same.
    """

    def __init__(self, column: Column, cells: list[str], *, is_first: bool) -> None:
        self.column, self.cells = column, cells
        longest = max(map(cell_width, cells), default=0)
        words = _words(column.title)
        self.natural, self.one_line = max(longest, _two_lines(words)), max(longest, cell_width(column.title))
        least = {"name": FIRST_NAME if is_first else MIN_NAME, "prose": MIN_PROSE}.get(column.kind, longest)
        least = min(self.natural, max(least, min(MIN_TITLE, _two_lines(words))))
        self.forced = min(least, MIN_CUT) if is_first and column.kind in ("name", "prose") else least
        uncut = (length for word in words if (length := cell_width(word.strip())) <= MAX_WORD)
        self.least = max([least, *uncut])
        if column.kind == "name" and (is_first or column.is_key):
            self.least = _distinct_width({cell for cell in cells if cell_width(cell) > self.least}, self.least, longest)


def _distinct_width(names: Collection[str], least: int, longest: int) -> int:
    """Return the smallest width from `least` to `longest` at which different names look different when shortened."""
    # Names that look different still do with more room.
    return bisect_left(range(longest), True, lo=least, key=lambda room: len({shortened(n, room) for n in names}) == len(names))


def _words(title: str) -> list[str]:
    """Return the pieces between which a title may be folded: words with the space before them, and parts of names."""
    return re.findall(r"\s*[^\s,_]+[,_]?|[,_]", title)


def _two_lines(words: Sequence[str]) -> int:
    """Return the smallest width at which the words take at most two lines."""
    halves = [("".join(words[:k]), "".join(words[k:]).strip()) for k in range(1, len(words) + 1)]
    return min((max(map(cell_width, each)) for each in halves), default=0)


def _blocks(parts: list[_Part], room: int) -> list[list[_Part]]:
    """Return groups of columns that fit, each including the columns that name the rows."""
    keys = [part for i, part in enumerate(parts) if i == 0 or part.column.is_key]
    blocks = [list(keys)]
    for part in parts:
        if part in keys:
            continue
        if len(blocks[-1]) > len(keys) and sum(each.least + 2 for each in [*blocks[-1], part]) > room:
            blocks.append(list(keys))
        blocks[-1].append(part)
    return blocks


def _grid(parts: Sequence[_Part], room: int, *, is_whole: bool) -> str:
    widths = [part.natural if is_whole else part.least for part in parts]
    spare = room - sum(widths) - 2 * len(widths)
    for i in () if is_whole else reversed(range(len(parts))):  # too wide, although it has only one column beside the names
        less = max(0, min(-spare, widths[i] - parts[i].forced))
        widths[i], spare = widths[i] - less, spare + less
    spare = max(0, spare)
    for wanted in ([part.natural for part in parts], [part.one_line for part in parts]):
        for i in sorted(range(len(parts)), key=lambda i: wanted[i] - widths[i]):
            more = min(spare, wanted[i] - widths[i])
            widths[i], spare = widths[i] + more, spare - more
    heads = [_folded_title(part, each) for part, each in zip(parts, widths, strict=True)]
    height = max(map(len, heads))
    lines = [[""] * (height - len(head)) + head for head in heads]
    text = [_line(parts, widths, row) for row in zip(*lines, strict=True)] if any(part.column.title for part in parts) else []
    for row in zip(*(part.cells for part in parts), strict=True):
        lined = [_folded(part, cell, each) for part, cell, each in zip(parts, row, widths, strict=True)]
        height = max(map(len, lined))
        text += [
            _line(parts, widths, line) for line in zip(*([*cell, *[""] * (height - len(cell))] for cell in lined), strict=True)
        ]
    return "".join(f"{line}\n" for line in text)


def _folded_title(part: _Part, room: int) -> list[str]:
    lines: list[str] = []
    for word in _words(part.column.title):
        if lines and cell_width(lines[-1] + word) <= room:
            lines[-1] += word
        else:
            lines.append(shortened(word.strip(), room))
    return lines


def _folded(part: _Part, cell: str, room: int) -> list[str]:
    if part.column.kind == "prose":
        return folded(cell, room)
    return [shortened(cell, room) if part.column.kind == "name" else cell]


def _line(parts: Sequence[_Part], widths: Sequence[int], cells: Sequence[str]) -> str:
    padded = []
    for part, each, cell in zip(parts, widths, cells, strict=True):
        space = " " * max(0, each - cell_width(cell))
        padded.append(cell + space if part.column.kind in LEFT else space + cell)
    return "  " + "  ".join(padded).rstrip()


@dataclass(frozen=True)
class ComparisonRow:
    """A row of a comparison: a figure of each policy.

    values: one for each policy, None if it is not defined; form: returns the text of a value; best: which value is best, None if
    there is no general answer.
    """

    label: str
    values: Sequence[float | None]
    form: Callable[[float], str]
    best: Literal["most", "least"] | None = None

    def cells(self) -> list[str]:
        """Return the values as text; the best are marked with "*" if values differ."""
        texts = ["-" if value is None else self.form(value) for value in self.values]
        known = [value for value in self.values if value is not None]
        if self.best is None or len(set(texts)) < 2 or not known:
            return texts
        wanted = self.form(max(known) if self.best == "most" else min(known))
        return [styled(text + BEST, "good") if text == wanted else text for text in texts]


def comparison_text(
    title: str, labels: Sequence[str], metrics: Iterable[ComparisonRow], *, marked: str = "best", wide: bool = False
) -> str:
    """Return a table with a row for each metric and a column for each policy.

    marked: meaning of the mark; wide: as for `table_text`.
    """
    rows = [[metric.label, *metric.cells()] for metric in metrics]
    if not any(BEST in cell for row in rows for cell in row[1:]):
        return table_text("", [Column(title, "prose"), *map(Column, labels)], rows, wide=wide)
    rows = [[label, *(cell if BEST in cell else f"{cell} " for cell in cells)] for label, *cells in rows]
    return table_text("", [Column(f"{title} ({BEST} {marked})", "prose"), *map(Column, labels)], rows, wide=wide)


def bar(part: float) -> str:
    """Return a bar for a part of 1."""
    full = round(BAR_WIDTH * min(1.0, max(0.0, part)))
    return "█" * full + "░" * (BAR_WIDTH - full)


def folded_names(names: Iterable[str]) -> list[str]:
    """Return host names with their numbers as ranges.

    >>> folded_names(["k80-b-0", "k80-b-1", "k80-b-3", "login"])
    ['k80-b-[0-1,3]', 'login']
    """
    numbers: dict[tuple[str, int], list[int]] = {}
    for name in dict.fromkeys(names):
        stem, digits = re.fullmatch(r"(.*?)([0-9]{0,9})", name, re.DOTALL).groups()  # type: ignore[union-attr]
        padded = len(digits) if digits.startswith("0") and len(digits) > 1 else 0
        numbers.setdefault((stem, padded), []).extend([int(digits)] if digits else [])
    texts = []
    for (stem, padded), found in numbers.items():
        ranges = _ranges(found, padded)
        texts.append(stem + (f"[{ranges}]" if len(found) > 1 else ranges))
    return texts


def gpus_text(gpus: Iterable[tuple[str, int]]) -> str:
    """Return (node, index) pairs as text; nodes with the same GPUs are grouped.

    >>> gpus_text([("a-0", 0), ("a-0", 1), ("a-1", 0), ("a-1", 1), ("b", 5)])
    'a-[0-1]:0-1 b:5'
    """
    by_node: dict[str, list[int]] = {}
    for node, index in gpus:
        by_node.setdefault(node, []).append(index)
    same: dict[str, list[str]] = {}
    for node, indices in by_node.items():
        same.setdefault(_ranges(indices), []).append(node)
    return " ".join(f"{name}:{ranges}" for ranges, nodes in same.items() for name in folded_names(nodes))


def _ranges(numbers: Iterable[int], padded: int = 0) -> str:
    runs: list[list[int]] = []
    for value in sorted(numbers):
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    return ",".join("-".join(f"{each:0{padded}d}" for each in dict.fromkeys((run[0], run[-1]))) for run in runs)
