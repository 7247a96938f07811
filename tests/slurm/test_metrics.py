"""The figures for Prometheus."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

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
    samples = [found.groups() for line in text.splitlines() if (found := SAMPLE.match(line))]
    figures = {(name, labels): float(value) for name, labels, value in samples}
    assert figures["gavel_gpus", 'accelerator="v100"'] == 4
    assert figures["gavel_round_start_seconds", None] == 1_700_000_100
    held = sum(value for (name, _), value in figures.items() if name == "gavel_gpus_held")
    promised = sum(value for (name, _), value in figures.items() if name == "gavel_gpus_promised")
    assert (held, promised) == (pytest.approx(8, abs=2), pytest.approx(in_use, rel=1e-6))
    assert figures["gavel_gpu_seconds_delivered_total", None] == pytest.approx(800, rel=0.3)
    assert any(labels and 'tenant="a\\"b\\\\c"' in labels for _, labels in figures)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (apt-get install prometheus)")
def test_promtool_finds_no_fault(tmp_path: Path) -> None:
    text, _ = written(tmp_path)
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
