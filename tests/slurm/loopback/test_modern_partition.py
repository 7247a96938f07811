"""A partition of GPU types that the default profile never measured: a start without options names the ways out, and both work."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.slurm.loopback.cluster import LoopbackCluster, booted
from tests.slurm.loopback.configuration import Nodes, Settings
from tests.slurm.loopback.driving import driving, gavel
from tests.slurm.loopback.presence import needs_slurm
from tests.slurm.loopback.scenes import sleeper

pytestmark = [needs_slurm, pytest.mark.deep]

MODERN = ("a100", "a30", "b200", "h100", "h200", "l40s")
UNKNOWN = "abacus"
OTHER = ("--profile", "gavel-osdi20", "--round", "5")


@pytest.fixture
def modern(submit_plugin: str) -> Iterator[LoopbackCluster]:
    with booted(Settings(tuple(Nodes(name, 1) for name in (*MODERN, UNKNOWN)), submit_plugin)) as cluster:
        yield cluster


def test_a_modern_partition_starts_and_uses_every_node(modern: LoopbackCluster) -> None:
    for _ in range(8):
        sleeper(modern, 65534, gpus=4)
    for command in ("run", "plan", "status"):
        done = gavel(modern, command, *OTHER)
        error = done.stderr.removeprefix(f"State and log are in {modern.folder / 'driver'}.\n")
        assert (done.returncode, done.stdout, error.count("\n")) == (2, "", 1), done.stderr
        assert all(repr(name) in error for name in (*MODERN, UNKNOWN))
        assert "--estimate" in error
        assert "--learn" in error
    assert not modern.running()
    for option in ("--estimate", "--learn", "--estimate"):
        with driving(modern, *OTHER, option, "--rounds", "3") as driver:
            assert driver.wait(within=120) == 0, driver.output()
            assert driver.output().count("GPU type 'a100' is treated as 'a100-80gb' of the profile") == 1
        used = {node for job in modern.jobs().values() for node in job.placement}
        assert used == {f"{name}-0" for name in MODERN}, option
    shown = gavel(modern, "status", *OTHER, "--estimate").stdout
    assert f"its nodes are ignored: {UNKNOWN}-0" in " ".join(shown.split())
