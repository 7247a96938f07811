"""Drive a scheduler loop of your own: rounds, progress, a node that fails, a job that fails, and a restart from saved state."""

from __future__ import annotations

import gavel_py as gp

JOBS = [
    gp.Job("vision", job_type="ResNet-18 (batch size 32)", num_gpus=4, total_steps=400_000),
    gp.Job("speech", job_type="Transformer (batch size 64)", num_gpus=2, total_steps=400_000),
    gp.Job("text", job_type="LM (batch size 20)", num_gpus=8, total_steps=4_000_000),
    gp.Job("reco", job_type="Recommendation (batch size 512)", num_gpus=1, total_steps=4_000),
]


def show(now: gp.Round) -> None:
    print(f"round {now.index}, from {now.start_seconds:.0f} s")
    for job_id, held in now.assignments.items():
        nodes = ", ".join(sorted({node for node, _ in held.gpus}))
        print(f"  {'keep ' if job_id in now.kept else 'start'} {job_id} on {len(held.gpus)} {held.accelerator} ({nodes})")
    for job_id in now.preempted:
        print(f"  stop  {job_id}")


def main() -> None:
    profile = gp.ThroughputProfile.builtin("gavel-osdi20")
    cluster = gp.Cluster.from_inline("v100:8/4,k80:8/4")
    scheduler = gp.RoundScheduler(cluster, profile, "max_min_fairness", round_seconds=360, restart_seconds=30, retry_seconds=60)
    for job in JOBS:
        scheduler.submit(job)
    show(scheduler.next_round(0))  # start and stop processes as it says

    scheduler.report("speech", steps_done=12_000)  # progress, as often as it is known
    scheduler.report("reco", steps_done=4_000)  # all of its steps: it has finished
    print(f"v100-0 is down, with it {', '.join(scheduler.node_down('v100-0')) or 'no job'}")
    show(scheduler.next_round(360))

    again = scheduler.job_failed("vision", now_seconds=500)  # it waits for 60 s, and then tries other nodes
    print(f"vision has failed; it will be tried again: {again}")
    scheduler.node_up("v100-0")
    scheduler.save("scheduler.json")  # after each round: the file is written whole or not at all
    restored = gp.RoundScheduler.load("scheduler.json", profile)
    show(restored.next_round(720))
    for job_id, account in restored.delivery().jobs.items():
        print(f"{job_id}: promised {account.promised_seconds:.0f} s, delivered {account.delivered_seconds:.0f} s")


if __name__ == "__main__":
    main()
