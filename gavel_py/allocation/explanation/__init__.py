"""Explanations of one job in an allocation: what it gets, what binds it, what more GPUs would change, and what it competes with.

`explain` combines the modules: `records` has the explanation as plain data; `duals` reads the proof of an allocation for one job
class; `bindings` finds what binds a job by the proof, the service order or a formula; `neighbours` compares the job with other
holders of GPUs, with one more GPU of each type, and with co-located jobs. Why a job waits in a round: `scheduling/commit.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gavel_py.allocation.explanation.bindings import count_bindings, reasons_of
from gavel_py.allocation.explanation.neighbours import held_gpus, holders_of, one_more_of_each, partners_of, together
from gavel_py.allocation.explanation.records import Binding, Explanation, Holder, OneMoreGpu, Others, Partner, Together
from gavel_py.allocation.result import Allocation
from gavel_py.allocation.solver import Solver
from gavel_py.errors import Fault, UnknownNameError, check_type, nearest, refuse
from gavel_py.policies import Policy
from gavel_py.problem.arrays import plain_size
from gavel_py.problem.problem import AllocationProblem

__all__ = ["Binding", "Explanation", "Holder", "OneMoreGpu", "Others", "Partner", "Together", "explain"]

MAX_COMPARED = 10_000
"""Number of job ids that are searched for one similar to an unknown id."""


def explain(
    problem: AllocationProblem,
    job_id: str,
    policy: str | Policy = "max_min_fairness",
    *,
    partner: str | None = None,
    allocation: Allocation | None = None,
    **options: Any,
) -> Explanation:
    """Return what a job gets under a policy, what binds it, what more GPUs would change, and which jobs it competes with.

    Bindings are read from the proof of the allocation: rows with a dual price, and lower bounds and limits of the job that are
    tight. The effect of one more GPU of a type is found by solving again, once per type, with unchanged normalisers
    (`AllocationProblem.with_capacities`).

    Args:
        problem: As for `solve`.
        job_id: The job to explain.
        policy: A name or a `Policy` object.
        partner: Id of another job; the explanation then includes why the two do or do not share GPUs. Requires a problem with pair
            throughputs.
        allocation: The answer to this problem under this policy, if it is known: nothing is solved, and `one_more_gpu` is empty.
        options: Further arguments of `solve`.

    Raises:
        UnknownNameError: There is no job with this id.
        InputError, SolverError, ProofError: As for `solve`.
    """
    check_type("explain", "problem", problem, AllocationProblem, "must be an AllocationProblem")
    i, other = _row_of(problem, job_id), None if partner is None else _row_of(problem, partner)
    no_pairs = (other is not None and problem.pairs is None, "partner", "the problem knows no pairs of jobs that could share GPUs")
    refuse("explain", no_pairs, (other == i, "partner", f"must be another job than {job_id!r} itself"))
    solver = Solver(policy, **options)
    solved = solver.solve(problem) if allocation is None else allocation
    evidence, is_fixed = solved.evidence, allocation is not None or job_id in solved.excluded
    assert evidence is not None  # noqa: S101
    reasons, held = reasons_of(solver.policy, solved, evidence, i), held_gpus(solved)
    holders, others = holders_of(evidence.base, held, i, reasons.contested)
    forecast = solved.forecast()
    return Explanation(
        job_id=job_id,
        policy=solved.policy,
        options=solved.options,
        num_gpus=plain_size(problem.num_gpus[i]),
        gpu_counts=None if solved.counts is None else solved[job_id].get("gpu_counts"),
        equal_jobs=reasons.equal_jobs,
        time_fractions=_by_type(solved, solved.time_fractions[i]),
        gpus=_by_type(solved, problem.num_gpus[i] * held[i]),
        throughput=float(solved.throughputs[i]),
        normalized_throughput=float(solved.normalized_throughputs[i]),
        vs_fair_share=float(solved.vs_fair_share[i]),
        certain=reasons.certain,
        objective=solved.objective_value,
        bound=solved.objective_bound,
        excluded=solved.excluded.get(job_id),
        notes=tuple(note for note in solved.notes if note.startswith(f"job {job_id!r} ")),
        bindings=(*reasons.bindings, *count_bindings(evidence.base, solved, i)),
        one_more_gpu=() if is_fixed else tuple(one_more_of_each(problem, solved, solver, i)),
        holders=holders,
        others=others,
        partners=partners_of(solved, i),
        together=() if other is None else tuple(together(problem, solved, i, other)),
        capacities=_by_type(solved, problem.capacities),
        utilization=_by_type(solved, solved.utilization),
        **{name: None if np.isnan(values[i]) else float(values[i]) for name, values in vars(forecast).items()},
        deadlines=forecast.deadlines._asdict(),
        tenant=next((each for each in solved.tenants() if each.tenant == problem.tenants[i] != ""), None),
    )


def _row_of(problem: AllocationProblem, job_id: str) -> int:
    try:
        return problem.job_ids.index(job_id)
    except ValueError:
        near = nearest(str(job_id), list(problem.job_ids[:MAX_COMPARED]))
        raise UnknownNameError(Fault("", "", f"there is no job {job_id!r}{near}")) from None


def _by_type(allocation: Allocation, values: NDArray[np.float64]) -> dict[str, float]:
    return dict(zip(allocation.accelerator_types, values.tolist(), strict=True))
