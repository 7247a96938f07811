"""The profile store on a PostgreSQL server: what the file does, under load, and when something goes wrong."""

from __future__ import annotations

import itertools
import json
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.throughput_profiles import database
from tests.support.commands import runner
from tests.support.examples import examples
from tests.support.postgres import Server, needs_postgres, run_server
from tests.throughput_profiles import test_store
from tests.throughput_profiles.test_store import (  # noqa: F401 (the tests run here too, on the store of this module)
    measurement,
    profile,
    test_readers_never_see_a_partly_written_profile,
    test_several_processes_replace_one_profile_while_others_read,
    test_several_processes_write_while_others_read,
)

pytestmark = [needs_postgres, pytest.mark.deep]

NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with run_server() as running:
        yield running


@pytest.fixture
def name(server: Server) -> str:
    """An empty database of the server."""
    new = f"store_{next(NUMBERS)}"
    server.run("postgres", f"CREATE DATABASE {new}")
    return new


@pytest.fixture
def store(server: Server, name: str) -> gp.ThroughputStore:
    return gp.ThroughputStore(server.url(name))


class TestKeepingOnAServer(test_store.TestKeeping):
    """All that is tested of a file."""


class TestAddingOnAServer(test_store.TestAdding):
    """All that is tested of a file."""


class TestRefusalsOnAServer(test_store.TestRefusals):
    """All that is tested of a file."""


names = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=6)
speeds = st.floats(0, 1e9) | st.integers(0, 10**6)
rows = st.builds(
    measurement,
    st.sampled_from(["a", "B", "ä", "z (batch size 8)"]),
    speeds,
    num_gpus=st.sampled_from([0.25, 1, 2, 128]),
    accelerator=st.sampled_from(["v100", "k80"]),
    gpu_memory_gb=st.none() | st.floats(0.1, 1e3),
    source=st.just("") | names,
    family=st.none() | names,
    batch_size=st.none() | st.integers(1, 10**6),
)
batches = st.lists(rows, min_size=1, max_size=6, unique_by=lambda row: (row.job_type, row.num_gpus, row.accelerator))
changes = st.tuples(st.sampled_from(["save", "add", "delete"]), st.sampled_from(["mine", "Ähre", "zebra"]), batches)


@settings(max_examples=examples(12, costly=True))
@given(steps=st.lists(changes, max_size=6))
def test_any_changes_give_what_they_give_in_a_file(server: Server, tmp_path_factory: pytest.TempPathFactory, steps: list) -> None:
    new = f"store_{next(NUMBERS)}"
    server.run("postgres", f"CREATE DATABASE {new}")
    stores = gp.ThroughputStore(server.url(new)), gp.ThroughputStore(tmp_path_factory.mktemp("s") / "s.sqlite")
    for what, name, batch in steps:
        answers = []
        for each in stores:
            try:
                if what == "save":
                    each.save(gp.ThroughputProfile(name, batch, description="d"), replace=len(batch) % 2 == 0)
                elif what == "add":
                    each.add(name, batch)
                else:
                    each.delete(name)
                answers.append("done")
            except gp.InputError as error:
                answers.append(str(error).replace(each.location, "HERE"))
        assert answers[0] == answers[1]
    assert stores[0].names() == stores[1].names()
    assert repr(stores[0].summaries()) == repr(stores[1].summaries())
    for name in stores[0].names():
        assert repr(stores[0].load(name).rows) == repr(stores[1].load(name).rows)


def test_reading_creates_nothing(server: Server, name: str, store: gp.ThroughputStore) -> None:
    assert store.names() == gp.ThroughputProfile.builtin_names()
    with pytest.raises(gp.UnknownNameError):
        store.delete("mine")
    assert server.run(name, "SELECT 1 FROM pg_namespace WHERE nspname = 'gavel_py'") == []


def test_all_reads_of_a_transaction_see_the_same_state(store: gp.ThroughputStore) -> None:
    store.save(profile("mine"))
    with store._database.reading() as session:
        assert session.execute("SELECT count(*) FROM profiles").fetchone() == (1,)
        store.save(profile("other"))  # does not wait for readers
        assert session.execute("SELECT count(*) FROM profiles").fetchone() == (1,)
    assert store.names()[-2:] == ("mine", "other")


