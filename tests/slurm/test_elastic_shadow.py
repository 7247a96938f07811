"""Elastic jobs in a shadow beside plain Slurm, and in the figures for Prometheus."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import gavel_py as gp
from tests.slurm.fake_slurm import START, FakeClock, FakeSlurm
from tests.slurm.support import driver, events
from tests.slurm.test_elastic import SPEEDS, cluster, profile, ranged
from tests.slurm.test_metrics import SAMPLE
from tests.slurm.test_shadow import PlainSlurm

POLL = 5.0


class ElasticSlurm(PlainSlurm):
    """A Slurm without driver of 4 nodes with 4 GPUs; jobs progress at the speed of the number of GPUs that they have."""

    def __init__(self, speeds: dict[int, float] = SPEEDS) -> None:
        super().__init__()
        FakeSlurm.__init__(self, FakeClock(), {f"v100-{n}": ("v100", 4) for n in range(4)})
        self.clock.on_sleep = self._pass
        self.speeds = speeds

    def speed_of(self, number: int) -> float:
        return self.speeds[sum(self.jobs[number].held.values())]

    def arrive_elastic(
        self, after: float, number: int, nodes: int, *, work: float, steps: bool = True, waits: float = 10.0
    ) -> None:
        """Let a job with `--nodes=1-4 --gres=gpu:4` arrive, which Slurm runs on so many nodes after it has waited for a time."""
        fields: dict[str, Any] = {"most": 4, "per_job": "", "per_node": "gpu:4", "more": {"tasks": 1, "cpus": 1}}
        self.stuck.add(number)
        self.arrive(after, number, work=work, steps=steps, **fields)

        def let_start() -> None:
            self.jobs[number].nodes = nodes
            self.stuck.discard(number)

        self.plays.append((START + after + waits, let_start))


def watched(slurm: ElasticSlurm, folder: Path, seconds: float, speeds: gp.ThroughputProfile | None = None) -> gp.SlurmComparison:
    """Let a shadow look on for a time; it issues no command that changes anything."""
    slurm.clock.stops_at = slurm.clock.now() + seconds
    options: dict[str, Any] = {"round_seconds": 100.0, "restart_seconds": 0.0, "min_run_seconds": 0.0}
    made = gp.SlurmShadow(
        gp.SlurmSettings("gpu"), speeds or profile(), directory=folder, commands=slurm, clock=slurm.clock, **options
    )
    with made as watching:
        watching.run()
    assert not slurm.sent
    found = gp.slurm_comparison(folder)
    assert found is not None
    return found


def work_of(run: gp.Run, job_id: str) -> float:
    """Return the steps that a job does in its stays, each on all of the GPUs that it has then."""
    gpus, seconds = defaultdict[float, int](int), dict[float, float]()
    for stay in run.stays:
        if stay.job_id == job_id:
            gpus[stay.start_seconds] += stay.gpus
            seconds[stay.start_seconds] = stay.end_seconds - stay.start_seconds
    return sum(SPEEDS[gpus[start]] * seconds[start] for start in gpus)


@pytest.mark.deep
@pytest.mark.parametrize("steps", [True, False])
def test_a_job_that_slurm_runs_on_one_node_has_all_of_them_in_the_shadow(tmp_path: Path, steps: bool) -> None:
    """3,960 steps take 1,100 s on 4 GPUs and 360 s on 16; without steps, the shadow knows its work once it has ended in Slurm."""
    slurm = ElasticSlurm()
    slurm.arrive_elastic(12.0, 1, 1, work=3960.0, steps=steps)
    found = watched(slurm, tmp_path, 1400)
    assert (found.both, found.only_slurm, found.only_shadow) == (1, 0, 0)
    assert found.slurm.jct_seconds.tolist() == pytest.approx([1110], abs=POLL + 0.1)
    assert found.shadow.jct_seconds.tolist() == pytest.approx([360], abs=POLL + 0.1)
    assert work_of(found.slurm, "1") == pytest.approx(3960, rel=0.01)
    assert work_of(found.shadow, "1") == pytest.approx(3960, rel=0.01)
    assert found.tenants["team"].slurm_gpu_seconds == pytest.approx(4 * 1100, rel=0.01)
    assert found.tenants["team"].shadow_gpu_seconds == pytest.approx(16 * 360, rel=0.01)
    assert found.shadow.shares["bert"]["v100"] <= 1.0


def test_the_queue_of_a_shadow_has_the_gpus_that_a_job_would_have(tmp_path: Path) -> None:
    slurm = ElasticSlurm()
    slurm.arrive_elastic(12.0, 1, 1, work=3960.0)
    watched(slurm, tmp_path, 130)
    (job,) = gp.slurm_queue(tmp_path)
    assert (job.gpus, job.gpu_counts, len(job.nodes)) == (16, (4, 8, 16), 4)


@pytest.mark.deep
def test_jobs_share_the_nodes_in_the_shadow_and_do_all_of_their_work(tmp_path: Path) -> None:
    slurm = ElasticSlurm()
    for number, (after, nodes, work) in enumerate(((0.0, 4, 3960.0), (50.0, 2, 2600.0), (220.0, 1, 720.0)), 1):
        slurm.arrive_elastic(after, number, nodes, work=work)
    found = watched(slurm, tmp_path, 1500)
    assert (found.both, found.only_slurm, found.only_shadow) == (3, 0, 0)
    for job_id, work in (("1", 3960.0), ("2", 2600.0), ("3", 720.0)):
        assert work_of(found.slurm, job_id) == pytest.approx(work, rel=0.01)
        assert work_of(found.shadow, job_id) == pytest.approx(work, abs=1.5 * SPEEDS[16]), "a stop counts whole seconds"
    assert len({sum(line["nodes"].values()) for line in events(tmp_path, "started")}) > 1, "they have had several numbers"
    for node in slurm.nodes:
        stays = [stay for stay in found.shadow.stays if stay.node == node]
        for at in (stay.start_seconds for stay in stays):
            assert sum(stay.gpus for stay in stays if stay.start_seconds <= at < stay.end_seconds) <= 4


@pytest.mark.parametrize(("known", "seconds"), [(tuple(SPEEDS), 400 * 8.84 / 11.0), ((4,), 400 * 3 * 3.6 / 3.6)])
def test_what_slurm_does_on_a_number_that_the_profile_lacks_is_estimated(
    tmp_path: Path, known: tuple[int, ...], seconds: float
) -> None:
    """Slurm runs the job on 12 GPUs for 400 s. That is 8.84 steps/s by the power function through 8 and 16 GPUs, or as much for
    each GPU as on 4, if the profile has only these. The shadow has 16 GPUs for as much work, or 4.
    """
    slurm = ElasticSlurm({**SPEEDS, 12: 9.0})
    slurm.arrive_elastic(0.0, 1, 3, work=3600.0, steps=False)
    found = watched(slurm, tmp_path, 1300, profile(*known))
    assert found.slurm.jct_seconds.tolist() == pytest.approx([410], abs=POLL + 0.1)
    assert found.shadow.jct_seconds.tolist() == pytest.approx([seconds], rel=0.02)


def test_a_job_that_slurm_starts_before_it_is_seen_is_a_gang_as_slurm_has_it(tmp_path: Path) -> None:
    """Slurm no longer shows the range of nodes then."""
    slurm = ElasticSlurm()
    slurm.arrive_elastic(12.0, 1, 1, work=3960.0, waits=0.0)
    found = watched(slurm, tmp_path, 1400)
    assert found.shadow.jct_seconds.tolist() == pytest.approx([3960 / SPEEDS[4]], abs=POLL + 0.1)


def figures(folder: Path) -> dict[str, dict[str, float]]:
    """Return {metric: {accelerator: sum over tenants}} of the figures with a type."""
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for line in (folder / "gavel.prom").read_text().splitlines():
        if (sample := SAMPLE.match(line)) and (name := re.search(r'accelerator="([^"]*)"', sample[2] or "")):
            found[sample[1]][name[1]] += float(sample[3])
    return {metric: dict(values) for metric, values in found.items()}


def test_the_figures_count_the_gpus_that_elastic_jobs_have(tmp_path: Path) -> None:
    slurm = cluster()
    ranged(slurm, 1)
    delivered = 0.0
    with driver(slurm, tmp_path, speeds=profile(), metrics=tmp_path / "gavel.prom") as driven:
        for n in range(6):
            if n == 2:
                slurm.submit(2, per_node="gpu:4", nodes=2, comment="gavel: type=bert steps=100000")
            driven.round()
            held = sum(sum(job.held.values()) for job in slurm.jobs.values())
            allocation = driven.state.scheduler.allocation if driven.state else None
            assert allocation is not None
            assert figures(tmp_path)["gavel_gpus_held"] == {"v100": held}
            assert figures(tmp_path)["gavel_gpus_promised"]["v100"] == pytest.approx(16 * allocation.utilization.sum(), rel=1e-6)
            slurm.clock.seconds += 100
            delivered += 100 * held
        driven.round()
    total = re.search(r"^gavel_delivered_gpu_seconds_total (\S+)$", (tmp_path / "gavel.prom").read_text(), re.MULTILINE)
    assert total is not None
    assert float(total[1]) == pytest.approx(delivered, rel=0.01)


def test_the_figures_are_by_gpu_type_where_partitions_divide_it(tmp_path: Path) -> None:
    slurm = cluster()
    slurm.members = defaultdict(lambda: ["gpu"], {"v100-3": ["gpu", "long"]})
    slurm.partitions += "PartitionName=long QoS=N/A\n"
    ranged(slurm, 1)
    with driver(slurm, tmp_path, partition="gpu,long", speeds=profile(), metrics=tmp_path / "gavel.prom") as driven:
        driven.round()
    found = figures(tmp_path)
    assert {metric: set(values) for metric, values in found.items() if values} == {metric: {"v100"} for metric in found}
    assert found["gavel_gpus_promised"]["v100"] == pytest.approx(found["gavel_gpus_held"]["v100"], rel=0.01)
