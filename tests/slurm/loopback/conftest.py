"""Clusters for the tests, one per test; they boot in about a second."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.loopback.cluster import LoopbackCluster, booted
from tests.slurm.loopback.configuration import ALL, Settings
from tests.slurm.loopback.driving import plugin
from tests.slurm.loopback.releases import FETCH, SUITES, VARIABLE, Release

HERE = Path(__file__).parent


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put these tests first if several workers share the tests, so that one worker gets all of them.

    They wait half of the time: on all workers at once, they would leave cores idle.
    """
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not item.path.is_relative_to(HERE))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests that are marked so on every release of Slurm."""
    if metafunc.definition.get_closest_marker("every_release"):
        metafunc.parametrize("release", ("", *SUITES), ids=lambda name: name or "here", indirect=True)


@pytest.fixture(autouse=True)
def release(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    name = getattr(request, "param", None)
    if name is not None:
        if not Release(name).is_ready:
            pytest.skip(f"Slurm of Debian {name} has not been fetched: {FETCH}")
        monkeypatch.setenv(VARIABLE, name)


@pytest.fixture(scope="session")
def submit_plugin() -> str:
    return plugin()


@pytest.fixture
def settings(submit_plugin: str) -> Settings:
    """27 nodes of three accelerator types, with four GPUs each; jobs of the driver's partition wait for one."""
    return Settings(ALL, submit_plugin)


@pytest.fixture
def cluster(settings: Settings) -> Iterator[LoopbackCluster]:
    with booted(settings) as made:
        yield made
