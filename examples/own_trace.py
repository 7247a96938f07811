"""Turn your own accounting data into a trace, and replay it under two policies."""

from __future__ import annotations

import csv
import io

import gavel_py as gp

# What your system knows of its jobs; here a text, usually a file or a query.
ACCOUNTING = """\
id,user,model,gpus,submitted,ran_minutes,gpu,state
1,anna,resnet,1,0,95,v100,COMPLETED
2,anna,resnet,2,4,240,v100,COMPLETED
3,ben,transformer,4,5,180,v100,COMPLETED
4,ben,lm,1,9,400,k80,COMPLETED
5,cleo,lm,8,20,60,v100,FAILED
6,cleo,transformer,2,31,120,p100,COMPLETED
7,anna,resnet,1,45,30,v100,COMPLETED
8,ben,lm,4,50,90,v100,COMPLETED
"""

TYPES = {"resnet": "ResNet-50 (batch size 64)", "transformer": "Transformer (batch size 64)", "lm": "LM (batch size 20)"}


def submission(row: dict[str, str]) -> gp.Submission:
    """One line of the accounting data: what was asked for, and what was recorded."""
    seconds = 60 * float(row["ran_minutes"])
    job = gp.Job(
        f"job-{row['id']}",
        job_type=TYPES[row["model"]],
        num_gpus=int(row["gpus"]),
        tenant=row["user"],
        arrival_seconds=60 * float(row["submitted"]),
        duration_seconds=seconds,  # steps follow from the throughput on the type on which it ran
        duration_accelerator=row["gpu"],
    )
    return gp.Submission(job, run_seconds=seconds, status="passed" if row["state"] == "COMPLETED" else "failed")


def main() -> None:
    trace = gp.Trace(submission(row) for row in csv.DictReader(io.StringIO(ACCOUNTING)))
    print(f"{len(trace)} jobs, the first as gavel-py writes it:")
    print(gp.trace_text(trace[:1]), end="")
    profile = gp.ThroughputProfile.builtin("gavel-osdi20")
    cluster = gp.Cluster.from_inline("v100:4,p100:4,k80:8")
    for policy in ("fifo", "max_min_fairness"):
        summary = gp.simulate(trace, cluster, profile, policy).summary
        completion, wait = (summary.jct.mean or 0.0) / 3600, (summary.queueing.mean or 0.0) / 60
        print(f"{policy}: mean completion time {completion:.2f} h, of which {wait:.0f} min waiting")


if __name__ == "__main__":
    main()
