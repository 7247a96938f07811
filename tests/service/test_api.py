"""gavel api: the answers of a session over HTTP, and requests that it does not serve."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

import gavel_py as gp
from gavel_py.service.http import Limits, checked_problem
from gavel_py.service.server import read_tokens
from tests.service.sessions import as_changes, changes_in, history, library_rounds, opened, profile, submit
from tests.support.commands import runner

JSON, LINES = "application/json", "application/x-ndjson"
WRITE, READ = "w" * 40, "r" * 40


class UnixConnection(HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("gavel", timeout=60)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(self.path)


class Client:
    """Sends requests over kept connections, one for each thread."""

    def __init__(self, place: str) -> None:
        self.place, self._local, self.made = place, threading.local(), list[HTTPConnection]()

    def connection(self) -> HTTPConnection:
        if not hasattr(self._local, "made"):
            http = self.place.removeprefix("http://")
            self._local.made = UnixConnection(self.place) if http == self.place else HTTPConnection(http, timeout=60)
            self.made.append(self._local.made)
        return self._local.made

    def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        kind = headers.pop("content_type", JSON)
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        given = {"Content-Type": kind} if data is not None else {}
        made = self.connection()
        made.request(method, path, data, given | {name.replace("_", "-"): value for name, value in headers.items()})
        answer = made.getresponse()
        content, shown = answer.read(), answer.headers["content-type"] or ""
        return answer.status, json.loads(content) if "json" in shown and LINES not in shown else content.decode()


@contextmanager
def serving(session: gp.Session, **options: Any) -> Iterator[Client]:
    """Serve a session in another thread."""
    begun, found = threading.Event(), list[Any]()

    def ready(place: str, stop: Callable[[], None]) -> None:
        found.extend([place, stop])
        begun.set()

    def serve() -> None:
        try:
            gp.serve_api(session, ready=ready, **options)
        finally:
            begun.set()

    thread = threading.Thread(target=serve)
    thread.start()
    assert begun.wait(60)
    assert found
    client = Client(found[0])
    try:
        yield client
    finally:
        for each in client.made:
            each.close()
        found[1]()
        thread.join(60)
        assert not thread.is_alive()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


def statuses(answers: list[dict[str, Any]]) -> list[str]:
    return [each["status"] for each in answers]


@pytest.mark.parametrize("seed", [1, pytest.param(0, marks=pytest.mark.deep)])
def test_rounds_are_those_of_the_library(folder: Path, seed: int) -> None:
    events = history(seed)
    with opened(folder) as session, serving(session) as client:
        half = len(events) // 2
        status, first = client("POST", "/v1/events", events[:half])
        lines = "".join(f"{json.dumps(each)}\n" for each in events[half:]).encode()
        _, rest = client("POST", "/v1/events", lines, content_type=LINES)
    assert status == 200
    assert first["schema_version"] == 1
    assert changes_in(first["results"] + rest["results"]) == [as_changes(each) for each in library_rounds(events)]
    with opened(folder) as session:
        assert session.version == rest["version"]


def test_what_can_be_read(folder: Path) -> None:
    with opened(folder) as session, serving(session) as client:
        assert client("GET", "/v1/rounds/current") == (
            200,
            {"schema_version": 1, "version": 0, "round": None, "running": {}},
        )
        jobs = [submit(n, tenant=f"t{n % 2}") for n in range(9)]
        _, done = client("POST", "/v1/events", [*jobs, {"id": "r", "event": "round"}])
        starts = done["results"][-1]["starts"]
        current = client("GET", "/v1/rounds/current")[1]
        assert current["running"] == starts
        assert current["round"]["starts"] == starts
        (name, *_), waiting = starts, next(f"j{n}" for n in range(9) if f"j{n}" not in starts)
        job = client("GET", f"/v1/jobs/{name}")[1]
        assert (job["state"], job["assignment"], job["lease_end_seconds"]) == ("running", starts[name], 360)
        assert client("GET", f"/v1/jobs/{waiting}")[1]["state"] == "waiting"
        status, lost = client("GET", "/v1/jobs/nobody")
        assert (status, lost["status"]) == (404, 404)
        assert lost["faults"][0]["problem"].startswith("there is no such job in the system")
        assert lost["detail"] == "it is not in the session, which knows of the last 2,000 jobs that have left how they did"
        wanted = session.scheduler.allocation
        assert wanted is not None
        for each in (name, waiting):
            explained = client("GET", f"/v1/jobs/{each}/explanation")[1]
            row = wanted.job_ids.index(each)
            assert sum(explained["time_fractions"].values()) == wanted.time_fractions[row].sum()
            assert explained["one_more_gpu"] == []
        tenants = client("GET", "/v1/tenants")[1]["tenants"]
        assert [(each["tenant"], each["entitled_share"]) for each in tenants] == [("t0", 0.5), ("t1", 0.5)]
        assert sum(each["delivered_share"] for each in tenants) == pytest.approx(1)
        lines = client("GET", "/v1/events?after=8&limit=1")[1].splitlines()
        assert [json.loads(line)["event"] for line in lines] == [jobs[8]]
    with opened(folder) as session, serving(session) as client:  # which has no proof of the allocation any more
        assert client("GET", f"/v1/jobs/{name}/explanation")[1]["throughput"] > 0
        assert client("GET", "/v1/tenants")[1]["tenants"] == tenants
        client("POST", "/v1/events", [submit(10, job_id="team/new")])
        assert client("GET", "/v1/jobs/team%2Fnew")[1]["state"] == "waiting"
        status, early = client("GET", "/v1/jobs/team%2Fnew/explanation")
        assert (status, early["faults"][0]["problem"]) == (404, "has no allocation yet; the next round decides on it")


def test_names_of_this_service(folder: Path, tokens: Path) -> None:
    with opened(folder) as session, serving(session, port=0, address="0.0.0.0", token_file=tokens) as client:  # noqa: S104
        client.place = client.place.replace("0.0.0.0", "127.0.0.1")  # noqa: S104
        for host in ("192.0.2.7:80", "[::1]", "[::1]:80", socket.gethostname().upper()):
            assert client("GET", "/healthz", Host=host)[0] == 200, host
        assert client("GET", "/healthz", Host="evil.example")[0] == 421


def test_gpus_of_nodes_that_drain_are_not_free(folder: Path) -> None:
    with opened(folder) as session, serving(session) as client:
        done = client("POST", "/v1/events", [submit(1, num_gpus=2), {"id": "r", "event": "round"}])[1]["results"]
        place = done[-1]["starts"]["j1"]
        client("POST", "/v1/events", [{"id": "d", "event": "drain", "node": place["gpus"][0][0]}])
        text = client("GET", "/metrics")[1]
    numbers = re.findall(rf'^gavel_gpus{{accelerator="{place["accelerator"]}",state="(\w+)"}} (\S+)$', text, re.MULTILINE)
    others = sum(node.num_gpus for node in session.scheduler.cluster.nodes_of(place["accelerator"])[1:])
    assert dict(numbers) == {"held": "2.0", "free": f"{float(others)}"}


def test_an_explanation_of_a_known_allocation_is_that_of_a_new_one() -> None:
    cluster = gp.Cluster.from_inline("v100:4/2,k80:4/2")
    problem = gp.AllocationProblem.from_jobs([gp.Job(**submit(n)["job"]) for n in range(6)], cluster, profile())
    known, new = gp.explain(problem, "j3", allocation=gp.solve(problem)).to_dict(), gp.explain(problem, "j3").to_dict()
    assert new.pop("one_more_gpu")
    assert known.pop("one_more_gpu") == []
    assert known == new


def test_events_can_be_waited_for(folder: Path) -> None:
    with opened(folder) as session, serving(session, limits=Limits(followers=1)) as client:
        assert client("GET", "/v1/events?after=0&wait=0.01") == (200, "")
        found: list[str] = []

        def follow() -> None:
            while (answer := client("GET", "/v1/events?after=0&wait=60"))[0] == 429:  # while the other one asks
                time.sleep(0.01)
            found.append(answer[1])

        thread = threading.Thread(target=follow)
        thread.start()
        while client("GET", "/v1/events?after=0&wait=0.001")[0] != 429:  # until the other one waits
            time.sleep(0.02)
        client("POST", "/v1/events", [submit(0)])
        thread.join(60)
        assert json.loads(found[0])["event"] == submit(0)


def test_who_waits_for_events_is_answered_at_the_end(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    found: list[Any] = []
    with opened(folder) as session, serving(session, limits=Limits(followers=1)) as client:
        wait = client_of(client.place)

        def follow() -> None:
            while (answer := wait("GET", "/v1/events?after=0&wait=60"))[0] == 429:  # while the other one asks
                time.sleep(0.01)
            found.append(answer)

        thread = threading.Thread(target=follow)
        thread.start()
        while client("GET", "/v1/events?after=0&wait=0.001")[0] != 429:  # until the other one waits
            time.sleep(0.02)
    thread.join(60)
    assert found == [(200, "")]
    assert not caplog.records


def test_problems_are_solved_beside_the_session(folder: Path) -> None:
    jobs = [submit(n)["job"] for n in range(3)]
    with opened(folder) as session, serving(session) as client:
        status, answer = client("POST", "/v1/solve", {"jobs": jobs, "cluster": "v100:2,k80:2", "policy": "fifo"})
        problem = gp.AllocationProblem.from_jobs([gp.Job(**job) for job in jobs], gp.Cluster.from_inline("v100:2,k80:2"), profile())
        assert status == 200
        assert answer["jobs"] == json.loads(json.dumps(gp.solve(problem, "fifo").to_dict()["jobs"]))
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"jobs": 1}, "must be a list of jobs"),
            ({"jobs": jobs, "file": "x"}, "is not known; known: cluster, jobs, options, policy"),
            ({"jobs": jobs, "policy": "os:system"}, "'os:system' is not a policy here"),
            ({"jobs": jobs, "policy": ["fifo"]}, "must be the name of a policy"),
            ({"jobs": jobs, "options": ["agnostic"]}, "must be an object"),
            ({"jobs": jobs, "policy": "hierarchical", "options": {"tenants": "a.yaml"}}, "must be the tree itself, and not a file"),
            ({"jobs": jobs, "cluster": "/etc/passwd"}, "/etc/passwd"),
            ({"jobs": [{"job_id": "a", "num_gpus": 0}]}, "must be at least 0.001 of a GPU"),
        ]
        for body, text in wrong:
            status, answer = client("POST", "/v1/solve", body)
            assert status == 422, body
            assert text in json.dumps(answer["faults"])


JOB = {"job_id": "a", "job_type": "ResNet-18 (batch size 64)"}


@pytest.mark.parametrize(
    ("body", "field", "text"),
    [
        ({"jobs": [JOB], "cluster": "v100:1000000/1"}, "cluster", "must have at most 100,000 GPUs, found 1,000,000"),
        ({"jobs": [JOB], "cluster": "v100:60000,k80:60000/1"}, "cluster", "must have at most 100,000 GPUs, found 120,000"),
        ({"jobs": [JOB], "cluster": ",".join(f"t{n}:1" for n in range(251))}, "cluster", "must have at most 250 types of GPUs"),
        ({"jobs": [0] * 10_001}, "jobs", "must be at most 10,000 jobs with this policy, found 10,001"),
        ({"jobs": [0] * 1001, "policy": "allox"}, "jobs", "must be at most 1,000 jobs with this policy, found 1,001"),
        (
            {"jobs": [JOB, {**JOB, "depends_on": ["b"] * 251}]},
            "jobs[1]",
            "must have at most 250 values, and at most as many in each",
        ),
        ({"jobs": [JOB, {str(n): 0 for n in range(251)}]}, "jobs[1]", "must have at most 250 values"),
        ({"jobs": [JOB, *[{str(n): 0 for n in range(9)}] * 28]}, "jobs", "have 252 fields that are not known"),
        ({"jobs": [JOB], "options": {str(n): 0 for n in range(251)}}, "options", "must have at most 250 values"),
        ({"jobs": [{"job_id": "a" * (4 << 20)}]}, "", "must have at most 4,194,304 characters"),
        ({"jobs": [], **{str(n): 0 for n in range(9999)}}, "0", "is not known; known: cluster, jobs, options, policy"),
    ],
)
def test_a_problem_that_would_take_long_to_make_is_refused(body: dict[str, Any], field: str, text: str) -> None:
    with pytest.raises(gp.InputError) as refused:
        checked_problem(json.dumps(body), Limits())
    fault, *others = refused.value.faults
    assert (fault.where, fault.field, len(others) < 10) == ("body", field, True)
    assert fault.problem.startswith(text)


def test_requests_that_are_not_served(folder: Path) -> None:
    limits = Limits(body_bytes=1000, events=3)
    with opened(folder) as session, serving(session, limits=limits) as client:
        rounds = [{"id": str(n), "event": "round"} for n in range(4)]
        refused: list[tuple[int, tuple[Any, ...], dict[str, str]]] = [
            (421, ("GET", "/healthz"), {"Host": "evil.example"}),
            (421, ("GET", "/healthz"), {"Host": "127.0.0.1.evil.example:80"}),
            (415, ("POST", "/v1/events", b"event=round"), {"content_type": "application/x-www-form-urlencoded"}),
            (413, ("POST", "/v1/events", b" " * 1001), {}),
            (404, ("GET", "/v2/events"), {}),
            (405, ("POST", "/v1/tenants", {}), {}),
            (422, ("GET", "/v1/events?after=-1"), {}),
            (422, ("POST", "/v1/events", b'[{"id": NaN}]'), {}),
            (422, ("POST", "/v1/events", b"\xff"), {}),
            (422, ("POST", "/v1/events", {"id": "1", "event": "round"}), {}),
            (422, ("POST", "/v1/events", rounds), {}),
            (422, ("POST", "/v1/events", [{"id": "1", "event": "rond"}]), {}),
        ]
        for code, request, headers in refused:
            status, answer = client(*request, **headers)
            assert status == code, request
            assert answer.get("status") == code or answer["results"][0]["code"] == code
        client.connection().putrequest("POST", "/v1/events")
        client.connection().putheader("Transfer-Encoding", "chunked")
        client.connection().endheaders(b"0\r\n\r\n")
        answer = client.connection().getresponse()
        assert (answer.status, json.loads(answer.read())["detail"]) == (411, "the request needs a Content-Length")
        assert session.version == 0
        assert statuses(client("POST", "/v1/events", rounds[:2])[1]["results"]) == ["applied"] * 2
        assert client("POST", "/v1/events", [{**rounds[0], "table": True}])[0] == 409


def test_a_queue_that_is_full_is_a_reason_to_come_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free, apply = threading.Event(), gp.Session.apply_all

    def slow(self: gp.Session, batches: Any) -> Any:
        free.wait(60)
        return apply(self, batches)

    monkeypatch.setattr(gp.Session, "apply_all", slow)
    with opened(folder) as session, serving(session, limits=Limits(queued=1)) as client:
        found: list[int] = []
        events = [[{"id": str(n), "event": "round"}] for n in range(6)]
        threads = [
            threading.Thread(target=lambda each=each: found.append(client("POST", "/v1/events", each)[0])) for each in events
        ]
        for thread in threads:
            thread.start()
        while 429 not in found:
            time.sleep(0.01)
        free.set()
        for thread in threads:
            thread.join(60)
        assert set(found) == {200, 429}
        assert session.version == found.count(200)


@pytest.mark.parametrize("chunk", [b"3\r\n[]\n\r\n0\r\n\r\n", b"no chunk\r\n"])
def test_a_body_of_unknown_length_is_refused(folder: Path, chunk: bytes, caplog: pytest.LogCaptureFixture) -> None:
    head = b"POST /v1/events HTTP/1.1\r\nhost: gavel\r\ncontent-type: application/json\r\n"
    with opened(folder) as session, serving(session) as client, socket.socket(socket.AF_UNIX) as other:
        other.settimeout(60)
        other.connect(client.place)
        other.sendall(head + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n")
        assert other.recv(4096).startswith(b"HTTP/1.1 411 ")
        other.sendall(chunk)
        assert client("GET", "/healthz")[0] == 200
    assert not [each for each in caplog.records if each.exc_info]


def test_a_caller_that_leaves_is_no_fault(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(folder) as session, serving(session) as client:
        with socket.socket(socket.AF_UNIX) as other:
            other.connect(client.place)
            head = b"POST /v1/events HTTP/1.1\r\nhost: gavel\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n["
            other.sendall(head)
        while 'path="/v1/events"' not in (text := client("GET", "/metrics")[1]):
            time.sleep(0.01)
        assert 'gavel_http_requests_total{code="400",path="/v1/events"} 1.0' in text
        assert client("GET", f"/v1/events?after={10**20}") == (200, "")
    assert not caplog.records


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTT", b"POST /v1/events HTTP/1.1\r\nhost: gavel\r\ncontent-length: 9\r\n"])
def test_slow_callers_are_cut_off(folder: Path, sent: bytes) -> None:
    limits = Limits(head_seconds=0.05, body_seconds=0.05)
    with opened(folder) as session, serving(session, limits=limits) as client, socket.socket(socket.AF_UNIX) as slow:
        slow.settimeout(60)
        slow.connect(client.place)
        slow.sendall(sent if not sent.startswith(b"POST") else sent + b"content-type: application/json\r\n\r\n[")
        answer = b"".join(iter(lambda: slow.recv(4096), b""))
        assert b"408" in answer if sent.startswith(b"POST") else answer == b""


def test_only_the_owner_can_connect(folder: Path) -> None:
    with opened(folder) as session, serving(session) as client:
        assert stat.S_IMODE(Path(client.place).stat().st_mode) == 0o600
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        with pytest.raises(gp.InputError, match="is in use by another service"):
            gp.serve_api(session)
    assert not (folder / "api.sock").exists()
    (folder / "api.sock").write_text("")
    with opened(folder) as session, pytest.raises(gp.InputError, match="is there already, and is not a socket"):
        gp.serve_api(session)


def test_a_port_needs_a_token(folder: Path, tokens: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(folder) as session:
        with pytest.raises(gp.InputError, match="every user of the machine could connect to the port"):
            gp.serve_api(session, port=0)
        with serving(session, port=0, token_file=tokens) as client:
            assert client.place.startswith("http://127.0.0.1:")
            events, shown = [submit(0)], list[Any]()
            for code, token in ((401, None), (401, "x" * 40), (401, WRITE[:-1]), (403, READ), (200, WRITE)):
                given = {} if token is None else {"Authorization": f"Bearer {token}"}
                status, answer = client("POST", "/v1/events", events, **given)
                shown.append(answer)
                assert status == code, token
            assert client("GET", "/v1/tenants", Authorization=f"Bearer {READ}")[0] == 200
            assert client("GET", "/metrics")[0] == 401
            assert client("GET", "/healthz") == (200, {"ok": True})
            shown.append(client("GET", "/metrics", Authorization=f"Bearer {READ}")[1])
            assert client("GET", "/v1/tenants", Authorization="Bearer \xe9" + WRITE)[0] == 401
    assert WRITE not in caplog.text + json.dumps(shown)


def test_tokens_are_private(tokens: Path) -> None:
    assert read_tokens(tokens) == {WRITE: "write", READ: "read"}
    tokens.chmod(0o640)
    with pytest.raises(gp.InputError, match="may be read or written by other users \\(mode 640\\); chmod 600"):
        read_tokens(tokens)
    tokens.chmod(0o600)
    tokens.write_text(f"write {WRITE[:31]}\nadmin {WRITE}\n")
    with pytest.raises(gp.InputError) as refused:
        read_tokens(tokens)
    assert [fault.where for fault in refused.value.faults] == [f"{tokens}, line 1", f"{tokens}, line 2"]
    assert WRITE[:31] not in str(refused.value)
    tokens.write_text("\n")
    with pytest.raises(gp.InputError, match="has no tokens"):
        read_tokens(tokens)


def test_metrics_and_description(folder: Path) -> None:
    with opened(folder) as session, serving(session) as client:
        client("POST", "/v1/events", [submit(0, tenant='a"\\'), submit(0, num_gpus=-1), {"id": "r", "event": "round"}])
        text, description = client("GET", "/metrics")[1], client("GET", "/openapi.json")[1]
    values = dict(re.findall(r"^(\w+(?:\{[^}]*\})?) (\S+)$", text, re.MULTILINE))
    assert values['gavel_events_total{status="applied"}'] == "2.0"
    assert values['gavel_events_total{status="refused"}'] == "1.0"
    assert (values["gavel_rounds_total"], values["gavel_starts_total"], values["gavel_state_version"]) == ("1.0", "1.0", "2.0")
    assert values['gavel_jobs{state="running"}'] == "1.0"
    gpus = {name: float(value) for name, value in values.items() if name.startswith("gavel_gpus{")}
    assert sum(gpus.values()) == 12
    assert sum(value for name, value in gpus.items() if "held" in name) == 1
    assert "j0" not in text
    assert set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE)) == set(re.findall(r"^# HELP (\w+)", text, re.MULTILINE))
    assert description["openapi"].startswith("3.1")
    assert not [name for name in description if name not in ("openapi", "info", "paths", "components", "x-schema-version")]
    schemas = description["components"]["schemas"]
    assert set(schemas["Job"]["properties"]) == set(gp.Job.model_fields)
    content = description["paths"]["/v1/events"]["post"]["requestBody"]["content"]
    assert content[LINES]["schema"]["$ref"] == "#/components/schemas/Event"
    names = [each["$ref"].rpartition("/")[2] for each in schemas["Event"]["anyOf"]]
    assert "SubmitEvent" in names
    assert all(name in schemas for name in names)
    assert {"/v1/solve", "/v1/jobs/{job_id}/explanation", "/healthz"} <= description["paths"].keys()


# The command

ROOT = Path(__file__).resolve().parents[2]
CONNECT = """
import os, socket, sys
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
os.stat(os.path.dirname(os.path.dirname(sys.argv[1])))
print(os.strerror(socket.socket(socket.AF_UNIX).connect_ex(sys.argv[1])))
"""


@contextmanager
def process(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `gavel api`, and yield it with the place where it listens."""
    command = [sys.executable, "-m", "gavel_py", "api", *options]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as made:
        assert made.stderr is not None
        line = made.stderr.readline()
        assert line.startswith("Listening on "), line
        try:
            yield made, line.removeprefix("Listening on ").strip()
        finally:
            made.kill()


