"""Clusters for the tests here, each of its own: they boot in about a second, and no test finds what another has left."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.slurm.cluster import LoopbackCluster, booted
from tests.integration.slurm.configuration import Nodes, Settings

ALL = Settings((Nodes("v100", 9), Nodes("p100", 9), Nodes("k80", 9)))


@pytest.fixture
def cluster() -> Iterator[LoopbackCluster]:
    """27 nodes of three accelerator types, with four GPUs each."""
    with booted(ALL) as made:
        yield made
