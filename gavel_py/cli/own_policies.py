"""The way from a policy's name, as typed, to its class: the current directory counts too, as in other commands."""

from __future__ import annotations

import sys

import gavel_py as gp

__all__ = ["find_policy"]

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
