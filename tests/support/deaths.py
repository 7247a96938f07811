"""Ways in which a process dies while it saves its state: the head of a program with functions to call before the save."""

from __future__ import annotations

__all__ = ["DEATHS"]

DEATHS = """
import os, resource, signal, sys
from pathlib import Path

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def while_writing():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)

def before_it_is_on_the_disk():
    os.fsync = die

def before_it_is_in_place():
    Path.replace = die

def after_it_is_in_place():
    sync, calls = os.fsync, []
    os.fsync = lambda file: die() if calls else (calls.append(file), sync(file))
"""
