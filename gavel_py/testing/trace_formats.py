"""The contract check of trace formats, on a file and on damaged copies of it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import gavel_py as gp
from gavel_py.testing.trial import ContractReport, RuleFault, report_of

RULES = {
    "recognised": "recognises its file, but not an empty one",
    "read": "reads at least one job, and counts each entry once",
    "repeatable": "reads the same each time from the same file",
    "written": "its jobs can be written and read again as JSON",
    "damaged": "a damaged file is read, or refused with an InputError",
    "one_line": "a damaged line affects no other entry",
}


def check_trace_format(trace_format: gp.TraceFormat, path: str | Path, *, seed: int = 0, copies: int = 100) -> ContractReport:
    """Check that a trace format keeps the contract of formats, on one of its files and on damaged copies of it.

    Args:
        trace_format: The format.
        path: A file of this format, with several entries; a folder is read, and not damaged.
        seed: Seed of the damage.
        copies: Number of damaged copies.

    Returns:
        The result of each check, none of which failed. `one_line` runs only if every line of the file is an entry by itself, that
        is, on text that is not JSON, and if the format skips broken entries.

    Raises:
        InputError: The file cannot be read.
        PolicyContractError: Checks failed; the message has code that shows each failure.
    """
    return report_of("trace format", trace_format.name, RULES, _faults(trace_format, Path(path), seed, copies))


def _faults(trace_format: gp.TraceFormat, path: Path, seed: int, copies: int) -> Iterator[tuple[str, RuleFault | None]]:
    """Yield the name of each check, and what is wrong if it fails."""
    trace = gp.read_trace(path, trace_format)
    report, code = trace.report, f"trace = gp.read_trace({str(path)!r}, trace_format)"
    total = report.num_jobs + report.num_broken + sum(each.count for each in report.skipped)
    yield "read", None if report.num_jobs else ("at least one job", "none", code)
    yield "read", None if total == report.num_records else (f"{report.num_records} entries in total", str(total), code)
    same = list(gp.read_trace(path, trace_format)) == list(trace)
    yield "repeatable", None if same else ("the same jobs", "others", code)
    with tempfile.TemporaryDirectory() as folder:
        empty, written = Path(folder, f"empty{path.suffix}"), Path(folder, "written.json")
        empty.touch()
        for file, is_one in ((path, True), (empty, False)):
            found = trace_format.recognises_file(file)
            shown = f"trace_format.recognises_file({str(file)!r})"
            yield "recognised", None if found == is_one else (str(is_one), str(found), shown)
        written.write_text(gp.trace_text(trace, "json"), encoding="utf-8")
        same = [each.job for each in gp.read_trace(written, "json")] == [each.job for each in trace]
        yield "written", None if same else ("the same jobs", "others", f'{code}\nprint(gp.trace_text(trace, "json"))')
        if path.is_file():
            yield from _faults_of_copies(trace_format, path.read_bytes(), Path(folder, path.name), trace, seed, copies)


def _faults_of_copies(
    trace_format: gp.TraceFormat, content: bytes, copy: Path, trace: gp.Trace, seed: int, copies: int
) -> Iterator[tuple[str, RuleFault | None]]:
    random = np.random.default_rng(seed)
    for _ in range(copies):
        damaged = _damaged(content, random)
        copy.write_bytes(damaged)
        crash = _crash(trace_format, copy)
        yield "damaged", None if crash is None else ("a trace, or an InputError", crash, _code(copy.name, damaged))
    lines, jobs = content.splitlines(keepends=True), {each.job.job_id for each in trace}
    if trace_format.is_strict or content.lstrip()[:1] in (b"[", b"{") or len(jobs) < MIN_JOBS:
        return
    for number in random.choice(np.arange(1, len(lines)), min(copies, len(lines) - 1), replace=False).tolist():
        damaged = b"".join([*lines[:number], b'?"\n', *lines[number + 1 :]])
        copy.write_bytes(damaged)
        try:
            left = {each.job.job_id for each in gp.read_trace(copy, trace_format)}
        except gp.InputError:
            left = set()
        lost = len(jobs - left)
        fault = None if lost <= 1 else ("all jobs but one", f"{lost} of {len(jobs)} jobs are lost", _code(copy.name, damaged))
        yield "one_line", fault


MIN_JOBS = 3
"""With fewer jobs, the loss of one line may be the loss of all."""


def _damaged(content: bytes, random: np.random.Generator) -> bytes:
    """Return a copy with one of five kinds of damage."""
    lines = content.splitlines(keepends=True) or [b""]
    at, line = int(random.integers(0, len(content) + 1)), int(random.integers(0, len(lines)))
    kinds = (
        content[:at],
        b"".join([*lines[:line], *lines[line + 1 :]]),
        b"".join([*lines[:line], lines[line], *lines[line:]]),
        content[:at] + bytes(random.integers(0, 256, 3).tolist()) + content[at + 3 :],
        content[:at] + b",,;\t" + content[at:],
    )
    return kinds[int(random.integers(0, len(kinds)))]


def _crash(trace_format: gp.TraceFormat, path: Path) -> str | None:
    """Return the error if a format raises anything but `InputError`, else None."""
    try:
        gp.read_trace(path, trace_format)
    except gp.InputError as error:
        cause = error.__cause__
        return None if cause is None or isinstance(cause, gp.GavelError) else f"{type(cause).__name__}: {cause}"
    return None


def _code(name: str, content: bytes) -> str:
    """Return Python code that writes a file and reads it."""
    shown = repr(content if len(content) <= MAX_BYTES else content[:MAX_BYTES] + b"...")
    lines = ["from pathlib import Path", "import gavel_py as gp", f"Path({name!r}).write_bytes({shown})"]
    return "\n".join([*lines, f"gp.read_trace({name!r}, trace_format)"])


MAX_BYTES = 2_000
"""Maximum number of bytes of a file in a message."""
