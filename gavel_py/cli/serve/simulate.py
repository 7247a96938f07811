"""gavel serve simulate: models on groups of GPUs, and the part of their requests that ends within the SLO."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click

import gavel_py as gp
from gavel_py.cli.inputs import (
    FILE,
    INPUT,
    INPUT_OR_TEXT,
    SEED,
    Command,
    Duration,
    Output,
    argument,
    cluster_from,
    detailed,
    main_option,
    option,
    takes_options,
)
from gavel_py.cli.output import counted, csv_text, emit, json_text, number
from gavel_py.cli.services import serving_profile
from gavel_py.cli.tables import Column, table_text, wrapped
from gavel_py.cli.usage import refuse
from gavel_py.errors import together

MAX_SERVICES = 6
"""Maximum number of services listed for a group; the JSON output has all of them."""


@dataclass(frozen=True)
class ServeSimulateOptions(Output):
    """The options, as typed."""

    services_file: Path = argument("SERVICES", type=INPUT)
    cluster: str | None = main_option(
        "Input", "-c", type=INPUT_OR_TEXT, metavar="FILE|SPEC", help="Cluster file, or GPUs as in v100:16,p100:8/4."
    )
    rates: str | None = main_option(
        "Input",
        type=INPUT_OR_TEXT,
        metavar="FILE",
        help="CSV or YAML file with the stage_seconds and memory_gb of models by shape.",
    )
    gpu_memory: tuple[str, ...] = main_option(
        "Input", metavar="TYPE=GB", help="Memory of a GPU, where the cluster does not state it."
    )
    renames: tuple[str, ...] = option("Input", "--map-accelerator", metavar="OLD=NEW", help="Rename an accelerator of the cluster.")
    groups: Path | None = main_option(
        "Input", type=INPUT, metavar="FILE", help="Groups of an earlier run with --json, instead of a search."
    )
    trace: Path | None = main_option(
        "Input", type=INPUT, metavar="FILE", help="CSV of requests to replay: seconds or timestamp, and service."
    )
    request_overhead: float = option(
        "Model",
        type=Duration(0),
        default=0.0,
        metavar="S",
        help="Seconds that each request takes in addition to its stages [0].",
    )
    stage_overhead: float = option(
        "Model",
        type=click.FloatRange(0),
        default=0.0,
        metavar="X",
        help="Fraction by which each stage of a pipeline slows all stages [0].",
    )
    search_requests: int = option(
        "Search",
        type=click.IntRange(min=100),
        default=12_000,
        show_default=True,
        metavar="N",
        help="Requests on which the search is based.",
    )
    changes: int = option(
        "Search",
        type=click.IntRange(min=0),
        default=512,
        show_default=True,
        metavar="N",
        help="Number of single changes to try at the end of the search.",
    )
    seed: int = option("Search", **SEED, help="Seed of these requests; the next seeds give the traces of the test.")
    seeds: int = option(
        "Replay", type=click.IntRange(min=1), default=5, show_default=True, metavar="N", help="Number of test traces."
    )
    plot: Path | None = main_option("Output", type=FILE, metavar="FILE", help="Also draw the attainment, as .svg or .png.")
    plot_over: Literal["slo", "rate", "cv"] | None = option("Output", help="The quantity that changes in the chart [slo].")
    save_trace: Path | None = option(
        "Output", type=FILE, metavar="FILE", help="Write the requests on which the search is based as CSV."
    )


@click.command("simulate", cls=Command)
@takes_options(ServeSimulateOptions)
def command(request: ServeSimulateOptions) -> None:
    """Place models on groups of GPUs and simulate requests.

    Requests are served first come, first served, and refused if they would miss their SLO. Attainment is the part that ends
    within the SLO.

    \b
    gavel serve simulate services.yaml --rates rates.csv --cluster cluster.yaml --json --out placement.json
    gavel serve simulate services.yaml --groups placement.json --plot attainment.svg --plot-over cv
    """
    _check(request)
    placement = _placement(request)
    replayed = None if request.trace is None else _replayed(placement, request.trace)
    if request.plot is not None:
        gp.plot_attainment(placement, request.plot, request.plot_over or "slo")
    if request.save_trace is not None:
        placement.promised.trace.to_csv(request.save_trace)
    if request.form == "json":
        emit(json_text(placement.to_dict() | ({} if replayed is None else {"trace": replayed.to_dict()})), request.out)
    elif request.form == "csv":
        columns = _table(placement, replayed)
        emit(csv_text(list(columns), zip(*columns.values(), strict=True)), request.out)
    else:
        emit("\n".join(_texts(placement, replayed, request.trace)), request.out)


def _check(request: ServeSimulateOptions) -> None:
    given = [each is not None for each in (request.cluster, request.rates)]
    refuse(
        (
            request.groups is None and not all(given),
            "give --cluster and --rates to place the models, or --groups with a placement",
        ),
        (request.groups is not None and any(given), "--groups has the groups already; leave out --cluster and --rates"),
        (request.plot_over is not None and request.plot is None, "--plot-over needs --plot"),
    )
    if request.plot is not None:
        gp.check_plot(request.plot)


def _placement(request: ServeSimulateOptions) -> gp.ModelPlacement:
    overheads = gp.ServingOverheads(request.request_overhead, request.stage_overhead)
    if request.groups is not None:
        services, groups = gp.read_services(request.services_file), gp.read_groups(request.groups)
        seen: dict[str, Any] = {"seed": request.seed, "requests": request.search_requests, "test_seeds": request.seeds}
        return gp.replayed_placement(services, groups, overheads=overheads, **seen)
    with together() as attempt:
        services = attempt(lambda: gp.read_services(request.services_file))
        named = attempt(lambda: cluster_from(str(request.cluster), request.renames))
        cluster = attempt(lambda: detailed(named, request.gpu_memory, "--gpu-memory", "TYPE=GB", "memory_gb"))
        profile = attempt(lambda: serving_profile(str(request.rates)))
    return gp.place_models(
        services,
        cluster,
        profile,
        overheads=overheads,
        test_seeds=request.seeds,
        **{name: getattr(request, name) for name in ("seed", "search_requests", "changes")},
    )


def _replayed(placement: gp.ModelPlacement, file: Path) -> gp.RequestResult:
    names = [service.name for service in placement.services]
    trace = gp.RequestTrace.from_file(file, service=names[0]) if len(names) == 1 else gp.RequestTrace.from_file(file)
    unknown = [name for name in trace.services if name not in names]
    text = f"which is none of the services ({', '.join(names)})"
    gp.InputError.raise_any([gp.Fault(str(file), "", f"has requests of {name!r}, {text}") for name in unknown])
    return placement.replay(trace, margin_seconds=min(10.0, trace.duration_seconds / 10))


def _table(placement: gp.ModelPlacement, replayed: gp.RequestResult | None) -> dict[str, list[Any]]:
    """Return the columns of the services. Columns of a replayed trace come last, empty for services without requests in it."""
    columns: dict[str, list[Any]] = {name: values.tolist() for name, values in placement.to_columns().items()}
    if replayed is not None:
        found = {name: values.tolist() for name, values in replayed.to_columns().items()}
        rows = {service: n for n, service in enumerate(found["service"])}
        for name in ("requests", "attainment", "p50_seconds", "p99_seconds"):
            values = [found[name][rows[service]] if service in rows else None for service in columns["service"]]
            columns[f"trace_{name}"] = values
    return columns


def _texts(placement: gp.ModelPlacement, replayed: gp.RequestResult | None, file: Path | None) -> Iterator[str]:
    found, promised = placement.attainment, placement.promised
    spread = "" if found.half_width is None else f" ± {found.half_width:.4f}"
    seen = f"{len(promised.trace):,} requests in {promised.trace.duration_seconds:,.0f} s"
    yield wrapped(
        [
            f"Attainment {found.mean:.4f}{spread} found on {counted(len(placement.found), 'other trace')}; "
            f"{promised.attainment:.4f} promised on the one that the search saw ({seen})."
        ],
        indent="",
    )
    columns = _table(placement, None)
    titles = ["service", "requests/s", "SLO, s", "replicas", "target", "promised", "found", "least found"]
    rows = [
        [name, number(rate), _seconds(slo), str(replicas), f"{target:.3f}", *map(share_text, shares)]
        for name, rate, slo, replicas, target, *shares in zip(*columns.values(), strict=True)
    ]
    yield table_text("Services", titles, rows)
    yield _groups_text(placement)
    if replayed is not None:
        table = replayed.to_columns()
        rows = [
            [name, f"{count:,}", share_text(share), *map(_seconds, spans)]
            for name, count, share, *spans in zip(*(values.tolist() for values in table.values()), strict=True)
        ]
        title = f"Requests of {file}: attainment {share_text(replayed.attainment)}"
        yield table_text(title, ["service", "requests", "attainment", "median, s", "90%, s", "99%, s"], rows)


def _groups_text(placement: gp.ModelPlacement) -> str:
    columns: list[str | Column] = ["GPUs", Column("type", "name"), "operator parallel", "stages"]
    columns += ["in use", Column("services", "prose")]
    rows = []
    for group, part in zip(placement.groups, placement.utilization.tolist(), strict=True):
        names = list(group.stage_seconds)
        more = f" and {len(names) - MAX_SERVICES} more" if len(names) > MAX_SERVICES else ""
        shape = [str(group.num_gpus), group.accelerator or "-", str(group.operator_parallel), str(group.pipeline_parallel)]
        rows.append([*shape, f"{part:.1%}", ", ".join(names[:MAX_SERVICES]) + more])
    return table_text("Groups of GPUs", columns, rows, text_columns=0)


def share_text(share: float | None) -> str:
    """Return an attainment with four digits, "-" if there is none."""
    return "-" if share is None or share != share else f"{share:.4f}"


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None or seconds != seconds or seconds == float("inf") else f"{seconds:.4g}"
