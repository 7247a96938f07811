"""Accounts of slurmdbd: limits of GPUs, of which none is planned that Slurm would not give, and shares as tenants."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.integrations.slurm.accounts import Accounts, Association, Qos, read_accounts
from gavel_py.integrations.slurm.client.parsing import jobs_from
from gavel_py.integrations.slurm.client.records import Phase, SlurmJob
from tests.slurm.fake_slurm import FakeSlurm
from tests.slurm.support import BERT, RECORDED, cluster, driver, events

CONFIG = """\
AccountingStorageEnforce = associations,limits,qos
AccountingStorageType   = accounting_storage/slurmdbd
ClusterName             = loopback
PreemptExemptTime       = 00:00:00
"""


def with_accounts(slurm: FakeSlurm, *, enforce: bool = True) -> FakeSlurm:
    """Give a cluster the accounts that a Slurm 22.05 has printed: chem may use 4 GPUs, a user 6 with QOS normal."""
    slurm.config += CONFIG if enforce else CONFIG.replace("limits,", "")
    slurm.tables = {what: (RECORDED / f"sacctmgr-{what}-22.05.txt").read_text() for what in ("assoc", "qos")}
    return slurm


def known() -> Accounts:
    found = read_accounts(with_accounts(cluster()), required=True)
    assert found is not None
    return found


def a_job(
    job_id: str, account: str = "chem", user: str = "games", qos: str = "normal", gpus: int = 1, **fields: object
) -> SlurmJob:
    entry = {"job_id": 1, "job_state": "PENDING", "account": account, "user_name": user, "qos": qos, "partition": "gpu"}
    jobs, _ = jobs_from({"jobs": [entry | {"tres_per_job": f"gpu:{gpus}"}]})
    return replace(jobs["1"], job_id=job_id, **fields)  # type: ignore[arg-type]


def limits(accounts: Accounts, job: SlurmJob) -> dict[str, int]:
    return {limit.text.partition(" may use")[0]: limit.gpus for limit in accounts.limits_of(job)}


def test_limits_apply_as_in_slurm() -> None:
    """Recorded from Slurm 22.05, where 5 jobs of QOS short ran beside the limit of 4 of their account, and 4 of QOS normal."""
    accounts = known()
    normal = a_job("1")
    assert limits(accounts, normal) == {"account chem": 4, "QOS normal for games": 6}
    assert limits(accounts, replace(normal, account="organic", user="nobody")) == {"account chem": 4, "QOS normal for nobody": 6}
    assert limits(accounts, replace(normal, qos="short")) == {"QOS short": 6, "QOS short for chem": 5}
    assert limits(accounts, a_job("1", "physics", "nobody")) == {"QOS normal for nobody": 6}
    assert limits(accounts, a_job("1", "", "stranger", "")) == {}
    assert limits(replace(accounts, enforced=False), normal) == {}
    by_partition = replace(accounts, partition_qos={"gpu": "normal"})
    assert limits(by_partition, replace(normal, qos="short"))["QOS short"] == 6
    several = replace(normal, qos="short", partition="gpu,long")
    assert limits(by_partition, several) == limits(accounts, several), "it may start in the other one"
    same = replace(accounts, partition_qos={"gpu": "normal", "long": "normal"})
    assert limits(same, several) == limits(by_partition, replace(normal, qos="short"))
    assert accounts.exempt_of(normal) == 300.0
    assert replace(accounts, exempt_seconds=7.0).exempt_of(a_job("1", qos="")) == 7.0


def test_no_gpu_is_planned_that_a_limit_leaves_idle(tmp_path: Path) -> None:
    """Five jobs of an account that may use 4 GPUs come first, and one of another account has the other node at once."""
    slurm = with_accounts(cluster())
    for number in range(1, 6):
        slurm.submit(number, per_job="gpu:2", comment=BERT, more={"account": "chem", "user_name": "games", "qos": "normal"})
    slurm.submit(6, per_job="gpu:4", comment=BERT, more={"account": "physics", "user_name": "nobody", "qos": "normal"})
    with driver(slurm, tmp_path) as driven:
        for _ in range(4):
            slurm.clock.sleep(100.0)
            decided, applied = driven.round()
            assert applied.waiting == {}
            held: Counter[str] = Counter()
            for number, job in slurm.jobs.items():
                held[account_of(slurm, number)] += sum(job.held.values())
            assert held == {"chem": 4, "physics": 4}
        why = decided.picture.left_alone
        assert {text for job_id, text in why.items() if job_id != "6"} == {"account chem may use 4 GPUs at a time (GrpTRES)"}
        running = next(number for number in range(1, 6) if slurm.jobs[number].held)
        slurm.end(running)
        driven.fill()
    assert sum(sum(slurm.jobs[number].held.values()) for number in range(1, 6)) == 4, "the next one has started"


def account_of(slurm: FakeSlurm, number: int) -> str:
    return str(slurm.jobs[number].more["account"])


JOBS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["x", "y"]),
        st.sampled_from(["", "p", "q"]),
        st.integers(1, 4),
        st.booleans(),
    ),
    max_size=12,
)
LIMITS = st.one_of(st.none(), st.integers(0, 8))


@settings(deadline=None, max_examples=150)
@given(JOBS, LIMITS, LIMITS, LIMITS, LIMITS, st.sets(st.integers(0, 11)))
def test_jobs_are_set_aside_exactly_where_limits_leave_no_room(
    rows: list[tuple[str, str, str, int, bool]], a: int | None, b: int | None, p: int | None, user: int | None, seen: set[int]
) -> None:
    associations = {("a", ""): Association("root", 1, a), ("b", ""): Association("a", 1, b), ("b", "x"): Association("", 1, 2)}
    accounts = Accounts(associations, {"p": Qos(gpus=p), "q": Qos(gpus_per_user=user)}, {})
    jobs = {}
    for number, (account, name, qos, gpus, runs) in enumerate(rows):
        fields = {"phase": Phase.RUNNING, "held": {"n": gpus}} if runs else {}
        jobs[str(number)] = a_job(str(number), account, name, qos, gpus, **fields)
    aside = accounts.over_limits(jobs, list(jobs), {str(number) for number in seen}, {})

    def counted(job: SlurmJob) -> set[tuple[str, str]]:
        """The groups with a limit to which a job belongs, written down without the code."""
        groups = {("user", job.user)} if job.qos == "q" and user is not None else set()
        if job.qos == "p" and p is not None:
            return groups | {("qos", "p")}
        above = {"a": ["a"], "b": ["b", "a"], "c": []}[job.account]
        groups |= {("account", each) for each in above if {"a": a, "b": b}[each] is not None}
        return groups | ({("account", "b/x")} if (job.account, job.user) == ("b", "x") else set())

    most = {("user", "x"): user, ("user", "y"): user, ("qos", "p"): p}
    most |= {("account", "a"): a, ("account", "b"): b, ("account", "b/x"): 2}
    used: Counter[tuple[str, str]] = Counter()
    for job_id, job in jobs.items():
        if job_id not in aside:
            used.update(dict.fromkeys(counted(job), job.num_gpus))
    running = Counter[tuple[str, str]]()
    for job in jobs.values():
        if job.held:
            running.update(dict.fromkeys(counted(job), job.num_gpus))
    assert all(used[group] <= max(most[group] or 0, running[group]) for group in used)
    for job_id in aside:
        assert not jobs[job_id].held
        assert any(used[group] + jobs[job_id].num_gpus > (most[group] or 0) for group in counted(jobs[job_id]))


def test_accounts_are_tenants_with_their_fairshare() -> None:
    accounts = known()
    tree = accounts.tree(["physics/nobody", "organic/nobody", "chem/games", "root/daemon", "new/somebody"])
    assert {(tenant.name, tenant.parent, tenant.weight) for tenant in tree.tenants} == {
        ("physics", None, 3.0),
        ("physics/nobody", "physics", 2.0),
        ("chem", None, 1.0),
        ("chem/games", "chem", 1.0),
        ("organic", "chem", 1.0),
        ("organic/nobody", "organic", 1.0),
        ("root/daemon", None, 1.0),
        ("new", None, 1.0),
        ("new/somebody", "new", 1.0),
    }


def test_jobs_share_by_account_and_changes_are_followed(tmp_path: Path) -> None:
    """physics has 3 of 4 shares, chem 1: of 8 equal GPUs 6 and 2, whoever has more jobs; later both have the same."""
    slurm = with_accounts(cluster(), enforce=False)
    slurm.nodes = {"v100-0": ("v100", 4), "v100-1": ("v100", 4)}
    slurm.states = dict.fromkeys(slurm.nodes, "IDLE")
    for number in range(1, 21):
        account, user = ("physics", "nobody") if number > 12 else ("chem", "games")
        slurm.submit(number, per_job="gpu:1", comment=BERT, more={"account": account, "user_name": user})
    with driver(slurm, tmp_path, policy="hierarchical", tenants_from_slurm=True) as driven:
        assert shares(driven) == pytest.approx({"physics": 6.0, "chem": 2.0}, abs=1e-4)
        slurm.tables["assoc"] = slurm.tables["assoc"].replace("physics|||root|3|", "physics|||root|1|")
        slurm.submit(21, per_job="gpu:1", comment=BERT, more={"account": "organic", "user_name": "newcomer"})
        for _ in range(10):
            slurm.clock.sleep(100.0)
            found = shares(driven)
        assert found == pytest.approx({"physics": 4.0, "chem": 3.0 + 1 / 3, "organic": 2 / 3}, rel=0.5)
        assert sum(found[name] for name in ("chem", "organic")) == pytest.approx(4.0, abs=1e-4)
    with driver(slurm, tmp_path) as driven:
        driven.round()
        assert driven.state is not None
        assert {job.tenant for job in driven.state.scheduler.jobs} == {"physics", "chem", "organic"}
    with driver(slurm, tmp_path, policy="hierarchical", tenants_from_slurm=True) as driven:
        assert shares(driven)["physics"] == pytest.approx(4.0, abs=1e-4)


def shares(driven: gp.SlurmDriver) -> dict[str, float]:
    """Run a round and return the GPUs that its allocation gives to each account."""
    driven.round()
    assert driven.state is not None
    allocation = driven.state.scheduler.allocation
    assert allocation is not None
    tenants = {job.job_id: (job.tenant or "").partition("/")[0] for job in driven.state.scheduler.jobs}
    found: Counter[str] = Counter()
    for job_id, part in zip(allocation.job_ids, allocation.time_fractions.sum(axis=1).tolist(), strict=True):
        found[tenants[job_id]] += part  # type: ignore[assignment]
    return dict(found)


def test_without_slurmdbd(tmp_path: Path) -> None:
    slurm = cluster()
    with (
        pytest.raises(gp.InputError, match="needs the accounts of slurmdbd"),
        driver(slurm, tmp_path, policy="hierarchical", tenants_from_slurm=True) as driven,
    ):
        driven.round()
    assert not slurm.sent
    with_accounts(slurm)
    slurm.tables = {}
    slurm.submit(1, per_job="gpu:1", comment=BERT)
    with (
        pytest.raises(gp.SlurmError, match="sacctmgr: error: no slurmdbd"),
        driver(slurm, tmp_path, policy="hierarchical", tenants_from_slurm=True) as driven,
    ):
        driven.round()
    with pytest.warns(gp.GavelWarning, match="limits and shares of accounts could not be read"), driver(slurm, tmp_path) as driven:
        driven.round()
    assert slurm.jobs[1].held, "limits are not worth more than rounds"
    assert events(tmp_path, "no_accounts")


def test_only_hierarchical_shares_by_accounts(tmp_path: Path) -> None:
    with pytest.raises(gp.InputError, match="needs the policy hierarchical"):
        driver(cluster(), tmp_path, tenants_from_slurm=True)


def test_jobs_are_not_preempted_in_the_time_that_their_qos_exempts(tmp_path: Path) -> None:
    """Jobs of QOS normal run for 300 s, three rounds, before their turn ends; those without QOS may be stopped after each."""
    slurm = with_accounts(cluster(), enforce=False)
    for number in range(1, 5):
        slurm.submit(number, per_job="gpu:4", comment=BERT, more={"qos": "normal" if number < 3 else ""})
    shortest: dict[int, float] = {}
    with driver(slurm, tmp_path) as driven:
        for _ in range(24):
            before = {number: (job.restarts, job.start) for number, job in slurm.jobs.items()}
            driven.round()
            for number, (restarts, start) in before.items():
                if slurm.jobs[number].restarts > restarts:
                    shortest[number] = min(shortest.get(number, 1e9), slurm.clock.now() - start)
            slurm.clock.sleep(100.0)
    assert shortest.keys() == {1, 2, 3, 4}, "all take turns"
    assert min(shortest[1], shortest[2]) >= 300.0
    assert max(shortest[3], shortest[4]) < 300.0