def add_batches(url: str, number: int) -> None:
    store = gp.ThroughputStore(url)
    for batch in range(5):
        store.add("shared", [measurement(f"type-{number}-{batch}-{n}", number + 1, source=f"writer {number}") for n in range(8)])
        store.add("shared", [measurement("contended", number + 1)])
    store.save(profile(f"own-{number}"))


@pytest.mark.deep
def test_sixteen_processes_write_at_once_and_nothing_is_lost(store: gp.ThroughputStore, server: Server, name: str) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=add_batches, args=(server.url(name), number)) for number in range(16)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(300)
    assert [writer.exitcode for writer in writers] == [0] * 16
    found = store.load("shared")
    assert len(found) == 16 * 5 * 8 + 1
    assert all(found.throughput(f"type-{w}-{b}-{n}", 1, "v100") == w + 1 for w in range(16) for b in range(5) for n in range(8))
    assert found.throughput("contended", 1, "v100") in range(1, 17)
    assert [each for each in store.names() if each.startswith("own")] == sorted(f"own-{n}" for n in range(16))
    assert server.run(name, "SELECT version FROM gavel_py.profile_store_version") == [(database.SCHEMA_VERSION,)]


KILLED = """
import os, signal, sys
import gavel_py as gp
from gavel_py.throughput_profiles import database

database.BUSY_SECONDS = 3600.0  # the server ends the transaction with the process, and not because it is idle

class Deadly(gp.ThroughputProfile):
    @property
    def rows(self):
        for number, row in enumerate(gp.ThroughputProfile.builtin("gavel-osdi20").rows):
            if number == int(sys.argv[2]):
                os.kill(os.getpid(), signal.SIGKILL)
            yield row

gp.ThroughputStore(sys.argv[1]).save(Deadly("mine", []), replace=True)
"""


