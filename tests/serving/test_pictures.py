"""Curves of attainment and pictures of serving."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gavel_py as gp

OVER = ("slo", "rate", "cv")


@pytest.fixture(scope="module")
def placement() -> gp.ModelPlacement:
    services = [gp.Service(name, model="m", rate=2.0, cv=2, slo_seconds=0.5) for name in ("a", "b")]
    return gp.replayed_placement(services, [gp.ModelGroup({"a": [0.1, 0.1], "b": [0.1, 0.1]})], requests=500, test_seeds=3)


@pytest.mark.parametrize("over", OVER)
def test_curves_rise_with_the_slo_and_fall_with_rate_and_burstiness(placement: gp.ModelPlacement, over: Any) -> None:
    curve = gp.attainment_curve(placement, over, [0.6, 1.5, 4.0], requests=2_000, seeds=3)
    steps = np.diff(curve.attainment)
    assert (steps > 0).all() if over == "slo" else (steps < 0).all()
    assert list(curve.to_columns()) == [over, "attainment", "half_width"]


def test_the_point_where_nothing_changes_is_that_of_a_replay(placement: gp.ModelPlacement) -> None:
    found = [
        gp.attainment_curve(placement, over, [point], requests=2_000, seeds=3) for over, point in zip(OVER, (1, 1, 2), strict=True)
    ]
    assert found[0].attainment == found[1].attainment == found[2].attainment
    trace = gp.RequestTrace.generate({"a": 2.0, "b": 2.0}, 500, cv=2, seed=1_000)
    single = gp.attainment_curve(placement, "slo", [1.0], requests=2_000, seeds=1).attainment
    assert single == pytest.approx(placement.replay(trace).attainment)


def test_pictures_are_the_same_bytes_each_time(placement: gp.ModelPlacement, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    options: dict[str, Any] = {"points": [0.5, 1, 2], "requests": 500, "seeds": 3}
    for name in ("one.svg", "two.svg"):
        curves = gp.plot_attainment({"pipeline": placement, "again": placement}, tmp_path / name, **options)
        assert list(curves) == ["pipeline", "again"]
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_gpus_are_drawn_by_type_and_service(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    gpus = {(f"service {n}", kind): [n, 2 * n, 1] for n in range(10) for kind in ("h100", "l40s")}
    gp.plot_serving_gpus([0, 3600, 7200], gpus, tmp_path / "gpus.svg", end_seconds=10_800)
    text = (tmp_path / "gpus.svg").read_text()
    assert all(word in text for word in ("h100", "l40s", "service 2", "others", "hours since the start"))
    with pytest.raises(gp.InputError, match="nothing to draw"):
        gp.plot_serving_gpus([0], {("a", "b"): [0]}, tmp_path / "gpus.svg", end_seconds=1)
    with pytest.raises(gp.InputError, match="a on b: must have a value for each of 1 intervals"):
        gp.plot_serving_gpus([0], {("a", "b"): [1, 2]}, tmp_path / "gpus.svg", end_seconds=1)


def test_what_cannot_be_drawn_is_named(placement: gp.ModelPlacement, tmp_path: Path) -> None:
    with pytest.raises(gp.InputError, match="'slos' is not known; did you mean 'slo'"):
        gp.attainment_curve(placement, "slos")  # type: ignore[arg-type]
    with pytest.raises(gp.InputError, match="must be greater than 0"):
        gp.attainment_curve(placement, "rate", [0.0])
    with pytest.raises(gp.InputError, match=r"must end in .svg or .png"):
        gp.plot_attainment(placement, tmp_path / "attainment.pdf")
