"""Traces of the published Gavel and of Shockwave: tab-separated, without header, of 7, 10 or 12 fields."""

from __future__ import annotations

from pathlib import Path

from gavel_py.errors import refuse
from gavel_py.io import reading
from gavel_py.problem.job_set import GAVEL_FIELDS, gavel_fields
from gavel_py.workloads.intake import FileHead, Intake, TraceFormat, amount

VERSIONS = {
    7: ("job_type", "", "", "", "total_steps", "arrival_seconds", "num_gpus"),
    10: GAVEL_FIELDS,
    12: (*GAVEL_FIELDS[:7], "mode", *GAVEL_FIELDS[7:9], "duration", GAVEL_FIELDS[9]),
}
"""The three versions of the format, by number of fields."""

ADAPTIVE = {"accordion", "gns"}
KEPT = "Jobs that adapt their batch size (mode accordion or gns) keep the one named in their job type: {n}."


def _recognises(head: FileHead) -> bool:
    return head.first_line.count("\t") + 1 in VERSIONS and not head.is_json


def _read(path: Path, intake: Intake) -> None:
    for index, (number, line) in enumerate(reading.numbered_lines(path)):
        with intake.entry(f"{path}, line {number}"):
            cells = line.split("\t")
            text = f"has {len(cells)} tab-separated fields; Gavel's traces have 7, 10 or 12"
            refuse("", (len(cells) not in VERSIONS, "", text))
            job = gavel_fields(VERSIONS[len(cells)], map(str.strip, cells))
            mode, run_seconds = job.pop("mode", ""), amount(job, "duration") if "duration" in job else None
            job.pop("duration", None)
            intake.job({"job_id": str(index)} | job, run_seconds=run_seconds)
            if mode in ADAPTIVE:
                intake.assume(KEPT)


FORMAT = TraceFormat("gavel", "the published Gavel (7 or 10 fields) and Shockwave (12)", _recognises, _read)
