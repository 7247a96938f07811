"""Files are read as written, or refused with file, line and fault."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from gavel_py.io import reading
from tests.support.fakes import refusal

Rows = list[tuple[str, Any]]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def file(name: str, content: str | bytes) -> str:
    Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return name


def csv(content: str | bytes, required: tuple[str, ...] = ()) -> Rows:
    return list(reading.csv_rows(file("t.csv", content), required))


def json(content: str | bytes) -> Any:
    return reading.json_document(file("t.json", content))


def json_lines(content: str | bytes) -> Rows:
    return list(reading.json_lines(file("t.jsonl", content)))


def yaml(content: str | bytes) -> Any:
    return reading.yaml_document(file("t.yaml", content))[0]


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Yield the list of how many bytes each read of a file in the block has given."""
    read: list[int] = []

    class Counting(io.FileIO):
        def readinto(self, buffer: Any) -> int | None:
            read.append(super().readinto(buffer) or 0)
            return read[-1]

    def opened(path: str, **options: Any) -> io.TextIOWrapper:
        return io.TextIOWrapper(io.BufferedReader(Counting(path)), **options)

    with monkeypatch.context() as patched:
        patched.setattr(reading, "open", opened, raising=False)
        yield read


READERS: dict[str, Callable[[str], object]] = {
    "csv": lambda path: list(reading.csv_rows(path)),
    "json": reading.json_document,
    "jsonl": lambda path: list(reading.json_lines(path)),
    "yaml": reading.yaml_document,
}
each_reader = pytest.mark.parametrize("read", READERS.values(), ids=READERS)
line_readers = pytest.mark.parametrize("read", [READERS[k] for k in ("csv", "jsonl", "yaml")], ids=("csv", "jsonl", "yaml"))


