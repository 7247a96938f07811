"""Gantt charts of the rounds of a scheduler, in files: what is drawn, its title, and what the rounds add up to."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from gavel_py.errors import refuse
from gavel_py.io.records import Positive, check
from gavel_py.io.writing import FORMATS, check_plot, write_atomic
from gavel_py.problem.cluster import Cluster
from gavel_py.report.charts import Chart, Table
from gavel_py.report.measures import clean, counted
from gavel_py.report.timeline import NO_WORKFLOWS, Gantt, RoundGrid, colours_of, grid_of, lanes_of, rounds_gantt
from gavel_py.scheduling.delivery import DeliveryReport, TenantDelivery
from gavel_py.scheduling.round import Round

NO_TENANTS: Mapping[str, str] = {}

MAX_TENANTS = 9
"""Of more, each job has a colour of its own."""

MOST_DRAWN = 1000
"""Maximum number of GPUs in a page: more would be too thin to see, and take seconds."""


def plot_rounds(
    rounds: Iterable[Round],
    cluster: Cluster,
    path: str | Path,
    *,
    round_seconds: float,
    delivery: DeliveryReport | None = None,
    policy: str | None = None,
    workflows: Mapping[str, str] = NO_WORKFLOWS,
    tenants: Mapping[str, str] = NO_TENANTS,
) -> None:
    """Draw consecutive rounds as a Gantt chart: time from left to right, GPUs by type and node from top to bottom.

    A bar is a gang on its GPUs, with marks where it started and where it was preempted; idle GPUs are white. The same input gives
    the same bytes with the same version of matplotlib. The file is written atomically.

    Args:
        rounds: The rounds, without gaps in their indices.
        cluster: The cluster of the scheduler, whose GPUs are drawn.
        path: An .svg or .png file.
        round_seconds: Length of a round.
        delivery: Adds the undelivered share and the number of all jobs to the title.
        policy: Name of the policy for the title.
        workflows: {job_id: workflow}; the jobs of one have one colour, which a legend names.
        tenants: {job_id: tenant}; without workflows, the jobs of one have one colour if there are 2 to 9 tenants. The legend names
            it, with the GPU-hours promised to the tenant and received if `delivery` is given.

    Raises:
        InputError: As `check_plot` does, for rounds that are empty or not consecutive, for GPUs that are not in the cluster or
            assigned to two jobs in one round, and for an invalid `round_seconds`.
    """
    check_plot(path)
    shown = _shown(rounds, cluster, round_seconds, delivery, policy, workflows, tenants)

    from gavel_py.report.figures import figure_bytes
    from gavel_py.report.timeline_drawing import rounds_figure

    form, draw = FORMATS[Path(path).suffix.lower()], partial(rounds_figure, shown.gantt, shown.colours, shown.texts, shown.subtitle)
    write_atomic(path, figure_bytes(draw, "rounds", form, shown.title))


def rounds_svg(
    rounds: Iterable[Round],
    cluster: Cluster,
    *,
    round_seconds: float,
    tenants: Mapping[str, str] = NO_TENANTS,
    job_types: Mapping[str, str] = NO_TENANTS,
    down: Collection[str] = (),
) -> str:
    """Return the chart of consecutive rounds as an inline `<svg>` in colours of a page, for `AllocationView.rounds`.

    Args:
        rounds: The rounds, without gaps in their indices.
        cluster: The cluster of the scheduler, whose GPUs are drawn.
        round_seconds: Length of a round.
        tenants: {job_id: tenant}; the jobs of one have one colour if there are 2 to 9 tenants, and a legend names it.
        job_types: {job_id: job type}; the same of job types if tenants have no colours. Otherwise, each job has one.
        down: Nodes that are down, which are hatched.

    Raises:
        InputError: As `plot_rounds`, and for more GPUs than can be seen.
    """
    refuse("", (cluster.num_gpus > MOST_DRAWN, "", f"a chart of more than {MOST_DRAWN:,} GPUs would be too fine to see"))
    shown = _shown(rounds, cluster, round_seconds, tenants=tenants, job_types=job_types)

    from gavel_py.report.figures import figure_bytes
    from gavel_py.report.run_report import embedded
    from gavel_py.report.timeline_drawing import gantt_figure

    draw = partial(gantt_figure, replace(shown.gantt, down=down), shown.colours, shown.texts)
    return embedded(figure_bytes(draw, "rounds", "svg"), Chart("rounds", shown.title, shown.subtitle, draw, Table((), ())))


class _Shown(NamedTuple):
    """What a chart of rounds shows; colours, texts: of each job, in bars and in the legend."""

    title: str
    subtitle: str
    gantt: Gantt
    colours: Mapping[str, str]
    texts: Mapping[str, str]


def _shown(
    rounds: Iterable[Round],
    cluster: Cluster,
    round_seconds: float,
    delivery: DeliveryReport | None = None,
    policy: str | None = None,
    workflows: Mapping[str, str] = NO_WORKFLOWS,
    tenants: Mapping[str, str] = NO_TENANTS,
    job_types: Mapping[str, str] = NO_TENANTS,
) -> _Shown:
    check("plot of rounds", round_seconds=(round_seconds, Positive))
    lanes, rounds = lanes_of(cluster), list(rounds)
    grid = grid_of(rounds, lanes)
    head = "" if policy is None else f"{clean(policy)}: "
    title = f"{head}{counted(len(rounds), 'round')} of {duration(round_seconds)}, {counted(len(lanes.gpus), 'GPU')}"
    subtitle = ", ".join(_subtitle(grid, rounds, delivery))
    texts = {job_id: f"workflow {clean(workflow)}" for job_id, workflow in workflows.items()}
    of_tenants, of_types = ({job_id: of.get(job_id, "") for job_id in grid.job_ids} for of in (tenants, job_types))
    if not workflows and 2 <= len(set(of_tenants.values())) <= MAX_TENANTS:
        known = {} if delivery is None else delivery.tenants
        texts = {job_id: _tenant_text(tenant, known) for job_id, tenant in of_tenants.items()}
    elif not workflows and 2 <= len(set(of_types.values())) <= MAX_TENANTS:
        texts = {job_id: clean(job_type) or "no job type" for job_id, job_type in of_types.items()}
    return _Shown(title, subtitle, rounds_gantt(rounds, lanes, float(round_seconds)), colours_of(grid, texts), texts)


def _tenant_text(name: str, known: Mapping[str, TenantDelivery]) -> str:
    """Return the text of the legend for a tenant, "" for the jobs of none."""
    if name not in known:
        return f"tenant {clean(name)}" if name else "no tenant"
    promised, received = known[name].promised_gpu_seconds / 3600, known[name].delivered_gpu_seconds / 3600
    return f"tenant {clean(name)}: {promised:.4g} GPU-h promised, {received:.4g} received"


def _subtitle(grid: RoundGrid, rounds: Sequence[Round], delivery: DeliveryReport | None) -> Iterator[str]:
    ran = len(grid.job_ids)
    jobs = ran if delivery is None else len(delivery.jobs)
    yield f"{ran:,} of {counted(jobs, 'job')} ran" if jobs > ran else f"{counted(ran, 'job')} ran"
    yield f"{grid.used_share:.1%} of GPU time used"
    yield counted(sum(len(each.started) for each in rounds), "start")
    yield counted(sum(len(each.preempted) for each in rounds), "preemption")
    if delivery is not None:
        yield f"{delivery.undelivered_share:.2%} of what was promised is still owed"


def duration(seconds: float) -> str:
    """Return a duration in a suitable unit.

    >>> duration(360), duration(5400)
    ('6 min', '1.5 h')
    """
    for name, length in (("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.4g} {name}"
    return f"{seconds:.4g} s"
