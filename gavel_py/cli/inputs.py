"""Options that several commands share, and the policies, jobs, clusters, profiles and constraints made from them.

A command declares its options as the fields of a dataclass (`option`, `argument`) and receives an instance (`takes_options`).
`Common` has the options of all commands that solve for a cluster, `ProblemOptions` those of a problem of jobs, which `load` reads
into `Inputs`.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click
from click.shell_completion import CompletionItem

import gavel_py as gp
from gavel_py.cli import estimates, remember_jobs
from gavel_py.cli.accounting import is_endless
from gavel_py.cli.files import InputFile, OutputFile, with_names
from gavel_py.cli.output import counted, number
from gavel_py.cli.tables import line_width, listed, table_text
from gavel_py.cli.usage import refuse
from gavel_py.errors import InputError, together

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

OPTIONS = "Options"
GROUPS = (
    *(
        "Input",
        "Policy",
        "Jobs",
        "Job types",
        "Changes",
        "Model",
        "Rounds",
        "Failures",
        "What if",
        "Training jobs",
        "Search",
        "Replay",
    ),
    *("Run", "Output", OPTIONS),
)
"""Headings of groups of options in the help of commands, in order."""

FILE, INPUT, INPUT_OR_TEXT, TRACE = OutputFile(), InputFile(), InputFile(as_text=True), InputFile(suffix="")
"""Parameter types: a file to write; a file to read, a file or other text, and a trace, whose format is recognised by content."""

PROFILE: Mapping[str, Any] = {"type": INPUT_OR_TEXT, "metavar": "NAME|FILE[+...]"}


class Duration(click.FloatRange):
    """The type of a parameter in seconds, which may be a duration such as 2d4h."""

    name = "number of seconds, or duration such as 2d4h"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = gp.seconds_in(value) if isinstance(value, str) else None
        return super().convert(value if seconds is None else seconds, param, ctx)


def date(text: str) -> datetime:
    """Return the date of an option, in the time zone of this machine if it names none."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a date such as 2026-12-01T08:00+01:00") from None


SECONDS = Duration(0, 10**9, min_open=True)
SEED: Mapping[str, Any] = {"type": click.IntRange(min=0), "default": 0, "show_default": True, "metavar": "N"}
STORE: Mapping[str, Any] = {
    "type": INPUT_OR_TEXT,
    "metavar": "FILE|URL",
    "help": "Store of profiles: a file, or postgresql://user@host/database.",
}
JSON: Mapping[str, Any] = {"is_flag": True, "help": "Print JSON and nothing else."}

IGNORE: Mapping[str, Any] = {
    "metavar": "NAME,...",
    "help": "Unknown columns of the file to ignore; may be given several times.",
}

NOW: Mapping[str, Any] = {
    "type": date,
    "metavar": "TIME",
    "help": "When `deadline` of jobs counts from, as 2026-12-01T08:00+01:00 [the clock].",
}

ALLOW_UNKNOWN: Mapping[str, Any] = {"is_flag": True, "help": "Leave GPUs of types without speeds unused instead of failing."}


def ignored(texts: Iterable[str]) -> list[str]:
    """Return the names of --ignore-columns."""
    return [name.strip() for text in texts for name in text.split(",") if name.strip()]


def argument(metavar: str, **settings: Any) -> Any:
    """Declare a field of a record of options as a positional argument."""
    return field(metadata={"argument": settings | {"metavar": metavar}})


def option(*names: str, **settings: Any) -> Any:
    """Declare a field of a record of options as an option that --help-all shows.

    names: the heading of its group in the help, if the first one has no dash, then the names of the option, by default that of
    the field; other arguments as for `click.option`.
    """
    group, names = (OPTIONS, names) if not names or names[0].startswith("-") else (names[0], names[1:])
    return field(metadata={"names": names, "option": settings, "group": group})


