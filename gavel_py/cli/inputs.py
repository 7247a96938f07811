"""Options that several commands share, and the way from them to jobs, cluster and profile."""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

import gavel_py as gp
from gavel_py.cli.constraints import constrained
from gavel_py.cli.own_policies import find_policy
from gavel_py.errors import together

__all__ = [
    "MOST_ROUNDS",
    "Common",
    "Inputs",
    "Option",
    "Request",
    "assignments",
    "bundled",
    "cluster_of",
    "common_options",
    "import_solver",
    "load",
    "output_options",
    "policies_of",
    "problem_options",
    "profile_of",
    "round_option",
    "warnings_shown",
]

DEFAULT_PROFILE = "gavel-osdi20"
SUFFIXES = {".yaml", ".yml", ".json", ".csv"}

MOST_ROUNDS = 1_000_000
"""Of --rounds: all of them are kept until they are shown, and a larger number is a slip."""


@dataclass(frozen=True)
class Common:
    """What the options say that all commands on a cluster have, as typed."""

    cluster: str
    profile: str | None
    throughputs: Path | None
    policy_specs: tuple[str, ...]
    settings: tuple[str, ...]
    constraint_files: tuple[Path, ...]
    renames: tuple[str, ...]
    store: Path | None
    allow_unknown_types: bool
    round_seconds: float
    form: str | None
    out: Path | None


@dataclass(frozen=True)
class Request(Common):
    """What the options of `problem_options` say, as typed."""

    jobs_file: Path
    whole_gangs: bool


@dataclass(frozen=True)
class Inputs:
    """What the files and options say, read and checked; cluster: the part of it whose speeds are known."""

    jobs: gp.JobSet
    cluster: gp.Cluster
    profile: gp.Profile
    whole_gangs: bool

    @property
    def unused(self) -> dict[str, dict[str, int]]:
        """What JSON tells of GPUs that are left out (--allow-unknown-types), nothing where there are none."""
        gpus = {name: count for name, count in self.cluster.left_out.items() if count}
        return {"unused_gpus": gpus} if gpus else {}

    def problem(self, *, sharing: bool = False, min_gain: float = 1.0) -> gp.AllocationProblem:
        """Return the allocation problem of all jobs together, at time 0; sharing, min_gain: as of `from_jobs`."""
        return gp.AllocationProblem.from_jobs(
            self.jobs, self.cluster, self.profile, whole_gangs=self.whole_gangs, sharing=sharing, min_gain=min_gain
        )


def _complete_policy(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gp.GavelWarning)  # nothing may come between the shell and its answers
        return [CompletionItem(name) for name in gp.policy_names() if name.startswith(incomplete)]