class TestFiles:
    @each_reader
    def test_missing_file(self, read: Callable[[str], object]) -> None:
        assert refusal(read, "absent") == "absent: cannot be read: No such file or directory"

    @each_reader
    def test_directory(self, read: Callable[[str], object]) -> None:
        Path("folder").mkdir()
        assert refusal(read, "folder") == "folder: cannot be read: Is a directory"

    @each_reader
    def test_file_that_may_not_be_read(self, read: Callable[[str], object], monkeypatch: pytest.MonkeyPatch) -> None:
        # Simulated, since tests may run as a user who may read every file.
        def denied(path: object, *_: object, **__: object) -> None:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

        file("t", "a\n1\n")
        with monkeypatch.context() as patched:
            patched.setattr("builtins.open", denied)
            patched.setattr("io.open", denied)
            assert refusal(read, "t") == "t: cannot be read: Permission denied"

    @each_reader
    def test_text_that_is_not_utf_8(self, read: Callable[[str], object]) -> None:
        path = file("t", '"café"\n'.encode("latin-1"))
        assert refusal(read, path) == "t, line 1: is not UTF-8 text (byte 4 of the line: invalid continuation byte)"

    @each_reader
    def test_utf_16(self, read: Callable[[str], object]) -> None:
        assert (
            refusal(read, file("t", '"a"\n'.encode("utf-16")))
            == "t, line 1: is not UTF-8 text (byte 0 of the line: invalid start byte)"
        )

    @each_reader
    def test_the_line_that_is_not_utf_8_is_named(self, read: Callable[[str], object]) -> None:
        content = b'"a"\n' * 40_000 + b'"ab\xff"\n'
        assert refusal(read, file("t", content)) == "t, line 40001: is not UTF-8 text (byte 3 of the line: invalid start byte)"

    @line_readers
    def test_a_line_of_many_megabytes_is_refused_at_once(
        self, read: Callable[[str], object], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = file("t", b"1\n" + b"x" * (8 << 20))
        with counted(monkeypatch) as read_bytes:
            assert refusal(read, path) == "t, line 2: the line is longer than 1,048,576 characters"
        assert reading.LONGEST_LINE < sum(read_bytes) < 2 * reading.LONGEST_LINE

    def test_a_line_of_the_longest_length_is_read(self) -> None:
        line = "x" * (reading.LONGEST_LINE - 1) + "\n"
        assert list(reading.lines(file("t", line + "y"))) == [line, "y"]

    def test_a_path_may_be_text_or_a_path(self) -> None:
        file("t.csv", "a\n1\n")
        assert list(reading.csv_rows(Path("t.csv"))) == list(reading.csv_rows("t.csv")) == [("t.csv, line 2", {"a": "1"})]


class TestSuffix:
    @pytest.mark.parametrize("path", ["jobs.csv", "jobs.CSV", "a.b/jobs.x.csv"])
    def test_tells_the_format(self, path: str) -> None:
        assert reading.suffix_of(path, {".csv": 1, ".json": 2}) == ".csv"

    @pytest.mark.parametrize("path", ["jobs", "jobs.txt", ".csv", "csv"])
    def test_says_which_are_known(self, path: str) -> None:
        problem = f"{path}: cannot determine the format from the name; it must end in .csv, .json"
        assert refusal(reading.suffix_of, path, {".csv": 1, ".json": 2}) == problem


class TestCsv:
    @pytest.mark.parametrize(
        ("content", "rows"),
        [
            pytest.param("a,b\n1,2\n", [(2, {"a": "1", "b": "2"})], id="plain"),
            pytest.param("a,b\n1,2", [(2, {"a": "1", "b": "2"})], id="no line break at the end"),
            pytest.param("a,b\r\n1,2\r\n", [(2, {"a": "1", "b": "2"})], id="CRLF"),
            pytest.param("a,b\r1,2\r", [(2, {"a": "1", "b": "2"})], id="CR alone"),
            pytest.param(b"\xef\xbb\xbfa,b\n1,2\n", [(2, {"a": "1", "b": "2"})], id="byte order mark"),
            pytest.param(" a , b\n 1,2 \n", [(2, {"a": "1", "b": "2"})], id="spaces around cells"),
            pytest.param('a,b\n"1,5","say ""hi"""\n', [(2, {"a": "1,5", "b": 'say "hi"'})], id="quotes"),
            pytest.param("\n\na,b\n\n1,2\n , \n3,4\n\n", [(5, {"a": "1", "b": "2"}), (7, {"a": "3", "b": "4"})], id="blank lines"),
            pytest.param("a,b\n1,\n ,2\n", [(2, {"a": "1"}), (3, {"b": "2"})], id="empty cells are left out"),
            pytest.param('a,b\n"x\ny",2\n3,4\n', [(2, {"a": "x\ny", "b": "2"}), (4, {"a": "3", "b": "4"})], id="break in a cell"),
            pytest.param(
                'a,b\r\n"x\r\ny",2\r\n3,4', [(2, {"a": "x\r\ny", "b": "2"}), (4, {"a": "3", "b": "4"})], id="CRLF in a cell"
            ),
            pytest.param('a,"b\nc"\n1,2\n', [(3, {"a": "1", "b\nc": "2"})], id="break in the header"),
            pytest.param("a,b\nGPU-Größe,東京\n", [(2, {"a": "GPU-Größe", "b": "東京"})], id="other scripts"),
            pytest.param("a,b\n", [], id="no rows"),
        ],
    )
    def test_rows_with_their_lines(self, content: str | bytes, rows: list[tuple[int, dict[str, str]]]) -> None:
        assert csv(content) == [(f"t.csv, line {number}", row) for number, row in rows]

    @pytest.mark.parametrize(
        ("content", "problem"),
        [
            pytest.param("", "t.csv: is empty; a header line with column names is required", id="empty"),
            pytest.param("\n \n,,\n", "t.csv: is empty; a header line with column names is required", id="blank"),
            pytest.param("job,b\n1,2\n", "t.csv, line 1: column 'job_id' is missing; did you mean 'job'?", id="missing column"),
            pytest.param(
                "job_id;b\n1;2\n", "t.csv, line 1: found one column, 'job_id;b'; cells must be separated by commas", id="semicolons"
            ),
            pytest.param(
                "job_id\tb\n1\t2\n",
                "t.csv, line 1: found one column, 'job_id\\tb'; cells must be separated by commas",
                id="tabs",
            ),
            pytest.param(
                "\nx,b\n1,2\n", "t.csv, line 2: column 'job_id' is missing; known: job_id", id="missing below a blank line"
            ),
            pytest.param(
                "job_id,b,b,job_id\n",
                "t.csv, line 1: column 'b' appears twice\nt.csv, line 1: column 'job_id' appears twice",
                id="repeated columns",
            ),
            pytest.param(
                "b,b\n",
                "t.csv, line 1: column 'b' appears twice\nt.csv, line 1: column 'job_id' is missing; known: job_id",
                id="repeated and missing columns",
            ),
            pytest.param("job_id,b\n1,2,3\n", "t.csv, line 2: has 3 fields, but the header has 2", id="too many fields"),
            pytest.param("job_id,b\n1\n", "t.csv, line 2: has 1 field, but the header has 2", id="one field"),
            pytest.param("job_id,b,c\n1,2\n", "t.csv, line 2: has 2 fields, but the header has 3", id="too few fields"),
            pytest.param(
                'job_id,b\n"x\ny",2\n\n5,6,7\n', "t.csv, line 5: has 3 fields, but the header has 2", id="after a break in a cell"
            ),
            pytest.param('job_id,b\n1,"2\n', "t.csv, line 2: is not valid CSV: unexpected end of data", id="unterminated quote"),
            pytest.param('job_id,b\n1,"2"x\n', "t.csv, line 2: is not valid CSV: ',' expected after '\"'", id="text after a quote"),
            pytest.param("job_id,b\n1,2\n3,\0\n", "t.csv, line 3: contains a NUL character; is this a text file?", id="NUL"),
            pytest.param(
                f"job_id,b\n1,{'x' * 200_000}\n",
                "t.csv, line 2: is not valid CSV: field larger than field limit (131072)",
                id="huge cell",
            ),
        ],
    )
    def test_faults(self, content: str, problem: str) -> None:
        assert refusal(csv, content, required=("job_id",)) == problem

    def test_a_quote_left_open_does_not_swallow_a_large_file(self, monkeypatch: pytest.MonkeyPatch) -> None:
        content = 'a,b\n1,"2\n' + "3,4\n" * 500_000
        with counted(monkeypatch) as read_bytes:
            assert "is not valid CSV" in refusal(csv, content)
        assert 0 < sum(read_bytes) < len(content) / 4

    def test_rows_come_one_by_one(self) -> None:
        rows: Iterator[tuple[str, dict[str, str]]] = reading.csv_rows(file("t.csv", "a\n1\n2,3\n"))
        assert next(rows) == ("t.csv, line 2", {"a": "1"})
        assert refusal(next, rows) == "t.csv, line 3: has 2 fields, but the header has 1"


class TestJson:
    @pytest.mark.parametrize(
        ("content", "document"),
        [
            ('{"a": [1, 2.5, null, true, "x"]}', {"a": [1, 2.5, None, True, "x"]}),
            (b"\xef\xbb\xbf[1]", [1]),
            ("\r\n[1,\r\n2]\r\n", [1, 2]),
            ('[{"a": 1}, {"a": 1}]', [{"a": 1}, {"a": 1}]),
        ],
    )
    def test_documents(self, content: str | bytes, document: object) -> None:
        assert json(content) == document

    def test_one_line_may_be_long(self) -> None:
        assert len(json("[" + "1," * reading.LONGEST_LINE + "1]")) == reading.LONGEST_LINE + 1

    @pytest.mark.parametrize(
        ("content", "problem"),
        [
            pytest.param("", "t.json, line 1: is not valid JSON: Expecting value (column 1)", id="empty"),
            pytest.param('{"a": 1,\n"b": }', "t.json, line 2: is not valid JSON: Expecting value (column 6)", id="value missing"),
            pytest.param('{"a": 1\n"b": 2}', "t.json, line 2: is not valid JSON: Expecting ',' delimiter (column 1)", id="comma"),
            pytest.param("[1]\n[2]", "t.json, line 2: is not valid JSON: Extra data (column 1)", id="two documents"),
            pytest.param('["a\0b"]', "t.json, line 1: is not valid JSON: Invalid control character at (column 4)", id="NUL"),
            pytest.param('{"b": 1, "a": 1, "a": 2}', "t.json, line 1: key 'a' appears twice in one object", id="repeated key"),
            pytest.param('[{"b": {"c": 1, "c": 1}}]', "t.json, line 1: key 'c' appears twice in one object", id="repeated deeper"),
            pytest.param(
                "[" * 200_000, "t.json, line 1: is nested too deeply for a job set, cluster or profile", id="deep nesting, open"
            ),
            pytest.param(
                '{"a":' * 200_000 + "1" + "}" * 200_000,
                "t.json, line 1: is nested too deeply for a job set, cluster or profile",
                id="deep nesting, closed",
            ),
        ],
    )
    def test_faults(self, content: str, problem: str) -> None:
        assert refusal(json, content) == problem

    @pytest.mark.parametrize(
        ("content", "line"),
        [
            ('{"a": 1,\n "b": 2,\n "a": 3}', 3),
            ('[\n{"c": [{"a": "a"}, {"a":\n1,\n"a": {}}]}]', 4),
            ('{"\\u0061": 1,\n"a": 2}', 2),
            ('{"a": 1, "b": "{\\"a\\": 1",\n\n"a": []}', 3),
        ],
    )
    def test_a_repeated_key_is_refused_with_its_line(self, content: str, line: int) -> None:
        assert refusal(json, content) == f"t.json, line {line}: key 'a' appears twice in one object"


@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_a_document_knows_the_lines_of_its_entries(suffix: str) -> None:
    content = '{"nodes": [\n{"name": "a",\n"gpus": 1}, 7,\n\n{"name":\n"b"}],\n"x": {"y": {}, "z": []}}'
    read = reading.document(file(f"t.{suffix}", content))
    assert read.value == {"nodes": [{"name": "a", "gpus": 1}, 7, {"name": "b"}], "x": {"y": {}, "z": []}}
    entries = [
        (),
        ("nodes",),
        ("nodes", 0),
        ("nodes", 0, "gpus"),
        ("nodes", 1),
        ("nodes", 2, "name"),
        ("x", "z"),
        ("x", "q"),
        ("r",),
    ]
    numbers = [1, 1, 2, 3, 3, 5, 7, 7, 1]
    assert [read.line(*entry) for entry in entries] == [f"t.{suffix}, line {number}" for number in numbers]
    assert read.where("nodes", 0, "gpus") == f"t.{suffix}, line 3" + (", nodes[0].gpus" if suffix == "json" else "")


class TestJsonLines:
    def test_documents_with_their_lines(self) -> None:
        assert json_lines('{"a": 1}\n\n[2]\r\n \n3') == [
            ("t.jsonl, line 1", {"a": 1}),
            ("t.jsonl, line 3", [2]),
            ("t.jsonl, line 5", 3),
        ]

    def test_an_empty_file_holds_none(self) -> None:
        assert json_lines("") == []

    @pytest.mark.parametrize(
        ("content", "problem"),
        [
            pytest.param(
                '{"a": 1}\n\n{"a": ]}\n', "t.jsonl, line 3: is not valid JSON: Expecting value (column 7)", id="syntax error"
            ),
            pytest.param("1\n2 3\n", "t.jsonl, line 2: is not valid JSON: Extra data (column 3)", id="two documents in a line"),
            pytest.param('1\n{"a": 1, "a": 2}\n', "t.jsonl, line 2: key 'a' appears twice in one object", id="repeated key"),
            pytest.param(
                "1\n" + "[" * 200_000 + "\n",
                "t.jsonl, line 2: is nested too deeply for a job set, cluster or profile",
                id="deep nesting",
            ),
            pytest.param(
                '1\n"' + "x" * (1 << 20) + '"\n', "t.jsonl, line 2: the line is longer than 1,048,576 characters", id="long line"
            ),
        ],
    )
    def test_faults(self, content: str, problem: str) -> None:
        assert refusal(json_lines, content) == problem


class TestYaml:
    @pytest.mark.parametrize(
        ("content", "document"),
        [
            pytest.param("a: [1, 2.5, x]\n", {"a": [1, 2.5, "x"]}, id="plain"),
            pytest.param("a: 1\r\nb: 2\r\n", {"a": 1, "b": 2}, id="CRLF"),
            pytest.param(b"\xef\xbb\xbfa: 1\n", {"a": 1}, id="byte order mark"),
            pytest.param("a: &x {b: 1}\nc: *x\n", {"a": {"b": 1}, "c": {"b": 1}}, id="alias"),
            pytest.param("a: &x {b: 1}\nc:\n  <<: *x\n  d: 2\n", {"a": {"b": 1}, "c": {"b": 1, "d": 2}}, id="merge"),
            pytest.param("", None, id="empty"),
            pytest.param("# nothing yet\n", None, id="comment only"),
        ],
    )
    def test_documents(self, content: str | bytes, document: object) -> None:
        assert yaml(content) == document

    @pytest.mark.parametrize(
        "text",
        ["on", "off", "yes", "no", "y", "none", "010", "00", "0x10", "0o17", "0b11", "1_000", "1:30", "1:30.5", "2024-01-01",
         "1.10", "2024-01-01 10:00:00", "+5", ".5", "1e5", ".", "=", "-inf", "1 2"],
    )  # fmt: skip
    def test_plain_scalars_that_yaml_1_1_converts_are_text(self, text: str) -> None:
        assert yaml(f"a: {text}\n{text}: b\n") == {"a": text, text: "b"}

    def test_numbers_and_words_with_an_explicit_tag(self) -> None:
        assert yaml("[!!int 12, !!float 1.5, !!int 010, !!float 1_0, !!str 7]") == [12, 1.5, "010", "1_0", "7"]

    def test_keys_are_text(self) -> None:
        assert yaml("{1: a, 1.5: b, true: c, null: d, ~: e}") == {"1": "a", "1.5": "b", "true": "c", "null": "d", "~": "e"}

    def test_lines_of_entries(self) -> None:
        content = "# two nodes\nnodes:\n  - name: a\n    num_gpus: 2\n\n  - {name: b}\nkinds: {v: {}}\n"
        _, places = reading.yaml_document(file("t.yaml", content))
        assert places["nodes", "0"] == 3
        assert places["nodes", "0", "num_gpus"] == 4
        assert places["nodes", "1"] == places["nodes", "1", "name"] == 6
        assert places["kinds", "v"] == 7

    @pytest.mark.parametrize(
        ("content", "line"),
        [
            pytest.param("a:\n  - b: 1\n   c: 2\n", 3, id="indent"),
            pytest.param("a: [1,\n2\n", 3, id="bracket left open"),
            pytest.param("a:\n\t- b\n", 2, id="tab"),
            pytest.param("a: 1\nb: *x\n", 2, id="undefined alias"),
            pytest.param("a: 1\n---\nb: 2\n", 2, id="two documents"),
            pytest.param("a: 1\n? [b]\n: 2\n", 2, id="list as key"),
            pytest.param("a: 1\nb: !!python/object/apply:os.getcwd []\n", 2, id="a tag that would run code"),
        ],
    )
    def test_faults_name_the_line(self, content: str, line: int) -> None:
        # The rest of the message is from the YAML library.
        assert refusal(yaml, content).startswith(f"t.yaml, line {line}: is not valid YAML: ")

    @pytest.mark.parametrize(
        ("content", "line"),
        [
            pytest.param("a: 1\nb: 2\na: 3\n", 3, id="at the top"),
            pytest.param("x:\n  - b: 1\n    a: 1\n    a: 1\n", 4, id="deeper"),
            pytest.param("b: 1\nx: {a: 1, a: 2}\n", 2, id="in one line"),
        ],
    )
    def test_a_repeated_key_is_refused(self, content: str, line: int) -> None:
        assert refusal(yaml, content).endswith(f"t.yaml, line {line}: key 'a' appears twice in one mapping")

    def test_an_alias_bomb_is_refused_before_it_is_built(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of 10 ** 20 entries, no more are visited than are allowed, and none is built."""
        layers = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
        layers += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 20)]
        visits = Mock(side_effect=reading._walk_yaml)
        built = Mock()
        monkeypatch.setattr(reading, "MAX_YAML_NODES", 2_000)
        monkeypatch.setattr(reading, "_walk_yaml", visits)
        monkeypatch.setattr(reading._yaml_loader(), "construct_document", built)
        assert "has more than 2,000 entries or 100 levels, including those that aliases repeat" in refusal(yaml, "\n".join(layers))
        assert visits.call_count == 2_001
        assert not built.called
