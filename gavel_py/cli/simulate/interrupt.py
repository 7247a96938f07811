"""Ctrl-C: the first one ends the simulation after the round at hand, or a sweep after its cells; a second one at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

__all__ = ["INTERRUPTED", "Interrupt", "interruptible"]

INTERRUPTED = 130
"""The exit code: 128 + SIGINT, as shells have it."""

SAID = b"\nEnding after this round; press Ctrl-C again to end at once.\n"


class Interrupt:
    """Whether the user wants it to end. said: what is told when it is asked for."""

    def __init__(self, said: bytes = SAID) -> None:
        self.asked, self._said = False, said

    def note(self, number: int, frame: FrameType | None) -> None:
        """Take a signal."""
        if self.asked:
            signal.default_int_handler(number, frame)
        self.asked = True
        with contextlib.suppress(OSError):
            os.write(2, self._said)  # a handler may not use what the interrupted code may be using


@contextlib.contextmanager
def interruptible(said: bytes = SAID) -> Iterator[Interrupt]:
    """Within this, Ctrl-C is noted and no `KeyboardInterrupt`, the first time; said: what is told then."""
    interrupt = Interrupt(said)
    if threading.current_thread() is not threading.main_thread():
        yield interrupt  # signals are the main thread's
        return
    before = signal.signal(signal.SIGINT, interrupt.note)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
