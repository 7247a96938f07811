"""Charts of serving: attainment over the scale of the SLO, the rate or the burstiness; GPUs of each service over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gavel_py.errors import check_known, refuse
from gavel_py.io.tabular import Tabular
from gavel_py.io.writing import FORMATS, check_plot, write_atomic
from gavel_py.problem.arrays import Floats
from gavel_py.report.charts import NUM_STYLES, Axis, Curve, Panel
from gavel_py.report.measures import estimate
from gavel_py.serving.attainment import MARGIN_SECONDS, RequestScenario, simulate_many
from gavel_py.serving.replay import ModelPlacement, RequestArrivals
from gavel_py.serving.services import Service
from gavel_py.serving.shapes import slo_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gavel_py.io.tabular import Array

Over = Literal["slo", "rate", "cv"]

POINTS: Mapping[Over, tuple[float, ...]] = {
    "slo": (0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0),
    "rate": (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0),
    "cv": (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0),
}
"""Default points: factors of the SLOs, factors of the rates, and cvs of all services."""

AXES: Mapping[Over, Axis] = {
    "slo": Axis("SLO, relative to that of each service"),
    "rate": Axis("rate, relative to that of each service"),
    "cv": Axis("burstiness cv"),
}

SECONDS_PER_UNIT = {"days": 86400.0, "hours": 3600.0, "minutes": 60.0, "seconds": 1.0}


@dataclass(frozen=True, eq=False)
class AttainmentCurve(Tabular):
    """Attainment of a placement at P values of one quantity.

    Attributes:
        over: The quantity: "slo" or "rate" for factors of the services' values, "cv" for one value for all services.
        x: (P,) the values.
        attainment: (P,) mean over the seeds.
        half_width: (P,) half-widths of 95 % confidence intervals, NaN for fewer than three seeds.
    """

    over: Over
    x: Floats
    attainment: Floats
    half_width: Floats

    def to_columns(self) -> dict[str, Array]:
        """Return the points as {"slo", "rate" or "cv", "attainment", "half_width": (P,) array}."""
        return {self.over: self.x, "attainment": self.attainment, "half_width": self.half_width}


def attainment_curve(
    placement: ModelPlacement,
    over: Over,
    points: Sequence[float] | None = None,
    *,
    requests: int = 12_000,
    seeds: int = 5,
    first_seed: int = 1_000,
) -> AttainmentCurve:
    """Return the attainment of a placement as SLOs, rates or burstiness change while the groups stay.

    Args:
        placement: The placement.
        over: The quantity that changes.
        points: Factors of SLOs or rates, or cvs of all services; by default ten values.
        requests: Expected requests in each trace. Traces from files last as long as the files.
        seeds: Number of traces at each point.
        first_seed: Seed of the first trace; the search has seen none of the traces unless it used such a seed.

    Raises:
        InputError: `over` is none of the three, a point is out of range, or cv cannot change since requests come from files.
    """
    check_known("attainment", "over", [over], POINTS)
    values = POINTS[over] if points is None else tuple(points)
    services = placement.services
    has_files = over == "cv" and any(service.trace is not None for service in services)
    refuse(
        "attainment",
        (has_files, "over", "cv needs services with a rate; arrivals of a trace file are as they are"),
        *((over != "cv" and not value > 0, over, f"must be greater than 0, found {value!r}") for value in values),
    )
    scenarios = []
    for value in values:
        scale = value if over == "slo" else 1.0
        slo = {service.name: scale * slo_of(service) for service in services}
        changes = {"cv": value} if over == "cv" else {}
        arrivals = RequestArrivals([Service(**service.model_dump() | changes) for service in services])
        seconds = arrivals.seconds(requests)
        for seed in range(first_seed, first_seed + seeds):
            trace = arrivals.trace(seconds, seed, is_second_half=True)
            scenarios.append(RequestScenario(trace.times_faster(value) if over == "rate" else trace, placement.groups, slo))
    margin = min(MARGIN_SECONDS, min(scenario.trace.duration_seconds for scenario in scenarios) / 10)
    results = simulate_many(scenarios, overheads=placement.overheads, margin_seconds=margin)
    attained = np.array([result.attainment for result in results]).reshape(len(values), seeds)
    spreads = [estimate(row.tolist()) for row in attained]
    widths = [np.nan if each is None or each.half_width is None else each.half_width for each in spreads]
    means = [np.nan if each is None else each.mean for each in spreads]
    return AttainmentCurve(over, np.array(values, dtype=float), np.array(means), np.array(widths))


def plot_attainment(
    placements: ModelPlacement | Mapping[str, ModelPlacement], path: str | Path, over: Over = "slo", **options: Any
) -> dict[str, AttainmentCurve]:
    """Draw the attainment of placements over the SLO, the rate or the burstiness, and return the curves.

    Args:
        placements: A placement, or several by their labels.
        path: An .svg or .png file, which is written atomically.
        over: "slo", "rate" or "cv".
        **options: Of `attainment_curve`.

    Raises:
        InputError: For the same reasons as in `attainment_curve` and `check_plot`.
    """
    check_plot(path)
    named = {"attainment": placements} if isinstance(placements, ModelPlacement) else dict(placements)
    curves = {label: attainment_curve(placement, over, **options) for label, placement in named.items()}
    drawn = [
        Curve(label, curve.x, curve.attainment, style, curve.attainment - curve.half_width, curve.attainment + curve.half_width)
        for style, (label, curve) in enumerate(curves.items())
    ]
    panel = Panel(drawn, Axis("requests within their SLO", low=0.0, high=1.02), mark=None if over == "cv" else 1.0)

    def draw() -> Figure:
        from gavel_py.report.figures import lines_figure

        return lines_figure([panel], AXES[over], dots=True)

    titles = {"slo": "Attainment by SLO", "rate": "Attainment by rate", "cv": "Attainment by burstiness"}
    _write(path, f"attainment-{over}", titles[over], draw)
    return curves


def plot_serving_gpus(
    starts_seconds: Sequence[float], gpus: Mapping[tuple[str, str], Sequence[float]], path: str | Path, *, end_seconds: float
) -> None:
    """Draw the GPUs of each service over time, in a panel for each accelerator type.

    Args:
        starts_seconds: Start of each of N intervals, ascending.
        gpus: {(service, accelerator): (N,) GPUs in each interval}.
        path: An .svg or .png file, which is written atomically.
        end_seconds: End of the last interval.

    Raises:
        InputError: There is nothing to draw, the number of values differs from that of intervals, or `check_plot` fails.
    """
    check_plot(path)
    used = {key: np.array(values, dtype=float) for key, values in gpus.items() if np.any(values)}
    count = len(starts_seconds)
    refuse(
        "plot of serving",
        (not used or not count, "", "there is nothing to draw: no service has GPUs"),
        *(
            (len(values) != count, f"{service} on {name}", f"must have a value for each of {count} intervals")
            for (service, name), values in used.items()
        ),
    )
    edges = np.array([*starts_seconds, end_seconds], dtype=float) - starts_seconds[0]
    unit, size = next((name, size) for name, size in SECONDS_PER_UNIT.items() if edges[-1] >= 2 * size or size == 1.0)
    services = list(dict.fromkeys(service for service, _ in used))
    shown = services if len(services) <= NUM_STYLES else services[: NUM_STYLES - 1]
    panels = []
    for accelerator in dict.fromkeys(name for _, name in used):
        by_label: dict[str, Floats] = {}
        for (service, name), values in used.items():
            if name == accelerator:
                label = service if service in shown else "others"
                by_label[label] = by_label.get(label, np.zeros(len(values))) + values
        styles = [*shown, "others"]
        curves = [
            Curve(label, edges / size, np.append(values, values[-1]), styles.index(label)) for label, values in by_label.items()
        ]
        panels.append(Panel(curves, Axis("GPUs", low=0.0), accelerator))

    def draw() -> Figure:
        from gavel_py.report.figures import lines_figure

        return lines_figure(panels, Axis(f"{unit} since the start"), steps=True)

    _write(path, "serving-gpus", "GPUs by service", draw)


def _write(path: str | Path, name: str, title: str, draw: Callable[[], Figure]) -> None:
    from gavel_py.report.figures import figure_bytes

    write_atomic(path, figure_bytes(draw, name, FORMATS[Path(path).suffix.lower()], title))
