"""Results of MLPerf: times to train, as a table computed from public logs, and throughputs of inference.

Only the closed division is read, whose models and targets are fixed. Several results of an entry are represented by their median.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gavel_py.errors import Fault, InputError, refuse
from gavel_py.io import reading

from . import tables

SOURCE = "{}, not verified by MLCommons Association"

TRAINING_COLUMNS = ("benchmark", "accelerator", "num_accelerators", "division", "median_minutes")

INFERENCE_COLUMNS = ("model", "scenario", "result", "units", "accelerator", "accelerators_per_node", "nodes")

SUMMARY_NAMES = {
    "id": ("ID",),
    "model": ("Model",),
    "scenario": ("Scenario",),
    "result": ("Performance_Result", "Result"),
    "units": ("Performance_Units", "Units"),
    "accelerator": ("Accelerator", "accelerator_model_name"),
    "accelerators_per_node": ("a#", "accelerators_per_node"),
    "nodes": ("Nodes", "number_of_nodes"),
    "weight_data_types": ("weight_data_types",),
}
"""Keys of summary_results.json for the columns of the table, which differ by version."""

CONDITIONS = {"Offline": "offline", "Server": "server", "Interactive": "interactive"}
"""Scenarios with a throughput; the others measure latency."""

UNITS = {"tokens/s": "tokens/s", "samples/s": "requests/s", "queries/s": "requests/s"}
"""Units of inference by that of the result; a sample is a request."""


def read_training(path: Path) -> list[tables.Placed]:
    """Return one over the minutes to the target of each result."""

    def fields_of(row: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        if tables.text(row, "division") == "closed" and row.get("median_minutes"):  # empty if no run converged
            benchmark = tables.text(row, "benchmark")
            yield {
                "job_type": benchmark,
                "num_gpus": tables.whole(row, "num_accelerators"),
                "accelerator": tables.accelerator_name(tables.text(row, "accelerator")),
                "steps_per_second": 1 / tables.positive(row, "median_minutes"),
                "source": SOURCE.format(path.name),
                "unit": "1/min",
                "family": benchmark,
            }

    return tables.each_row(reading.csv_rows(path, TRAINING_COLUMNS), fields_of)


def read_inference(path: Path) -> list[tables.Placed]:
    """Return the throughputs of a table of closed results."""
    return tables.each_row(reading.csv_rows(path, INFERENCE_COLUMNS), lambda row: _inference_fields(path, row))


def read_summary(path: Path) -> list[tables.Placed]:
    """Return the throughputs of the closed results of data centres in summary_results.json."""
    document = reading.json_document(path)
    if not isinstance(document, list) or not all(isinstance(entry, dict) for entry in document):
        raise InputError(Fault(f"{path}, line 1", "", "must be a list of objects, one for each result"))
    rows = []
    for number, entry in enumerate(document):
        category, suite = (str(entry.get(name, default)) for name, default in (("Category", "closed"), ("Suite", "datacenter")))
        if category.lower() == "closed" and "datacenter" in suite.lower():
            where = f"{path}, [{number}]"
            rows.append((where, {name: _first(where, entry, keys) for name, keys in SUMMARY_NAMES.items()}))
    return tables.each_row(rows, lambda row: _inference_fields(path, row))


def _first(where: str, entry: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    key = next((key for key in keys if entry.get(key) is not None), None)
    if key is None:
        return ""
    if isinstance(entry[key], bool | list | dict):
        raise InputError(Fault(where, key, f"must be text or a number, found {entry[key]!r:.60}"))
    return str(entry[key]).strip()


def _inference_fields(path: Path, row: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    scenario, accelerator = tables.text(row, "scenario"), row.get("accelerator", "")
    # Without an accelerator the result is of CPUs; with several, it belongs to none of them.
    if scenario not in CONDITIONS or accelerator in ("", "N/A") or "," in accelerator:
        return
    units = tables.text(row, "units")
    refuse("", (units.lower() not in UNITS, "units", f"must be Tokens/s, Samples/s or Queries/s, found {units!r}"))
    unit, model, condition = UNITS[units.lower()], tables.text(row, "model"), CONDITIONS[scenario]
    result = " ".join(part for part in (path.name, row.get("id", ""), row.get("weight_data_types", "")) if part)
    yield {
        "job_type": tables.named(model, condition),
        "num_gpus": tables.whole(row, "accelerators_per_node") * tables.whole(row, "nodes"),
        "accelerator": tables.accelerator_name(accelerator),
        "steps_per_second": tables.positive(row, "result"),
        "source": SOURCE.format(f"MLPerf {result}"),
        "unit": unit,
        "condition": condition,
        "family": model,
    }


TRAINING = tables.ProfileFormat(read_training, "median")
INFERENCE = tables.ProfileFormat(read_inference, "median")
INFERENCE_SUMMARY = tables.ProfileFormat(read_summary, "median")
