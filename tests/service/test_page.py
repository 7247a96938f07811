"""The page of a session: what it shows and to whom, and that nothing in it runs but its own script."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest

import gavel_py as gp
from gavel_py.service.page import cookie_of, token_in
from gavel_py.service.reader import SessionReader
from tests.service.sessions import CLUSTER, opened, profile, submit
from tests.service.test_api import READ, WRITE, Client, serving
from tests.support.browser import needs_browser, open_tab

HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture
def session(tmp_path: Path) -> Iterator[gp.Session]:
    with opened(tmp_path / "state") as made:
        yield made


def some_events() -> list[dict[str, Any]]:
    fields: dict[str, Any] = {"total_steps": 1e6, "deadline_seconds": 9e4}
    jobs = [submit(n, job_id=f"{HOSTILE}{n}", tenant=(HOSTILE, "vision")[n % 2], **fields) for n in range(9)]
    return [*jobs, submit(9, depends_on=[f"{HOSTILE}0"]), {"id": "r", "event": "round"}, submit(10, job_id="new")]


def ask(client: Client, path: str, **headers: str) -> tuple[HTTPResponse, str]:
    made = client.connection()
    made.request("GET", path, headers=headers)
    answer = made.getresponse()
    return answer, answer.read().decode()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_the_page_shows_who_gets_what(session: gp.Session) -> None:
    with serving(session) as client:
        assert "no round yet" in ask(client, "/")[1]
        client("POST", "/v1/events", some_events())
        answer, page = ask(client, "/")
        client("POST", "/v1/events", [{"id": "down", "event": "node_down", "node": "v100-0"}])
        assert ("node that is down" in page, "node that is down" in ask(client, "/")[1]) == (False, True)
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert 'data-version="12"' in page
    assert re.search(r"Policy max_min_fairness; round 0 from 0 s on; jobs: \d running, \d waiting, 1 blocked\.", page)
    shown = re.sub(r"<[^>]*>", " ", page)
    assert "Tenants" in shown
    assert "GPUs" in shown
    assert "50.0 %" in shown  # entitled, each of two
    assert "the next round decides on it" in shown
    assert "it waits for" in shown
    assert "Deadlines" in shown
    assert " early" in shown or " late" in shown
    assert page.count("<svg") == 1
    assert "starts here" in page
    assert "1 round of 6 min, 12 GPUs" in page


class Found(HTMLParser):
    """The elements of a page, and the names of their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags, self.attributes, self.links = set[str](), set[str](), list[str]()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        self.links += [str(value) for name, value in attrs if name in ("href", "src", "xlink:href")]


