"""Exclusive blocks of TCP ports, for several clusters on one machine."""

from __future__ import annotations

import os
import socket

__all__ = ["reserve"]

# Below the range of Linux for outgoing connections (32768 and up).
FIRST = int(os.environ.get("SLURM_BASE_PORT", "31000"))
BLOCK, BLOCKS = 64, 26


def reserve(count: int) -> tuple[int, socket.socket]:
    """Return the first of `count` free ports, and a guard that reserves their block until it is closed.

    The guard is an abstract socket of Linux, which ends with the last process that holds it.
    """
    assert count <= BLOCK, f"a block has {BLOCK} ports, not {count}"
    for base in range(FIRST, FIRST + BLOCK * BLOCKS, BLOCK):
        guard = socket.socket(socket.AF_UNIX)
        try:
            guard.bind(f"\0gavel-py-slurm-{base}")
            if all(_is_free(port) for port in range(base, base + count)):
                return base, guard
        except OSError:
            pass
        guard.close()
    raise OSError(f"no {count} free ports together from {FIRST} on")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
