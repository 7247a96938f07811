"""Which policies can decide whenever something happens, where there are no rounds of one length."""

from __future__ import annotations

from gavel_py.policies import Policy

__all__ = ["why_rounds"]

CLOCK = frozenset({"attained_gpu_seconds", "waiting_seconds", "isolated_seconds"})
"""What a scheduler counts in rounds of one length."""


def why_rounds(policy: Policy) -> str:
    """Return why a policy needs rounds, in words that follow its name; empty if it does not."""
    if policy.family != "ordered" or getattr(policy, "fractional", False):
        return "which gives jobs parts of their time; without rounds, these cannot be served"
    counted = sorted(CLOCK.intersection(policy.reads))
    return f"which reads what is counted in rounds ({', '.join(counted)})" if counted else ""
