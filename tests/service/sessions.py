"""Sessions and histories of events for the tests of this package, and the rounds of the library for the same history."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import gavel_py as gp

TYPES = ("ResNet-18 (batch size 64)", "ResNet-18 (batch size 32)", "ResNet-50 (batch size 64)", "Transformer (batch size 64)")
CLUSTER = "v100:4/2,p100:4/4,k80:4/2"
NODES = ("v100-0", "v100-1", "p100-0", "k80-0", "k80-1")


@cache
def profile() -> gp.ThroughputProfile:
    return gp.ThroughputProfile.builtin("gavel-osdi20")


def scheduler() -> gp.RoundScheduler:
    return gp.RoundScheduler(gp.Cluster.from_inline(CLUSTER), profile())


def opened(folder: Path) -> gp.Session:
    return gp.Session(folder, profile(), scheduler)


def submit(number: int, **fields: object) -> dict[str, Any]:
    job = {"job_id": f"j{number}", "job_type": TYPES[number % len(TYPES)], "num_gpus": (1, 2, 4)[number % 3], **fields}
    return {"id": f"submit-{number}", "event": "submit", "job": job}


def history(seed: int, length: int = 40) -> list[dict[str, Any]]:
    """Return events as callers send them, of which a few are wrong."""
    chance, events = random.Random(seed), []  # noqa: S311
    kinds = ["submit"] * 8 + ["round"] * 8 + ["complete", "cancel", "report", "job_failed", "interrupted", "update"]
    kinds += ["node_down", "node_up", "drain", "policy"]
    for number in range(length):
        kind, job = chance.choice(kinds), f"j{chance.randrange(length)}"
        event: dict[str, Any] = {"id": f"e{number}", "event": kind}
        if kind == "submit":
            waits = {"depends_on": [f"j{number - 1}"]} if chance.random() < 0.2 else {}
            event = submit(number, max_retries=1, weight=chance.choice([1, 2.5]), **waits) | {"id": f"e{number}"}
        elif kind in ("node_down", "node_up", "drain"):
            event["node"] = chance.choice(NODES)
        elif kind == "policy":
            event["policy"] = chance.choice(["fifo", "max_min_fairness", "least_attained_service", "unknown"])
        elif kind != "round":
            event |= {"job_id": job}
            event |= {"steps_done": chance.choice([10, 2.5e3, -1])} if kind == "report" else {}
            event |= {"fields": {"weight": chance.choice([0.5, 3, 0])}} if kind == "update" else {}
        events.append(event)
    return events


def library_rounds(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rounds of a scheduler that is called directly, an event after the other, as plain data."""
    made, rounds = scheduler(), []
    for event in events:
        with suppress(gp.InputError):
            rounds += _called(made, dict(event))
    return rounds


def _called(made: gp.RoundScheduler, event: dict[str, Any]) -> list[dict[str, Any]]:
    kind = event.pop("event")
    del event["id"]
    if kind == "round":
        return [json.loads(json.dumps(made.next_round().to_dict()))]
    if kind == "submit":
        made.submit(gp.Job(**event["job"]))
    elif kind == "policy":
        made.policy = event["policy"]
    elif kind == "update":
        made.update(event["job_id"], **event["fields"])
    else:
        getattr(made, kind)(*(value for name, value in event.items() if name != "steps_done"), **_steps(event))
    return []


def _steps(event: dict[str, Any]) -> dict[str, Any]:
    return {"steps_done": event["steps_done"]} if "steps_done" in event else {}


def as_changes(found: dict[str, Any]) -> dict[str, Any]:
    """Return a round of the library as the answer of a session says it."""
    starts = {job_id: found["assignments"][job_id] for job_id in found["started"]}
    kept = {name: value for name, value in found.items() if name not in ("assignments", "started", "preempted")}
    return kept | {"starts": starts, "stops": found["preempted"], "kept": len(found["kept"])}


def changes_in(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rounds among answers without what only a session has."""
    own = ("id", "status", "version", "digest")
    return [{name: value for name, value in each.items() if name not in own} for each in answers if "digest" in each]
