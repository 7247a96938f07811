"""Metrics of a session for Prometheus. None has the id of a job, and tenants beyond a number of them are one."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily

from gavel_py.service.reader import SessionReader

MAX_TENANTS = 1000
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class ServiceMetrics:
    """Counters of what was answered, and gauges that are read from the session when they are asked for."""

    def __init__(self, reader: SessionReader) -> None:
        self._reader, self._registry = reader, CollectorRegistry()
        disable_created_metrics()  # a gauge beside each counter
        made: dict[str, Any] = {"registry": self._registry}
        self.requests = Counter("gavel_http_requests", "Requests by path and status.", ["path", "code"], **made)
        self._events = Counter("gavel_events", "Events by status of their answer.", ["status"], **made)
        self._rounds = Counter("gavel_rounds", "Rounds since the start of the service.", **made)
        self._starts = Counter("gavel_starts", "Gangs that rounds have started.", **made)
        self._stops = Counter("gavel_preemptions", "Gangs that rounds have stopped.", **made)
        self._seconds = Histogram("gavel_round_seconds", "Time to decide and log a round.", buckets=BUCKETS, **made)
        self._registry.register(self)

    def note(self, batches: Iterable[Sequence[Mapping[str, Any]]], seconds: float) -> None:
        """Count answers; seconds: what it took to apply them."""
        for answer in (each for batch in batches for each in batch):
            self._events.labels(answer["status"]).inc()
            if answer["status"] == "applied" and "digest" in answer:
                self._rounds.inc()
                self._starts.inc(len(answer["starts"]))
                self._stops.inc(len(answer["stops"]))
                self._seconds.observe(seconds)

    def text(self) -> str:
        """Return all metrics in the text format of Prometheus."""
        return str(generate_latest(self._registry).decode())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges, for the registry."""
        state = self._reader.measured()
        version = GaugeMetricFamily("gavel_state_version", "Number of events applied so far.")
        version.add_metric([], state["version"])
        jobs = GaugeMetricFamily("gavel_jobs", "Jobs in the system.", labels=["state"])
        for name, number in state["jobs"].items():
            jobs.add_metric([name], number)
        gpus = GaugeMetricFamily(
            "gavel_gpus", "GPUs that jobs hold, and free ones of nodes that are up.", labels=["accelerator", "state"]
        )
        for name, (held, free) in state["gpus"].items():
            gpus.add_metric([name, "held"], held)
            gpus.add_metric([name, "free"], free)
        shares = GaugeMetricFamily("gavel_tenant_share_ratio", "Part of the cluster.", labels=["tenant", "kind"])
        sums = Counts[tuple[str, str]]()
        for number, tenant in enumerate(self._reader.tenants()["tenants"]):
            name = tenant["tenant"] if number < MAX_TENANTS else "other"
            shares_of = {(name, kind): tenant[f"{kind}_share"] for kind in ("entitled", "promised", "delivered")}
            sums.update({key: share for key, share in shares_of.items() if share is not None})
        for (name, kind), share in sums.items():
            shares.add_metric([name, kind], share)
        yield from (version, jobs, gpus, shares)
