"""The figures as data: their axes, their curves, and the variants that explain differences.

A new curve is one more `Curve`; it is drawn and tabulated beside the published one with the same key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import figure_published as published
from figure_policies import InteriorFairness, RandomTypeFifo, ShuffledPriority, all_on_v100
from figure_traces import generated_jobs, published_jobs

import gavel_py as gp

__all__ = ["FIGURES", "LABELS", "Curve", "Figure", "Window"]

LABELS = {"gandiva": "Gandiva's sharing", "sharing": "aware, with sharing"}
"""Published curves of figures that we do not reproduce."""


@dataclass(frozen=True)
class Curve:
    """A policy and how it is simulated.

    mechanism: makes the mechanism of rounds; settings: other settings of `gp.Simulation`; jobs: makes the trace.
    """

    key: str
    label: str
    policy: Callable[[], gp.Policy]
    mechanism: Callable[[], Any] = lambda: "deficit"
    settings: Mapping[str, Any] = field(default_factory=dict)
    jobs: Callable[[int, float | None, bool, int], Sequence[gp.Submission]] = published_jobs


@dataclass(frozen=True)
class Window:
    """The measured jobs in order of arrival: first to end - 1. Arrivals continue until the last of them has left."""

    first: int
    end: int


@dataclass(frozen=True)
class Figure:
    """xs: jobs per hour, or the number of jobs of a static trace; at: the x that is compared.

    seeds, window: at this x. Other points have one seed and a smaller window. Where the queue grows without end, the result depends
    on the window.
    """

    key: str
    title: str
    is_static: bool
    has_gangs: bool
    xs: tuple[float, ...]
    at: float
    curves: tuple[Curve, ...]
    variants: tuple[Curve, ...]
    published: published.Published
    seeds: int = 1
    window: Window = Window(1000, 2000)

    def window_of(self, x: float) -> Window:
        """Return the window of jobs measured at x; after 1,000 jobs, a cluster without overload is in its steady state."""
        return self.window if x == self.at else min(self.window, Window(1000, 2000), key=lambda each: each.end)

    def scaled(self, factor: float, few: Window) -> Figure:
        """Return the first point of the figure and the compared one, on a cluster of a fraction of the size; few: jobs to measure.

        Static traces shrink to a fifth of that.
        """
        fitting = {x: float(round(x * factor / 5)) if self.is_static else x * factor for x in (self.xs[0], self.at)}
        fewer = {fitting[x]: hours for x, hours in self.published.items() if x in fitting}
        return replace(self, xs=tuple(fitting.values()), at=fitting[self.at], published=fewer, seeds=1, window=few)

    @property
    def x_label(self) -> str:
        return "jobs, all there at the start" if self.is_static else "jobs per hour"

    @property
    def y_label(self) -> str:
        return "makespan, hours" if self.is_static else "mean completion time, hours"


def _named(name: str, **options: Any) -> Callable[[], gp.Policy]:
    return lambda: gp.resolve_policy(name, **options)


def _priority() -> str:
    return "priority"


FAIR, AGNOSTIC = _named("max_min_fairness"), _named("max_min_fairness", agnostic=True)
MAKESPAN, AGNOSTIC_FIFO = _named("min_makespan"), _named("fifo", agnostic=True)
PUBLISHED_ROWS = {"whole_gangs": False}

FAIRNESS = (
    Curve("aware", "aware", FAIR),
    Curve("agnostic", "agnostic", AGNOSTIC),
)
SHARING = Curve("sharing", "aware, with sharing", FAIR, settings={"sharing": True})
FAIRNESS_VARIANTS = (
    Curve("aware-interior", "aware, any optimum", InteriorFairness, settings=PUBLISHED_ROWS),
    Curve("aware-both", "aware, any optimum and the published rule", InteriorFairness, _priority, PUBLISHED_ROWS),
    Curve("agnostic-priority", "agnostic, the published rule, types shuffled", AGNOSTIC, ShuffledPriority),
)
FIFO_BUG = Curve("fifo-bug", "fifo, all jobs on V100", AGNOSTIC_FIFO, lambda: all_on_v100)

FIGURES = (
    Figure(
        "single",
        "Max-min fairness, single-GPU jobs",
        is_static=False,
        has_gangs=False,
        xs=(4.0, 4.8, 5.6),
        at=5.6,
        curves=(*FAIRNESS, SHARING),
        variants=(
            *FAIRNESS_VARIANTS,
            Curve("aware-others", "aware, other jobs of the same mix", FAIR, jobs=generated_jobs),
            Curve("agnostic-others", "agnostic, other jobs of the same mix", AGNOSTIC, jobs=generated_jobs),
        ),
        published=published.SINGLE,
        seeds=2,
        window=Window(4000, 5000),
    ),
    Figure(
        "gangs",
        "Max-min fairness, gangs of 1, 2, 4 and 8",
        is_static=False,
        has_gangs=True,
        xs=(1.8, 2.2, 2.6),
        at=2.6,
        curves=(*FAIRNESS, SHARING),
        variants=(
            *FAIRNESS_VARIANTS,
            Curve("aware-rows", "aware, without the rows of whole gangs", FAIR, settings=PUBLISHED_ROWS),
            Curve("aware-restarts", "aware, 60 s for each start", FAIR, settings={"restart_seconds": 60.0}),
        ),
        published=published.GANGS,
        window=Window(4000, 5000),
    ),
    Figure(
        "fifo",
        "FIFO, gangs of 1, 2, 4 and 8",
        is_static=False,
        has_gangs=True,
        xs=(1.0, 1.8, 2.0),
        at=2.0,
        curves=(
            Curve("aware", "aware", _named("fifo")),
            Curve("agnostic", "agnostic", _named("fifo", agnostic=True, preemptive=False)),
        ),
        variants=(
            Curve("fifo-order", "agnostic, jobs move up to V100", AGNOSTIC_FIFO),
            Curve("fifo-random", "agnostic, on a type at random", RandomTypeFifo),
            FIFO_BUG,
        ),
        published=published.FIFO,
    ),
    Figure(
        "makespan",
        "Makespan, gangs of 1, 2, 4 and 8",
        is_static=True,
        has_gangs=True,
        xs=(100, 400, 700),
        at=700,
        curves=(
            Curve("aware", "min_makespan", MAKESPAN),
            FIFO_BUG,
            Curve("fifo", "fifo, agnostic", AGNOSTIC_FIFO),
            Curve("fairness", "max_min_fairness", FAIR),
            Curve("gandiva", "gandiva, with sharing", _named("gandiva"), settings={"sharing": True}),
        ),
        variants=(
            Curve("fifo-random", "fifo, agnostic, on a type at random", RandomTypeFifo),
            Curve("aware-both", "min_makespan, rounds and rows as published", MAKESPAN, _priority, PUBLISHED_ROWS),
        ),
        published=published.MAKESPAN,
        seeds=3,
    ),
)
