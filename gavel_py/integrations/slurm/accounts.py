"""Slurm accounts in slurmdbd: their fairshare as a tree of tenants, and the GPU limits of accounts and QOS."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from gavel_py.errors import SlurmError, refuse
from gavel_py.integrations.slurm.client.commands import SlurmCommands, output
from gavel_py.integrations.slurm.client.notation import gpus_in, printable, seconds_in
from gavel_py.integrations.slurm.client.records import Phase, SlurmJob
from gavel_py.integrations.slurm.job_roles import Eligibility, Role
from gavel_py.io.names import natural_key
from gavel_py.problem.tenants import Tenant, TenantTree

ROOT = "root"
"""The account above all others."""

NO_SHARE = 1e-6
"""Weight of accounts and users with a fairshare of 0; they only get what others cannot use."""

ASSOCIATION_FIELDS = ("Account", "User", "Partition", "ParentName", "Share", "GrpTRES")
QOS_FIELDS = ("Name", "GrpTRES", "MaxTRESPU", "MaxTRESPA", "PreemptExemptTime", "Flags")

ROUNDS_BETWEEN = 10
"""Number of rounds after which accounts are read again."""

ADMITTED, WAITING, PASSED, OVER = range(4)
"""Ranks of jobs under limits: in the scheduler; waiting for room; in the scheduler, long without GPUs; running, turn over."""

LAST = (WAITING, math.inf)
"""Rank of jobs that have none."""

CONFIG_LINE = re.compile(r"^(\w+)\s*=\s*(.*?)\s*$", re.MULTILINE)
PARTITION_QOS = re.compile(r"PartitionName=(\S+).*?\bQoS=(\S+)")


class Association(NamedTuple):
    """An account, or a user of one. parent: the account above; share: RawShares; gpus: limit of all jobs below it (GrpTRES)."""

    parent: str
    share: float
    gpus: int | None


class Qos(NamedTuple):
    """A quality of service.

    gpus, gpus_per_user, gpus_per_account: limits (GrpTRES, MaxTRESPU, MaxTRESPA); exempt_seconds: time for which a job is not
    preempted after its start; precedes_partition: whether its limits precede those of the QOS of the partition.
    """

    gpus: int | None = None
    gpus_per_user: int | None = None
    gpus_per_account: int | None = None
    exempt_seconds: float | None = None
    precedes_partition: bool = False


class Turns(NamedTuple):
    """The order in which jobs get the GPUs that limits of accounts and QOS leave them.

    Attributes:
        ranks: {job: its rank, and since when it has it}, the first job first.
        over: Running jobs whose turn is over, so that they give way to jobs that wait.
        overdue: Waiting jobs that no other waiting job of the same limit overtakes any more.
    """

    ranks: Mapping[str, tuple[int, float]]
    over: frozenset[str] = frozenset()
    overdue: frozenset[str] = frozenset()


class GpuLimit(NamedTuple):
    """A limit on GPUs in use. key: the same for all jobs that share the limit; text: a clause for messages to users."""

    key: tuple[str, ...]
    gpus: int
    text: str


@dataclass(frozen=True)
class Accounts:
    """The accounts and QOS in slurmdbd.

    Attributes:
        associations: {(account, user): association}; the user is "" for the account itself.
        qos: {name: QOS}.
        partition_qos: {partition: its QOS}.
        enforced: Whether Slurm enforces limits.
        exempt_seconds: `PreemptExemptTime` of the cluster.
    """

    associations: Mapping[tuple[str, str], Association]
    qos: Mapping[str, Qos]
    partition_qos: Mapping[str, str]
    enforced: bool = True
    exempt_seconds: float = 0.0

    def exempt_of(self, job: SlurmJob) -> float:
        """Return the time for which a job is not preempted after its start."""
        own = self.qos.get(job.qos, Qos()).exempt_seconds
        return self.exempt_seconds if own is None else own

    def limits_of(self, job: SlurmJob) -> Iterator[GpuLimit]:
        """Yield the limits that a job counts towards. As in Slurm, the limit of a QOS overrides the same limit of accounts."""
        if not self.enforced:
            return
        of_partitions = {self.partition_qos.get(name, "") for name in job.partitions}
        # Which of several partitions a job will start in is unknown, so only a limit that all of them have counts.
        names = [name for name in (*(of_partitions if len(of_partitions) == 1 else ()), job.qos) if name in self.qos]
        names.sort(key=lambda name: not self.qos[name].precedes_partition)
        of_group = next((name for name in names if self.qos[name].gpus is not None), None)
        if of_group is not None:
            yield _limit(("qos", of_group), self.qos[of_group].gpus, f"QOS {of_group}", "GrpTRES")
        else:
            for account, user in self._above(job):
                limit = self.associations[account, user].gpus
                whose = f"{f'user {user} of ' if user else ''}account {account}"
                yield from () if limit is None else (_limit(("account", account, user), limit, whose, "GrpTRES"),)
        for field, whose, name in (("gpus_per_user", job.user, "MaxTRESPU"), ("gpus_per_account", job.account, "MaxTRESPA")):
            qos = next((each for each in names if getattr(self.qos[each], field) is not None), None)
            if qos is not None:
                yield _limit((field, qos, whose), getattr(self.qos[qos], field), f"QOS {qos} for {printable(whose)}", name)

    def _above(self, job: SlurmJob) -> Iterator[tuple[str, str]]:
        """Yield the associations that a job counts towards: its user, its account, and the accounts above."""
        account, seen = job.account, set[str]()
        if (account, job.user) in self.associations:
            yield account, job.user
        while (account, "") in self.associations and account not in seen:
            yield account, ""
            seen.add(account)
            account = self.associations[account, ""].parent

    def over_limits(
        self, jobs: Mapping[str, SlurmJob], managed: Iterable[str], turns: Turns, needs: Mapping[str, int]
    ) -> dict[str, Eligibility]:
        """Set aside jobs that would exceed a limit, so that no GPUs are planned for jobs that Slurm would not start.

        Jobs that hold GPUs in any partition count first, except for those whose turn is over; then the others in the order of their
        turns. If a job that is overdue has no room, no other waiting job may use the limits that it needs.

        needs: {elastic job: minimum number of GPUs}; other jobs need what they hold or request.
        """
        if not self.enforced:
            return {}
        used: Counter[tuple[str, ...]] = Counter()
        managed = list(managed)
        over = turns.over.intersection(managed)
        for job in jobs.values():
            if job.phase in {Phase.RUNNING, Phase.STOPPING} and job.held and job.job_id not in over:
                used.update({limit.key: needs.get(job.job_id, sum(job.held.values())) for limit in self.limits_of(job)})
        beyond, blocked = {}, set[tuple[str, ...]]()
        queue = [job_id for job_id in managed if jobs[job_id].phase is not Phase.RUNNING or job_id in over]
        for job_id in sorted(queue, key=lambda job_id: (turns.ranks.get(job_id, LAST), natural_key(job_id))):
            job, limits = jobs[job_id], list(self.limits_of(jobs[job_id]))
            holds = sum(job.held.values()) if job.phase is Phase.RUNNING else 0
            gpus = 0 if job.held and not holds else needs.get(job_id, holds or job.num_gpus)
            waits = job.phase is Phase.WAITING
            closed = blocked if waits else set[tuple[str, ...]]()
            full = next((limit for limit in limits if used[limit.key] + gpus > limit.gpus or limit.key in closed), None)
            if full is None:
                used.update({limit.key: gpus for limit in limits})
            elif waits or holds:
                beyond[job_id] = Eligibility(Role.ASIDE, full.text)
            if full is not None and job_id in turns.overdue and all(gpus <= limit.gpus for limit in limits):
                blocked.update(limit.key for limit in limits)
        return beyond

    def rooms(self, jobs: Mapping[str, SlurmJob], needs: Mapping[str, int], choices: Mapping[str, Sequence[int]]) -> dict[str, int]:
        """Return {elastic job: maximum number of GPUs}, so that all limits are kept whatever numbers are chosen.

        What the needs of all jobs leave of a limit is divided evenly: again and again, the job with the fewest GPUs gets its next
        number, among equal jobs one that already holds more, until no limit has room for the next number of any job.

        needs: {job: minimum number of GPUs} of all jobs that count; choices: {elastic job: numbers of GPUs, ascending}.
        """
        limits = {job_id: list(self.limits_of(jobs[job_id])) for job_id in needs}
        used: Counter[tuple[str, ...]] = Counter()
        for job_id, gpus in needs.items():
            used.update({limit.key: gpus for limit in limits[job_id]})
        found = {job_id: needs[job_id] for job_id in choices}

        def turn(job_id: str) -> tuple[int, bool, tuple[object, ...], str, int]:
            present = found[job_id]
            more = next((gpus for gpus in choices[job_id] if gpus > present), present)
            return present, sum(jobs[job_id].held.values()) < more, natural_key(job_id), job_id, more

        queue = [turn(job_id) for job_id in found]
        heapify(queue)
        while queue:
            present, _, _, job_id, more = heappop(queue)
            if more > present and all(used[limit.key] + more - present <= limit.gpus for limit in limits[job_id]):
                used.update({limit.key: more - present for limit in limits[job_id]})
                found[job_id] = more
                heappush(queue, turn(job_id))
        return found

    def too_early(self, jobs: Mapping[str, SlurmJob], held: Mapping[str, int], starts: Mapping[str, int]) -> dict[str, str]:
        """Return {job: reason} of the starts for which a limit has no room while other jobs still hold GPUs.

        held: {job: GPUs} of the jobs that continue to run; starts: {job: GPUs}.
        """
        used: Counter[tuple[str, ...]] = Counter()
        for job_id, gpus in held.items():
            used.update({limit.key: gpus for limit in self.limits_of(jobs[job_id])})
        early = {}
        for job_id, gpus in starts.items():
            limits = list(self.limits_of(jobs[job_id]))
            full = next((limit for limit in limits if used[limit.key] + gpus > limit.gpus), None)
            if full is None:
                used.update({limit.key: gpus for limit in limits})
            else:
                early[job_id] = f"{full.text}, of which jobs that have been warned still hold some"
        return early

    def tenant_of(self, job: SlurmJob) -> str:
        """Return the name of the tenant to which a job belongs: its user within its account."""
        return printable(f"{job.account or ROOT}/{job.user}")

    def tree(self, tenants: Iterable[str]) -> TenantTree:
        """Return the tree of these tenants and the accounts above them, with RawShares as weights.

        Associations that share with the account above (`fairshare=parent`), and unknown ones, have a weight of 1.
        """
        found: dict[str, Tenant] = {}
        for name in tenants:
            account, _, user = name.partition("/")
            share = self.associations.get((account, user), Association("", 1.0, None)).share
            found[name] = Tenant(name, weight=share, parent=account if account != ROOT else None)
            while account not in found and account not in {"", ROOT}:
                above = self.associations.get((account, ""), Association(ROOT, 1.0, None))
                found[account] = Tenant(
                    account, weight=above.share, parent=above.parent if above.parent not in {"", ROOT} else None
                )
                account = above.parent
        return TenantTree(found.values())


def _limit(key: tuple[str, ...], gpus: int | None, whose: str, name: str) -> GpuLimit:
    return GpuLimit(key, gpus or 0, f"{whose} may use {gpus} GPUs at a time ({name})")


def read_accounts(commands: SlurmCommands, *, required: bool) -> Accounts | None:
    """Return the accounts, or None if Slurm runs without slurmdbd. Every user may read them.

    Raises:
        InputError: They are required, and there is no slurmdbd.
        SlurmError: A command fails, as when slurmdbd does not answer.
    """
    config = dict(CONFIG_LINE.findall(output(commands, "scontrol", "show", "config")))
    storage = config.get("AccountingStorageType", "accounting_storage/none")
    if not storage.endswith("slurmdbd"):
        text = f"needs the accounts of slurmdbd, but this Slurm has none (AccountingStorageType={storage})"
        refuse("slurm", (required, "tenants_from_slurm", text))
        return None
    cluster = config.get("ClusterName", "")
    partitions = output(commands, "scontrol", "show", "partition", "--oneliner")
    rows = _rows(commands, "assoc", ASSOCIATION_FIELDS, f"cluster={cluster}")
    associations: dict[tuple[str, str], Association] = {}
    for account, user, partition, parent, share, limit in rows:
        # An association of a user with one partition counts only if the user has no other.
        if not partition or (account, user) not in associations:
            associations[account, user] = Association(parent, _share(share), _gpus(limit))
    qos = {name: _qos(*fields) for name, *fields in _rows(commands, "qos", QOS_FIELDS)}
    return Accounts(
        associations,
        qos,
        {name: text for name, text in PARTITION_QOS.findall(partitions) if text in qos},
        enforced="limits" in config.get("AccountingStorageEnforce", "").split(","),
        exempt_seconds=seconds_in(config.get("PreemptExemptTime", "")) or 0.0,
    )


@dataclass
class AccountsReader:
    """Reads the accounts every `ROUNDS_BETWEEN` rounds.

    required: whether missing accounts are an error; latest: the accounts last read.
    """

    commands: SlurmCommands
    required: bool
    latest: Accounts | None = None
    _due: int = 0

    def read(self, rounds: int) -> str:
        """Read the accounts if that is due in this round. Return why it was not possible, or ""; the latest accounts then stay.

        Raises:
            InputError: They are required, and there is no slurmdbd.
            SlurmError: They are required, and have never been read.
        """
        if rounds < self._due:
            return ""
        try:
            self.latest, problem = read_accounts(self.commands, required=self.required), ""
        except SlurmError as error:
            if self.required and self.latest is None:
                raise
            problem = str(error)
        self._due = rounds + ROUNDS_BETWEEN
        return problem


def _rows(commands: SlurmCommands, what: str, fields: tuple[str, ...], *which: str) -> Iterator[list[str]]:
    """Yield the rows of a table of sacctmgr."""
    text = output(commands, "sacctmgr", "--noheader", "--parsable2", "show", what, *which, f"format={','.join(fields)}")
    rows = (line.split("|") for line in text.splitlines())
    return (row for row in rows if len(row) == len(fields))


def _share(text: str) -> float:
    """Return the weight of a fairshare, which may be the word "parent"."""
    return max(float(text), NO_SHARE) if text.isdecimal() else 1.0


def _gpus(text: str) -> int | None:
    """Return the limit of GPUs of any type in cpu=7,gres/gpu=5, None if there is none."""
    return gpus_in(text).get("")


def _qos(group: str, per_user: str, per_account: str, exempt: str, flags: str) -> Qos:
    return Qos(_gpus(group), _gpus(per_user), _gpus(per_account), seconds_in(exempt), "OverPartQOS" in flags.split(","))
