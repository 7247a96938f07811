"""The server of a session: tokens, a socket that only its owner can reach, and connections that are not kept by slow callers."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import signal
import socket
import stat
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gavel_py.errors import Fault, InputError, faults_from, refuse
from gavel_py.io.writing import check_libraries
from gavel_py.service.session import Session

if TYPE_CHECKING:
    from gavel_py.service.http import Limits, Routes

LOOPBACK = "127.0.0.1"
LOCAL_NAMES = ("localhost", LOOPBACK, "[::1]")
SHORTEST_TOKEN, LONGEST_TOKENS = 32, 65_536


def serve_api(
    session: Session,
    *,
    path: str | Path | None = None,
    port: int | None = None,
    address: str = LOOPBACK,
    token_file: str | Path | None = None,
    limits: Limits | None = None,
    ready: Callable[[str, Callable[[], None]], None] = lambda *_: None,
) -> None:
    """Serve a session over HTTP until SIGINT or SIGTERM. See docs/from-another-language.md.

    Args:
        session: The session; other threads may read it, and must not change it.
        path: Unix socket, by default `api.sock` in the folder of the session; only its owner can connect (mode 600).
        port: TCP port instead, 0 for any. Every user of the machine can connect to it, so it needs tokens.
        address: Address of the port.
        token_file: File of mode 600 with lines `read TOKEN` and `write TOKEN`, of at least 32 characters each. Requests need one.
        limits: How much one caller may ask for.
        ready: Is called when requests are answered, with the URL or path, and with a function that ends the service.

    Raises:
        InputError: An argument is wrong, the socket cannot be opened, or the extra `api` is not installed.
    """
    check_libraries("HTTP services", "api", "fastapi", "prometheus_client", "uvicorn")
    import uvicorn

    from gavel_py.service.http import Limits, TimedProtocol, application

    limits = limits or Limits()
    tokens = {} if token_file is None else read_tokens(Path(token_file))
    listener, url, host = _opened(Path(path or session.folder / "api.sock"), port, address)
    try:
        with_port, no_tokens = port is not None, "is missing: every user of the machine could connect to the port"
        both = "and port are both given; give only one of them"
        refuse("api", (with_port and not tokens, "token_file", no_tokens), (with_port and path is not None, "path", both))
        names = (host, socket.gethostname().lower(), socket.getfqdn().lower()) if address != LOOPBACK else (host,)
        guard, routes = application(session, (*LOCAL_NAMES, *names), tokens, limits)
        most = {"limit_concurrency": limits.connections, "timeout_keep_alive": int(limits.idle_seconds)}
        server = uvicorn.Server(uvicorn.Config(guard, http=partial(TimedProtocol, limits), **SETTINGS, **most))
        server.capture_signals = nullcontext  # which would end the process at once; here, what waits is answered first
        asyncio.run(_serve(server, listener, routes, partial(ready, url)))
    finally:
        listener.close()
        if port is None:
            Path(url).unlink(missing_ok=True)
        session.checkpoint(always=True)


SETTINGS: Mapping[str, Any] = {
    "ws": "none",
    "lifespan": "off",
    "log_config": None,
    "timeout_graceful_shutdown": 5,
    **dict.fromkeys(("access_log", "server_header", "date_header", "proxy_headers"), False),
}
"""Settings of uvicorn. Nothing is logged about requests, so that no line has a token."""


async def _serve(server: Any, listener: socket.socket, routes: Routes, ready: Callable[[Callable[[], None]], None]) -> None:
    """Answer requests until a signal, or a call of what `ready` is given."""
    loop = asyncio.get_running_loop()
    routes.start()

    def stop() -> None:
        server.should_exit = True
        loop.call_soon_threadsafe(routes.writer.release)

    with suppress(RuntimeError, ValueError):  # in another thread than the main one, which has the signals
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop)
    loop.call_soon(ready, stop)
    try:
        await server.serve(sockets=[listener])
    finally:
        routes.writer.stop()


def _opened(path: Path, port: int | None, address: str) -> tuple[socket.socket, str, str]:
    """Return a socket, where it listens, and the host of its URLs."""
    if port is None:
        return _unix(path), str(path), "gavel"
    host, listener = f"[{address}]" if ":" in address else address, _tcp(address, port)
    return listener, f"http://{host}:{listener.getsockname()[1]}", host


def _unix(place: Path) -> socket.socket:
    """Return a Unix socket that only the owner of the process can connect to; one that nobody listens on is replaced."""
    where = str(place)
    with faults_from(where, "cannot be used as a socket", OSError):
        if place.exists() or place.is_symlink():
            refuse(where, (not stat.S_ISSOCK(place.lstat().st_mode), "", "is there already, and is not a socket"))
            with socket.socket(socket.AF_UNIX) as other:
                refuse(where, (other.connect_ex(where) == 0, "", "is in use by another service"))
            place.unlink()
        before = os.umask(0o177)  # uvicorn would open it for all users
        try:
            return _bound(socket.AF_UNIX, where)
        finally:
            os.umask(before)


def _tcp(address: str, port: int) -> socket.socket:
    with faults_from(f"{address}:{port}", "cannot be used", OSError, ValueError, OverflowError):
        version = ipaddress.ip_address(address).version
        return _bound(socket.AF_INET if version == 4 else socket.AF_INET6, (address, port))


def _bound(family: int, place: Any) -> socket.socket:
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
    except BaseException:
        listener.close()
        raise
    return listener


def read_tokens(path: Path) -> dict[str, str]:
    """Return {token: role} of a file. Raises `InputError` for one that others may read; no message has a token."""
    with faults_from(str(path), "cannot be read", OSError), open(path, "rb") as file:
        found = os.fstat(file.fileno())
        mode = stat.S_IMODE(found.st_mode)
        others = f"may be read or written by other users (mode {mode:o}); chmod 600 makes it private"
        refuse(str(path), (mode & 0o077, "", others), (found.st_uid != os.geteuid(), "", "belongs to another user"))
        text = file.read(LONGEST_TOKENS).decode(errors="replace")
    tokens, faults = dict[str, str](), []
    rule = f"must be `read TOKEN` or `write TOKEN`, with at least {SHORTEST_TOKEN} visible ASCII characters"
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            entry: Any = re.fullmatch(rf"(read|write) +([\x21-\x7e]{{{SHORTEST_TOKEN},}})\s*", line)
            if entry is None:
                faults.append(Fault(f"{path}, line {number}", "", rule))
            else:
                tokens[entry[2]] = entry[1]
    InputError.raise_any(faults)
    refuse(str(path), (not tokens, "", f"has no tokens; a line {rule}"))
    return tokens
