"""A PostgreSQL server of the tests' own: in a temporary directory, on a Unix socket, without any system service."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

__all__ = ["Server", "needs_postgres", "run_server"]

REQUIRED = os.environ.get("GAVEL_PY_POSTGRES") == "required"
"""Set by .ci/run if it must be there: then tests fail without it instead of being skipped."""

TOOLS = ("initdb", "postgres")
DEBIAN = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name), reverse=True)
PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), *map(str, DEBIAN)])


def _missing() -> list[str]:
    tools = [name for name in TOOLS if shutil.which(name, path=PATH) is None]
    return tools + ([] if importlib.util.find_spec("psycopg") else ["the Python package psycopg"])


needs_postgres = pytest.mark.skipif(
    bool(_missing()) and not REQUIRED,
    reason=f"no PostgreSQL here: {', '.join(_missing())} not found (apt-get install postgresql, pip install 'psycopg[binary]')",
)


def _as_user() -> dict[str, Any]:
    """Return arguments of `subprocess` that run a server, which root may not."""
    if os.getuid() != 0:
        return {}
    names = {entry.pw_name: entry for entry in pwd.getpwall()}
    entry = names.get("postgres") or names["nobody"]
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


class Server:
    """A running server; the role "locked" has the password "s3cret", all others need none."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._process = folder, None
        self._start()

    def _start(self) -> None:
        tool, data = shutil.which("postgres", path=PATH), self.folder / "data"
        settings = ["-c", "listen_addresses=", "-c", "fsync=off", "-c", "max_connections=60", "-c", "logging_collector=off"]
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [str(tool), "-D", str(data), "-k", str(self.folder), *settings], stdout=log, stderr=log, cwd="/", **_as_user()
            )
        deadline = time.monotonic() + 60
        while not self._answers():
            assert self._process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline, "the server does not start"
            time.sleep(0.05)

    def _answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.url("postgres")).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server: SIGINT disconnects clients, SIGQUIT ends without a word to the disk."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(60)
            self._process = None

    def start(self) -> None:
        self._start()

    def url(self, database: str, user: str = "postgres") -> str:
        return f"postgresql://{user}@{quote(str(self.folder), safe='')}/{database}"

    def run(self, database: str, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements, each in a transaction of its own, and return the rows of the last one."""
        import psycopg

        rows: list[tuple[Any, ...]] = []
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement)
                rows = cursor.fetchall() if cursor.description else []
        return rows


@contextmanager
def run_server() -> Iterator[Server]:
    """Start a server, and remove it with its files afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))  # the path of a socket has at most 107 characters
    try:
        settings = _as_user()
        if settings:
            os.chown(folder, settings["user"], settings["group"])
        folder.chmod(0o755)
        tool = str(shutil.which("initdb", path=PATH))
        arguments = ["-D", str(folder / "data"), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"]
        subprocess.run([tool, *arguments], check=True, capture_output=True, cwd="/", **settings)
        rules = folder / "data" / "pg_hba.conf"
        rules.write_text(f"local all locked scram-sha-256\n{rules.read_text()}")
        server = Server(folder)
        try:
            server.run("postgres", "CREATE ROLE locked LOGIN PASSWORD 's3cret'")
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