def main_option(*names: str, **settings: Any) -> Any:
    """Declare a field as `option` does, for one of the few options that --help shows, too."""
    return field(metadata={**option(*names, **settings).metadata, "main": True})


DECLARED: Mapping[str, dict[str, dict[str, Any]]] = json.loads(Path(__file__).with_name("options.json").read_text(encoding="utf-8"))
"""{command: {name of a field of `gp.SchedulerOptions`: its option}}; "slurm settings", "simulation" and "generate" are
those of `gp.SlurmSettings`, `gp.SimulationOptions` and `gp.TraceOptions`.

From a file that follows from the records (.ci/option_stubs.py), since help and completion need no library that the records need.
"""

OF_PROBLEM = tuple(name for name, declared in DECLARED["solve"].items() if declared["group"] == "Policy")
"""Options of the scheduler that are arguments of `AllocationProblem.from_jobs`."""

FLAGS = {name: each["names"][0].partition("/--")[2] for name, each in DECLARED["problem"].items() if each["names"]}
"""{option of all commands on a problem that is a pair of flags: the second one}."""

DIRECTORY = click.Path(path_type=Path, file_okay=False)


def declared_option(command: str, name: str) -> dict[str, Any]:
    """Return the settings of an option of the command line from the declaration of its field."""
    own = {"Directory": DIRECTORY, "File": FILE}
    in_seconds = {"FloatRange": Duration} if name.endswith("_seconds") else {}
    return {
        key: value if key != "type" else own.get(value[0]) or in_seconds.get(value[0], getattr(click, value[0]))(**value[1])
        for key, value in DECLARED[command][name]["option"].items()
    }


def declared_options(command: str, *, main: Collection[str] = (), **names: str) -> Any:
    """Declare a field of a record of options as all that are declared for a command: a dictionary of those given.

    main: those that --help shows, too; names: of those that have another name than the field.
    """
    return field(
        metadata={
            "fields": {
                name: (main_option if name in main else option)(
                    declared["group"], *([names[name]] if name in names else declared["names"]), **declared_option(command, name)
                ).metadata
                for name, declared in DECLARED[command].items()
            }
        }
    )


