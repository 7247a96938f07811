"""Options that several commands share, and how policies, jobs, cluster, profile and constraints are made from them.

Options of a command arrive as one dataclass (`bundled`): `Common` for a cluster with policies, `Request` for a problem of jobs,
which `load` turns into `Inputs`. Policies may be named package.module:Class, and the current directory counts too, as in other
commands (`find_policy`). Constraints are read from files (`constrained`), and what became of them is a table (`constraints_text`),
as are the jobs that share GPUs (`sharing_text`).
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

import gavel_py as gp
from gavel_py.cli.output import counted, number, table_text
from gavel_py.errors import together

Option = Callable[[Callable[..., Any]], Callable[..., Any]]

MOST_SHOWN = 5
"""Jobs listed of those that miss a constraint; the JSON has them all."""


def constrained(policies: list[gp.Policy], files: Iterable[Path]) -> list[gp.Policy]:
    """Return the policies with the constraints of all these files beside their own; faults of all files come together."""
    with together() as attempt:
        read = [attempt(partial(gp.read_constraints, file)) for file in files]
    constraints = [constraint for found in read for constraint in found]
    return [dataclasses.replace(each, constraints=(*each.constraints, *constraints)) for each in policies] if read else policies


def constraints_text(allocations: Iterable[tuple[str, gp.Allocation]]) -> str:
    """Return a table of what became of the constraints, with the policy before each where there are several; nothing for none."""
    told = [(label, each) for label, allocation in allocations for each in allocation.constraints]
    if not told:
        return ""
    columns = ["constraint", "kept", "missed by", "loses", "worth of a unit"]
    rows = [[each.constraint, *_cells(each)] for _, each in told]
    notes = [f"{each.constraint}: {_jobs(each)}\n" for _, each in told if each.jobs]
    if len({label for label, _ in told}) > 1:
        columns.insert(0, "policy")
        rows = [[label, *row] for (label, _), row in zip(told, rows, strict=True)]
        notes = [f"{label}: {each.constraint}: {_jobs(each)}\n" for label, each in told if each.jobs]
    return table_text("Constraints", columns, rows, text_columns=len(columns) - 3) + "".join(notes)


def _cells(outcome: gp.ConstraintOutcome) -> list[str]:
    """Whether it is kept, by how much it is missed, what the objective loses by that, and the price of a limit."""
    lost = None if outcome.kept else (outcome.penalty or 0.0) * outcome.missed_by
    missed = None if outcome.kept else outcome.missed_by
    return ["yes" if outcome.kept else "no", number(missed), number(lost), number(outcome.price)]


def _jobs(outcome: gp.ConstraintOutcome) -> str:
    """The jobs that miss it most."""
    worst = sorted(outcome.jobs.items(), key=lambda item: -item[1])
    more = f" and {len(worst) - MOST_SHOWN} more" if len(worst) > MOST_SHOWN else ""
    return "missed by " + ", ".join(f"{job} ({part:.1%})" for job, part in worst[:MOST_SHOWN]) + more


HERE = ""
"""The current directory in `sys.path`."""


def find_policy(name: str) -> type[gp.Policy]:
    """Return the class of a policy; one named package.module:Class may also stand in a module in the current directory."""
    find = gp.policy_class  # what it needs is imported before files in the current directory can take its place
    if ":" not in name:
        return find(name)
    sys.path.insert(0, HERE)
    try:
        return find(name)
    finally:
        sys.path.remove(HERE)
        if HERE not in sys.path:
            sys.path.append(HERE)  # for what the user's methods import when they run; all else comes first


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


sharing_option = click.option(
    "--sharing", is_flag=True, help="Let jobs share GPUs two by two, where the profile knows how fast they are then."
)

min_gain_option = click.option(
    "--min-gain",
    type=click.FloatRange(1.0),
    metavar="G",
    help="With --sharing: only pairs that do more than G times what one of them does alone [1].",
)

MOST_PAIRS = 10
"""Pairs that are listed, those with the most GPUs; the JSON has them all."""


def min_gain_of(sharing: bool, min_gain: float | None) -> float:
    """Return the least gain of pairs; raises `UsageError` where nobody is to share."""
    if min_gain is not None and not sharing:
        raise click.UsageError("--min-gain says which pairs of jobs may share GPUs; give --sharing with it")
    return min_gain or 1.0


def check_known(profile: gp.Profile, pairs: object) -> None:
    """Raise unless something is known of pairs: what came of asking the profile."""
    if pairs is None:
        raise gp.InputError(f"profile {profile.name!r} knows no speeds of jobs that share GPUs, which --sharing needs")


def sharing_text(label: str, allocation: gp.Allocation, num_gpus: Mapping[str, float]) -> str:
    """Return the pairs that share the most, and how many there are in all; label: the policy, where there are several."""
    pairs = allocation.pairs
    heading = f" under {label}" if label else ""
    if pairs is None or not len(pairs):
        return f"No two jobs share GPUs{heading}.\n"
    found = [
        (num_gpus[each["jobs"][0]] * each["time_fraction"], each)
        for each in pairs.to_list(allocation.job_ids, allocation.accelerator_types)
    ]
    most = sorted(found, key=lambda pair: -pair[0])[:MOST_PAIRS]
    rows = [[*each["jobs"], each["accelerator"], f"{each['time_fraction']:.1%}", f"{each['gain']:.2f}"] for _, each in most]
    table = table_text(f"Jobs that share GPUs{heading}", ["job", "with", "on", "time", "gain"], rows, text_columns=3)
    more = f", the first {MOST_PAIRS} of them are shown" if len(pairs) > MOST_PAIRS else ""
    told = f"{counted(len(pairs), 'pair')} on {number(sum(gpus for gpus, _ in found))} GPUs on average{more}\n"
    told += "gain: what both do together, in parts of what one of them does alone\n"
    return table + told