@pytest.mark.parametrize("row", [0, 1, 300])
def test_a_killed_writer_leaves_nothing_half_written_and_holds_up_no_other(
    store: gp.ThroughputStore, server: Server, name: str, row: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(profile("mine"))
    died = subprocess.run([sys.executable, "-c", KILLED, server.url(name), str(row)], check=False, timeout=60)
    assert died.returncode == -signal.SIGKILL
    assert store.load("mine") == profile("mine")
    monkeypatch.setattr(database, "BUSY_SECONDS", 60.0)
    store.save(profile("next"))  # waits no longer than this for the lock
    assert store.names()[-2:] == ("mine", "next")


def test_a_writer_waits_for_another_one_for_a_time(store: gp.ThroughputStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save(profile("mine"))
    with store._database.writing():
        monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)
        with pytest.raises(gp.InputError, match=r"has been locked by another process for more than 0\.05 s"):
            store.save(profile("new"))
        assert store.load("mine") == profile("mine")
    store.save(profile("new"))


def test_a_writer_that_hangs_is_ended(store: gp.ThroughputStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a machine that lost its power, of which the server hears nothing."""
    store.save(profile("mine"))
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.2)

    def hang() -> None:
        with store._database.writing() as session:
            session.execute("DELETE FROM measurements")
            time.sleep(1)
            session.execute("DELETE FROM profiles")

    with pytest.raises(gp.InputError, match="idle-in-transaction"):
        hang()
    assert store.load("mine") == profile("mine")


def fails(store: gp.ThroughputStore, problem: str) -> None:
    for use in test_store.read_and_write(store):
        with pytest.raises(gp.InputError) as caught:
            use()
        assert str(caught.value).startswith(f"profile store {store.location}: "), caught.value
        assert problem in str(caught.value)
        assert "\n" not in str(caught.value)
        assert "s3cret" not in str(caught.value)
        assert caught.value.__suppress_context__ or caught.value.__context__ is None


@contextmanager
def lock_of_writers(server: Server) -> Iterator[None]:
    """Hold the lock in another session."""
    import psycopg

    with closing(psycopg.connect(server.url("postgres"))) as connection:
        connection.execute(f"SELECT pg_advisory_xact_lock({database.APPLICATION_ID})")
        yield


class TestServersThatGoAway:
    @pytest.fixture
    def own(self) -> Iterator[Server]:
        with run_server() as running:
            yield running

    @pytest.mark.deep
    @pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
    def test_while_storing(
        self, own: Server, how: signal.Signals, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(logging.getLogger(), "handlers", [])  # those of pytest, as in a program that logs nothing
        store = gp.ThroughputStore(own.url("postgres"))
        store.save(profile("mine"))

        class Interrupting(gp.ThroughputProfile):
            @property
            def rows(self) -> Iterator[Any]:  # type: ignore[override]
                for number, row in enumerate(profile("mine", 2000).rows):
                    if number == 1000:
                        own.stop(how)
                    yield row

        for made in (Interrupting("mine", []), Interrupting("new", [])):
            with pytest.raises(gp.InputError) as caught:
                store.save(made, replace=True)
            text = str(caught.value)
            assert text.startswith(f"profile store {store.location}: the connection was lost: ")
            assert text.endswith("a change that was under way is stored whole or not at all")
            fails(store, "cannot be reached: ")
            own.start()
            assert store.names()[-1] == "mine"
            assert store.load("mine") == profile("mine")
        assert capsys.readouterr().err == "", "the error says it all"

    @pytest.mark.deep
    def test_of_a_command_is_a_message_without_a_traceback(
        self, own: Server, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        gavel, store = runner(capsys, "profiles"), gp.ThroughputStore(own.url("postgres"))
        store.save(profile("mine"))
        with lock_of_writers(own):
            stopping = threading.Timer(1, own.stop, [signal.SIGQUIT])
            stopping.start()
            (tmp_path / "lab.csv").write_text("job_type,num_gpus,accelerator,steps_per_second\na,1,v100,2\n")
            outcome = gavel("--store", own.url("postgres"), "import", str(tmp_path / "lab.csv"))
            stopping.join()
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err.startswith(f"Error: profile store {store.location}: the connection was lost: ")
        own.start()
        assert store.names()[-1] == "mine"


class TestWhatCannotBeReached:
    def test_a_wrong_password(self, server: Server, name: str) -> None:
        wrong = server.url(name, "locked:not-s3cret")
        fails(gp.ThroughputStore(wrong), "password authentication failed")
        fails(gp.ThroughputStore(server.url(name, "locked")), "no password supplied")

    def test_the_right_password(self, server: Server, name: str, capsys: pytest.CaptureFixture[str]) -> None:
        server.run("postgres", f"GRANT CREATE ON DATABASE {name} TO locked")
        url = server.url(name, "locked:s3cret")
        store = gp.ThroughputStore(url)
        store.save(profile("mine"))
        gavel = runner(capsys, "profiles")
        outcome = gavel("--store", url, "delete", "mine")
        assert outcome.out == f"Removed 'mine' from {store.location}\n"
        assert "s3cret" not in repr(store) + outcome.out + outcome.err

    def test_an_unknown_host(self) -> None:
        with pytest.raises(gp.InputError) as caught:
            gp.ThroughputStore("postgresql://ann:s3cret@no-such-host.invalid/db").names()
        assert str(caught.value).startswith("profile store postgresql://ann@no-such-host.invalid/db: cannot be reached: ")
        assert "no-such-host.invalid" in str(caught.value)
        assert "s3cret" not in str(caught.value)

    def test_an_unknown_database_and_an_unknown_role(self, server: Server, name: str) -> None:
        fails(gp.ThroughputStore(server.url("nothing")), 'database "nothing" does not exist')
        fails(gp.ThroughputStore(server.url(name, "nobody-known")), 'role "nobody-known" does not exist')

    def test_invalid_urls_show_nothing_of_the_password(self, server: Server, name: str) -> None:
        fails(gp.ThroughputStore(server.url(name, "ann:s3cret%zz")), "is not a valid URL")
        fails(gp.ThroughputStore(f"{server.url(name)}?s3cret=1"), "is not a valid URL")

    def test_a_role_without_rights(self, server: Server, name: str, store: gp.ThroughputStore) -> None:
        store.save(profile("mine"))
        fails(gp.ThroughputStore(server.url(name, "locked:s3cret")), "permission denied")
        assert store.load("mine") == profile("mine")


class TestTablesOfOthers:
    def test_in_the_namespace_are_left_alone(self, server: Server, name: str, store: gp.ThroughputStore) -> None:
        server.run(name, "CREATE SCHEMA gavel_py", "CREATE TABLE gavel_py.profiles (name TEXT)")
        fails(store, "has a schema gavel_py with tables of another application; use another database")
        assert server.run(name, "SELECT tablename FROM pg_tables WHERE schemaname = 'gavel_py'") == [("profiles",)]

    def test_elsewhere_in_the_database_do_not_matter(self, server: Server, name: str, store: gp.ThroughputStore) -> None:
        server.run(name, "CREATE TABLE profiles (name TEXT)", "INSERT INTO profiles VALUES ('theirs')")
        store.save(profile("mine"))
        assert store.names()[-1] == "mine"
        assert server.run(name, "SELECT * FROM public.profiles") == [("theirs",)]

    def test_an_empty_namespace_is_used(self, server: Server, name: str) -> None:
        server.run(name, "CREATE SCHEMA gavel_py AUTHORIZATION locked")
        store = gp.ThroughputStore(server.url(name, "locked:s3cret"))  # which may not create one
        store.save(profile("mine"))
        assert store.load("mine") == profile("mine")

    @pytest.mark.parametrize("version", [1, 99])
    def test_another_schema(self, server: Server, name: str, store: gp.ThroughputStore, version: int) -> None:
        store.save(profile("mine"))
        server.run(name, f"UPDATE gavel_py.profile_store_version SET version = {version}")  # noqa: S608
        fails(store, f"was written by another version of gavel-py (schema {version}, this one reads {database.SCHEMA_VERSION})")

    def test_invalid_rows_are_refused(self, server: Server, name: str, store: gp.ThroughputStore) -> None:
        store.save(profile("mine"))
        server.run(name, "UPDATE gavel_py.measurements SET steps_per_second = -1 WHERE job_type = 'type-1'")
        with pytest.raises(gp.InputError, match="profile 'mine', row 2"):
            store.load("mine")


def test_every_command_takes_a_url(
    server: Server,
    name: str,
    store: gp.ThroughputStore,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    store.save(gp.ThroughputProfile("lab", [measurement("a", 2.0), measurement("a", 1.0, accelerator="k80")]))
    Path("jobs.csv").write_text("job_id,job_type\nx,a\n")
    solve = runner(capsys, "solve")
    given = solve("jobs.csv", "-c", "v100:1,k80:1", "--profile", "lab", "--store", server.url(name), "--json")
    assert json.loads(given.out)["status"] == "optimal"
    monkeypatch.setenv("GAVEL_PY_STORE", server.url(name))
    assert solve("jobs.csv", "-c", "v100:1,k80:1", "--profile", "lab").code == 0
    assert "lab" in runner(capsys, "profiles")("list").out
    assert (
        runner(capsys, "trace")("generate", "--jobs", "3", "--jobs-per-hour", "1", "--profile", "lab", "--gangs", "1:1").code == 0
    )


def test_a_row_that_the_server_refuses_leaves_the_store_as_it_was(store: gp.ThroughputStore) -> None:
    store.save(profile("mine"))
    too_long_for_an_index = "".join(chr(0x4E00 + number) for number in range(1000))
    with pytest.raises(gp.InputError, match="failed: index row size"):
        store.add("mine", [measurement("b"), measurement(too_long_for_an_index)])
    assert store.load("mine") == profile("mine")


def test_a_forked_process_opens_connections_of_its_own(store: gp.ThroughputStore) -> None:
    store.save(profile("mine"))
    child = os.fork()
    if child == 0:
        os._exit(0 if store.load("mine") == profile("mine") else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert store.load("mine") == profile("mine")


@pytest.mark.deep
def test_observations_are_kept_as_in_a_file(store: gp.ThroughputStore, tmp_path: Path) -> None:
    file = gp.ThroughputStore(tmp_path / "store.sqlite")
    for each in (store, file):
        for size, rate in ((2, 3.0), (2, 3.2), (0.5, 1.0)):
            each.observe("mine", ("bert", size, "v100"), steps=rate, seconds=1, at=5.0)
        each.observe("mine", ("bert", 1, "v100", "consolidated", "gpt"), steps=1, seconds=1, at=5.0)
    assert store.observations("mine") == file.observations("mine")
    assert len(store.observations("mine")) == 3
    store.delete("mine")
    with pytest.raises(gp.UnknownNameError):
        store.observations("mine")
