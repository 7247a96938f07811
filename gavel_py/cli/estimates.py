"""Estimated speeds in the commands: their options, the estimates behind an answer, and the sensitivity of an answer to them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeGuard

import click

import gavel_py as gp
from gavel_py.cli.output import SAME_VALUE, counted, gang_text, number
from gavel_py.cli.tables import Column, Columns, columns_text, wrapped
from gavel_py.cli.usage import check_value, refuse
from gavel_py.errors import decimal_hint

METHODS = ("gaussian_process", "additive", "specs")
"""Methods of --estimate; the first is the default."""

SHOWN = 10
"""Maximum number of estimates listed; the JSON output has all of them."""

MISSING = ("has no throughput of", "cannot be used", " is missing, needed by")
"""Parts of messages about throughputs that were not measured but could be estimated."""

HINT = "--estimate fills in speeds that were not measured"

TO_MEASURE = "gavel profiles missing lists what to measure"

BY_JOB = "gavel_py.speeds_by_job"
"""Key of the click context's `meta` if --throughputs gives the speeds, which are then never estimated."""

Confidence = float | Literal["optimistic"] | None

Explore = Literal["optimistic", "median"] | float


class MethodOption(click.Option):
    """An option with an optional value: the next word is its value only if it is one of the choices."""

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Register the option so that a word that is not a choice remains an argument."""
        super().add_to_parser(parser, ctx)
        for name in self.opts:
            found = parser._long_opt[name]
            found.process = self._given_back(found.process, ctx)

    def handle_parse_result(self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]) -> tuple[Any, list[str]]:
        """Raise `BadParameter`, which names the choices, if the next word is neither one of them nor an argument."""
        word = ctx.meta.get(str(self.name))
        if args and word is not None and (word in args or not Path(word).exists()):
            self.type.convert(word, self, ctx)
        return super().handle_parse_result(ctx, opts, args)

    def _given_back(self, process: Any, ctx: click.Context) -> Any:
        def without_value(value: Any, state: Any) -> None:
            if isinstance(value, str) and not self.accepts(value):
                ctx.meta[str(self.name)] = value
                state.rargs.insert(0, value)
                value = self.flag_value
            process(value, state)

        return without_value

    def accepts(self, text: str) -> bool:
        """Return whether a word is meant as the value."""
        return bool(get_close_matches(text, METHODS))


def _confidence(text: str) -> float | str:
    if text == "optimistic":
        return text
    part = number_in(text) or 0.0
    check_value(text, 0 < part < 1, "is neither a probability above 0 and below 1 nor 'optimistic'")
    return part


ESTIMATE: Mapping[str, Any] = {
    "cls": MethodOption,
    "is_flag": False,
    "flag_value": METHODS[0],
    "type": click.Choice(METHODS),
    "metavar": "[METHOD]",
    "help": f"Estimate speeds that were not measured; METHOD is {', '.join(METHODS[:-1])} or {METHODS[-1]} [{METHODS[0]}].",
}

CONFIDENCE: Mapping[str, Any] = {
    "type": _confidence,
    "metavar": "P|optimistic",
    "help": "With --estimate: use the speed that is exceeded with probability P [the median].",
}

EXTRAPOLATE: Mapping[str, Any] = {"is_flag": True, "help": "Estimate the throughputs of gang sizes that the profile lacks."}

OPTIMISTIC, MEDIAN = "optimistic", "median"


def number_in(text: str) -> float | None:
    """Return the value of an option as a number, None if it is not a number."""
    try:
        return None if decimal_hint(text) else float(text)
    except ValueError:
        return None


def _explore(text: str) -> Explore:
    if text in (OPTIMISTIC, MEDIAN):
        return text  # type: ignore[return-value]
    share = number_in(text) or 0.0
    check_value(text, 0 < share < 1, "is neither optimistic, median, nor a share of the GPUs above 0 and below 1")
    return share


class LearnOption(MethodOption):
    """The option --learn, whose value may be left out."""

    def accepts(self, text: str) -> bool:
        """Return whether a word is meant as the value."""
        return number_in(text) is not None or bool(get_close_matches(text, (OPTIMISTIC, MEDIAN)))


def learn_option(text: str) -> Mapping[str, Any]:
    """Return the settings of --learn, with this help."""
    return {
        "cls": LearnOption,
        "is_flag": False,
        "flag_value": OPTIMISTIC,
        "type": _explore,
        "metavar": "[optimistic|median|SHARE]",
        "help": text,
    }


def learner(profile: gp.ThroughputProfile, explore: Explore, store: gp.ThroughputStore | None, name: str) -> gp.ThroughputLearner:
    """Return a learner that starts from the observations of a profile in the store; on an error, warn and start without them."""
    observed: Mapping[Any, gp.ObservedRate] = {}
    try:
        observed = {} if store is None else store.observations(name)
    except gp.UnknownNameError:
        pass  # there are no observations yet
    except gp.InputError as error:
        warnings.warn(f"observed speeds were not read: {error}", gp.GavelWarning, stacklevel=2)
    return gp.ThroughputLearner(profile, explore, observations=observed)


def check_options(method: str | None, confidence: Confidence) -> None:
    """Raise `UsageError` for --confidence without --estimate."""
    refuse((confidence is not None and method is None, "--confidence selects values of estimates; add --estimate"))


def by_type(profile: gp.Profile, option: str) -> gp.ThroughputProfile:
    """Return a profile of speeds by job type. Raises `UsageError` for one by job; option: what needs those by type."""
    if not isinstance(profile, gp.ThroughputProfile):
        raise click.UsageError(f"{option}, but --throughputs gives them by job; omit one")
    return profile


def with_estimates(profile: gp.Profile, method: str | None, confidence: Confidence) -> gp.Profile:
    """Return the profile with the estimates of --estimate, or the profile itself without it."""
    if method is None:
        return profile
    return of_types(by_type(profile, "--estimate estimates speeds by job type"), method, confidence)


def of_types(profile: gp.ThroughputProfile, method: str | None, confidence: Confidence) -> gp.ThroughputProfile:
    """Return `with_estimates` for a profile of speeds by job type."""
    return profile if method is None else profile.with_estimates(method, confidence=confidence)


def with_gangs(profile: gp.Profile, jobs: Iterable[gp.Job]) -> gp.Profile:
    """Return the profile with the gangs of --extrapolate for these jobs; a profile with estimates already has them."""
    known = by_type(profile, "--extrapolate estimates speeds by job type")
    return profile if has_estimates(profile) else gp.extend_profile(known, jobs)


def has_estimates(profile: gp.Profile) -> TypeGuard[gp.EstimatedProfile]:
    """Return whether a profile has estimates."""
    return hasattr(profile, "estimates_of")  # without the import of its class, which takes as long as many solves


def estimates_of(profile: gp.Profile, jobs: Mapping[int, gp.Job], problem: gp.AllocationProblem) -> list[gp.Estimate] | None:
    """Return the estimates on which the throughputs of jobs are based, of gangs that they may have on a type.

    Returns None for a profile without estimates. jobs: by their rows in the problem.
    """
    if not has_estimates(profile):
        return None
    able: dict[tuple[str, float], Any] = {}
    for i, job in jobs.items():
        for size in profile.sizes_of(job):
            key = job.job_type, max(size, 1)
            fits = problem.runnable[i]
            if problem.counts is not None and job.is_elastic:
                fits = fits & problem.counts.able_at(i, size)
            able[key] = able.get(key, False) | fits
    types = problem.accelerator_types
    found = profile.estimates_of(jobs.values(), types)
    return [each for each in found if able[each.entry.job_type, each.entry.num_gpus][types.index(each.entry.accelerator)]]


def pair_estimates(profile: gp.Profile, jobs: Iterable[gp.Job], allocation: gp.Allocation | None) -> dict[gp.Estimate, float]:
    """Return {estimate: average number of GPUs on which a job has this speed beside another one} of the pairs of an allocation."""
    if allocation is None or allocation.pairs is None or not has_estimates(profile):
        return {}
    by_id, held = {job.job_id: job for job in jobs}, dict[gp.Estimate, float]()
    for pair in allocation.pairs.to_list(allocation.job_ids, allocation.accelerator_types):
        first, second = (by_id[job_id] for job_id in pair["jobs"])
        for each in profile.pair_estimates_of([(first, second, pair["accelerator"])]):
            held[each] = held.get(each, 0.0) + first.num_gpus * pair["time_fraction"]
    return held


def json_entry(found: Iterable[gp.Estimate] | None) -> dict[str, list[dict[str, Any]]]:
    """Return the entry of the JSON output for estimates, empty for None."""
    if found is None:
        return {}
    return {"estimates": [each.entry._asdict() | {name: getattr(each, name) for name in _FIGURES} for each in found]}


_FIGURES = ("steps_per_second", "median", "low", "high", "source", "unit")


def count_text(found: Sequence[gp.Estimate] | None) -> str:
    """Return a line on the number of estimates among the speeds in use, and where they are listed; "" without --estimate."""
    if not found:
        return ""
    verb = "is an estimate" if len(found) == 1 else "are estimates"
    return wrapped([f"{counted(len(found), 'speed')} of these jobs {verb}: --json lists them with their intervals."])


def held_gpus(estimates: Iterable[gp.Estimate], jobs: Sequence[gp.Job], allocation: gp.Allocation) -> dict[gp.Estimate, float]:
    """Return {estimate: average number of GPUs that jobs hold at this estimated speed}."""
    found, types, rows = list(estimates), allocation.accelerator_types, dict[str, list[int]]()
    for i, job in enumerate(jobs):
        rows.setdefault(job.job_type, []).append(i)
    gpus = {size: allocation.gpus_in_gangs(size) for size in {each.entry.num_gpus for each in found}}
    places = ((each, each.entry, types.index(each.entry.accelerator)) for each in found)
    return {each: float(gpus[entry.num_gpus][rows[entry.job_type], column].sum()) for each, entry, column in places}


def unknown_memory(profile: gp.Profile, cluster: gp.Cluster, held: Mapping[gp.Estimate, float]) -> list[dict[str, Any]]:
    """Return the job types of unknown GPU memory that hold GPUs which may be too small for them; held: from `held_gpus`."""
    if not has_estimates(profile):
        return []
    memory, found = {kind.name: kind.memory_gb for kind in cluster.accelerator_types}, {}
    for entry in (each.entry for each, gpus in held.items() if gpus > SAME_VALUE):
        if sizes := profile.larger_memory_measured(entry, memory.get(entry.accelerator)):
            row = {"job_type": entry.job_type, "accelerator": entry.accelerator}
            found[tuple(row.values())] = row | {"gpu_memory_gb": sizes[0], "largest_measured_gb": sizes[1]}
    return list(found.values())


def memory_text(found: Iterable[Mapping[str, Any]]) -> str:
    """Return a sentence on `unknown_memory` for each type of GPU, "" if there is none."""
    types: dict[str, dict[str, None]] = {}
    for row in found:
        types.setdefault(f"{row['accelerator']}, {row['gpu_memory_gb']:g} GB each", {})[row["job_type"]] = None
    lines = []
    for gpus, (*others, last) in types.items():
        listed, them = (f"{', '.join(others)} and {last}", "them") if others else (last, "it")
        lines.append(f"GPU memory of {listed} is unknown: {gpus}, may not hold {them}.")
    return wrapped(lines) if lines else ""


def estimates_text(held: Mapping[gp.Estimate, float], value: str = "", of: str = "") -> str:
    """Return a table of estimates with their intervals, those in use first, widest intervals first.

    held: from `held_gpus` and `pair_estimates`; value: from `value_text`; of: begins the title.
    """
    if not held:
        return "No speed is estimated: those of all jobs that can run were measured.\n"
    shown = sorted(held, key=lambda each: (held[each] <= SAME_VALUE, -(each.high / each.low if each.low > 0 else 0.0)))[:SHOWN]
    units = {each.unit for each in shown}
    columns: Columns = [
        (Column("job type", "name"), [_beside(each.entry) for each in shown]),
        ("gang", [gang_text(each.entry.num_gpus) for each in shown]),
        (Column("on", "name"), [each.entry.accelerator for each in shown]),
        ("estimate" if len(units) > 1 else shown[0].unit, [number(each.steps_per_second) for each in shown]),
        ("80 % interval", map(interval_text, shown)),
        (Column("unit", "text"), [each.unit for each in shown] if len(units) > 1 else ()),  # one unit is in the header
        ("GPUs held", [number(held[each]) if held[each] > SAME_VALUE else "-" for each in shown]),
    ]
    text = columns_text(f"{of}{counted(len(held), 'estimated speed')}, those in use and least certain first", columns)
    return text + wrapped([*([value] if value else []), *([f"{len(held) - SHOWN} more: --json"] if len(held) > SHOWN else [])])


def value_text(profile: gp.Profile) -> str:
    """Return a sentence on which value of the estimates of a profile is in use, "" for medians."""
    confidence = profile.confidence if has_estimates(profile) else None
    if confidence is None:
        return ""
    if confidence == OPTIMISTIC:
        return "Estimated speeds are one standard deviation above the median (--confidence optimistic)."
    quantile = f"the {100 * (1 - float(confidence)):.3g} % quantile"
    return (
        f"Estimated speeds are exceeded with probability {confidence:g}: {quantile}, not the median (--confidence {confidence:g})."
    )


def _beside(entry: Any) -> str:
    return entry.job_type if entry.partner is None else f"{entry.job_type} beside {entry.partner}"


def interval_text(estimate: gp.Estimate) -> str:
    """Return the 80 % interval of an estimate."""
    return f"{number(estimate.low)} to {number(estimate.high)}" if estimate.high > 0 else "cannot run"


def named(entry: Any) -> str:
    """Return an entry as text: llama3-70b on l40s, a gang of 4 on 4 l40s."""
    gang = f"{gang_text(entry.num_gpus)} " if entry.num_gpus > 1 else ""
    return f"{_beside(entry)} on {gang}{entry.accelerator}"


LOSSES = {
    "max_min_fairness": "the worst-off job's share",
    **dict.fromkeys(("water_filling", "hierarchical"), "a level that jobs reach"),
    "min_makespan": "the time until the last job ends",
    "finish_time_fairness": "the largest finish-time ratio",
    "max_total_throughput": "the total speed",
    "min_cost": "the cost",
}
"""{policy: the quantity of which an answer may lose a part}."""


def sensitivity_text(found: gp.Sensitivity) -> str:
    """Return a sentence and a table on the estimates that would change the answer most."""
    what = LOSSES.get(found.allocation.policy, "the objective")
    if not found.num_estimates:
        return "No speed is estimated, so nothing depends on estimates.\n"
    shown = [effect for effect in found.effects if effect.regret >= LEAST]
    rest = _rest(found, len(shown), what)
    if not shown:
        return wrapped([f"No estimate at an end of its 80 % interval would make a different answer better{rest}."])
    first = shown[0]
    lines = [
        f"Measure first: {named(first.estimate.entry)}: up to {_percent(first.regret)} of {what}. This is what the answer would "
        f"lose if the speed were at an end of its 80 % interval{rest}."
    ]
    columns: Columns = [
        ("estimate", [named(each.estimate.entry) for each in shown]),
        ("jobs", [str(each.jobs) for each in shown]),
        (Column("80 % interval", optional=1), [interval_text(each.estimate) for each in shown]),
        ("lost if slower", [_percent(each.regret_low) for each in shown]),
        ("lost if faster", [_percent(each.regret_high) for each in shown]),
    ]
    return wrapped(lines) + "\n" + columns_text(f"What estimates may cost, as part of {what}", columns)


def _rest(found: gp.Sensitivity, shown: int, what: str) -> str:
    """Return a clause on the estimates that are not shown."""
    others, unknown = found.num_estimates - shown, found.num_estimates - len(found.effects)
    most = found.largest_other
    if not others:
        return ""
    of = f"{'the other ' if shown else ''}{others}" if others > 1 else "the other one" if shown else "the only one"
    if most is None and unknown:
        return f"; {unknown} of {of} not examined" if others > 1 else f"; {of} not examined"
    if most is None or most < LEAST:
        return f"; {of} cannot change it" if shown or others == 1 else f"; none of {others} can change it"
    at_most = f"{_percent(most)} of {what}"
    return f"; none of {of} can cost more than {at_most}" if others > 1 else f"; {of} can cost {at_most} at most"


LEAST = 5e-5
"""Smallest part of an objective that is shown."""


def _percent(part: float | None) -> str:
    if part is None:
        return "constraints break"
    return "-" if part < LEAST else f"{100 * part:.{1 if part < 0.0995 else 0}f} %"