class Command(click.Command):
    """A command with many options: --help shows the main ones by group, --help-all shows all of them."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), HELP_ALL]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        declared: Mapping[str, Mapping[str, Any]] = self.callback.declared  # type: ignore[union-attr]
        groups: dict[str, list[tuple[str, str]]] = {group: [] for group in GROUPS}
        for parameter in (each for each in self.get_params(ctx) if isinstance(each, click.Option)):
            settings = declared.get(parameter.name or "", {"main": True})
            record = parameter.get_help_record(ctx)
            if record is not None and (ctx.meta.get(HELP_ALL.name) or settings.get("main")):
                groups[settings.get("group", OPTIONS)].append(record)
        for group, records in groups.items():
            if records:
                with formatter.section(group):
                    formatter.write_dl(records)


def _show_all(ctx: click.Context, parameter: click.Parameter, is_given: bool) -> None:
    if is_given and not ctx.resilient_parsing:
        ctx.meta[parameter.name] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


HELP_ALL = click.Option(
    ["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=_show_all, help="Show all options and exit."
)


def _parameters(name: str, hint: Any, declared: Mapping[str, Any]) -> Iterator[Decorator]:
    """Yield the click parameters of a field, from its declaration and its type."""
    if "argument" in declared:
        yield click.argument(name, **declared["argument"])
    if "option" in declared:
        names = [*declared["names"], name]
        if not any(each.startswith("--") for each in names):
            names.insert(0, f"--{name.replace('_', '-')}")
        inferred: dict[str, Any] = {"is_flag": True} if hint is bool else {}
        if get_origin(hint) is tuple and Ellipsis in get_args(hint):
            inferred = {"multiple": True}
        elif choices := [each for part in (hint, *get_args(hint)) if get_origin(part) is Literal for each in get_args(part)]:
            inferred = {"type": click.Choice(choices)}
        yield click.option(*names, **inferred | declared["option"])


def takes_options(record: type[Any]) -> Decorator:
    """Return a decorator that gives a command the options of a dataclass, arguments first, and passes an instance of it.

    A field of type bool is a flag, one of type tuple[X, ...] may be given several times, one of type Literal[...] is a choice.
    """
    ordered = sorted(fields(record), key=lambda each: "argument" not in each.metadata)
    hints = get_type_hints(record)
    within = {each.name: each.metadata.get("fields", {each.name: each.metadata}) for each in ordered}
    declared = {name: (hints[own], metadata) for own, parts in within.items() for name, metadata in parts.items()}

    def decorator(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_record(**given: Any) -> None:
            source, default = click.get_current_context().get_parameter_source, click.core.ParameterSource.DEFAULT
            for name in (each.name for each in ordered if "fields" in each.metadata):
                values = [(part, given.pop(part)) for part in within[name]]
                given[name] = {part: value for part, value in values if source(part) is not default}
            command(record(**{each.name: given.pop(each.name) for each in fields(record)}), **given)

        with_record.declared = {name: metadata for name, (_, metadata) in declared.items()}  # type: ignore[attr-defined]
        decorated: Callable[..., Any] = with_record
        for parameter in reversed([made for name, each in declared.items() for made in _parameters(name, *each)]):
            decorated = parameter(decorated)
        return decorated

    return decorator


def constrained(policies: list[gp.Policy], files: Iterable[Path]) -> list[gp.Policy]:
    """Return the policies with the constraints of these files added. Raises one `InputError` with the faults of all files."""
    with together() as attempt:
        read = [attempt(partial(gp.read_constraints, file)) for file in files]
    constraints = [constraint for found in read for constraint in found]
    return [dataclasses.replace(each, constraints=(*each.constraints, *constraints)) for each in policies] if read else policies


HERE = ""
"""Entry of `sys.path` for the current directory."""


def find_policy(name: str) -> type[gp.Policy]:
    """Return the class of a policy; the module of a package.module:Class may also be in the current directory."""
    find = gp.policy_class  # looked up first, so that files in the current directory cannot shadow its imports
    if ":" not in name:
        return find(name)
    sys.path.insert(0, HERE)
    try:
        return find(name)
    finally:
        sys.path.remove(HERE)
        allow_imports_from_here(name)  # for imports inside the methods of the policy


def allow_imports_from_here(name: str | None) -> None:
    """Allow package.module:name to be found in the current directory, after all other places, so that it shadows nothing."""
    if name is not None and ":" in name and HERE not in sys.path:
        sys.path.append(HERE)


DEFAULT_PROFILE = "gavel-osdi20"
SUFFIXES = {".yaml", ".yml", ".json", ".csv"}

MAX_ROUNDS = 1_000_000
"""Limit of --rounds, above any intended value, since all rounds are kept in memory until they are printed."""


def _complete_policy(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gp.GavelWarning)  # a warning would appear among the completions
        return [CompletionItem(name) for name in gp.policy_names() if name.startswith(incomplete)]


def _complete_profile(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
    names: tuple[str, ...] = ()
    with suppress(gp.InputError):  # a message would appear among the completions
        names = gp.ThroughputStore().names()
    return [*(CompletionItem(name) for name in names if name.startswith(incomplete)), CompletionItem(incomplete, type="file")]


POLICY: Mapping[str, Any] = {"metavar": "NAME[,OPTION=VALUE...]", "shell_complete": _complete_policy}

ONE_POLICY: Mapping[str, Any] = {**POLICY, "help": "Policy, or package.module:Class [max_min_fairness]."}
"""For commands that show the answer of one policy."""


class InRounds:
    """A command with options of the scheduler, which it declares by `declared_options`."""

    given_options: dict[str, Any]

    @functools.cached_property
    def rounds(self) -> gp.SchedulerOptions:
        """The options of the scheduler."""
        return gp.SchedulerOptions(**self.given_options)


@dataclass(frozen=True)
class Common(InRounds):
    """Options of all commands on a cluster, as typed."""

    cluster: str = main_option(
        "Input",
        "-c",
        required=True,
        type=INPUT_OR_TEXT,
        metavar="FILE|SPEC",
        help="YAML or JSON file, CSV node list, or GPUs as in v100:16,p100:8/4.",
    )
    profile: str | None = main_option(
        "Input",
        **PROFILE,
        shell_complete=_complete_profile,
        help="Speeds by job type; of several profiles, earlier ones take precedence [gavel-osdi20].",
    )
    throughputs: Path | None = main_option(
        "Input", type=INPUT, metavar="FILE", help="CSV of speeds by job: job_id,<type>,<type>,..."
    )
    estimate: str | None = main_option("Input", **estimates.ESTIMATE)
    confidence: estimates.Confidence = option("Input", **estimates.CONFIDENCE)
    extrapolate: bool = option("Input", **estimates.EXTRAPOLATE)
    policy_specs: tuple[str, ...] = main_option(
        "Policy", "--policy", "-p", **POLICY, help="Policy, or package.module:Class; several are compared [max_min_fairness]."
    )
    settings: tuple[str, ...] = option("Policy", "--set", metavar="OPTION=VALUE", help="Set an option of every policy that has it.")
    constraint_files: tuple[Path, ...] = main_option(
        "Policy",
        "--constraints",
        type=INPUT,
        metavar="FILE",
        help="YAML or JSON file of constraints on every policy; may be given several times.",
    )
    renames: tuple[str, ...] = option("Input", "--map-accelerator", metavar="OLD=NEW", help="Rename an accelerator of the cluster.")
    allow_unknown_types: bool = option("Input", **ALLOW_UNKNOWN)
    store: str | None = option("Input", **STORE)


@dataclass(frozen=True)
class Output:
    """Options for format and destination of the output."""

    as_json: bool = main_option("Output", "--json", help="Print JSON and nothing else.")
    as_csv: bool = option("Output", "--csv", help="Print CSV and nothing else.")
    out: Path | None = main_option("Output", "-o", type=FILE, metavar="FILE", help="Write to this file instead of the terminal.")

    def __post_init__(self) -> None:
        refuse((self.as_json and self.as_csv, "--json and --csv are two formats of the same output; give only one of them"))

    @property
    def form(self) -> Literal["json", "csv"] | None:
        """The format of the output, None for text."""
        return "json" if self.as_json else "csv" if self.as_csv else None


DEFAULT_MECHANISM, DIRECT = "deficit", "direct"


def run_label(policy: gp.Policy, mechanism: str) -> str:
    """Return the policy with its options and any mechanism but the default; only the mechanism if it uses no policy."""
    if mechanism == DIRECT:
        return f"mechanism {mechanism}"
    return policy.label if mechanism == DEFAULT_MECHANISM else f"{policy.label}, mechanism {mechanism}"


def check_mechanism(mechanism: str, specs: Sequence[str]) -> None:
    """Allow imports of a mechanism; raise `UsageError` for several policies with direct, and warn of one, which has no effect."""
    allow_imports_from_here(mechanism)
    text = "--mechanism direct chooses jobs without a policy"
    refuse((mechanism == DIRECT and len(specs) > 1, f"{text}; leave out --policy"))
    if mechanism == DIRECT and specs:
        click.echo(f"warning: {text}; --policy {specs[0]} has no effect", err=True)


@dataclass(frozen=True)
class Problem(Common):
    """Options that describe a problem of jobs on a cluster."""

    jobs_file: Path = argument("JOBS", type=INPUT)
    ignore_columns: tuple[str, ...] = option("Input", **IGNORE)
    now: datetime | None = option("Input", **NOW)
    given_options: dict[str, Any] = declared_options("problem")


@dataclass(frozen=True)
class ProblemOptions(Output, Problem):
    """Options of a command on a problem of jobs. Fields of the last base class come first, in --help too."""


@dataclass(frozen=True)
class Inputs:
    """Jobs, cluster and profile, read and validated; the cluster has only accelerator types that are in the profile."""

    jobs: gp.JobSet
    cluster: gp.Cluster
    profile: gp.Profile
    options: gp.SchedulerOptions

    def estimates(
        self, problem: gp.AllocationProblem | None = None, allocation: gp.Allocation | None = None
    ) -> list[gp.Estimate] | None:
        """Return the estimates behind the throughputs of a problem, by default that of all jobs; None without --estimate.

        allocation: adds the estimates of the pairs in it.
        """
        if not estimates.has_estimates(self.profile):
            return None
        problem = self.problem() if problem is None else problem
        found = estimates.estimates_of(self.profile, dict(enumerate(self.jobs)), problem)
        return [*(found or ()), *estimates.pair_estimates(self.profile, self.jobs, allocation)]

    @property
    def unused(self) -> dict[str, dict[str, int]]:
        """The entry of the JSON output for GPUs of unknown type (--allow-unknown-types), empty if there are none."""
        gpus = {name: count for name, count in self.cluster.left_out.items() if count}
        return {"unused_gpus": gpus} if gpus else {}

    def problem(self, *, sharing: bool = False) -> gp.AllocationProblem:
        """Return the allocation problem of all jobs at time 0, with the options but for `sharing`: whether pairs may share GPUs.

        Raises `InputError` for sharing with a profile that has no throughputs of pairs.
        """
        return problem_of(
            self.jobs, self.cluster, self.profile, **self.options.changed(sharing=sharing).model_dump(include={*OF_PROBLEM})
        )


def load(request: ProblemOptions) -> Inputs:
    """Read jobs, cluster and profile. Raises one `InputError` with the faults of all three."""
    with unless_swapped(request.jobs_file, request.cluster), together() as attempt:
        jobs = attempt(lambda: gp.JobSet.from_file(request.jobs_file, ignore=ignored(request.ignore_columns), now=request.now))
        cluster = attempt(lambda: cluster_of(request))
        profile = attempt(lambda: profile_of(request))
    remember_jobs(jobs)
    _warn_of_services(jobs)
    if request.extrapolate:
        profile = estimates.with_gangs(profile, jobs)
    known = cluster.known_to(profile, allow_unknown_types=request.allow_unknown_types)
    return Inputs(jobs, known, profile, request.rounds)


SERVICE = re.compile(r"(?<![a-z])(serve[rs]?|serving|services?|inference|endpoints?|vllm|triton)(?![a-z])", re.IGNORECASE)
"""Words in the names of jobs and their types that services have."""


def _warn_of_services(jobs: Iterable[gp.Job]) -> None:
    """Warn of jobs that look like services: without an end, and named like one."""
    found = [each.job_id for each in jobs if is_endless(each) and (SERVICE.search(each.job_id) or SERVICE.search(each.job_type))]
    if found:
        warnings.warn(
            f"{listed(found, line_width())}: without an end, and named like a service; --services plans replicas for requests",
            gp.GavelWarning,
            stacklevel=2,
        )


@contextmanager
def unless_swapped(jobs: Path, cluster: str) -> Iterator[None]:
    """Raise one fault instead of an `InputError` of the block if the jobs are a cluster, and the cluster is a file of jobs."""
    try:
        yield
    except InputError as error:
        try:
            cluster_from(str(jobs), ())
            gp.read_trace(cluster)
        except InputError:
            raise error from None
        raise InputError(f"{jobs} is a cluster, and {cluster} has jobs; write the jobs first, and --cluster {jobs}") from None


def cluster_of(request: Common) -> gp.Cluster:
    """Return the cluster of --cluster, with accelerators renamed by --map-accelerator."""
    return cluster_from(request.cluster, request.renames)


def cluster_from(text: str, renames: Iterable[str]) -> gp.Cluster:
    """Return the cluster in a file or a text, with accelerators renamed; the arguments are --cluster and --map-accelerator."""
    if Path(text).suffix not in SUFFIXES and not Path(text).exists():
        cluster = gp.Cluster.from_inline(text)
    else:
        cluster = gp.Cluster.from_file(text)
    return cluster.renamed(assignments(renames, "--map-accelerator", "OLD=NEW"))


def detailed(cluster: gp.Cluster, details: Iterable[str], option: str, form: str, field: str) -> gp.Cluster:
    """Return the cluster with a field of its accelerator types from an option, whose syntax is `form`."""
    types = {each.name: each for each in cluster.accelerator_types}
    for typed, value in assignments(details, option, form).items():
        name = gp.same_accelerator(typed, types)
        if name is None:
            raise click.UsageError(f"{option}: the cluster has no {typed!r}, only {', '.join(types)}")
        types[name] = gp.AcceleratorType(**types[name].model_dump() | {field: value})
    return gp.Cluster(cluster.nodes, types.values())


def profile_of(request: Common) -> gp.Profile:
    """Return the profile of --profile or --throughputs, with the estimates of --estimate."""
    estimates.check_options(request.estimate, request.confidence)
    refuse(
        (
            request.profile is not None and request.throughputs is not None,
            "--profile and --throughputs both define the speeds of jobs; give only one of them",
        )
    )
    if request.throughputs is not None:
        click.get_current_context().meta[estimates.BY_JOB] = True
        return estimates.with_estimates(gp.ThroughputProfile.from_matrix(request.throughputs), request.estimate, None)
    return estimates.with_estimates(find_profile(request.profile, request.store), request.estimate, request.confidence)


def find_profile(name: str | None, store: str | None) -> gp.ThroughputProfile:
    """Return the profile in a file or with a name in the store, or several combined; None for the default profile."""
    return gp.ThroughputStore(store).find(name or DEFAULT_PROFILE)


def assignments(texts: Iterable[str], option: str, form: str) -> dict[str, str]:
    """Return {name: value} from texts such as NAME=VALUE. option, form: name and syntax of the option, for messages."""
    found: dict[str, str] = {}
    for text in texts:
        name, _, value = (part.strip() for part in text.partition("="))
        earlier = found.setdefault(name, value)
        refuse(
            (not (name and value), f"{option} {text!r} is not of the form {form}"),
            (earlier != value, f"{option} gives {name!r} twice, as {earlier!r} and as {value!r}"),
        )
    return found


def policies_of(specs: Sequence[str], settings: Iterable[str], constraint_files: Iterable[Path]) -> list[gp.Policy]:
    """Return the policies of --policy, --set and --constraints; each --set must be an option of at least one of them."""
    shared = assignments(settings, "--set", "OPTION=VALUE")
    specs = specs or ("max_min_fairness",)
    names = [spec.split(",")[0].strip() for spec in specs]
    known = [gp.policy_options(find_policy(name)) for name in names]
    everywhere = {option for options in known for option in options}
    policies = []
    for spec, name, options in zip(specs, names, known, strict=True):
        own = assignments(spec.split(",")[1:], "--policy", "NAME,OPTION=VALUE")
        applied = {option: value for option, value in shared.items() if option in options or option not in everywhere}
        policies.append(gp.resolve_policy(name, **(applied | own)))
    return constrained(policies, constraint_files)


def import_solver(policies: Iterable[gp.Policy]) -> None:
    """Import the solver if one of the policies needs it, so that the time of the first solve does not include the import."""
    solving = [policy for policy in policies if not isinstance(policy, gp.OrderedPolicy | gp.FormulaPolicy)]
    if solving:
        importlib.import_module("highspy")
    if not all(policy.family == "demand" or (isinstance(policy, gp.SumPolicy) and policy.is_linear) for policy in solving):
        importlib.import_module(gp.Program.__module__)  # imports cvxpy


NAMES_FOUND = "GPU names: {} found in the profile under other names; gavel -v lists them"


@contextmanager
def warnings_shown() -> Iterator[None]:
    """Print each `GavelWarning` once, as a line on standard error; other warnings are not affected.

    Names of GPUs that were found under others are counted in one line after the answer; they are listed with -v and before errors.
    """
    show_other = warnings.showwarning
    context = click.get_current_context(silent=True)
    listed = context is None or context.find_root().params.get("verbose", 0) > 0
    printed: set[str] = set()
    names: dict[str, gp.NameWarning] = {}

    def print_once(text: str) -> None:
        if text not in printed:
            printed.add(text)
            click.echo(with_names(f"warning: {text}"), err=True)

    def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        if not issubclass(category, gp.GavelWarning):
            show_other(message, category, *rest, **more)
        elif isinstance(message, gp.NameWarning) and not listed:
            names[str(message)] = message
        else:
            print_once(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always", gp.GavelWarning)
        warnings.showwarning = show
        try:
            yield
        except BaseException:
            for text in names:
                print_once(text)
            raise
    if names and context is not None:  # without a context, they have been listed
        counted = context.meta.setdefault(__name__, {})
        if not counted:
            context.call_on_close(lambda: click.echo(NAMES_FOUND.format(sum(each.count for each in counted.values())), err=True))
        counted |= names


GAIN_NOTE = "gain: combined work of both, relative to one of them alone\n"

MAX_PAIRS = 10
"""Maximum number of pairs listed, by GPUs; the JSON output has all of them."""


def check_pairs(options: gp.SchedulerOptions) -> None:
    """Raise `UsageError` for an option of pairs without --sharing."""
    refuse(
        *(
            (name in options.model_fields_set and not options.sharing, f"--{name.replace('_', '-')} {purpose}; add --sharing")
            for name, purpose in options.of_sharing.items()
        )
    )


def problem_of(
    jobs: Iterable[gp.Job], cluster: gp.Cluster, profile: gp.Profile, *, sharing: bool, **options: Any
) -> gp.AllocationProblem:
    """Return `AllocationProblem.from_jobs`. Raises `InputError` for sharing with a profile that has no throughputs of pairs."""
    problem = gp.AllocationProblem.from_jobs(jobs, cluster, profile, sharing=sharing, **options)
    if sharing and problem.pairs is None:
        raise gp.InputError(f"profile {profile.name!r} has no speeds of jobs that share GPUs, which --sharing needs")
    return problem


def sharing_text(label: str, allocation: gp.Allocation, num_gpus: Mapping[str, float]) -> str:
    """Return a table of the pairs with the most GPU time, and their total number; label: the policy, "" if there is only one."""
    pairs = allocation.pairs
    heading = f" under {label}" if label else ""
    if pairs is None or not len(pairs):
        return f"No two jobs share GPUs{heading}.\n"
    found = [
        (num_gpus[each["jobs"][0]] * each["time_fraction"], each)
        for each in pairs.to_list(allocation.job_ids, allocation.accelerator_types)
    ]
    largest = sorted(found, key=lambda pair: -pair[0])[:MAX_PAIRS]
    rows = [[*each["jobs"], each["accelerator"], f"{each['time_fraction']:.1%}", f"{each['gain']:.2f}"] for _, each in largest]
    table = table_text(f"Jobs that share GPUs{heading}", ["job", "with", "on", "time", "gain"], rows, text_columns=3)
    more = f", of which the first {MAX_PAIRS} are shown" if len(pairs) > MAX_PAIRS else ""
    total = f"{counted(len(pairs), 'pair')} on {number(sum(gpus for gpus, _ in found))} GPUs on average{more}\n"
    return f"{table}{total}{GAIN_NOTE}"
