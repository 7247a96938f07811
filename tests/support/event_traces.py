"""Drawn traces, clusters and policies for what decides at events."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

import gavel_py as gp

__all__ = ["CLUSTERS", "TYPES", "policy_of", "traces"]

TYPES = ("ResNet-50 (batch size 64)", "LM (batch size 40)", "Transformer (batch size 64)", "ResNet-18 (batch size 64)")
CLUSTERS = ("v100:8/4,k80:8/8", "v100:32/4,k80:32/8,p100:12/2", "v100:6/3,p100:7/2,k80:4/1")


@st.composite
def traces(draw: st.DrawFn, **further: st.SearchStrategy[Any]) -> list[gp.Submission]:
    """Draw jobs of the profile `OSDI`; further: further fields of each."""
    found, arrival = list[gp.Submission](), 0.0
    for i in range(draw(st.integers(1, 40))):
        arrival += draw(st.sampled_from([0.0, 0.0, 1.0, 90.0, 700.0]))
        job = gp.Job(
            f"j{i}",
            job_type=draw(st.sampled_from(TYPES)),
            num_gpus=draw(st.sampled_from([1, 1, 2, 4, 8])),
            arrival_seconds=arrival,
            total_steps=draw(st.sampled_from([300.0, 4e3, 2e4, 1e5])),
            priority=draw(st.sampled_from([0.0, 1.0])),
            allowed_accelerators=draw(st.sampled_from([None, None, None, ("k80",)])),
            restart_seconds=draw(st.sampled_from([None, 100.0])),
            max_retries=1,
            **{name: draw(strategy) for name, strategy in further.items()},
        )
        cancelled = draw(st.none() | st.none() | st.just(arrival + 300.0))
        run = {"run_seconds": 100.0, "estimate_seconds": draw(st.sampled_from([30.0, 100.0, 250.0]))}
        found.append(gp.Submission(job, failed_attempts=draw(st.integers(0, 2)), cancelled_seconds=cancelled, **run))
    return found


def policy_of(text: str) -> gp.Policy:
    """Return a policy as the command line writes it."""
    name, *rest = text.split(",")
    return gp.resolve_policy(name, **dict(each.split("=") for each in rest))
