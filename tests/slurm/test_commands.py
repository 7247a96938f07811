"""Execution of Slurm's commands, which signals to the driver do not reach."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import gavel_py as gp

# Reports its start, and answers after a second unless it is interrupted.
PROGRAM = "#!/bin/sh\ntouch {begun}\nsleep 1\necho '{{\"jobs\": []}}'\n"
ASKING = """\
import signal
import gavel_py as gp
signal.signal(signal.SIGINT, lambda *_: None)
print(gp.SlurmCommands().run(["squeue", "--json"]).code)
"""


@pytest.mark.deep
def test_ctrl_c_does_not_cut_off_a_command(tmp_path: Path) -> None:
    """A terminal sends the signal to the whole process group of the driver."""
    begun, program = tmp_path / "begun", tmp_path / "squeue"
    program.write_text(PROGRAM.format(begun=begun))
    program.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    asking = [sys.executable, "-c", ASKING]
    with subprocess.Popen(asking, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        while not begun.exists():
            assert process.poll() is None
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        assert process.communicate(timeout=60)[0] == "0\n"


def test_a_command_gets_its_input_and_returns_its_exit_code(tmp_path: Path) -> None:
    program = tmp_path / "scontrol"
    program.write_text("#!/bin/sh\ncat\necho no >&2\nexit 3\n")
    program.chmod(0o755)
    answer = gp.SlurmCommands().run([str(program)], "hold 1\nquit\n")
    assert (answer.code, answer.out, answer.err) == (3, "hold 1\nquit\n", "no\n")
