"""The page of a session for people: what `gavel_py.report` draws of it, and how a browser gets a token.

A browser cannot send a header with its first request. So a page without data reads the token from the fragment of its URL, which is
never sent, and exchanges it for a cookie, which no script can read and no page elsewhere can send. Only tokens that may read are
taken, and the cookie is good for reading only.
"""

from __future__ import annotations

import secrets
import threading
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, unquote

from gavel_py.errors import InputError
from gavel_py.io.writing import check_libraries
from gavel_py.scheduling import NodeState
from gavel_py.service.reader import SessionReader
from gavel_py.service.session import Session

SCRIPT = Path(__file__).with_name("page.js").read_text(encoding="utf-8")

CLOSED = "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
"""What the Content-Security-Policy of a page forbids in its header only; the rest is in the page, too."""


def cookie_name(port: int | None) -> str:
    """Return the name of the cookie, of which services on other ports of the machine have another one."""
    return f"gavel-{port or 0}"


def cookie_of(port: int | None, token: str) -> str:
    """Return the header that sets the cookie."""
    return f"{cookie_name(port)}={quote(token, safe='')}; HttpOnly; SameSite=Strict; Path=/"


def token_in(port: int | None, cookies: str) -> str:
    """Return the token in the cookies of a request, "" if there is none."""
    parts = (part.strip().partition("=") for part in cookies.split(";"))
    return next((unquote(value) for name, _, value in parts if name == cookie_name(port)), "")


class Page:
    """Draws the page; the chart of rounds is drawn once for each round."""

    def __init__(self, session: Session, reader: SessionReader) -> None:
        self._session, self._reader, self._lock = session, reader, threading.Lock()
        self._drawn: tuple[object, str] = None, ""

    def html(self, *, is_open: bool) -> tuple[str, dict[str, str]]:
        """Return the page and its headers; is_open: whether the caller may read the session, else it has no data.

        Raises `InputError` if jinja2 or matplotlib is not installed.
        """
        check_libraries("pages", "plot", "matplotlib", "jinja2")
        from gavel_py.report.allocation_page import AllocationView, content_policy

        nonce = secrets.token_urlsafe()
        closed = AllocationView("gavel", ["This page needs a token that may read: add # and the token to its address."])
        view = self._reader.view(self._rounds()) if is_open else closed
        headers = {"content-security-policy": f"{content_policy(nonce)}; {CLOSED}", "referrer-policy": "no-referrer"}
        return view.html(SCRIPT, nonce), headers | {"x-content-type-options": "nosniff", "cache-control": "no-store"}

    def _rounds(self) -> str:
        from gavel_py.report.rounds_plot import rounds_svg

        with self._session.unchanged():
            rounds, cluster = list(self._session.rounds), self._session.scheduler.cluster
            down = {name for name, state in self._session.scheduler.nodes.items() if state is NodeState.DOWN}
        if not rounds:
            return ""
        with self._lock:
            if self._drawn[0] != (rounds[-1], down):
                length, self._drawn = rounds[-1].end_seconds - rounds[-1].start_seconds, ((rounds[-1], down), "")
                with suppress(InputError):  # as it raises for too many GPUs, and for those that jobs share
                    self._drawn = self._drawn[0], rounds_svg(rounds, cluster, round_seconds=length, down=down)
            return self._drawn[1]
