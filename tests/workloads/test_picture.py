"""Plots of traces."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gavel_py import Job, Submission, Trace, generate_trace, plot_trace
from tests.support.commands import runner
from tests.support.fakes import refusal
from tests.support.profiles import OSDI
from tests.workloads.support import file

pytest.importorskip("matplotlib", reason="matplotlib is not installed (the extra plot)")

TRACE = generate_trace(200, OSDI, jobs_per_hour=4)


def words(name: str) -> set[str]:
    """Return the texts in an SVG file."""
    return set(re.findall(r"<text[^>]*>([^<]+)</text>", Path(name).read_text()))


def test_load_and_durations() -> None:
    plot_trace(TRACE, "trace.svg")
    shown = words("trace.svg")
    assert shown >= {"200 jobs: GPUs held if no job had to wait", "Arrivals", "Durations", "1 GPU", "8 GPUs"}


@pytest.mark.deep
def test_the_same_trace_makes_the_same_bytes() -> None:
    plot_trace(TRACE, "a.svg")
    plot_trace(TRACE, "b.svg")
    assert Path("a.svg").read_bytes() == Path("b.svg").read_bytes()


def test_png() -> None:
    plot_trace(TRACE, "trace.png")
    assert Path("trace.png").read_bytes().startswith(b"\x89PNG")


def test_the_rarest_gang_sizes_share_a_line() -> None:
    plot_trace(Trace(Submission(Job(str(n), num_gpus=n, arrival_seconds=n), run_seconds=n) for n in range(1, 20)), "many.svg")
    assert "others" in words("many.svg")


@pytest.mark.parametrize("recorded", [{}, {"run_seconds": 5.0}, {"run_seconds": 0.0}])
def test_one_job_is_enough(recorded: dict[str, float]) -> None:
    plot_trace(Trace([Submission(Job("a"), **recorded)]), "one.svg")
    assert "1 jobs: GPUs held if no job had to wait" not in words("one.svg")


def test_what_is_unknown_has_no_panel() -> None:
    plot_trace(Trace(Submission(Job(str(n), arrival_seconds=n)) for n in range(5)), "unknown.svg")
    shown = words("unknown.svg")
    assert "5 jobs: Arrivals (durations are unknown)" in shown
    assert not {"at most", "GPUs", "Durations"} & set(shown)


def test_invalid_arguments_are_refused() -> None:
    assert refusal(plot_trace, TRACE, "trace.pdf") == ("trace.pdf: must end in .svg or .png, the formats of pictures")
    assert refusal(plot_trace, Trace([]), "trace.svg") == "a trace without jobs cannot be drawn"
    assert refusal(plot_trace, TRACE, "nowhere/trace.svg") == "nowhere/trace.svg: cannot be written: there is no folder 'nowhere'"


def test_the_command_plots_too(capsys: pytest.CaptureFixture[str]) -> None:
    name = file("a.csv", "job_id,arrival_seconds,recorded_run_seconds\na,0,5\nb,9,7\n")
    describe = runner(capsys, "trace", "describe", name, "--plot")
    drawn = describe("a.svg")
    assert drawn.code == 0
    assert "2 jobs arrive" in drawn.out
    assert "Durations" in words("a.svg")
    assert describe("a.pdf").code == 2
