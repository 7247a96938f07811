"""The pages docs/slurm.md and docs/slurm-users.md followed word for word on a fresh cluster with accounts, by an operator."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence

import pytest

from tests.slurm.loopback.cluster import LoopbackCluster, booted
from tests.slurm.loopback.configuration import Nodes, Settings
from tests.slurm.loopback.driving import PARTITION, ROOT, as_user, surroundings
from tests.slurm.loopback.logbook import events
from tests.slurm.loopback.presence import needs_accounting, needs_root, needs_slurm
from tests.slurm.loopback.test_rights import OPERATOR, SOMEBODY, STRANGER, known_as
from tests.slurm.loopback.waiting import until

pytestmark = [needs_slurm, needs_accounting, needs_root, pytest.mark.deep]

PAGE = "".join((ROOT / "docs" / name).read_text() for name in ("slurm.md", "slurm-users.md"))


class Reader:
    """Does what the page says, with the names of a cluster in place of those of the page."""

    def __init__(self, cluster: LoopbackCluster) -> None:
        self.cluster = cluster
        self.state = cluster.folder / "var"
        self.environment = surroundings(cluster) | {"GAVEL_SLURM_STATE": str(self.state)}  # by default /var/lib/gavel-slurm

    def words(self, command: str, user: str | None) -> list[str]:
        """Return a command of the page as it is run here."""
        assert command in PAGE, "the page says something else"
        names = {"--partition gpu": f"--partition {PARTITION}", "--user slurm": "--user root", "--user gavel": f"--user {OPERATOR}"}
        names |= {" gavel account": f" {OPERATOR} account", "-o gavel ": f"-o {OPERATOR} "}
        names |= {"/var/lib/gavel-slurm": str(self.state), "~/shadow": str(self.cluster.folder / "shadow")}
        for theirs, ours in names.items():
            command = command.replace(theirs, ours)
        words = shlex.split(command)
        words[:1] = [sys.executable, "-m", "gavel_py"] if words[0] == "gavel" else words[:1]
        return [*([] if user is None else as_user(self.cluster, user)), *words]

    def does(self, command: str, *more: str, user: str | None = None) -> str:
        """Run a command, which has to succeed, and return its output."""
        words = [*self.words(command, user), *more]
        done = subprocess.run(
            words, cwd=self.cluster.folder, env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def begins(self, command: str, *more: str, user: str) -> subprocess.Popen[str]:
        """Run a command in the background."""
        words = [*self.words(command, user), *more]
        return subprocess.Popen(
            words, cwd=self.cluster.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def submits(self, count: int) -> list[int]:
        """Submit jobs as a user, with the comment of the page."""
        (line,) = re.findall(r"^sbatch (--gpus=2 --comment .*) train.sh$", PAGE, re.MULTILINE)
        words = ["--parsable", f"--partition={PARTITION}", "--output=/dev/null", "--chdir=/", *shlex.split(line)]
        return [int(self.cluster.tell("sbatch", *words, "--wrap=exec sleep 600", user=SOMEBODY)) for _ in range(count)]


def test_the_page_followed_word_for_word() -> None:
    with booted(Settings((Nodes("v100", 1), Nodes("k80", 1)), accounting=True)) as cluster:
        reader = Reader(cluster)
        looks_on(reader)
        installs(reader)
        assert "No jobs." in reader.does("gavel slurm status --partition gpu", user=OPERATOR)
        assert reader.does("gavel slurm plan --partition gpu", user=OPERATOR).startswith("Round 0: 0 kept, 0 stopped, 0 to start")
        run = "gavel slurm run --partition gpu --state /var/lib/gavel-slurm --policy max_min_fairness --round 360"
        with reader.begins(run, "--on-exit", "release", user=OPERATOR) as driver:
            try:
                jobs = works(reader)
                driver.send_signal(signal.SIGTERM)
                output = driver.communicate(timeout=60)[0]
            finally:
                driver.kill()
        assert driver.returncode == 0, output
        assert "Warning" not in output
        leaves_no_trace(cluster, jobs)


def looks_on(reader: Reader) -> None:
    """Run a shadow beside plain Slurm, as a user without rights."""
    cluster = reader.cluster
    jobs = reader.submits(4)
    until(lambda: len(cluster.running()) == 4, "Slurm to start jobs")
    before = cluster.jobs()
    (cluster.folder / "shadow").mkdir()
    shutil.chown(cluster.folder / "shadow", STRANGER)
    shadow = "gavel slurm run --shadow --partition gpu --state ~/shadow --policy max_min_fairness --round 360"
    with reader.begins(shadow, user=STRANGER) as process:
        try:
            until(lambda: events(cluster.folder / "shadow" / "log.jsonl", "round"), "a round of the shadow")
            assert cluster.jobs() == before, "nothing is touched"
            cluster.tell("scancel", *map(str, jobs))
            until(lambda: not cluster.running(), "the jobs to end")
            time.sleep(6)  # longer than --poll
            process.send_signal(signal.SIGTERM)
            output = process.communicate(timeout=60)[0]
        finally:
            process.kill()
    assert process.returncode == 0, output
    assert "Slurm" in reader.does("gavel slurm report ~/shadow")


def installs(reader: Reader) -> None:
    """Steps 1 to 4."""
    cluster = reader.cluster
    reader.does("gavel slurm install --partition gpu --user slurm --user gavel --out job_submit.lua")
    configuration = cluster.folder / "slurm.conf"
    lines = textwrap.dedent(re.findall(r"```text\n( *JobSubmitPlugins.*?)```", PAGE, re.DOTALL)[0])
    ours = [line for line in configuration.read_text().splitlines() if line.partition("=")[0] not in lines]
    configuration.write_text("\n".join([*ours, lines]))
    reader.does("scontrol reconfigure")
    reader.does("sacctmgr -i add user gavel account=root adminlevel=operator")
    known_as(cluster, OPERATOR, "Operator")
    reader.does("install -d -o gavel /var/lib/gavel-slurm")


def works(reader: Reader) -> list[int]:
    """Submit jobs, of which the first runs within the round; users see why others wait; return all."""
    cluster = reader.cluster
    until(cluster.leases, "a lease")
    jobs = reader.submits(6)
    until(lambda: len(cluster.running()) == 4, "a job on each two GPUs", within=400)
    assert min(each.waited for each in cluster.jobs().values() if each.placement) < 360, "not only with the next round"
    waiting = next(job for job in jobs if cluster.jobs()[job].bound)
    cluster.run("scontrol", "release", str(waiting), user=SOMEBODY)
    cluster.run("scontrol", "update", f"JobId={waiting}", "Dependency=", user=SOMEBODY)
    assert cluster.jobs()[waiting].bound, "users cannot start them"
    until(lambda: f"Job {waiting} of nobody" in asked(reader, "gavel slurm why 37", waiting), "the queue to have all jobs")
    assert "Reason: " in asked(reader, "gavel slurm why 37", waiting)
    shown = reader.does("gavel slurm queue", user=STRANGER)
    assert (shown.count("running"), shown.count("waiting")) == (4, 2), shown
    return jobs


def asked(reader: Reader, command: str, job: int) -> str:
    """Return the answer to a user, who has no right in Slurm, for this job in place of job 37."""
    words = [word.replace("37", str(job)) for word in reader.words(command, STRANGER)]
    return subprocess.run(words, env=reader.environment, capture_output=True, text=True, timeout=60, check=False).stdout


def leaves_no_trace(cluster: LoopbackCluster, jobs: Sequence[int]) -> None:
    """Waiting jobs are Slurm's again, and so is what comes."""
    assert cluster.tell("squeue", "--noheader", "--name=gavel-driver") == ""
    late = Reader(cluster).submits(1)
    seen = cluster.jobs()
    assert {*jobs, *late} <= set(seen)
    waiting = [job for job, each in seen.items() if each.state == "PENDING"]
    assert len(waiting) == 3
    words = ["squeue", "--noheader", "--states=PENDING", "--format=%n|%Y|%E"]
    until(lambda: cluster.tell(*words) == "|(null)|(null)\n" * 3, "them to be as submitted")
    assert len({each.comment for each in seen.values()}) == 1
    cluster.tell("scancel", *map(str, cluster.running()))
    until(lambda: cluster.running() == set(waiting), "Slurm to start them")
