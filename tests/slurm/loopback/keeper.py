"""Process that starts the daemons of a cluster and ends all of them once the test process has ended, however it ended.

It reads commands from its standard input, one JSON object per line, and answers each with a line. At the end of the input, it ends
the daemons, the jobs and all their descendants, since orphans become children of the keeper, and deletes its folder.

Run as a program by path, without this package: python keeper.py FOLDER
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    folder = Path(sys.argv[1])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which the daemons and jobs would inherit
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    daemons: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for line in sys.stdin:
            sys.stdout.write(json.dumps(obey(json.loads(line), daemons)) + "\n")
            sys.stdout.flush()
    finally:
        end_all_children()
        shutil.rmtree(folder, ignore_errors=True)


def obey(order: dict[str, object], daemons: dict[str, subprocess.Popen[bytes]]) -> object:
    match order:
        case {"do": "start", "name": str(name), "command": [*command], "log": str(log)}:
            daemons[name] = started([str(word) for word in command], log)
            return True
        case {"do": "end", "name": str(name), "signal": int(number), "within": float(seconds)}:
            return ended(daemons.pop(name), number, seconds)
        case {"do": "kill children", "title": str(title)}:
            return [kill(pid) for child in children_of(os.getpid()) if title in title_of(child) for pid in family_of(child)]
    raise ValueError(f"unknown order: {order}")


def started(command: list[str], log: str) -> subprocess.Popen[bytes]:
    with open(log, "ab") as output:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)


def ended(daemon: subprocess.Popen[bytes], number: int, seconds: float) -> bool:
    """Send a signal, and return whether the daemon ended in time; otherwise it is killed."""
    daemon.send_signal(number)
    with contextlib.suppress(subprocess.TimeoutExpired):
        daemon.wait(seconds)
        return True
    daemon.kill()
    daemon.wait()
    return False


def end_all_children() -> None:
    """Kill children until none is left; orphans become children of this process."""
    while pids := children_of(os.getpid()):
        for pid in pids:
            kill(pid)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)


def kill(pid: int) -> int:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return pid


def family_of(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    return [pid, *(member for child in children_of(pid) for member in family_of(child))]


def children_of(parent: int) -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*") if parent_of(int(path.name)) == parent]


def parent_of(pid: int) -> int | None:
    try:
        # pid (name of the program, which may hold anything) state parent ...
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


def title_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


if __name__ == "__main__":
    main()
