"""Whatever goes wrong, no job is lost, runs twice at once, shares its GPUs, or waits for a dead driver."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.slurm.loopback.cluster import booted
from tests.slurm.loopback.configuration import Nodes, Settings
from tests.slurm.loopback.driving import plugin
from tests.slurm.loopback.faults import Play, Toll
from tests.slurm.loopback.presence import needs_accounting, needs_root, needs_slurm
from tests.slurm.loopback.test_rights import OPERATOR, known_as

pytestmark = [needs_slurm, pytest.mark.deep]

NONE = Toll([], [], [], [], [])
SMALL = (Nodes("v100", 2), Nodes("p100", 2))
OTHERS = (
    *("restart_controller", "kill_controller", "drain", "lose_node", "fill_disk", "lose_rights"),
    *("begin_second_driver", "set_clock_back"),
)
KILLS = 20


def test_an_excerpt_of_the_play(settings: Settings) -> None:
    """One of each fault that takes seconds; the driver is killed while the clock is set back, and at the end."""
    with booted(replace(settings, nodes=SMALL)) as cluster:
        faults = ["drain", "set_clock_back", "restart_controller", "fill_disk"]
        assert Play(cluster, seed=1).run(faults) == NONE


@needs_accounting
@needs_root
@pytest.mark.parametrize("seed", [1, 2])
def test_the_play(seed: int) -> None:
    """The driver is an operator; Slurm gives dead nodes up at once."""
    faults = [*["kill"] * KILLS, *OTHERS, *OTHERS]
    random.Random(seed).shuffle(faults)  # noqa: S311
    submit_plugin = plugin(OPERATOR)
    options = {"SlurmdTimeout": "10"}
    with booted(Settings((*SMALL, Nodes("k80", 2)), submit_plugin, options, accounting=True)) as cluster:
        cluster.tell("sacctmgr", "-i", "add", "user", OPERATOR, "account=root", "adminlevel=operator")
        known_as(cluster, OPERATOR, "Operator")
        assert Play(cluster, seed, OPERATOR).run(faults) == NONE
