"""The profile store: saving and loading, refusals, and use by several processes at once."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import gavel_py as gp
from gavel_py.throughput_profiles import database


def measurement(job_type: str, speed: float = 1.0, **fields: object) -> gp.Measurement:
    return gp.Measurement(**{"job_type": job_type, "num_gpus": 1, "accelerator": "v100", "steps_per_second": speed} | fields)


def profile(name: str, rows: int = 3) -> gp.ThroughputProfile:
    return gp.ThroughputProfile(name, [measurement(f"type-{n}", n / 7, source=f"run {n}") for n in range(rows)])


@pytest.fixture
def store(tmp_path: Path) -> gp.ThroughputStore:
    return gp.ThroughputStore(tmp_path / "new" / "profiles.sqlite")


class TestKeeping:
    def test_loading_restores_what_was_saved(self, store: gp.ThroughputStore) -> None:
        pairs = [
            measurement("b", 0.1, partner_job_type="a", partner_steps_per_second=0.3),
            measurement("c", 0.0, placement="spread"),
        ]
        saved = gp.ThroughputProfile("mine", pairs, description="d", licence="l", notice="n", url="u")
        store.save(saved)
        assert store.load("mine") == saved
        assert gp.ThroughputStore(store.location).load("mine") == saved

    def test_rows_keep_their_sources_and_order(self, store: gp.ThroughputStore) -> None:
        store.save(profile("mine"))
        assert [(row.job_type, row.source) for row in store.load("mine").rows] == [
            ("type-0", "run 0"),
            ("type-1", "run 1"),
            ("type-2", "run 2"),
        ]

    def test_names_are_the_built_in_ones_and_those_stored(self, store: gp.ThroughputStore) -> None:
        store.save(profile("zebra"))
        store.save(profile("ant"))
        assert store.names() == (*gp.ThroughputProfile.builtin_names(), "ant", "zebra")

    def test_a_built_in_profile_is_loaded_by_name(self, store: gp.ThroughputStore) -> None:
        assert store.load("nvidia-2023") == gp.ThroughputProfile.builtin("nvidia-2023")

    @pytest.mark.deep
    def test_the_largest_built_in_profile_can_be_saved(self, store: gp.ThroughputStore) -> None:
        rows = gp.ThroughputProfile.builtin("gavel-osdi20").rows
        copy = gp.ThroughputProfile("copy", gp.ThroughputProfile.builtin("gavel-osdi20").measurements)
        store.save(copy)
        assert store.load("copy").rows == rows

    def test_replacing(self, store: gp.ThroughputStore) -> None:
        store.save(profile("mine", 3))
        store.save(profile("other", 2))
        store.save(profile("mine", 1), replace=True)
        assert store.load("mine") == profile("mine", 1)
        assert store.load("other") == profile("other", 2)

    def test_deleting(self, store: gp.ThroughputStore) -> None:
        store.save(profile("mine"))
        store.save(profile("other"))
        store.delete("mine")
        assert store.names() == (*gp.ThroughputProfile.builtin_names(), "other")
        assert store.load("other") == profile("other")
        store.save(profile("mine", 1))
        assert store.load("mine") == profile("mine", 1)

    def test_summaries(self, store: gp.ThroughputStore) -> None:
        store.save(gp.ThroughputProfile("mine", [measurement("a"), measurement("b", num_gpus=4)], licence="CC0", url="here"))
        builtin, nvidia, *_, mine = store.summaries()
        assert (builtin.name, builtin.builtin, len(builtin.job_types), builtin.licence) == ("gavel-osdi20", True, 26, "MIT")
        assert (nvidia.name, nvidia.builtin, len(nvidia.job_types)) == ("nvidia-2023", True, 121)
        assert (mine.name, mine.builtin, mine.rows, mine.job_types) == ("mine", False, 2, ("a", "b"))
        assert (str(nvidia.coverage), nvidia.units) == ("251 of 484 (51 %)", ("samples/s", "tokens/s"))
        assert (mine.accelerators, mine.gang_sizes, mine.licence, mine.url) == (("v100",), (1, 4), "CC0", "here")


class TestAdding:
    def test_rows_are_added_and_updated(self, store: gp.ThroughputStore) -> None:
        store.save(gp.ThroughputProfile("mine", [measurement("a", 1.0), measurement("b", 2.0)], description="kept"))
        store.add("mine", [measurement("a", 1.5, source="monday"), measurement("c", 3.0)])
        loaded = store.load("mine")
        assert loaded.measurements == (measurement("a", 1.5, source="monday"), measurement("b", 2.0), measurement("c", 3.0))
        assert loaded.description == "kept"

    def test_a_missing_profile_is_created(self, store: gp.ThroughputStore) -> None:
        store.add("mine", [measurement("a")])
        assert store.load("mine") == gp.ThroughputProfile("mine", [measurement("a")])

    def test_a_pair_is_updated_from_either_side(self, store: gp.ThroughputStore) -> None:
        store.add("mine", [measurement("a", 1.0, partner_job_type="b", partner_steps_per_second=2.0)])
        store.add("mine", [measurement("b", 2.5, partner_job_type="a", partner_steps_per_second=1.5)])
        assert len(store.load("mine")) == 1
        assert store.load("mine").pair("a", "b", 1, "v100") == (1.5, 2.5)

    def test_an_accelerator_keeps_its_name(self, store: gp.ThroughputStore) -> None:
        store.add("mine", [measurement("a", 1.0, accelerator="V100"), measurement("b", 3.0, accelerator="v100-pcie")])
        store.add("mine", [measurement("a", 2.0), measurement("b", 4.0), measurement("c", 5.0)])
        loaded = store.load("mine")
        found = [(row.job_type, row.accelerator, row.steps_per_second) for row in loaded.rows]
        assert found == [("a", "V100", 2.0), ("b", "v100-pcie", 4.0), ("c", "V100", 5.0)]

    def test_contradictions_leave_the_store_unchanged(self, store: gp.ThroughputStore) -> None:
        store.add("mine", [measurement("a", 1.0)])
        with pytest.raises(gp.InputError, match="appears twice"):
            store.add("mine", [measurement("a", 2.0), measurement("a", 3.0)])
        assert store.load("mine").throughput("a", 1, "v100") == 1.0

    def test_gpu_memory_is_kept_until_it_is_measured_again(self, store: gp.ThroughputStore) -> None:
        store.add("mine", [measurement("a", 1.0, gpu_memory_gb=10.5)])
        store.add("mine", [measurement("a", 1.5)])
        assert store.load("mine").measurements == (measurement("a", 1.5, gpu_memory_gb=10.5),)
        store.add("mine", [measurement("a", 1.5, gpu_memory_gb=12)])
        assert store.load("mine").gpu_memory_gb("a", 1, "v100") == 12


class TestRefusals:
    def test_a_name_that_is_taken(self, store: gp.ThroughputStore) -> None:
        store.save(profile("mine"))
        with pytest.raises(gp.InputError, match="'mine' exists; replace it"):
            store.save(profile("mine", 1))
        assert store.load("mine") == profile("mine")

    @pytest.mark.parametrize(
        "change",
        [
            lambda store: store.save(profile("gavel-osdi20")),
            lambda store: store.save(profile("gavel-osdi20"), replace=True),
            lambda store: store.add("gavel-osdi20", [measurement("a")]),
            lambda store: store.delete("gavel-osdi20"),
        ],
    )
    def test_a_built_in_name(self, store: gp.ThroughputStore, change: Callable[[gp.ThroughputStore], None]) -> None:
        with pytest.raises(gp.InputError, match="'gavel-osdi20' is a built-in profile"):
            change(store)
        assert store.names() == gp.ThroughputProfile.builtin_names()

    @pytest.mark.parametrize("use", [gp.ThroughputStore.load, gp.ThroughputStore.delete])
    def test_an_unknown_name(self, store: gp.ThroughputStore, use: Callable[[gp.ThroughputStore, str], object]) -> None:
        store.save(profile("cluster-a"))
        with pytest.raises(gp.UnknownNameError, match="has no profile 'cluster-b'; did you mean 'cluster-a'"):
            use(store, "cluster-b")

    def test_an_unknown_name_suggests_only_valid_names(self, store: gp.ThroughputStore) -> None:
        with pytest.raises(gp.UnknownNameError, match="did you mean 'gavel-osdi20'"):
            store.load("gavel-osdi")
        with pytest.raises(gp.UnknownNameError, match="has no profile 'gavel-osdi'; there are none"):
            store.delete("gavel-osdi")


class TestWhere:
    def test_reading_does_not_create_the_file(self, store: gp.ThroughputStore) -> None:
        assert store.names() == gp.ThroughputProfile.builtin_names()
        assert len(store.summaries()) == len(gp.ThroughputProfile.builtin_names())
        for use in (store.load, store.delete):
            with pytest.raises(gp.UnknownNameError):
                use("mine")
        assert not store.path.parent.exists()

    def test_the_environment_variable(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GAVEL_PY_STORE", str(tmp_path / "env.sqlite"))
        assert gp.ThroughputStore().path == tmp_path / "env.sqlite"
        assert gp.ThroughputStore(tmp_path / "given.sqlite").path == tmp_path / "given.sqlite"

    @pytest.mark.parametrize("value", [None, ""])
    def test_the_user_s_data_directory(self, monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
        monkeypatch.delenv("GAVEL_PY_STORE", raising=False)
        if value is not None:
            monkeypatch.setenv("GAVEL_PY_STORE", value)
        path = gp.ThroughputStore().path
        assert path.name == "profiles.sqlite"
        assert "gavel-py" in path.parts

    @pytest.mark.parametrize(
        "url",
        [
            "postgresql:/user:secret@host/db",
            "postgresql+psycopg://user:secret@host/db",
            "mysql://user:secret@host/db",
            "postgresql://user:a/secret@host/db",
            "postgresql://user:a@secret@host/db",
            "postgresql://user:secret/db",
            "postgresql://user:a[secret@host]/db",
            "postgresql://host/db/secret",
        ],
    )
    def test_a_url_that_is_not_one_of_postgresql_is_not_shown(self, url: str) -> None:
        with pytest.raises(gp.InputError) as caught:
            gp.ThroughputStore(url)
        assert "must be a file or a URL such as postgresql://user@host/database" in str(caught.value)
        assert "secret" not in str(caught.value)

    @pytest.mark.parametrize(
        ("url", "location"),
        [
            ("postgresql://ann:secret@db.lab:5433/gpus?sslmode=require", "postgresql://ann@db.lab:5433/gpus"),
            ("postgres://[::1]:5432,other/gpus?password=secret", "postgres://[::1]:5432,other/gpus"),
            ("postgresql://", "postgresql://"),
            ("postgresql://ann@%2Ftmp%2Fsocket/gpus", "postgresql://ann@%2Ftmp%2Fsocket/gpus"),
        ],
    )
    def test_a_url_is_shown_without_its_password(self, url: str, location: str) -> None:
        store = gp.ThroughputStore(url)
        assert (store.location, store.path, repr(store)) == (location, None, f"ThroughputStore({location!r})")

    def test_a_path_with_reserved_characters_of_urls(self, tmp_path: Path) -> None:
        store = gp.ThroughputStore(tmp_path / "a?mode=ro #1 %41.sqlite")
        store.save(profile("mine"))
        assert store.load("mine") == profile("mine")
        assert store.path.exists()


def change(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(statement)
        connection.commit()


def read_and_write(store: gp.ThroughputStore) -> list[Callable[[], object]]:
    return [
        store.names,
        store.summaries,
        lambda: store.load("mine"),
        lambda: store.save(profile("new")),
        lambda: store.delete("mine"),
    ]


def make_read_only(path: Path) -> None:
    path.chmod(0o555 if path.is_dir() else 0o444)
    if os.access(path, os.W_OK):
        pytest.skip("this user may write everywhere, as the superuser does")


class TestBrokenFiles:
    def refuses(self, store: gp.ThroughputStore, problem: str) -> None:
        for use in read_and_write(store):
            with pytest.raises(gp.InputError) as caught:
                use()
            assert str(caught.value).startswith(f"profile store {store.path}: {problem}")

    def test_a_file_that_is_not_a_database(self, tmp_path: Path) -> None:
        path = tmp_path / "notes.txt"
        path.write_text("these are my notes\n" * 100)
        self.refuses(gp.ThroughputStore(path), "is not an SQLite database")
        assert path.read_text() == "these are my notes\n" * 100

    @pytest.mark.parametrize("version", [3, 5])
    def test_another_schema(self, store: gp.ThroughputStore, version: int) -> None:
        store.save(profile("mine"))
        change(store.path, f"PRAGMA user_version = {version}")
        self.refuses(store, f"was written by another version of gavel-py (schema {version}, this one reads 4)")

    def test_a_read_only_directory_is_no_reason(self, store: gp.ThroughputStore) -> None:
        store.save(profile("mine"))
        make_read_only(store.path)
        assert store.load("mine") == profile("mine")

    @pytest.mark.parametrize("version", [0, 1])
    def test_a_database_of_another_application(self, tmp_path: Path, version: int) -> None:
        path = tmp_path / "other.sqlite"
        change(path, "CREATE TABLE profiles (name)")
        change(path, f"PRAGMA user_version = {version}")
        self.refuses(gp.ThroughputStore(path), "is an SQLite database, but not a store of throughput profiles")

    def test_a_directory(self, tmp_path: Path) -> None:
        self.refuses(gp.ThroughputStore(tmp_path), "cannot be opened")

    def test_a_damaged_file(self, store: gp.ThroughputStore) -> None:
        store.save(profile("mine", 500))
        whole = store.path.read_bytes()
        store.path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
        with pytest.raises(gp.InputError, match=r"^profile store .* is damaged"):
            store.load("mine")

    def test_an_invalid_row_written_by_another_tool(self, store: gp.ThroughputStore) -> None:
        store.save(profile("mine"))
        change(store.path, "UPDATE measurements SET steps_per_second = -1 WHERE job_type = 'type-1'")
        with pytest.raises(gp.InputError, match=r"profile 'mine', row 2 .*steps_per_second: must be at least 0, found -1"):
            store.load("mine")

    def test_a_directory_that_cannot_be_created(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        store = gp.ThroughputStore(tmp_path / "file" / "profiles.sqlite")
        with pytest.raises(gp.InputError, match=r"cannot be used: (Not a directory|File exists)"):
            store.save(profile("mine"))

    def test_a_read_only_directory(self, tmp_path: Path) -> None:
        folder = tmp_path / "locked"
        folder.mkdir()
        make_read_only(folder)
        with pytest.raises(gp.InputError, match="cannot be opened; check that it is a file in a directory that you may write to"):
            gp.ThroughputStore(folder / "profiles.sqlite").save(profile("mine"))

    def test_a_read_only_file_can_be_read(self, store: gp.ThroughputStore) -> None:
        store.save(profile("mine"))
        make_read_only(store.path)
        assert store.load("mine") == profile("mine")
        with pytest.raises(gp.InputError, match="cannot be written: the file or its directory is read-only"):
            store.add("mine", [measurement("a")])

    def test_a_file_in_a_read_only_directory_can_be_read(self, store: gp.ThroughputStore) -> None:
        store.save(profile("mine"))
        make_read_only(store.path.parent)
        assert store.load("mine") == profile("mine")
        with pytest.raises(gp.InputError, match="cannot be written: the file or its directory is read-only"):
            store.add("mine", [measurement("a")])

    def test_a_full_disk_leaves_the_store_as_it_was(self, store: gp.ThroughputStore, monkeypatch: pytest.MonkeyPatch) -> None:
        store.save(profile("mine"))
        connect = sqlite3.connect

        def connect_to_a_full_disk(*arguments: object, **options: object) -> sqlite3.Connection:
            connection = connect(*arguments, **options)  # type: ignore[call-overload]
            connection.execute("PRAGMA max_page_count = 1")
            return connection  # type: ignore[no-any-return]

        monkeypatch.setattr(sqlite3, "connect", connect_to_a_full_disk)
        with pytest.raises(gp.InputError, match="the disk is full"):
            store.save(profile("large", 2000))
        monkeypatch.undo()
        assert store.names() == (*gp.ThroughputProfile.builtin_names(), "mine")

    def test_a_file_locked_by_another_process(self, store: gp.ThroughputStore, monkeypatch: pytest.MonkeyPatch) -> None:
        store.save(profile("mine"))
        monkeypatch.setattr(database, "BUSY_SECONDS", 0.01)
        with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            assert store.load("mine") == profile("mine")
            with pytest.raises(gp.InputError, match=r"has been locked by another process for more than 0\.01 s"):
                store.save(profile("new"))


def test_a_failed_import_is_rolled_back(store: gp.ThroughputStore) -> None:
    store.save(profile("mine"))
    change(
        store.path,
        "CREATE TRIGGER t BEFORE INSERT ON measurements WHEN NEW.job_type = 'type-2' BEGIN SELECT raise(ABORT, 'no'); END",
    )
    with pytest.raises(gp.InputError, match="failed: no"):
        store.save(profile("half"))
    with pytest.raises(gp.InputError, match="failed: no"):
        store.save(profile("mine"), replace=True)
    assert store.names() == (*gp.ThroughputProfile.builtin_names(), "mine")
    assert store.load("mine") == profile("mine")


def test_readers_never_see_a_partly_written_profile(store: gp.ThroughputStore) -> None:
    seen = []

    class Watched(gp.ThroughputProfile):
        @property
        def rows(self) -> Iterator[Any]:  # type: ignore[override]
            for row in profile("mine", 5).rows:
                seen.append((store.load("mine"), store.names()[len(gp.ThroughputProfile.builtin_names()) :]))
                yield row

    store.save(profile("mine", 3))
    store.save(Watched("mine", []), replace=True)
    store.save(Watched("new", []))
    assert seen == [(profile("mine", 3), ("mine",))] * 5 + [(profile("mine", 5), ("mine",))] * 5
    assert store.load("new").rows == profile("mine", 5).rows


def test_all_reads_of_a_transaction_see_the_same_state(store: gp.ThroughputStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save(profile("mine"))
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.01)
    with database.SqliteFile(store.path).reading():
        # The writer has to wait until the reader is done.
        with pytest.raises(gp.InputError, match="has been locked by another process"):
            store.delete("mine")
        assert store.load("mine") == profile("mine")
    store.delete("mine")


ROWS = 400


@pytest.mark.deep
def test_several_processes_write_while_others_read(store: gp.ThroughputStore) -> None:
    names = [f"profile-{n}" for n in range(20)]
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        # Methods of the store, so that the new processes need to import nothing but gavel_py.
        written = pool.map_async(store.save, [profile(name, ROWS) for name in names], chunksize=5)
        while not written.ready():
            for name in store.names()[len(gp.ThroughputProfile.builtin_names()) :]:
                assert len(store.load(name)) == ROWS
        written.get()
    assert store.names()[len(gp.ThroughputProfile.builtin_names()) :] == tuple(sorted(names))
    assert all(store.load(name) == profile(name, ROWS) for name in names)


@pytest.mark.deep
def test_several_processes_replace_one_profile_while_others_read(store: gp.ThroughputStore) -> None:
    store.save(profile("mine", ROWS))
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        replaced = pool.starmap_async(store.save, [(profile("mine", ROWS + n), True) for n in range(20)], chunksize=5)
        lengths = set()
        while not replaced.ready():
            lengths.add(len(store.load("mine")))
        replaced.get()
    # Every profile that a reader saw is one of those written, whole.
    assert lengths <= set(range(ROWS, ROWS + 20))
    assert len(store.load("mine")) in range(ROWS, ROWS + 20)


@pytest.mark.guard
def test_several_processes_add_to_one_profile(store: gp.ThroughputStore) -> None:
    batches = [("mine", [measurement(f"type-{n}-{i}") for i in range(20)]) for n in range(20)]
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        pool.starmap(store.add, batches, chunksize=5)
    assert len(store.load("mine")) == 400


def test_a_server_needs_psycopg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(gp.InputError, match=r"profile stores on PostgreSQL need psycopg .* pip install 'gavel-py\[postgres\]'"):
        gp.ThroughputStore("postgresql://host/db").names()
