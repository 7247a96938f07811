"""Microsoft's Philly trace in the form of a table: timestamp, duration, num_gpus, gpu_time, cluster."""

from __future__ import annotations

from pathlib import Path

from gavel_py.workloads.intake import Head, Importer, Intake, SkipError, amount, count, required_moment, table_rows

COLUMNS = ("timestamp", "duration", "num_gpus", "cluster")
TWICE = "Lines that say the same as an earlier one are jobs of their own: {n}."


def _recognises(head: Head) -> bool:
    return head.has_columns(*COLUMNS)


def _read(path: Path, intake: Intake) -> None:
    seen: set[int] = set()
    for number, (where, row) in enumerate(table_rows(path, intake, required=COLUMNS), 1):
        with intake.entry(where) as entry:
            num_gpus = count(row, "num_gpus")
            if not num_gpus:
                raise SkipError("asks for no GPU")
            job = {
                "job_id": str(number),
                "num_gpus": num_gpus,
                "arrival_seconds": required_moment(row, "timestamp"),
                "tenant": row["cluster"],
            }
            entry.job(job, run_seconds=amount(row, "duration"))
            key = hash(tuple(row.values()))
            if key in seen:
                intake.assume(TWICE)
            seen.add(key)


IMPORTER = Importer("philly-csv", "Microsoft's Philly, re-cut to a table", _recognises, _read, has_dates=True)
