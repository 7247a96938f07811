"""Space sharing: which pairs of jobs should use the same GPUs at the same time, and what does it bring?"""

from __future__ import annotations

import gavel_py as gp

TYPES = {
    "resnet": "ResNet-18 (batch size 32)",
    "lm": "LM (batch size 20)",
    "reco": "Recommendation (batch size 512)",
    "transformer": "Transformer (batch size 16)",
}


def main() -> None:
    profile = gp.ThroughputProfile.builtin("gavel-osdi20")  # has the measured speeds of 5,415 pairs
    jobs = [gp.Job(f"{name}-{n}", job_type=job_type) for name, job_type in TYPES.items() for n in range(2)]
    cluster = gp.Cluster.from_inline("v100:2,p100:2")
    for sharing in (False, True):
        problem = gp.AllocationProblem.from_jobs(jobs, cluster, profile, sharing=sharing)
        allocation = gp.solve(problem, "max_min_fairness")
        worst, total = allocation.vs_fair_share.min(), allocation.normalized_throughputs.sum()
        print(f"sharing={sharing}: worst-off job {worst:.2f} of its fair share, total speed of all jobs {total:.2f}")
        for pair in allocation.pairs.to_list(problem.job_ids, problem.accelerator_types) if allocation.pairs else []:
            together = f"{' + '.join(pair['jobs'])} on a {pair['accelerator']}"
            print(f"  {together} {pair['time_fraction']:.0%} of the time, {pair['gain']:.2f} times the work")

    scheduler = gp.RoundScheduler(cluster, profile, sharing=True)
    for job in jobs:
        scheduler.submit(job)
    print(f"In round 0, {len(scheduler.next_round().assignments)} of {len(jobs)} jobs run on 4 GPUs.")


if __name__ == "__main__":
    main()
