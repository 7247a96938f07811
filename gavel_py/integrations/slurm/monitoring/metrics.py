"""Metrics of a driver for Prometheus: as a text file for the textfile collector of node_exporter, and on a local port."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Self

from gavel_py.errors import Fault, InputError
from gavel_py.integrations.slurm.apply import Applied
from gavel_py.integrations.slurm.state import TOTALS
from gavel_py.io.writing import write_atomic

if TYPE_CHECKING:
    from http.server import ThreadingHTTPServer

    from gavel_py.integrations.slurm.decision import Decided

Labels = Mapping[str, str]

LOOPBACK = "127.0.0.1"

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

ANSWERS = {404: "the figures are at /metrics", 503: "there has been no round yet"}

HELP = {
    "gavel_round_start_seconds": ("gauge", "Start of the latest round, in seconds since 1970."),
    "gavel_round_jobs": ("gauge", "Jobs of the latest round by outcome; left_to_slurm also counts those that run."),
    "gavel_gpus": ("gauge", "GPUs of the managed partitions by type."),
    "gavel_gpus_down": ("gauge", "GPUs on nodes that are down or draining, by type."),
    "gavel_gpus_promised": ("gauge", "GPUs that the allocation promises to a tenant, by type."),
    "gavel_gpus_held": ("gauge", "GPUs that the jobs of a tenant hold, by type."),
    "gavel_price": ("gauge", "Relative gain of the objective of the policy by one more GPU of a type."),
    "gavel_solver_seconds": ("gauge", "Time that the latest allocation took."),
    "gavel_restart_seconds": ("gauge", "Cost of a stop and a start with which rounds are planned."),
    "gavel_exceeded_rounds_total": ("counter", "Rounds that exceeded a limit that holds on average, by constraint."),
    "gavel_fallback_rounds_total": ("counter", "Rounds for which no proven answer of the policy was found, by policy and kind."),
    "gavel_failed_starts": ("gauge", "Jobs that did not start in the latest round."),
    "gavel_promised_gpu_seconds_total": ("counter", "Time promised so far; it restarts at 0 when the cluster changes."),
    "gavel_delivered_gpu_seconds_total": ("counter", "Time that jobs have held GPUs by the clock of Slurm."),
    "gavel_tenant_delivered_gpu_seconds_total": ("counter", "Time that the jobs of a tenant have held GPUs, by type."),
}
"""{metric: (type, meaning)}."""


def metrics_text(decided: Decided, applied: Applied, delivered: dict[str, float]) -> str:
    """Return the metrics after a round in the text format of Prometheus.

    delivered: {sample: largest value so far} of delivered time. It may be corrected by a second when a job ends, but a counter that
    decreases means to Prometheus that it has begun again at 0.
    """
    lines: list[str] = []
    samples: dict[str, list[tuple[Labels, float]]] = defaultdict(list)
    for name, labels, value in _samples(decided, applied):
        samples[name].append((labels, value))
    for name, (kind, meaning) in HELP.items():
        lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
        for labels, value in samples[name]:
            sample = f"{name}{_braced(labels)}"
            if name.endswith("delivered_gpu_seconds_total"):
                value = delivered[sample] = max(value, delivered.get(sample, 0.0))
            lines.append(f"{sample} {value:.10g}")
    return "\n".join(lines) + "\n"


class Metrics:
    """Publishes the metrics of the latest round in a file, and at GET /metrics on a port of the loopback address.

    Either may be absent. As a context manager it opens the port. Raises `InputError` if that is not possible.
    """

    def __init__(self, path: Path | None, port: int | None) -> None:
        self._path, self._port = path, port
        self._server: ThreadingHTTPServer | None = None
        self._text = b""
        self._delivered: dict[str, float] = {}

    def __enter__(self) -> Self:
        if self._port is not None:
            self._server = self._opened(self._port)
            Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def show(self, decided: Decided, applied: Applied) -> None:
        """Publish the metrics after a round. If the file cannot be written, the older one remains."""
        if self._path is None and self._server is None:
            return
        self._text = metrics_text(decided, applied, self._delivered).encode()
        if self._path is not None:
            with suppress(InputError):
                write_atomic(self._path, self._text)

    def _opened(self, port: int) -> ThreadingHTTPServer:
        from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

        metrics = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 10.0  # for a client that sends nothing

            def do_GET(self) -> None:
                status = (200 if metrics._text else 503) if self.path.partition("?")[0] == "/metrics" else 404
                body = metrics._text if status == 200 else f"{ANSWERS[status]}\n".encode()
                self.send_response(status)
                self.send_header("Content-Type", CONTENT_TYPE if status == 200 else "text/plain; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Log nothing, since each request would write a line."""

        try:
            return ThreadingHTTPServer((LOOPBACK, port), Handler)
        except OSError as error:
            problem = f"port {port} of {LOOPBACK} cannot be used: {error.strerror or error}"
            raise InputError(Fault("slurm", "metrics_port", f"{problem}; choose another one (--metrics-port)")) from None


