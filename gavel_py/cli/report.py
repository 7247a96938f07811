"""gavel report: an HTML page that compares runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import click

import gavel_py as gp
from gavel_py.cli.files import OutputFile
from gavel_py.cli.inputs import FILE, INPUT
from gavel_py.cli.output import counted
from gavel_py.errors import Fault, InputError, UnknownNameError, nearest, refuse

Labels = Mapping[str, str | float | None]


@click.command("report")
@click.argument("results", nargs=-1, required=True, type=INPUT, metavar="RESULTS...")
@click.option("-o", "--out", type=FILE, default=Path("report.html"), show_default=True, metavar="FILE", help="File of the page.")
@click.option("--charts", type=OutputFile(folder=True), metavar="DIR", help="Write each chart into this folder, as SVG and PNG.")
@click.option(
    "--only",
    multiple=True,
    metavar="LABEL=VALUE",
    help="Only runs with this label, as in load=4 or policy=fifo; may be given several times.",
)
@click.option("--title", metavar="TEXT", help="Title of the page.")
def command(results: Sequence[Path], out: Path, charts: Path | None, only: Sequence[str], title: str | None) -> None:
    """Compare runs on one HTML page.

    The page shows which policy is best, by how much, and what happened. RESULTS are files of `gavel sweep` and of
    `gavel simulate --run-out`. The page needs no network and no scripts.
    """
    gp.check_report(out)
    wanted = _wanted(only)
    runs = [run for path in results for run in gp.read_runs(path)]
    failures = [failure for path in results for failure in gp.read_failures(path)]
    refuse(", ".join(map(str, results)), (not runs and not failures, "", "contains no finished run"))
    _check(wanted, [*(run.labels for run in runs), *(labels for labels, _ in failures)])
    runs = [run for run in runs if _is_shown(run.labels, wanted)]
    failures = [(labels, error) for labels, error in failures if _is_shown(labels, wanted)]
    if not runs and not failures:
        raise InputError(Fault("--only", "", f"no run has {' and '.join(only)}"))
    written = gp.write_report(runs, out, title=title, failures=failures, charts=charts)
    failed = f" and {len(failures)} that failed" if failures else ""
    more = "" if charts is None else f", its charts in {charts} ({counted(len(written) - 1, 'file')})"
    click.echo(f"The report of {counted(len(runs), 'run')}{failed} is in {out}{more}", err=True)


def _wanted(only: Sequence[str]) -> dict[str, list[str]]:
    wanted: dict[str, list[str]] = {}
    for each in only:
        name, equals, value = each.partition("=")
        if not (name and equals):
            raise click.UsageError(f"--only {each}: must be LABEL=VALUE, as in --only load=4")
        wanted.setdefault(name, []).append(value)
    return wanted


def _check(wanted: Mapping[str, Sequence[str]], labels: Sequence[Labels]) -> None:
    """Raise `UnknownNameError` for a label or a value that no run has."""
    known = list(dict.fromkeys(name for each in labels for name in each))
    unknown = [name for name in wanted if name not in known]
    faults = [Fault(f"--only {name}=...", "", f"no run has a label {name!r}{nearest(name, known)}") for name in unknown]
    for name in (name for name in wanted if name in known):
        found = list(dict.fromkeys(_text(each[name]) for each in labels if name in each))
        others = [value for value in wanted[name] if not any(_is_same(value, each) for each in found)]
        faults += [Fault(f"--only {name}=...", "", f"no run has the {name} {value!r}{nearest(value, found)}") for value in others]
    UnknownNameError.raise_any(faults)


def _is_shown(labels: Labels, wanted: Mapping[str, Iterable[str]]) -> bool:
    return all(any(_is_same(value, _text(labels.get(name))) for value in values) for name, values in wanted.items())


def _is_same(wanted: str, found: str) -> bool:
    """Return whether the texts or the numbers in them are equal."""
    try:
        return wanted == found or float(wanted) == float(found)
    except ValueError:
        return False


def _text(value: str | float | None) -> str:
    return "" if value is None else f"{value:.10g}" if isinstance(value, float) else str(value)
