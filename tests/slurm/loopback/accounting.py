"""Accounts of a cluster: a slurmdbd and a MariaDB in the folder of the cluster, reachable by loopback only.

No service of the machine is used. If the tests run as root, MariaDB is started by an account without rights.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import subprocess
from typing import TYPE_CHECKING

from tests.slurm.loopback.daemons import Daemons
from tests.slurm.loopback.presence import tool
from tests.slurm.loopback.waiting import until

if TYPE_CHECKING:
    from tests.slurm.loopback.cluster import LoopbackCluster

__all__ = ["boot"]

UNPRIVILEGED = "nobody"


def boot(cluster: LoopbackCluster, daemons: Daemons, port: int) -> None:
    """Start slurmdbd on this port, and MariaDB on the next one, and let slurmdbd know of the cluster."""
    password = secrets.token_hex(16)
    _start_database(cluster, daemons, port + 1, password)
    run, conf = cluster.folder / "run", cluster.folder / "slurmdbd.conf"
    options = {
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={run}/munge.sock",
        "CommunicationParameters": "NoInAddrAny",
        "DbdAddr": "127.0.0.1",
        "DbdHost": "localhost",
        "DbdPort": str(port),
        "SlurmUser": cluster.settings.slurm_user,
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "127.0.0.1",
        "StoragePort": str(port + 1),
        "StorageUser": "slurm",
        "StoragePass": password,
        "StorageLoc": "accounts",
        **({"PluginDir": cluster.settings.release.plugins} if cluster.settings.release.plugins else {}),
        "LogFile": f"{cluster.folder}/state/slurmdbd.log",
        "PidFile": f"{cluster.folder}/state/slurmdbd.pid",
    }
    conf.touch(mode=0o600)
    conf.write_text("".join(f"{key}={value}\n" for key, value in options.items()))
    shutil.chown(conf, cluster.settings.slurm_user)
    # It looks for its configuration beside slurm.conf.
    command = ["env", f"SLURM_CONF={cluster.environment['SLURM_CONF']}", cluster.program("slurmdbd"), "-D"]
    daemons.start("slurmdbd", *command)
    until(lambda: cluster.run("sacctmgr", "--noheader", "show", "cluster").returncode == 0, "slurmdbd to answer")
    cluster.tell("sacctmgr", "--immediate", "add", "cluster", "loopback")


def _start_database(cluster: LoopbackCluster, daemons: Daemons, port: int, password: str) -> None:
    data = cluster.folder / "database"
    data.mkdir()
    user = UNPRIVILEGED if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
    shutil.chown(data, user)
    first = cluster.folder / "database.sql"
    first.write_text(
        "CREATE DATABASE IF NOT EXISTS accounts;\n"
        f"CREATE USER IF NOT EXISTS slurm@'127.0.0.1' IDENTIFIED BY '{password}';\n"
        "GRANT ALL ON accounts.* TO slurm@'127.0.0.1';\n"
    )
    subprocess.run(
        [tool("mariadb-install-db"), "--no-defaults", f"--datadir={data}", f"--user={user}", "--skip-test-db"],
        capture_output=True,
        timeout=120,
        check=True,
    )
    socket = data / "socket"
    small = ["--innodb-buffer-pool-size=32M", "--innodb-log-file-size=16M", "--innodb-flush-log-at-trx-commit=0", "--skip-log-bin"]
    places = [f"--datadir={data}", f"--socket={socket}", f"--pid-file={data}/pid", f"--init-file={first}"]
    network = ["--bind-address=127.0.0.1", f"--port={port}", "--skip-name-resolve"]
    daemons.start("mariadbd", tool("mariadbd"), "--no-defaults", f"--user={user}", *places, *network, *small)
    until(socket.exists, "MariaDB to answer")
