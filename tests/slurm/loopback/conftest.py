"""Clusters for the tests, one per test; they boot in about a second."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.slurm.loopback.cluster import LoopbackCluster, booted
from tests.slurm.loopback.configuration import ALL, Settings
from tests.slurm.loopback.driving import plugin


@pytest.fixture(scope="session")
def submit_plugin() -> str:
    return plugin()


@pytest.fixture
def settings(submit_plugin: str) -> Settings:
    """27 nodes of three accelerator types, with four GPUs each; jobs of the driver's partition come on hold."""
    return Settings(ALL, submit_plugin)


@pytest.fixture
def cluster(settings: Settings) -> Iterator[LoopbackCluster]:
    with booted(settings) as made:
        yield made