def test_names_are_text_and_only_the_own_script_may_run(session: gp.Session) -> None:
    with serving(session) as client:
        client("POST", "/v1/events", some_events())
        pages = [ask(client, "/") for _ in range(2)]
    nonces = set()
    for answer, page in pages:
        policy = dict(part.strip().partition(" ")[::2] for part in answer.headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert policy["frame-ancestors"] == "'none'"
        assert policy["connect-src"] == "'self'"
        (nonce,) = re.findall(r"^'nonce-([\w-]{40,})'$", policy["script-src"])
        assert page.count("<script") == page.count(f'<script type="module" nonce="{nonce}">') == 1
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["referrer-policy"] == "no-referrer"
        nonces.add(nonce)
        found = Found(page)
        assert "img" not in found.tags
        assert not [name for name in found.attributes if name.startswith("on")]
        assert not [link for link in found.links if not link.startswith("#")]
        assert "&lt;/script&gt;&lt;img" in page
    assert len(nonces) == 2


def test_a_token_that_may_read_becomes_a_cookie(session: gp.Session, tokens: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serving(session, port=0, token_file=tokens) as client:
        assert client("POST", "/v1/events", [submit(0, tenant="vision")], **bearer(WRITE))[0] == 200
        answer, page = ask(client, "/")
        assert (answer.status, "data-version" in page, "vision" in page) == (200, False, False)
        assert "needs a token that may read" in page
        for status, token in ((401, "x" * 40), (403, WRITE)):
            answer, text = ask(client, "/cookie", **bearer(token))
            assert (answer.status, answer.headers["set-cookie"]) == (status, None)
            assert token not in text
        answer, _ = ask(client, "/cookie", **bearer(READ))
        port = client.place.rpartition(":")[2]
        assert answer.status == 204
        assert answer.headers["set-cookie"] == f"gavel-{port}={READ}; HttpOnly; SameSite=Strict; Path=/"
        kept = {"Cookie": f"other=1; gavel-{port}={READ}"}
        assert 'data-version="1"' in ask(client, "/", **kept)[1]
        assert ask(client, "/v1/events?after=0", **kept)[0].status == 200
        assert client("POST", "/v1/events", [submit(1)], **kept)[0] == 403  # reading is all that a cookie is good for
        for wrong in (f"gavel-{port}={WRITE}", f"gavel-1={READ}", f"gavel-{port}=", f"gavel-{port}={READ}x", "\xff; ;="):
            assert "data-version" not in ask(client, "/", Cookie=wrong)[1]
            assert ask(client, "/v1/tenants", Cookie=wrong)[0].status == 401
    assert READ not in caplog.text


def test_every_token_survives_the_cookie() -> None:
    token = 'a;b=c,%20"\\' * 8
    header = cookie_of(80, token).partition("; HttpOnly")[0]
    assert token_in(80, f"x=y; {header}") == token


def test_only_the_last_rounds_are_kept(session: gp.Session) -> None:
    session.apply([submit(0), *({"id": f"r{n}", "event": "round"} for n in range(30))])
    assert [each.index for each in session.rounds] == list(range(10, 30))


def test_rounds_of_a_large_cluster_are_not_drawn(session: gp.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gavel_py.report.rounds_plot.MOST_DRAWN", 11)
    with serving(session) as client:
        assert "too large" not in ask(client, "/")[1]
        client("POST", "/v1/events", some_events())
        page = ask(client, "/")[1]
    assert "<svg" not in page
    assert "Rounds are not drawn: the cluster is too large, or jobs share GPUs." in page


def test_what_is_promised_is_the_same_after_a_restart(tmp_path: Path) -> None:
    for options in ({"mechanism": "direct"}, {"policy": "fifo"}):
        folder, made = tmp_path / str(options), partial(gp.RoundScheduler, gp.Cluster.from_inline(CLUSTER), profile(), **options)
        with gp.Session(folder, profile(), made) as session:
            session.apply([*(submit(n, tenant="t") for n in range(20)), {"id": "r", "event": "round"}])
            before, page = SessionReader(session).tenants(), SessionReader(session).view("")
            assert {each.why for each in page.waiting} >= {"it is promised no time now"}
        with gp.Session(folder, profile()) as session:
            assert SessionReader(session).tenants() == before
            assert SessionReader(session).view("").due == page.due


def test_rounds_with_shared_gpus_are_not_drawn(session: gp.Session) -> None:
    session.apply([*(submit(n, num_gpus=0.5) for n in range(30)), {"id": "r", "event": "round"}])
    with serving(session) as client:
        answer, page = ask(client, "/")
    assert answer.status == 200
    assert "Rounds are not drawn: the cluster is too large, or jobs share GPUs." in page


def test_the_page_without_its_libraries(session: gp.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with serving(session) as client:
        answer, text = ask(client, "/")
    assert answer.status == 422
    assert "install it with: pip install 'gavel-py[plot]'" in json.loads(text)["faults"][0]["problem"]


@needs_browser
@pytest.mark.deep
def test_a_browser_follows_the_session(session: gp.Session, tokens: Path, tmp_path: Path) -> None:
    """At the widths of a phone, a tablet and a screen, in the light and in the dark, while jobs arrive."""
    version = "new Promise((done) => { const look = () => { const main = document.querySelector('main'); "
    version += "if (main && Number(main.dataset.version) >= %d) done(main.innerText); else setTimeout(look, 50); }; look(); })"
    with serving(session, port=0, token_file=tokens) as client, open_tab(tmp_path) as tab:
        client("POST", "/v1/events", some_events(), **bearer(WRITE))
        first = f"{client.place}/#{READ}"
        for number, (width, dark) in enumerate((width, dark) for width in (390, 800, 1280) for dark in (False, True)):
            tab.show(first, width, dark=dark)
            first = f"{client.place}/"  # the cookie is kept
            tab.evaluate(version % session.version)
            events = [submit(20 + number, job_id=f"later-{number}"), {"id": f"r{number}", "event": "round"}]
            client("POST", "/v1/events", events, **bearer(WRITE))
            text = tab.evaluate(version % session.version)
            assert f"round {number + 1} from" in text
            assert HOSTILE in text
            assert tab.evaluate("location.href") == f"{client.place}/"
            assert tab.evaluate("document.cookie") == ""
            assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
            colour = tab.evaluate("getComputedStyle(document.body).backgroundColor")
            assert colour == ("rgb(22, 25, 29)" if dark else "rgb(255, 255, 255)")
            assert tab.evaluate(
                "Math.min(...[...document.querySelectorAll('.bar')].map((bar) => bar.getBoundingClientRect().height)) > 0"
            )
    assert tab.complaints == []
