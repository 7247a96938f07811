"""Wrappers of Slurm's commands that run hooks just before or after the driver's Nth command, and of the driver's clock."""

from __future__ import annotations

import shlex
from pathlib import Path

from tests.slurm.loopback.cluster import LoopbackCluster
from tests.slurm.loopback.waiting import until

__all__ = ["Meddler"]

COMMANDS = ("sbatch", "scancel", "scontrol", "sinfo", "squeue")

# Readings, changes of jobs, and changes of the lease are counted separately; a hook is a program named by its moment, as in
# before-change-2. A limit of the driver's files is not one of Slurm's commands. What scontrol is told is kept in a file.
SHIM = """#!/bin/sh
ulimit -S -f unlimited
here={here}
case "$(basename "$0") $1" in
    "scontrol update" | sbatch* | "scancel "[0-9]*) kind=lease ;;
    squeue* | sinfo* | "scontrol show" | "scontrol ping") kind=reading ;;
    *) kind=change ;;
esac
echo "$kind $(basename "$0") $*" >> "$here/calls"
moment=$kind-$(grep -c "^$kind" "$here/calls")
hook() {{ if [ -x "$here/$1-$moment" ]; then "$here/$1-$moment" $PPID || exit 1; fi; }}
hook before
if [ -e "$here/cut-$moment" ]; then
    cat > "$here/input"
    head -n $((($(wc -l < "$here/input") + 1) / 2)) "$here/input" | tee -a "$here/told" | {real} "$@"
elif [ $kind = change ]; then
    tee -a "$here/told" | {real} "$@"
else
    {real} "$@"
fi
code=$?
hook after
exit $code
"""


# Python imports it at its start; steady clocks, such as that of waiting, are as they are.
CLOCK = """\
import pathlib, time
machine, back = time.time, pathlib.Path(__file__).with_name("seconds-back")
time.time = lambda: machine() - (float(back.read_text()) if back.exists() else 0.0)
"""


class Meddler:
    """A folder of programs in place of Slurm's commands, for the argument `tools` of a driver.

    Moments are named before-change-1 (before the first command that changes jobs), after-reading-2, before-lease-1, and so on.
    """

    def __init__(self, cluster: LoopbackCluster, name: str = "tools") -> None:
        self.folder = cluster.folder / name
        self.folder.mkdir()
        self.folder.chmod(0o777)  # the programs write there under the account of the caller
        (self.folder / "sitecustomize.py").write_text(CLOCK)
        for command in COMMANDS:
            _write(
                self.folder / command, SHIM.format(here=shlex.quote(str(self.folder)), real=shlex.quote(cluster.program(command)))
            )

    def told(self) -> str:
        """Return what drivers have told scontrol."""
        path = self.folder / "told"
        return path.read_text() if path.exists() else ""

    def set_clock_back(self, seconds: float) -> None:
        """Set the clock of the driver and of those after it back from the time of the machine."""
        beside = self.folder / "seconds-back.new"
        beside.write_text(str(seconds))
        beside.replace(self.folder / "seconds-back")

    def kill(self, moment: str) -> None:
        """Kill the driver at a moment; before a command, the command is not run."""
        _write(self.folder / moment, "#!/bin/sh\nkill -KILL $1\nexit 1\n")

    def cut(self, change: str) -> None:
        """Pass only the first half of a change, such as change-2, to Slurm, then kill the driver."""
        (self.folder / f"cut-{change}").touch()
        self.kill(f"after-{change}")

    def pause(self, moment: str) -> None:
        """Suspend the driver at a moment until `go_on`."""
        here = shlex.quote(str(self.folder))
        waiting = f"while [ ! -e {here}/go-on ]; do sleep 0.05; done"
        _write(self.folder / moment, f"#!/bin/sh\ntouch {here}/waits\n{waiting}\n")

    def wait_for_pause(self, within: float = 60.0) -> None:
        until((self.folder / "waits").exists, "the driver to come to its pause", within=within)

    def go_on(self) -> None:
        (self.folder / "go-on").touch()


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
