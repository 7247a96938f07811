"""Traces of the published Gavel and of Shockwave: tab-separated, without header, of 7, 10 or 12 fields."""

from __future__ import annotations

from pathlib import Path

from gavel_py.errors import Fault, InputError
from gavel_py.io import reading
from gavel_py.workloads.intake import Head, Intake, TraceFormat, amount

VERSIONS = {
    7: ("job_type", "", "", "", "total_steps", "arrival_seconds", "num_gpus"),
    10: ("job_type", "", "", "", "", "total_steps", "num_gpus", "weight", "slo", "arrival_seconds"),
    12: ("job_type", "", "", "", "", "total_steps", "num_gpus", "mode", "weight", "slo", "duration", "arrival_seconds"),
}
"""The three versions of the format, by number of fields. `slo` is a multiple of the ideal duration; "" is an ignored field."""

ADAPTIVE = {"accordion", "gns"}
KEPT = "Jobs that adapt their batch size (mode accordion or gns) keep the one named in their job type: {n}."
OF_JOB = ("job_type", "total_steps", "num_gpus", "weight", "arrival_seconds")


def _recognises(head: Head) -> bool:
    return head.first_line.count("\t") + 1 in VERSIONS and not head.is_json


def _read(path: Path, intake: Intake) -> None:
    for index, (number, line) in enumerate(reading.numbered_lines(path)):
        with intake.entry(f"{path}, line {number}"):
            cells = line.split("\t")
            if len(cells) not in VERSIONS:
                raise InputError(Fault("", "", f"has {len(cells)} tab-separated fields; Gavel's traces have 7, 10 or 12"))
            row = {name: cell.strip() for name, cell in zip(VERSIONS[len(cells)], cells, strict=True) if name}
            job = {name: row[name] for name in OF_JOB if name in row}
            run_seconds = amount(row, "duration") if "duration" in row else None
            slo = row.get("slo", "-1")
            if not slo.startswith("-"):  # a negative SLO means none; Job checks that the factor is a positive number
                job["deadline_factor"] = slo
            intake.job({"job_id": str(index)} | job, run_seconds=run_seconds)
            if row.get("mode") in ADAPTIVE:
                intake.assume(KEPT)


FORMAT = TraceFormat("gavel", "the published Gavel (7 or 10 fields) and Shockwave (12)", _recognises, _read)
