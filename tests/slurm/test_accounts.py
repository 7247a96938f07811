"""Accounts of slurmdbd: limits of GPUs, of which none is planned that Slurm would not give, and shares as tenants."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.integrations.slurm.accounts import ADMITTED, WAITING, Accounts, Association, Qos, Turns, read_accounts
from gavel_py.integrations.slurm.client.parsing import jobs_from
from gavel_py.integrations.slurm.client.records import Phase, SlurmJob
from gavel_py.integrations.slurm.records import LOST_SHARE, UNMEASURED_STOP_SECONDS
from tests.slurm.fake_slurm import FakeClock, FakeSlurm
from tests.slurm.support import BERT, RECORDED, KilledError, cluster, driver, dying_at, events

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


def test_no_job_overtakes_one_that_is_overdue_for_the_same_limit() -> None:
    """Of the 4 GPUs of account chem, 2 are in use: a job of 4 has waited for long, one of 2 comes later, and one of physics too."""
    accounts = known()
    jobs = {name: a_job(name, gpus=gpus) for name, gpus in (("1", 2), ("2", 4), ("3", 2))} | {"4": a_job("4", "physics", "nobody")}
    jobs["1"] = replace(jobs["1"], phase=Phase.RUNNING, held={"v100-0": 2})
    ranks = {name: (WAITING, float(name)) for name in ("2", "3", "4")}
    needs: dict[str, int] = {}
    assert accounts.over_limits(jobs, jobs, Turns(ranks), needs).keys() == {"2"}
    assert accounts.over_limits(jobs, jobs, Turns(ranks, overdue=frozenset({"2"})), needs).keys() == {"2", "3"}


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
    turns = Turns({str(number): (ADMITTED if number in seen else WAITING, 0.0) for number in range(len(rows))})
    aside = accounts.over_limits(jobs, list(jobs), turns, {})

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


def site(nodes: int, *, account: int = 4) -> FakeSlurm:
    """Return nodes of 4 GPUs, of which an account may use so many."""
    slurm = with_accounts(FakeSlurm(FakeClock(), {f"v100-{number}": ("v100", 4) for number in range(nodes)}))
    slurm.tables["assoc"] = slurm.tables["assoc"].replace("gres/gpu=4", f"gres/gpu={account}")
    return slurm


def a_user(slurm: FakeSlurm, numbers: Iterable[int], gpus: int = 1, account: str = "chem", **fields: object) -> None:
    user = {"chem": "games", "physics": "nobody"}[account]
    for number in numbers:
        more = {"account": account, "user_name": user, "qos": ""}
        slurm.submit(number, per_job=f"gpu:{gpus}", comment=BERT, more=more, **fields)


def used_by(slurm: FakeSlurm, account: str) -> int:
    return sum(sum(job.held.values()) for number, job in slurm.jobs.items() if account_of(slurm, number) == account)


@pytest.mark.deep
def test_jobs_below_a_limit_take_turns(tmp_path: Path) -> None:
    """Twenty jobs of an account that may use 4 of 8 GPUs have a fifth of the time each, to a turn, and disturb no others.

    All of these GPUs are in use in each round, and Slurm starts what is planned, so that the limit is never exceeded.
    """
    slurm, ran = site(2), Counter[int]()
    a_user(slurm, range(1, 21))
    a_user(slurm, range(41, 45), account="physics")
    with driver(slurm, tmp_path) as driven:
        for _ in range(30):
            _, applied = driven.round()
            assert applied.waiting == {}
            assert (used_by(slurm, "chem"), used_by(slurm, "physics")) == (4, 4)
            ran.update(number for number, job in slurm.jobs.items() if job.held)
            slurm.clock.sleep(100.0)
            driven.fill()
            assert used_by(slurm, "chem") == 4
    turn = UNMEASURED_STOP_SECONDS / LOST_SHARE / 100.0  # the first one, in rounds
    assert max(abs(ran[number] - 30 / 5) for number in range(1, 21)) <= turn
    assert [slurm.jobs[number].restarts for number in range(41, 45)] == [0] * 4, "the others stay"
    run = gp.slurm_run(tmp_path)
    delivered = Counter[str]()
    for stay in run.stays:
        delivered[stay.job_id] += round(stay.end_seconds - stay.start_seconds)  # type: ignore[call-overload]
    assert all(abs(delivered[str(number)] - 100 * ran[number]) <= 100 for number in range(1, 21)), "the log knows it"


@pytest.mark.guard
@settings(deadline=None, max_examples=3)
@given(
    st.lists(st.tuples(st.sampled_from([1, 1, 2, 4, 8]), st.sampled_from(["chem", "physics"])), min_size=3, max_size=10),
    st.integers(3, 9),
)
def test_no_job_below_a_limit_starves(rows: list[tuple[int, str]], limit: int) -> None:
    """Gangs get their turn as well, whoever is smaller; a gang that the limit never allows waits, and keeps nobody waiting."""
    slurm, ran = site(4, account=limit), set[int]()
    for number, (gpus, account) in enumerate(rows, 1):
        a_user(slurm, [number], min(gpus, 4), account)
    small = [number for number, (gpus, _) in enumerate(rows, 1) if min(gpus, 4) == 1 and account_of(slurm, number) == "chem"]
    with tempfile.TemporaryDirectory() as folder, driver(slurm, Path(folder)) as driven:
        for _ in range(25):
            _, applied = driven.round()
            assert applied.waiting == {}
            assert used_by(slurm, "chem") <= limit
            ran |= {number for number, job in slurm.jobs.items() if job.held}
            slurm.clock.sleep(100.0)
        driven.fill()
        if len(small) == len([each for each in rows if each[1] == "chem"]) and sum(map(slurm.free, slurm.nodes)):
            assert used_by(slurm, "chem") == min(limit, len(small)), "no GPU idles that the limit allows"
    assert ran == {number for number, (gpus, account) in enumerate(rows, 1) if account != "chem" or min(gpus, 4) <= limit}


def test_a_job_that_gives_way_is_warned_before(tmp_path: Path) -> None:
    slurm, stops = site(2), set[int]()
    a_user(slurm, range(1, 7), 2)
    with driver(slurm, tmp_path, warn_signal="USR1", warn_seconds=20.0) as driven:
        for _ in range(12):
            driven.round()
            assert used_by(slurm, "chem") <= 4
            for _ in range(4):
                slurm.clock.sleep(25.0)
                before = {number for number, job in slurm.jobs.items() if job.held}
                driven.fill()
                stops |= before - {number for number, job in slurm.jobs.items() if job.held}
                assert used_by(slurm, "chem") == 4, "the next one starts once it has stopped"
    assert stops == set(range(1, 7)) <= {number for number, _, _ in slurm.signalled}


def test_a_driver_that_is_killed_while_a_job_gives_way_goes_on(tmp_path: Path) -> None:
    for command in (2, 5, 8, 11):
        slurm = site(1)
        a_user(slurm, range(1, 9))
        folder = tmp_path / str(command)
        with driver(slurm, folder) as driven:
            for _ in range(5):
                driven.round()
                slurm.clock.sleep(100.0)
            with suppress(KilledError), dying_at(slurm, command):
                driven.round()
        with driver(slurm, folder) as again:
            for _ in range(6):
                slurm.clock.sleep(100.0)
                _, applied = again.round()
                assert applied.waiting == {}
                assert used_by(slurm, "chem") == 4
            assert again.state is not None
            assert {number for number, job in slurm.jobs.items() if job.start > slurm.clock.now() - 600.0} == set(range(1, 9))


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


@pytest.mark.deep
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