@pytest.mark.deep
def test_the_command_serves_until_it_is_asked_to_end(folder: Path) -> None:
    with process("--state", str(folder), "-c", "v100:2") as (made, place):
        assert place == str(folder / "api.sock")
        assert client_of(place)("POST", "/v1/events", [{"id": "r", "event": "round"}])[0] == 200
        made.send_signal(signal.SIGTERM)
        assert made.wait(60) == 0
    assert not Path(place).exists()
    with process("--state", str(folder)) as (_, place):
        assert client_of(place)("POST", "/v1/events", [{"id": "r", "event": "round"}])[1]["results"][0]["status"] == "repeated"
    with process("--state", str(folder)) as (_, place):  # after a kill, whose socket is still there
        assert client_of(place)("GET", "/v1/rounds/current")[1]["version"] == 1


@pytest.mark.deep
def test_the_service_starts_without_what_it_does_not_need() -> None:
    code = "import sys, gavel_py.cli.api, gavel_py.service.http; print({'cvxpy', 'scipy', 'pandas', 'matplotlib'} & {*sys.modules})"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"


@pytest.mark.deep
@pytest.mark.skipif(os.geteuid() != 0, reason="acting as another user needs root")
def test_another_user_cannot_connect() -> None:
    with tempfile.TemporaryDirectory() as open_folder:
        Path(open_folder).chmod(0o755)
        folder = Path(open_folder) / "state"
        with opened(folder) as session, serving(session) as client:
            connect = [sys.executable, "-c", CONNECT, client.place]
            for mode in (0o700, 0o755):  # the socket is closed to others, too
                folder.chmod(mode)
                assert subprocess.check_output(connect, text=True) == "Permission denied\n"
            Path(client.place).chmod(0o666)  # as uvicorn would leave it
            assert subprocess.check_output(connect, text=True) == "Success\n"
            folder.chmod(0o700)


def client_of(place: str) -> Callable[..., tuple[int, Any]]:
    def ask(*request: Any, **headers: str) -> tuple[int, Any]:
        client = Client(place)
        try:
            return client(*request, **headers)
        finally:
            client.connection().close()

    return ask


def test_two_places_to_listen_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gavel = runner(capsys, "api", "--state", str(tmp_path / "state"), "-c", "v100:2")
    assert "--socket and --port are two ways to connect" in gavel("--socket", str(tmp_path / "a"), "--port", "1").err
    done = gavel("--port", "0")
    assert (done.code, done.err) == (
        2,
        "Error: api, field token_file: is missing: every user of the machine could connect to the port\n",
    )
