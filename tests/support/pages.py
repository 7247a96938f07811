"""What a page says: its sentences and tables, as text."""

from __future__ import annotations

from html.parser import HTMLParser

HEADINGS = ("h1", "h2", "h3")
SENTENCES = (*HEADINGS, "p", "li", "caption")
CELLS = ("th", "td")


class Page(HTMLParser):
    """The texts of an HTML page.

    Attributes:
        sentences: Its headings, paragraphs, list items and captions, in order.
        tables: {heading before the table: its rows, the titles of columns first}.
        numbers: {heading: for each column, whether its title is that of numbers}.
        tags: Names of its elements.
        addresses: What it would load or link to.
    """

    def __init__(self, page: str) -> None:
        super().__init__()
        self.sentences, self.tags, self.addresses = list[str](), set[str](), list[str]()
        self.tables, self.numbers = dict[str, list[list[str]]](), dict[str, list[bool]]()
        self._heading, self._inside = "", ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [value for name, value in attrs if name in ("href", "src") and value and not value.startswith("#")]
        rows = self.tables.get(self._heading, [])
        if tag == "table":
            self.tables[self._heading], self.numbers[self._heading] = [], []
        elif tag == "tr":
            rows.append([])
        elif tag in CELLS:
            rows[-1].append("")
            self.numbers[self._heading] += [("class", "text") not in attrs] if len(rows) == 1 else []
        elif tag in SENTENCES:
            self.sentences.append("")
        self._inside = tag if tag in (*SENTENCES, *CELLS) else self._inside

    def handle_endtag(self, tag: str) -> None:
        self._heading = self.sentences[-1] if tag in HEADINGS else self._heading
        self._inside = "" if tag == self._inside else self._inside

    def handle_data(self, data: str) -> None:
        if self._inside in CELLS:
            self.tables[self._heading][-1][-1] += data
        elif self._inside:
            self.sentences[-1] += data
