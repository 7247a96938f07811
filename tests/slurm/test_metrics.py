"""The figures for Prometheus."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest

import gavel_py as gp
from tests.slurm.support import BERT, cluster_with, driver

SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")


def written(folder: Path) -> tuple[str, float]:
    """Play two rounds of jobs of two accounts, one with a strange name; return the file and the GPUs in use by the allocation."""
    slurm = cluster_with(3, 4)
    slurm.submit(4, per_job="gpu:2", comment=BERT, more={"account": 'a"b\\c'})
    with driver(slurm, folder, metrics=folder / "gavel.prom") as driven:
        for _ in range(2):
            driven.round()
            slurm.clock.seconds += 100
        assert driven.state is not None
        allocation = driven.state.scheduler.allocation
    assert allocation is not None
    return (folder / "gavel.prom").read_text(), float(4 * allocation.utilization.sum())


def test_the_figures_are_those_of_the_round(tmp_path: Path) -> None:
    text, in_use = written(tmp_path)
    assert text == (tmp_path / "gavel.prom").read_text()
    figures = figures_in(tmp_path / "gavel.prom")
    assert figures["gavel_gpus", 'accelerator="v100"'] == 4
    assert figures["gavel_round_start_seconds", None] == 1_700_000_100
    held = sum(value for (name, _), value in figures.items() if name == "gavel_gpus_held")
    promised = sum(value for (name, _), value in figures.items() if name == "gavel_gpus_promised")
    assert (held, promised) == (pytest.approx(8, abs=2), pytest.approx(in_use, rel=1e-6))
    assert figures["gavel_delivered_gpu_seconds_total", None] == pytest.approx(800, rel=0.3)
    assert any(labels and 'tenant="a\\"b\\\\c"' in labels for _, labels in figures)


def figures_in(path: Path) -> dict[tuple[str, str | None], float]:
    samples = [found.groups() for line in path.read_text().splitlines() if (found := SAMPLE.match(line))]
    return {(name, labels): float(value) for name, labels, value in samples}


def test_delivered_time_of_tenants_and_types_adds_up_also_after_a_restart(tmp_path: Path) -> None:
    slurm, path = cluster_with(2, 4), tmp_path / "gavel.prom"
    for number, job in slurm.jobs.items():
        job.more = {"account": f"lab{number}"}
    for _ in range(2):
        with driver(slurm, tmp_path, metrics=path) as driven:
            driven.round()
            slurm.clock.seconds += 100
            driven.round()
    figures = figures_in(path)
    name = "gavel_tenant_delivered_gpu_seconds_total"
    delivered = {labels: value for (metric, labels), value in figures.items() if metric == name}
    assert {labels.partition(",")[0] for labels in delivered if labels} == {'tenant="lab1"', 'tenant="lab2"'}
    assert sum(delivered.values()) == pytest.approx(figures["gavel_delivered_gpu_seconds_total", None])
    assert sum(delivered.values()) == pytest.approx(1600, rel=0.1)
    types = {labels.partition("accelerator=")[2] for labels in delivered if labels}
    assert types == {'"v100"', '"k80"'}


def test_delivered_time_never_decreases(tmp_path: Path) -> None:
    slurm, path = cluster_with(1, 4), tmp_path / "gavel.prom"
    with driver(slurm, tmp_path, metrics=path) as driven:
        driven.round()
        slurm.clock.seconds += 100
        driven.round()
        before = figures_in(path)
        slurm.end(1)
        slurm.jobs[1].end -= 0.9  # Slurm counts whole seconds
        slurm.clock.seconds += 0.1
        driven.round()
        after = figures_in(path)
    counters = [each for each in before if each[0].endswith("delivered_gpu_seconds_total")]
    assert len(counters) == 2
    assert all(after[each] >= before[each] for each in counters)


def test_running_jobs_that_are_left_to_slurm_are_counted(tmp_path: Path) -> None:
    slurm, path = cluster_with(1, 4), tmp_path / "gavel.prom"
    slurm.submit(2, per_job="gpu:1", comment=BERT, lease="", more={"excluded_nodes": "v100-0"})
    slurm.submit(3, per_job="gpu:1", partition="free")
    slurm.submit(4, comment=BERT, lease="")
    with driver(slurm, tmp_path, metrics=path) as driven:
        driven.round()
        slurm.clock.seconds += 100
        driven.round()
    assert slurm.jobs[2].state == "RUNNING"
    assert figures_in(path)["gavel_round_jobs", 'what="left_to_slurm"'] == 1


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (apt-get install prometheus)")
def test_promtool_finds_no_fault(tmp_path: Path) -> None:
    text, _ = written(tmp_path)
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@contextmanager
def answers(port: int) -> Iterator[HTTPConnection]:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        yield connection
    finally:
        connection.close()


def got(port: int, path: str) -> tuple[int, str, str]:
    """Return status, content type and body of an answer."""
    with answers(port) as connection:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.headers["Content-Type"], response.read().decode()


def test_a_port_of_this_machine_shows_what_the_file_has(tmp_path: Path) -> None:
    slurm, path = cluster_with(3, 4), tmp_path / "gavel.prom"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with driver(slurm, tmp_path, metrics=path, metrics_port=port) as driven:
        assert got(port, "/metrics")[0] == 503, "there was no round yet"
        for _ in range(2):
            driven.round()
            assert got(port, "/metrics?x=1") == (200, "text/plain; version=0.0.4; charset=utf-8", path.read_text())
            slurm.clock.seconds += 100
        assert got(port, "/")[::2] == (404, "the figures are at /metrics\n")
        with socket.socket() as outside, pytest.raises(OSError, match="refused"):
            outside.connect(("127.0.0.2", port))  # it listens on 127.0.0.1 only
        again = driver(slurm, tmp_path / "again", metrics_port=port)
        with pytest.raises(gp.InputError, match=rf"metrics_port.* {port} of 127.0.0.1 cannot be used: Address already in use"):
            again.__enter__()
        assert not (tmp_path / "again" / "log.jsonl").exists()
    with pytest.raises(ConnectionRefusedError):
        got(port, "/metrics")
    with pytest.raises(gp.InputError, match="metrics_port"):
        driver(slurm, tmp_path, metrics_port=70_000)
