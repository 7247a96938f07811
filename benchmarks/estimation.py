"""How well hidden throughputs are estimated, on the built-in profiles: errors, coverage of intervals, and time.

    python benchmarks/estimation.py            print the table (some minutes)
    python benchmarks/estimation.py --write    and put it into benchmarks/RESULTS.md

Each line hides measurements of gangs alone and asks `gp.ThroughputProfile(...).with_estimates()` for them, with the method
`additive` beside it. An error is |estimate / measurement - 1|, pooled over all seeds or folds.

- hide: the first part of `default_rng(seed).permutation`; scored are those of which the job type is still known.
- new batch size, new model: the smallest gang of a type is measured on one accelerator, each in turn; for a new model, its other
  types are hidden too.
- gangs: all accelerators of the smallest gang, or of the two smallest, are measured; the larger ones are estimated.
- new accelerator: 0 or 8 rows are measured on it; scored are gangs that are measured elsewhere.
- pairs: a part of the pairs of a new job type with 1 GPU are measured; scored is the throughput of either side.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import tables

import gavel_py as gp
from gavel_py.estimates.features import structure_of

Split = tuple[list[gp.Measurement], list[gp.Measurement]]
"""What is known, and what is estimated."""


class Target(NamedTuple):
    """Largest median and 90 % quantile of the error, and the range of the coverage of 80 % and of 95 % intervals."""

    median: float
    large: float = np.inf
    within_80: tuple[float, float] = (0.70, 0.92)
    within_95: tuple[float, float] = (0.88, 1.0)


def gangs(name: str) -> list[gp.Measurement]:
    """Return the positive measurements of gangs alone, consolidated."""
    found = [m for m in gp.ThroughputProfile.builtin(name).measurements if m.partner_job_type is None]
    return [m for m in found if m.placement == "consolidated" and m.steps_per_second > 0]


def hide(measured: list[gp.Measurement], share: float, seeds: int) -> Iterator[Split]:
    for seed in range(seeds):
        order = np.random.default_rng(seed).permutation(len(measured))
        count = int(share * len(measured))
        known = [measured[row] for row in order[count:]]
        types = {m.job_type for m in known}
        yield known, [measured[row] for row in order[:count] if measured[row].job_type in types]


def family(m: gp.Measurement) -> str:
    return m.family or structure_of(m.job_type).family


def new_types(measured: list[gp.Measurement], *, model: bool) -> Iterator[Split]:
    for job_type in dict.fromkeys(m.job_type for m in measured):
        own = [m for m in measured if m.job_type == job_type]
        smallest = [m for m in own if m.num_gpus == min(each.num_gpus for each in own)]
        rest = [m for m in measured if m.job_type != job_type and not (model and family(m) == family(own[0]))]
        for start in smallest:
            others = [m for m in smallest if m is not start]
            if others:
                yield [*rest, start], others


def larger_gangs(measured: list[gp.Measurement], sizes: int) -> Iterator[Split]:
    for job_type in dict.fromkeys(m.job_type for m in measured):
        own = [m for m in measured if m.job_type == job_type]
        small = sorted({m.num_gpus for m in own})[:sizes]
        larger = [m for m in own if m.num_gpus > small[-1]]
        if larger:
            yield [m for m in measured if m.job_type != job_type or m.num_gpus in small], larger


def new_accelerators(measured: list[gp.Measurement], rows: int, seeds: int) -> Iterator[Split]:
    for accelerator in dict.fromkeys(m.accelerator for m in measured):
        others = [m for m in measured if m.accelerator != accelerator]
        known_gangs = {(m.job_type, m.num_gpus) for m in others}
        own = [m for m in measured if m.accelerator == accelerator]
        for seed in range(seeds if rows else 1):
            order = np.random.default_rng(seed).permutation(len(own))
            wanted = [own[row] for row in order[rows:] if (own[row].job_type, own[row].num_gpus) in known_gangs]
            yield [*others, *(own[row] for row in order[:rows])], wanted


def new_pairs(measured: list[gp.Measurement], share: float, *, model: bool) -> Iterator[Split]:
    """Yield splits of the pairs of each job type; for a new model, pairs with the same model are left out."""
    alone = [m for m in measured if m.partner_job_type is None]
    pairs = [m for m in measured if m.partner_job_type is not None and m.steps_per_second and m.partner_steps_per_second]
    for number, job_type in enumerate(dict.fromkeys(m.job_type for m in alone)):
        chance = np.random.default_rng(number)
        models = {m.job_type for m in alone if structure_of(m.job_type).family == structure_of(job_type).family}
        away = models if model else {job_type}
        own = [m for m in pairs if job_type in (m.job_type, m.partner_job_type)]
        own = [m for m in own if not {m.job_type, m.partner_job_type} & (away - {job_type})]
        own = [m for m in own if m.job_type != m.partner_job_type]
        rest = [m for m in pairs if not {m.job_type, m.partner_job_type} & away]
        known = [m for m in own if chance.uniform() < share]
        yield [*alone, *rest, *known], [m for m in own if m not in known]


class Line(NamedTuple):
    """Errors of the default method and of `additive`, coverage, and CPU seconds of the first estimate of a split."""

    name: str
    estimated: int
    median: float
    large: float
    within_80: float
    within_95: float
    additive: float
    seconds: float
    target: Target


def measure(name: str, splits: Iterable[Split], target: Target) -> Line:
    errors, additive, seconds = [], [], []
    inside: dict[float, list[np.ndarray]] = {0.8: [], 0.95: []}
    for known, wanted in splits:
        if not wanted:
            continue
        profile, entries = gp.ThroughputProfile(name, known), [m.entry for m in wanted]
        truth = np.array([m.steps_per_second for m in wanted])
        begun = time.process_time()
        found = profile.with_estimates().fitted.predict(entries)
        seconds.append(time.process_time() - begun)
        errors.append(np.abs(found.median / truth - 1))
        additive.append(np.abs(profile.with_estimates("additive").fitted.predict(entries).median / truth - 1))
        for level, kept in inside.items():
            low, high = found.interval(level)
            kept.append((low <= truth) & (truth <= high))
    pooled, other = np.concatenate(errors), float(np.median(np.concatenate(additive)))
    within_80, within_95 = (float(np.concatenate(each).mean()) for each in inside.values())
    medians = float(np.median(pooled)), float(np.quantile(pooled, 0.9))
    return Line(name, len(pooled), *medians, within_80, within_95, other, float(np.mean(seconds)), target)


def measure_pairs(name: str, splits: Iterable[Split], target: Target) -> Line:
    errors, inside, seconds = [], [], []
    for known, wanted in splits:
        estimated = gp.ThroughputProfile(name, known).with_estimates()
        begun = time.process_time()
        estimated.pair_matrix([gp.Job(name, job_type=name) for name in estimated.job_types], estimated.measured.accelerators)
        seconds.append(time.process_time() - begun)
        for m in wanted:
            swapped = m.entry._replace(job_type=str(m.partner_job_type), partner=m.job_type)
            for entry, truth in ((m.entry, m.steps_per_second), (swapped, m.partner_steps_per_second or 0.0)):
                found = estimated.estimate(entry)
                assert found is not None, entry
                errors.append(abs(found.median / truth - 1))
                inside.append(found.low <= truth <= found.high)
    medians = float(np.median(errors)), float(np.quantile(errors, 0.9))
    return Line(name, len(errors), *medians, float(np.mean(inside)), np.nan, np.nan, float(np.mean(seconds)), target)


def lines() -> Iterator[Line]:
    """Yield the lines of the table."""
    osdi, nvidia = gangs("gavel-osdi20"), gangs("nvidia-2023")
    few, many = ((0.70, 0.88), (0.88, 0.99)), ((0.72, 0.94), (0.90, 1.0))
    for share, median, large in ((0.2, 0.10, 0.36), (0.5, 0.137, 0.44), (0.8, 0.21, 0.62)):
        yield measure(f"gavel-osdi20, {share:.0%} hidden", hide(osdi, share, 10), Target(median, large, *few))
    for share, median, large in ((0.2, 0.06, 0.22), (0.5, 0.10, 0.32), (0.8, 0.155, 0.45)):
        yield measure(f"nvidia-2023, {share:.0%} hidden", hide(nvidia, share, 3), Target(median, large, *many))
    yield measure("gavel-osdi20, new batch size", new_types(osdi, model=False), Target(0.147, 0.59, (0.7, 0.9)))
    yield measure("gavel-osdi20, new model", new_types(osdi, model=True), Target(0.37, np.inf, (0.7, 0.9)))
    yield measure("gavel-osdi20, gangs from the smallest", larger_gangs(osdi, 1), Target(0.147, 0.43, (0.72, 0.9)))
    yield measure("gavel-osdi20, gangs from two sizes", larger_gangs(osdi, 2), Target(0.115, 0.34, (0.72, 0.9)))
    for rows, median, large in ((0, 0.35, 0.88), (8, 0.25, 0.91)):
        yield measure(
            f"gavel-osdi20, new accelerator, {rows} rows", new_accelerators(osdi, rows, 3), Target(median, large, (0.7, 0.99))
        )
    for rows, median, large in ((0, 0.21, 0.56), (8, 0.165, 0.43)):
        yield measure(
            f"nvidia-2023, new accelerator, {rows} rows", new_accelerators(nvidia, rows, 1), Target(median, large, (0.74, 1))
        )
    yield measure("mpt-2023, 50% hidden", hide(gangs("mpt-2023"), 0.5, 5), Target(0.05, 0.19, (0.72, 0.92)))
    yield measure("mlperf-training, 50% hidden", hide(gangs("mlperf-training"), 0.5, 5), Target(0.21, 0.65, (0.72, 0.92)))
    single = [
        m for m in gp.ThroughputProfile.builtin("gavel-osdi20").measurements if m.placement == "consolidated" and m.num_gpus == 1
    ]
    yield measure_pairs("pairs, 20% of a new type", new_pairs(single, 0.2, model=False), Target(0.07, 0.26, (0.75, 0.92)))
    yield measure_pairs("pairs, 20% of a new model", new_pairs(single, 0.2, model=True), Target(0.09, 0.35, (0.75, 0.92)))


SEEDS = {
    "gavel-osdi20": 10,
    "nvidia-2023": 10,
    "mlperf-training": 50,
    "megatron-2026": 60,
    "mpt-2023": 20,
    "elasticflow": 20,
    "trtllm": 4,
}
"""Seeds of `wrong_entries`: more for the small profiles, of which 1 % are one or two entries."""


def wrong_entries(name: str, seeds: int) -> tuple[int, int, int, int]:
    """Return (wrong entries, found, false reports, measurements) with 1 % of the measurements multiplied or divided by 10."""
    measured, wrong, found, false = gangs(name), 0, 0, 0
    for seed in range(seeds):
        chance, given = np.random.default_rng(seed), list(measured)
        rows = chance.choice(len(measured), max(1, round(0.01 * len(measured))), replace=False).tolist()
        for place in rows:
            factor = 10 if chance.uniform() < 0.5 else 0.1
            given[place] = given[place].model_copy(update={"steps_per_second": given[place].steps_per_second * factor})
        reported = {m.entry for m, _ in gp.contradictions(gp.ThroughputProfile(name, given))}
        entries = {given[place].entry for place in rows}
        wrong, found, false = wrong + len(entries), found + len(entries & reported), false + len(reported - entries)
    return wrong, found, false, seeds * len(measured)


def large_profile() -> gp.ThroughputProfile:
    """Return 10,000 measurements with an error of 10 %: 125 models in five batch sizes, gangs of 1 and 4, eight accelerators."""
    chance, names = np.random.default_rng(0), ("v100", "a100", "h100", "l40s", "k80", "p100", "t4", "a10")
    rows = []
    for number in range(625):
        job_type, level = f"model{number // 5} (batch size {2 ** (number % 5 + 2)})", chance.lognormal(1, 1)
        for num_gpus in (1, 4):
            for place, name in enumerate(names, 1):
                speed = float(level * num_gpus**0.9 * place * chance.lognormal(0, 0.1))
                rows.append(gp.Measurement(job_type=job_type, num_gpus=num_gpus, accelerator=name, steps_per_second=speed))
    return gp.ThroughputProfile("large", rows)


def costs() -> Iterator[tuple[str, float, str]]:
    """Yield what is done, its CPU seconds and the target."""
    measured = gangs("nvidia-2023")
    begun = time.process_time()
    assert gp.ThroughputProfile("nvidia", measured).with_estimates().fitted is not None
    yield f"fit of the {len(measured)} rows of nvidia-2023", time.process_time() - begun, "3"
    profile, cluster = large_profile(), gp.Cluster.from_counts({"h100": 400, "a100": 400})
    jobs = [gp.Job(job_type, job_type=job_type, num_gpus=2, total_steps=1e6) for job_type in profile.job_types]
    estimated, begun = profile.with_estimates(), time.process_time()
    assert estimated.fitted is not None
    yield "fit of 10,000 rows of 625 job types", time.process_time() - begun, "60"
    begun = time.process_time()
    problem = gp.AllocationProblem.from_jobs(jobs, cluster, estimated)
    yield "with them, 1,250 estimates, and how uncertain they are together", time.process_time() - begun, ""
    assert problem.num_jobs == len(jobs)
    begun = time.process_time()
    gp.contradictions(profile)
    yield "among them, search for contradictions", time.process_time() - begun, ""


HEADER = (
    "hidden",
    "n",
    "median error (bar)",
    "90 % quantile (bar)",
    "in the 80 % interval (bar)",
    "in the 95 % interval (bar)",
    "additive, median",
    "CPU s",
)


def coverage(part: float, bar: tuple[float, float]) -> str:
    return "" if np.isnan(part) else f"{part:.2f} ({bar[0]:.2f}-{bar[1]:.2f})"


def row(line: Line) -> tuple[str, ...]:
    bars = line.target
    large = f"{line.large:.1%}" + (f" ({bars.large:.0%})" if np.isfinite(bars.large) else "")
    return (
        line.name,
        f"{line.estimated:,}",
        f"{line.median:.1%} ({bars.median:.1%})",
        large,
        coverage(line.within_80, bars.within_80),
        coverage(line.within_95, bars.within_95),
        "" if np.isnan(line.additive) else f"{line.additive:.0%}",
        f"{line.seconds:.2f}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the table into benchmarks/RESULTS.md")
    arguments = parser.parse_args()
    rows = []
    for line in lines():
        rows.append(row(line))
        print(*rows[-1], sep=" | ", flush=True)
    faults = []
    for name, seeds in SEEDS.items():
        wrong, found, false, count = wrong_entries(name, seeds)
        shares = f"{found} of {wrong} ({found / wrong:.0%})", f"{false} of {count:,} ({false / count:.2%})"
        faults.append((name, f"{count // seeds}", f"{seeds}", *shares))
        print(*faults[-1], sep=" | ", flush=True)
    spent = [(name, f"{seconds:.1f}", target) for name, seconds, target in costs()]
    print(*(" | ".join(cost) for cost in spent), sep="\n")
    if arguments.write:
        tables.write("estimation-large", tables.markdown(("what", "CPU s", "target, s"), spent))
        tables.write("estimation", tables.markdown(HEADER, rows))
        tables.write(
            "estimation-contradictions",
            tables.markdown(("profile", "rows", "seeds", "wrong entries found", "false reports"), faults),
        )


if __name__ == "__main__":
    main()
