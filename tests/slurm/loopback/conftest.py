"""Clusters for the tests, one per test; they boot in about a second."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.loopback.cluster import LoopbackCluster, booted
from tests.slurm.loopback.configuration import ALL, Settings
from tests.slurm.loopback.driving import plugin

HERE = Path(__file__).parent


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put these tests first if several workers share the tests, so that one worker gets all of them.

    They wait half of the time: on all workers at once, they would leave cores idle.
    """
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not item.path.is_relative_to(HERE))


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
