"""Gantt charts of rounds: bars match assignments, colours are distinguishable, files are atomic and reproducible."""

from __future__ import annotations

import itertools
import json
import re
import struct
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.io.writing import write_atomic
from gavel_py.report.rounds_plot import duration
from gavel_py.report.timeline import COLOURS, IDLE, Bar, RoundGrid, colours_of, grid_of, lanes_of, rounds_gantt, spread
from tests.end_to_end.test_cli import Gavel, gavel, small  # noqa: F401
from tests.support.examples import examples

CLUSTER = gp.Cluster.from_inline("v100:4/2,k80:1")
UNEVEN = gp.Cluster.from_inline("v100:4/3,k80:1")
Gpus = Sequence[tuple[str, int]]

# Colour vision deficiencies as matrices on linear RGB (Machado, Oliveira and Fernandes 2009, severity 1).
EYES = {
    "all cones": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def rounds_of(plan: Iterable[Mapping[str, Gpus]], *, first: int = 0, seconds: float = 360.0) -> list[gp.Round]:
    """Return rounds with these GPUs of each job; kept, started and preempted jobs follow from them."""
    rounds: list[gp.Round] = []
    before: Mapping[str, gp.Assignment] = {}
    for index, held in enumerate(plan, first):
        now = {job: gp.Assignment(gpus[0][0].split("-")[0], list(gpus)) for job, gpus in held.items()}
        kept = tuple(job for job in now if before.get(job) == now[job])
        started, lost = tuple(job for job in now if job not in kept), tuple(job for job in before if job not in now)
        rounds.append(gp.Round(index, index * seconds, now, kept, started, lost, {}, (index + 1) * seconds, {}))
        before = now
    return rounds


def bars_of(rounds: Sequence[gp.Round], cluster: gp.Cluster) -> list[Bar]:
    """Return the bars, with their times in rounds."""
    bars = rounds_gantt(rounds, lanes_of(cluster), 360.0).bars
    return [replace(bar, start_seconds=bar.start_seconds / 360, end_seconds=bar.end_seconds / 360) for bar in bars]


PLAN: list[dict[str, Gpus]] = [
    {"a": [("v100-0", 0), ("v100-0", 1)], "b": [("v100-1", 0)]},
    {"a": [("v100-0", 0), ("v100-0", 1)], "b": [("v100-1", 0)], "c": [("k80-0", 0)]},
    {"a": [("v100-0", 1), ("v100-1", 0)], "c": [("k80-0", 0)]},
]


def test_bars_of_a_small_plan() -> None:
    lanes, rounds = lanes_of(CLUSTER), rounds_of(PLAN)
    grid = grid_of(rounds, lanes)
    assert grid.job_ids == ["a", "b", "c"]
    # a moves by one GPU, restarts on the one that it keeps, and preempts b. Its two GPUs are one bar on one node, two on two nodes.
    assert bars_of(rounds, CLUSTER) == [
        Bar("a", 0, 2, 0, 2, started=True, preempted=False),
        Bar("a", 1, 2, 2, 3, started=True, preempted=False),
        Bar("b", 2, 3, 0, 2, started=True, preempted=True),
        Bar("a", 2, 3, 2, 3, started=True, preempted=False),
        Bar("c", 4, 5, 1, 3, started=True, preempted=False),
    ]
    assert grid.used_share == 10 / 15


def test_a_job_that_changes_its_number_of_gpus_has_bars_of_both_heights(tmp_path: Path) -> None:
    speeds = [gp.Measurement(job_type="m", num_gpus=n, accelerator="v100", steps_per_second=n**0.8) for n in (1, 2, 4, 8)]
    cluster = gp.Cluster.from_inline("v100:8")
    scheduler = gp.RoundScheduler(cluster, gp.ThroughputProfile("mine", speeds), mechanism="direct")
    scheduler.submit_all([gp.Job(name, job_type="m", gpu_counts=(1, 2, 4, 8)) for name in "ab"])
    rounds = [scheduler.next_round()]
    scheduler.complete("b")
    rounds.append(scheduler.next_round())
    heights = {(bar.job_id, bar.start_seconds, bar.end_seconds): bar.end_lane - bar.first_lane for bar in bars_of(rounds, cluster)}
    assert heights == {("a", 0, 1): 4, ("b", 0, 1): 4, ("a", 1, 2): 8}
    gp.plot_rounds(rounds, cluster, tmp_path / "rounds.svg", round_seconds=360)
    texts = [element.text for element in ET.fromstring((tmp_path / "rounds.svg").read_text()).iter()]  # noqa: S314
    assert texts.count("a") == 2


def test_a_stay_that_began_before_the_first_round_has_no_start() -> None:
    rounds = rounds_of(PLAN)[1:]
    assert {(bar.job_id, bar.start_seconds): bar.started for bar in bars_of(rounds, CLUSTER)} == {
        ("a", 1): False,
        ("b", 1): False,
        ("c", 1): True,
        ("a", 2): True,
    }


@st.composite
def plans(draw: st.DrawFn) -> list[dict[str, Gpus]]:
    """Draw rounds in which each GPU of the uneven cluster is idle or has one of a few jobs."""
    gpus = lanes_of(UNEVEN).gpus
    plan = []
    for owners in draw(st.lists(st.tuples(*[st.sampled_from(["", "a", "b", "c"])] * len(gpus)), min_size=1, max_size=6)):
        held: dict[str, list[tuple[str, int]]] = {}
        for gpu, owner in zip(gpus, owners, strict=True):
            if owner:
                held.setdefault(owner, []).append(gpu)
        plan.append(held)
    return plan  # type: ignore[return-value]


@settings(max_examples=examples(100))
@given(plans())
def test_bars_are_the_assignments(plan: list[dict[str, Gpus]]) -> None:
    lanes, rounds = lanes_of(UNEVEN), rounds_of(plan)
    grid, bars = grid_of(rounds, lanes), bars_of(rounds, UNEVEN)
    expected = sorted((gpu, n, job) for n, held in enumerate(plan) for job, gpus in held.items() for gpu in gpus)
    cells = [
        (lanes.gpus[lane], n, bar.job_id)
        for bar in bars
        for lane in range(bar.first_lane, bar.end_lane)
        for n in range(int(bar.start_seconds), int(bar.end_seconds))
    ]
    assert sorted(cells) == expected  # each once
    assert sorted((lanes.gpus[lane], n, grid.job_ids[grid.jobs[lane, n]]) for lane, n in np.argwhere(grid.jobs != IDLE)) == expected
    for bar in bars:
        job, first, end = bar.job_id, int(bar.start_seconds), int(bar.end_seconds)
        assert all(job in rounds[n].kept for n in range(first + 1, end))
        assert bar.started == (job in rounds[first].started)
        goes_on = end < len(rounds) and job in rounds[end].kept
        assert not goes_on  # a bar ends with its stay
        assert bar.preempted == (end < len(rounds) and job in rounds[end].preempted)


@settings(max_examples=examples(50))
@given(st.permutations(range(30)))
def test_neighbours_have_other_colours(order: list[int]) -> None:
    jobs = np.where(np.array(order) < 25, order, IDLE).reshape(5, 6)  # each job has four neighbours at most
    grid = RoundGrid([f"j{n}" for n in range(25)], jobs)
    colours = list(colours_of(grid).values())
    assert len(colours) == 25
    for one, other in [(grid.jobs[1:], grid.jobs[:-1]), (grid.jobs[:, 1:], grid.jobs[:, :-1])]:
        pairs = {(a, b) for a, b in zip(one.ravel().tolist(), other.ravel().tolist(), strict=True) if a != b and min(a, b) >= 0}
        assert all(colours[a] != colours[b] for a, b in pairs)


def test_jobs_far_apart_take_colours_in_turn() -> None:
    far = gp.Cluster.from_counts({"v100": 2 * len(COLOURS) + 3})
    gpus = lanes_of(far).gpus
    grid = grid_of(rounds_of([{f"j{n}": [gpus[2 * n]] for n in range(len(COLOURS) + 1)}]), lanes_of(far))
    assert list(colours_of(grid).values()) == [*COLOURS, COLOURS[0]]


@pytest.mark.parametrize("eyes", EYES)
def test_colours_differ_in_all_colour_vision(eyes: str) -> None:
    seen = [_lab(np.clip(np.array(EYES[eyes]) @ _linear(colour), 0, 1)) for colour in (*COLOURS, "#FFFFFF")]
    assert min(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(seen, 2)) > 13  # CIELAB; 2.3 can just be seen


def _linear(colour: str) -> np.ndarray:
    channels = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def _lab(linear: np.ndarray) -> np.ndarray:
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = (np.cbrt(v) if v > 0.008856 else 7.787 * v + 16 / 116 for v in to_xyz @ linear / np.array([0.9505, 1, 1.089]))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_rounds_and_times_are_on_the_axes(tmp_path: Path) -> None:
    def texts(rounds: list[gp.Round], seconds: float) -> list[str | None]:
        gp.plot_rounds(rounds, CLUSTER, tmp_path / "r.svg", round_seconds=seconds)
        return [element.text for element in ET.fromstring((tmp_path / "r.svg").read_text()).iter()]  # noqa: S314

    found = texts(rounds_of([{}] * 50, first=7), 360.0)
    assert {"round", "10", "50", "time, h", "1", "5"} <= set(found)
    assert "time, min" in texts(rounds_of([{}] * 5), 360.0)
    assert {"time, s", "0.2"} <= set(texts(rounds_of([{}] * 2, seconds=0.1), 0.1))
    assert {"time, days", "30"} <= set(texts(rounds_of([{}] * 3, seconds=1e6), 1e6))


def test_bars_last_as_long_as_rounds_that_start_late() -> None:
    job: dict[str, Gpus] = {"a": [("v100-0", 0)]}
    on_time, late = rounds_of([job], seconds=60), rounds_of([job, job], seconds=180)[1:]
    (bar,) = rounds_gantt([*on_time, *late], lanes_of(CLUSTER), 60.0).bars
    assert (bar.start_seconds, bar.end_seconds) == (0, 240)  # the second round starts after 3 minutes, not after 1


@pytest.mark.parametrize(("seconds", "text"), [(0.25, "0.25 s"), (60, "1 min"), (360.0, "6 min"), (5400, "1.5 h")])
def test_durations_have_a_suitable_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def draw(path: Path, plan: Iterable[Mapping[str, Gpus]] = PLAN, cluster: gp.Cluster = CLUSTER) -> bytes:
    gp.plot_rounds(rounds_of(plan), cluster, path, round_seconds=360.0)
    return path.read_bytes()


def test_an_svg_has_the_names_as_text(tmp_path: Path) -> None:
    content = draw(tmp_path / "r.svg").decode()
    texts = {element.text for element in ET.fromstring(content).iter("{http://www.w3.org/2000/svg}text")}  # noqa: S314
    assert {"a", "b", "c", "v100-0", "v100-1", "k80-0", "v100", "4 GPUs", "3 rounds of 6 min, 5 GPUs", "round"} <= texts
    assert "3 jobs ran, 66.7% of GPU time used, 4 starts, 1 preemption" in texts
    assert "<dc:date>" not in content


def test_a_png_file_is_written(tmp_path: Path) -> None:
    assert draw(tmp_path / "R.PNG").startswith(b"\x89PNG\r\n")


@pytest.mark.parametrize("name", ["one.svg", "one.png"])
def test_the_same_input_makes_the_same_bytes_whatever_the_users_settings(tmp_path: Path, name: str) -> None:
    import matplotlib as mpl

    first = draw(tmp_path / name)
    with mpl.rc_context({"font.size": 20, "svg.hashsalt": "other", "axes.facecolor": "red"}):
        assert draw(tmp_path / f"again-{name}") == first
        assert mpl.rcParams["font.size"] == 20  # the user's settings are unchanged


def test_names_of_any_kind_are_drawn(tmp_path: Path) -> None:
    plan: list[dict[str, Gpus]] = [{"a$b$<&>\n\x01世": [("v100-0", 0)]}] * 3
    texts = {element.text for element in ET.fromstring(draw(tmp_path / "r.svg", plan)).iter()}  # noqa: S314
    assert "a$b$<&>\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}世" in texts
    draw(tmp_path / "r.png", plan)


def test_a_policy_of_any_name_is_in_the_title(tmp_path: Path) -> None:
    scheduler = gp.RoundScheduler(gp.Cluster.from_inline("v100:1"), gp.ThroughputProfile.builtin("gavel-osdi20"), "fifo")
    gp.plot_rounds([scheduler.next_round()], scheduler.cluster, tmp_path / "r.svg", round_seconds=360.0, policy="a\x01b")
    assert "a\N{REPLACEMENT CHARACTER}b: 1 round" in " ".join(ET.parse(tmp_path / "r.svg").getroot().itertext())  # noqa: S314


@pytest.mark.deep
def test_a_large_picture_stays_bounded(tmp_path: Path) -> None:
    cluster = gp.Cluster.from_inline("v100:720/8,k80:360/4")
    gpus = lanes_of(cluster).gpus
    plan = [{f"j{lane}-{(n + lane) // 5}": [gpu] for lane, gpu in enumerate(gpus)} for n in range(20)]
    svg, png = draw(tmp_path / "r.svg", plan, cluster), draw(tmp_path / "r.png", plan, cluster)
    assert len(svg) < 2_000_000
    assert svg.count(b"<image") == 1  # more than 3,000 bars are drawn as an image
    assert max(struct.unpack(">II", png[16:24])) < 4000


def test_the_title_tells_policy_and_delivery(tmp_path: Path) -> None:
    speeds = gp.ThroughputProfile.from_matrix([[2.0], [2.0]], job_ids=["a", "b"], accelerators=["v100"])
    scheduler = gp.RoundScheduler(gp.Cluster.from_counts({"v100": 1}), speeds)
    scheduler.submit(gp.Job("a"))
    scheduler.submit(gp.Job("b"))
    rounds, delivery = [scheduler.next_round()], scheduler.delivery()
    path = tmp_path / "r.svg"
    gp.plot_rounds(rounds, scheduler.cluster, path, round_seconds=360, delivery=delivery, policy="max_min_fairness")
    assert "max_min_fairness: 1 round of 6 min, 1 GPU" in path.read_text()
    assert "1 of 2 jobs ran, 100.0% of GPU time used, 1 start, 0 preemptions, 50.00% of what was promised is" in path.read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"path": "rounds.pdf"}, "rounds.pdf: must end in .svg or .png"),
        ({"path": "rounds"}, "must end in .svg or .png"),
        ({"path": "nowhere/rounds.svg"}, "there is no folder 'nowhere'"),
        ({"path": "folder.svg"}, "it is a folder"),
        ({"rounds": []}, "there is nothing to draw: no rounds"),
        ({"cluster": gp.Cluster([])}, "there is nothing to draw: the cluster has no GPUs"),
        (
            {"cluster": gp.Cluster.from_inline("v100:4/2")},
            "round 1, job 'c': has GPU 0 of node 'k80-0', which the cluster does not",
        ),
        ({"rounds": rounds_of(PLAN)[::2]}, "after round 0 comes round 2"),
        (
            {"rounds": rounds_of([{"a": [("k80-0", 0)], "b": [("k80-0", 0)]}])},
            "job 'b': has GPU 0 of node 'k80-0', which another job",
        ),
        ({"round_seconds": 0.0}, "must be a finite number greater than 0, found 0.0"),
        ({"round_seconds": "6"}, "must be a finite number greater than 0, found '6'"),
    ],
)
def test_invalid_input_fails(change: dict[str, object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.svg").mkdir()
    arguments = {"rounds": rounds_of(PLAN), "cluster": CLUSTER, "path": "r.svg", "round_seconds": 360.0} | change
    with pytest.raises(gp.InputError, match=re.escape(message)):
        gp.plot_rounds(**arguments)  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["folder.svg"]


def test_without_matplotlib_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(gp.InputError, match=r"pip install 'gavel-py\[plot\]'"):
        gp.check_plot(tmp_path / "r.svg")
    with pytest.raises(gp.InputError, match=r"pip install 'gavel-py\[plot\]'"):
        draw(tmp_path / "r.svg")


@pytest.mark.deep
def test_runs_and_simulations_do_not_import_the_libraries_of_pictures() -> None:
    code = """
import sys
import gavel_py as gp
gp.Run, gp.simulate, gp.plot_rounds, gp.write_report
print([name for name in ("matplotlib", "jinja2") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_old_picture_stays_if_the_new_one_cannot_be_put_in_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "r.svg"
    path.write_bytes(b"old")
    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(gp.InputError, match=r"r\.svg: cannot be written: No space left on device"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_command_draws_beside_its_output(gavel: Gavel, small: list[str], tmp_path: Path) -> None:  # noqa: F811
    plain = gavel("rounds", *small, "-n", "4", "--json")
    outcome = gavel("rounds", *small, "-n", "4", "--json", "--plot", "r.svg")
    assert (outcome.code, outcome.out) == (0, plain.out)
    assert outcome.err == "The chart of the rounds is in r.svg\n"
    text = (tmp_path / "r.svg").read_text()
    assert "max_min_fairness: 4 rounds of 6 min, 3 GPUs" in text
    share = json.loads(plain.out)["delivery"]["undelivered_share"]
    assert f"{share:.2%} of what was promised is still owed" in text


@pytest.mark.parametrize("name", ["r.gif", "nowhere/r.png"])
def test_the_command_refuses_a_file_before_it_plays(gavel: Gavel, name: str) -> None:  # noqa: F811
    outcome = gavel("rounds", "no-such-jobs.csv", "-c", "v100:1", "--plot", name)
    assert (outcome.code, outcome.out) == (2, "")
    assert name in outcome.err
    assert "no-such-jobs" not in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize(
    ("places", "found"),
    [([0, 50, 90], [0, 50, 90]), ([0, 5, 90, 95], [0, 20, 70, 90]), ([0] * 5, [0, 20, 40, 60, 80])],
    ids=["room for all", "moved apart", "no room at the end"],
)
def test_labels_are_as_far_apart_as_they_are_high(places: list[float], found: list[float]) -> None:
    """Of a chart of 100 lanes with labels of 20; where there are more than it has room for, the first stays at the top."""
    assert spread(places, 20, 100 if len(places) < 5 else 50) == found