def _samples(decided: Decided, applied: Applied) -> Iterator[tuple[str, Labels, float]]:
    account, totals = decided.account(), dict(zip(TOTALS, decided.totals, strict=True))
    yield "gavel_round_start_seconds", {}, decided.begun.start_seconds
    counts = {"kept": len(applied.kept), "started": len(applied.started), "stopped": len(applied.stopped)}
    for what, count in (counts | {"waiting": len(decided.waiting), "left_to_slurm": _left_to_slurm(decided, applied)}).items():
        yield "gavel_round_jobs", {"what": what}, count
    by_type = {"gavel_gpus": account["gpus"], "gavel_gpus_down": account["down"], "gavel_price": account["prices"]}
    for metric, figures in by_type.items():
        for name, value in figures.items():
            yield metric, {"accelerator": name}, value
    yield from _of_tenants(decided)
    yield "gavel_solver_seconds", {}, account["solver_seconds"]
    yield "gavel_restart_seconds", {}, account["restart_seconds"]
    for policy, kinds in decided.picture.state.scheduler.fallback_rounds.items():
        yield from (("gavel_fallback_rounds_total", {"policy": policy, "kind": kind}, n) for kind, n in kinds.items())
    for name, rounds in decided.picture.state.scheduler.limit_rounds.items():
        yield "gavel_exceeded_rounds_total", {"constraint": name}, rounds["exceeded"]
    yield "gavel_failed_starts", {}, len(applied.waiting)
    yield "gavel_promised_gpu_seconds_total", {}, totals["promised_gpu_seconds"]
    yield "gavel_delivered_gpu_seconds_total", {}, totals["delivered_gpu_seconds"]
    delivered = ((*labels, seconds) for labels, seconds in decided.picture.state.delivered.items())
    yield from _summed("gavel_tenant_delivered_gpu_seconds_total", delivered)


def _left_to_slurm(decided: Decided, applied: Applied) -> int:
    """Return the number of jobs that ask for GPUs of the managed partitions and are left to Slurm, waiting or running."""
    picture, jobs = decided.picture, applied.jobs
    left = [jobs[i] for i in picture.standings if i in jobs and picture.standing_of(i).role.is_left_to_slurm]
    return sum(job.is_in(picture.state.partitions) and job.num_gpus > 0 and not job.phase.is_over for job in left)


def _of_tenants(decided: Decided) -> Iterator[tuple[str, Labels, float]]:
    """Yield the GPUs promised and held by tenant and type."""
    scheduler, types = decided.picture.state.scheduler, decided.types
    allocation, tenants = scheduler.allocation, {job.job_id: job.tenant or "" for job in scheduler.jobs}
    if allocation is not None:
        gpus = {job.job_id: job.num_gpus for job in scheduler.jobs if not job.is_elastic}
        promised = (
            (tenants[job_id], types[name], share * gpus[job_id])
            for job_id, row in zip(allocation.job_ids, allocation.time_fractions.tolist(), strict=True)
            if job_id in gpus
            for name, share in zip(allocation.accelerator_types, row, strict=True)
        )
        by_count = (
            (tenants[job_id], types[name], part * count)
            for job_id, parts in allocation.gpu_counts.items()
            if job_id in tenants and job_id not in gpus
            for (name, count), part in parts.items()
        )
        yield from _summed("gavel_gpus_promised", chain(promised, by_count))
    held = ((tenants.get(job_id, ""), types[each.accelerator], float(len(each.gpus))) for job_id, each in scheduler.running.items())
    yield from _summed("gavel_gpus_held", held)


def _summed(metric: str, parts: Iterable[tuple[str, str, float]]) -> Iterator[tuple[str, Labels, float]]:
    sums: dict[tuple[str, str], float] = defaultdict(float)
    for tenant, accelerator, value in parts:
        sums[tenant, accelerator] += value
    for (tenant, accelerator), value in sorted(sums.items()):
        yield metric, {"tenant": tenant, "accelerator": accelerator}, value


def _braced(labels: Labels) -> str:
    """Return labels in the form {tenant="a"}, escaped since users choose some of the values."""
    escaped = {name: value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") for name, value in labels.items()}
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped.items()) + "}" if labels else ""
