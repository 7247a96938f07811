"""Products of arrays within a solve run on one thread, and the threads are given back when the last solve has ended."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
from numpy.typing import NDArray
from threadpoolctl import threadpool_info, threadpool_limits

import gavel_py as gp
from gavel_py.io.locking import one_blas_thread


def libraries() -> dict[str, int]:
    """{file: threads} of the BLAS library of NumPy; other packages load their own, some later, and some for one thread only."""
    return {
        each["filepath"]: each["num_threads"]
        for each in threadpool_info()
        if each["user_api"] == "blas" and "numpy" in each["filepath"]
    }


@pytest.fixture(autouse=True)
def before() -> Iterator[dict[str, int]]:
    """The library with two threads."""
    with threadpool_limits(2, user_api="blas"):
        found = {file: threads for file, threads in libraries().items() if threads == 2}
        if not found:
            pytest.skip("NumPy has no BLAS of its own here, or one for a single thread")
        yield found


def now(before: dict[str, int]) -> dict[str, int]:
    return {file: threads for file, threads in libraries().items() if file in before}


def test_the_threads_come_back_when_the_last_call_ends(before: dict[str, int]) -> None:
    both_in, one_out = Barrier(2), Barrier(2)

    def shorter() -> None:
        with one_blas_thread():
            both_in.wait(60)
        one_out.wait(60)

    with ThreadPoolExecutor(1) as threads:
        with one_blas_thread():
            other = threads.submit(shorter)
            both_in.wait(60)
            one_out.wait(60)
            with one_blas_thread():
                pass
            assert set(now(before).values()) == {1}
        other.result(60)
    assert now(before) == before


def test_an_error_gives_the_threads_back(before: dict[str, int]) -> None:
    @one_blas_thread()
    def wrong() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        wrong()
    assert now(before) == before


def test_a_solve_runs_on_one_thread(before: dict[str, int]) -> None:
    seen: list[set[int]] = []

    class Watching(gp.policy_class("max_min_fairness")):
        def need(self, jobs: gp.JobClasses, level: float) -> NDArray[np.float64]:
            seen.append(set(now(before).values()))
            return super().need(jobs, level)

    gp.solve(gp.AllocationProblem.from_arrays([[4.0, 1.0], [2.0, 1.0]], [1, 1]), Watching())
    assert seen
    assert all(threads == {1} for threads in seen)
    assert now(before) == before


@pytest.mark.deep
def test_a_library_that_is_loaded_after_the_first_solve_is_limited_too() -> None:
    """In a process of its own, since the tests before have loaded all libraries."""
    code = """
import numpy
from threadpoolctl import threadpool_info, threadpool_limits
from gavel_py.io.locking import one_blas_thread
with one_blas_thread():
    early = {each["filepath"] for each in threadpool_info()}
import scipy.linalg
with threadpool_limits(2, user_api="blas"):
    able = {each["filepath"] for each in threadpool_info() if each["num_threads"] == 2} - early
    with one_blas_thread():
        threads = {each["num_threads"] for each in threadpool_info() if each["filepath"] in able}
print(len(able), *threads)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    late, *threads = map(int, done.stdout.split())
    if not late:
        pytest.skip("SciPy has no BLAS of its own here, or one for a single thread")
    assert threads == [1]