def _complete_profile(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
    names = (CompletionItem(name) for name in gp.ThroughputStore().names() if name.startswith(incomplete))
    return [*names, CompletionItem(incomplete, type="file")]


FILE = click.Path(path_type=Path)
Option = Callable[[Callable[..., Any]], Callable[..., Any]]

common_options: tuple[Option, ...] = (
    click.option(
        "--cluster", "-c", required=True, metavar="FILE|SPEC", help="A YAML or JSON file, a CSV node list, or v100:16,p100:8/4."
    ),
    click.option("--profile", metavar="NAME|FILE", shell_complete=_complete_profile, help="Speeds by job type [gavel-osdi20]."),
    click.option("--throughputs", type=FILE, metavar="FILE", help="Speeds by job: a CSV of job_id,<type>,<type>,..."),
    click.option(
        "--policy",
        "-p",
        "policy_specs",
        multiple=True,
        metavar="NAME[,OPTION=VALUE...]",
        shell_complete=_complete_policy,
        help="Or package.module:Class; may be given several times to compare [max_min_fairness].",
    ),
    click.option("--set", "settings", multiple=True, metavar="OPTION=VALUE", help="Set an option of every policy that has it."),
    click.option(
        "--constraints",
        "constraint_files",
        multiple=True,
        type=FILE,
        metavar="FILE",
        help="What every policy must keep: a YAML or JSON file; may be given several times.",
    ),
    click.option("--map-accelerator", "renames", multiple=True, metavar="OLD=NEW", help="Rename an accelerator of the cluster."),
    click.option("--allow-unknown-types", is_flag=True, help="Leave GPUs unused whose type has no speeds, which is an error else."),
    click.option("--store", type=FILE, metavar="FILE", help="Where imported profiles are kept."),
)
round_option: Option = click.option(
    "--round-seconds", type=click.FloatRange(0, 1e9, min_open=True), default=360.0, show_default=True, metavar="S"
)
output_options: tuple[Option, ...] = (
    click.option("--json", "form", flag_value="json", help="Print JSON and nothing else."),
    click.option("--csv", "form", flag_value="csv", help="Print CSV and nothing else."),
    click.option("--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write there instead."),
)
OPTIONS: tuple[Option, ...] = (
    click.argument("jobs_file", metavar="JOBS", type=FILE),
    *common_options,
    round_option,
    click.option(
        "--whole-gangs/--no-whole-gangs", default=True, help="Promise what whole gangs on the nodes can use [yes], or as published."
    ),
    *output_options,
)


def bundled(kind: type[Any], options: Iterable[Option]) -> Option:
    """Return a decorator that gives a command these options, as one record of this kind, a dataclass."""

    def decorator(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def taking_options(**given: Any) -> None:
            command(kind(**{field.name: given.pop(field.name) for field in fields(kind)}), **given)

        wrapped: Callable[..., Any] = taking_options
        for option in reversed(list(options)):
            wrapped = option(wrapped)
        return wrapped

    return decorator


problem_options: Option = bundled(Request, OPTIONS)
"""Gives a command the options that name jobs, cluster, throughputs, policies and output, as one `Request`."""


def load(request: Request) -> Inputs:
    """Read jobs, cluster and profile; faults of all three come together."""
    with together() as attempt:
        jobs = attempt(lambda: gp.JobSet.from_file(request.jobs_file))
        cluster = attempt(lambda: cluster_of(request))
        profile = attempt(lambda: profile_of(request))
    known = cluster.known_to(profile, allow_unknown_types=request.allow_unknown_types)
    return Inputs(jobs, known, profile, request.whole_gangs)


def cluster_of(request: Common) -> gp.Cluster:
    """Return the cluster that --cluster names, with the names of --map-accelerator."""
    text = request.cluster
    if Path(text).suffix not in SUFFIXES and not Path(text).exists():
        cluster = gp.Cluster.from_inline(text)
    else:
        cluster = gp.Cluster.from_file(text)
    return cluster.renamed(assignments(request.renames, "--map-accelerator", "OLD=NEW"))


def profile_of(request: Common) -> gp.Profile:
    """Return what --profile or --throughputs names."""
    if request.profile is not None and request.throughputs is not None:
        raise click.UsageError("--profile and --throughputs both say how fast jobs run; give one of them")
    if request.throughputs is not None:
        return gp.ThroughputProfile.from_matrix(request.throughputs)
    name = request.profile or DEFAULT_PROFILE
    if Path(name).suffix in {".csv", ".json"}:
        return gp.ThroughputProfile.from_file(name)
    return gp.ThroughputStore(request.store).load(name)


def _assignment(text: str, option: str, form: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name.strip() and equals and value.strip()):
        raise click.UsageError(f"{option} {text!r} is not of the form {form}")
    return name.strip(), value.strip()


def assignments(texts: Iterable[str], option: str, form: str) -> dict[str, str]:
    """Return {name: value} of texts such as NAME=VALUE; option, form: how messages call it and what it should be."""
    found: dict[str, str] = {}
    for name, value in (_assignment(text, option, form) for text in texts):
        if found.setdefault(name, value) != value:
            raise click.UsageError(f"{option} gives {name!r} twice, as {found[name]!r} and as {value!r}")
    return found


def policies_of(request: Common) -> list[gp.Policy]:
    """Return the policies that --policy, --set and --constraints name; each --set must be an option of at least one of them."""
    shared = assignments(request.settings, "--set", "OPTION=VALUE")
    specs = request.policy_specs or ("max_min_fairness",)
    names = [spec.split(",")[0].strip() for spec in specs]
    known = [gp.policy_options(find_policy(name)) for name in names]
    everywhere = {option for options in known for option in options}
    policies = []
    for spec, name, options in zip(specs, names, known, strict=True):
        own = assignments(spec.split(",")[1:], "--policy", "NAME,OPTION=VALUE")
        applied = {option: value for option, value in shared.items() if option in options or option not in everywhere}
        policies.append(gp.resolve_policy(name, **(applied | own)))
    return constrained(policies, request.constraint_files)


def import_solver(policies: Iterable[gp.Policy]) -> None:
    """Import what programs need before the clock of the first policy starts, if any of them needs it."""
    solving = [policy for policy in policies if not isinstance(policy, gp.OrderedPolicy | gp.FormulaPolicy)]
    if solving:
        importlib.import_module("highspy")
        importlib.import_module("scipy.sparse")
    if not all(policy.family == "demand" for policy in solving):  # whose programs are put together without cvxpy
        importlib.import_module(gp.Program.__module__)


@contextmanager
def warnings_shown() -> Iterator[None]:
    """Print our own warnings to standard error as they come, in one line each and once; leave others alone."""
    shown = warnings.showwarning
    said: set[str] = set()

    def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        if not issubclass(category, gp.GavelWarning):
            shown(message, category, *rest, **more)
        elif str(message) not in said:
            said.add(str(message))
            click.echo(f"warning: {message}", err=True)

    with warnings.catch_warnings():
        warnings.simplefilter("always", gp.GavelWarning)
        warnings.showwarning = show
        yield
