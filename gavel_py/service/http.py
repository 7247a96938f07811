"""The HTTP door of a session: routes, limits and problems (RFC 9457). One thread applies events, several requests at a time."""

from __future__ import annotations

import asyncio
import json
import logging
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from hmac import compare_digest
from http import HTTPStatus
from ipaddress import ip_address
from itertools import islice
from typing import Annotated, Any

import h11
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from uvicorn.protocols.http.h11_impl import H11Protocol

from gavel_py.allocation.solver import solve
from gavel_py.errors import GavelError, UnknownNameError, refuse
from gavel_py.io.records import WORDING, check_records
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.job import Job
from gavel_py.problem.problem import AllocationProblem
from gavel_py.service.events import CONTAINERS, KEPT_JOBS, fault_documents, named_policy, read_lines, strict_json
from gavel_py.service.metrics import ServiceMetrics
from gavel_py.service.page import Page, cookie_of, token_in
from gavel_py.service.reader import SessionReader
from gavel_py.service.schemas import json_schema
from gavel_py.service.session import Session

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """How much one caller may ask for, so that the others are served."""

    body_bytes: int = 64 << 20
    events: int = 100_000
    queued: int = 64
    followers: int = 32
    connections: int = 256
    head_seconds: float = 10.0
    body_seconds: float = 60.0
    idle_seconds: float = 60.0
    follow_seconds: float = 60.0
    longest_solve: float = 10.0
    problem_characters: int = 4 << 20
    problem_gpus: int = 100_000
    problem_jobs: int = 10_000
    allox_jobs: int = 1000
    problem_parts: int = 250


def checked_problem(body: str, limits: Limits) -> dict[str, Any]:
    """Return the fields of a problem to solve. Raises `InputError` for one that would take long to make, before it is made."""
    refuse("body", (len(body) > limits.problem_characters, "", f"must have at most {limits.problem_characters:,} characters"))
    given = strict_json("body", body)
    rules = {"cluster": (str, "GPUs as in v100:16,p100:8/4"), "jobs": (list, "a list of jobs")}
    rules |= {"options": (dict, "an object"), "policy": (str, "the name of a policy")}
    fields: dict[str, Any] = {"jobs": None} | (given if isinstance(given, dict) else {})
    refuse(
        "body",
        *((name in fields and not isinstance(fields[name], kind), name, f"must be {text}") for name, (kind, text) in rules.items()),
        *((name not in rules, name[:100], f"is not known; known: {', '.join(rules)}") for name in islice(fields, 10)),
    )
    jobs, spec, options, most = fields["jobs"], fields.get("cluster", ""), fields.get("options", {}), limits.problem_parts
    number = limits.allox_jobs if fields.get("policy") == "allox" else limits.problem_jobs
    gpus = sum(map(int, re.findall(r":\s*([0-9]{1,9})", spec)))  # at least as many as nodes, which are made one by one
    of_jobs = [(f"jobs[{place}]", each) for place, job in enumerate(jobs) if isinstance(job, dict) for each in (job, *job.values())]
    long = [place for place, each in (("options", options), *of_jobs) if type(each) in CONTAINERS and len(each) > most]
    odd = sum(len(job.keys() - Job.model_fields.keys()) for job in jobs if isinstance(job, dict))
    refuse(
        "body",
        (len(jobs) > number, "jobs", f"must be at most {number:,} jobs with this policy, found {len(jobs):,}"),
        (gpus > limits.problem_gpus, "cluster", f"must have at most {limits.problem_gpus:,} GPUs, found {gpus:,}"),
        (spec.count(",") >= most, "cluster", f"must have at most {most:,} types of GPUs"),
        (long, "".join(long[:1]), f"must have at most {most:,} values, and at most as many in each of them"),
        (odd > most, "jobs", f"have {odd:,} fields that are not known"),
    )
    return fields


LISTED = 10_000
"""Maximum number of events in one answer of the log."""

SHORT = 1 << 16
"""Length from which a body is read by another thread."""

JSON, LINES, PROBLEM = "application/json", "application/x-ndjson", "application/problem+json"
READ, WRITE = "read", "write"


class ProblemError(Exception):
    """A request that cannot be served; it becomes an answer of RFC 9457."""

    def __init__(self, status: int, detail: str, faults: Sequence[Mapping[str, str]] = (), **headers: str | float) -> None:
        self.status, self.detail, self.faults = status, detail, list(faults)
        self.headers = {name.replace("_", "-"): str(value) for name, value in headers.items()}

    def response(self) -> Response:
        title = HTTPStatus(self.status).phrase
        document = {"type": "about:blank", "title": title, "status": self.status, "detail": self.detail, "faults": self.faults}
        return Response(json.dumps(document), self.status, {"cache-control": "no-store", **self.headers}, PROBLEM)


class TimedProtocol(H11Protocol):  # type: ignore[misc]
    """A connection that is closed if a head does not arrive, or an answer is not read, in time, which uvicorn does not do."""

    def __init__(self, limits: Limits, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.limits = limits
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._begin(self.limits.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._end()
        elif self._deadline is None:
            self._begin(self.limits.head_seconds)

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:  # the rest of a request that was answered before
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._begin(self.limits.body_seconds)

    def resume_writing(self) -> None:
        self._end()
        super().resume_writing()

    def _begin(self, seconds: float) -> None:
        self._end()
        self._deadline = self.loop.call_later(seconds, self.transport.abort)

    def _end(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class Writer:
    """The thread that applies events: all that wait at a time together, with one sync of the disk for them."""

    def __init__(self, session: Session, metrics: ServiceMetrics, most: int) -> None:
        self.session, self.metrics, self.changed, self.is_ending = session, metrics, asyncio.Event(), False
        self._queue: queue.Queue[tuple[list[Any], asyncio.Future[Any]] | None] = queue.Queue(most)
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="gavel-events", daemon=True)
        self._thread.start()

    async def apply(self, events: list[Any]) -> tuple[int, list[dict[str, Any]]]:
        """Return the version after these events, and their answers. Raises `ProblemError` if too many requests wait."""
        future: asyncio.Future[tuple[int, list[dict[str, Any]]]] = self._loop.create_future()
        try:
            self._queue.put_nowait((events, future))
        except queue.Full:
            raise ProblemError(429, "too many requests wait; send it again later", retry_after=1) from None
        return await future

    def release(self) -> None:
        """Answer those who wait for events, since the service ends. Call it in the loop."""
        self.is_ending = True
        self.changed.set()

    def stop(self) -> None:
        """Apply what waits, and end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        going_on = True
        while going_on:
            found = [self._queue.get()]
            while not self._queue.empty():
                found.append(self._queue.get_nowait())
            work, began = [each for each in found if each is not None], time.perf_counter()
            going_on = len(work) == len(found)
            try:
                answers = self.session.apply_all([events for events, _ in work])
            except Exception as error:
                logger.exception("events could not be applied")
                text = str(error) if isinstance(error, GavelError) else type(error).__name__
                problem = ProblemError(503, f"the session cannot be used: {text}")
                self._loop.call_soon_threadsafe(self._finish, [(future, problem) for _, future in work])
                continue
            version = self.session.version
            self.metrics.note(answers, time.perf_counter() - began)
            outcomes = [(future, (version, each)) for (_, future), each in zip(work, answers, strict=True)]
            self._loop.call_soon_threadsafe(self._finish, outcomes)
            self.session.checkpoint()

    def _finish(self, outcomes: Sequence[tuple[asyncio.Future[Any], Any]]) -> None:
        for future, outcome in outcomes:
            if not future.done():  # the caller may have left
                future.set_exception(outcome) if isinstance(outcome, Exception) else future.set_result(outcome)
        self.changed.set()
        self.changed = asyncio.Event()


class Guard:
    """Refuses requests before they reach a route: of foreign hosts and forms, without a token, too large."""

    def __init__(self, app: Any, hosts: Sequence[str], tokens: Mapping[str, str], limits: Limits, metrics: ServiceMetrics) -> None:
        self.app, self.hosts, self.tokens, self.limits, self.metrics = app, hosts, tokens, limits, metrics

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        status = 500

        async def noting(message: dict[str, Any]) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            self._check(scope)
            await self.app(scope, receive, noting)
        except ProblemError as problem:
            await problem.response()(scope, receive, noting)
        finally:
            self.metrics.requests.labels(scope.get("route").path if "route" in scope else "other", str(status)).inc()  # type: ignore[union-attr]

    def _check(self, scope: dict[str, Any]) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        host = re.sub(r":\d*$", "", headers.get("host", "").lower())
        if host not in self.hosts and not _is_address(host):  # a page elsewhere whose name has got the address of this service
            raise ProblemError(421, "the Host of the request is not one of this service")
        role = scope["role"] = self._role(scope, headers)
        if role is None and scope["path"] not in ("/", "/healthz"):
            raise ProblemError(401, "the request needs a token", www_authenticate="Bearer")
        if role == READ and scope["method"] != "GET":
            raise ProblemError(403, "this token may only read")
        if scope["method"] == "POST":
            length = headers.get("content-length", "")
            if not length.isdigit() or "transfer-encoding" in headers:  # which would count instead
                raise ProblemError(411, "the request needs a Content-Length")
            if len(length) > 15 or int(length) > self.limits.body_bytes:
                raise ProblemError(413, f"the body must have at most {self.limits.body_bytes:,} bytes")
            if headers.get("content-type", "").partition(";")[0].strip() not in (JSON, LINES):  # as forms of browsers have
                raise ProblemError(415, f"the Content-Type must be {JSON} or {LINES}")

    def _role(self, scope: Mapping[str, Any], headers: Mapping[str, str]) -> str | None:
        """Return what the caller may do, None without a token; the time does not tell how much of a token is right."""
        if not self.tokens:
            return WRITE
        sent, kept = headers.get("authorization", ""), token_in(scope["server"][1], headers.get("cookie", ""))
        given = sent or f"Bearer {kept}"
        roles = [role for token, role in self.tokens.items() if compare_digest(given.encode(), f"Bearer {token}".encode())]
        return next((role for role in roles if sent or role == READ), None)


def _is_address(host: str) -> bool:
    """Return whether a host is an address and no name, which could get the address of another machine."""
    try:
        return bool(ip_address(host.strip("[]")))
    except ValueError:
        return False


class Routes:
    """The routes of a session, which `start` begins to serve."""

    writer: Writer

    def __init__(self, session: Session, limits: Limits) -> None:
        self.session, self.limits, self.reader = session, limits, SessionReader(session)
        self.metrics, self.page = ServiceMetrics(self.reader), Page(session, self.reader)
        self._followers, self._solving = 0, threading.Semaphore()

    def start(self) -> None:
        """Begin to apply events, in the running loop."""
        self.writer = Writer(self.session, self.metrics, self.limits.queued)

    async def post_events(self, request: Request) -> Response:
        """Apply events, a list or one a line, in order; the status is that of the event if there is only one."""
        body = await self._body(request)
        is_lines = request.headers["content-type"].startswith(LINES)
        read = read_lines if is_lines else strict_json
        # A short body is read at once, since another thread would take longer to begin.
        events = read("body", body) if len(body) < SHORT else await run_in_threadpool(read, "body", body)
        most = f"must be a list of at most {self.limits.events:,} events"
        refuse("body", (not isinstance(events, list) or len(events) > self.limits.events, "", most))
        version, answers = await self.writer.apply(events)
        return self._answer({"version": version, "results": answers}, answers[0].get("code", 200) if len(answers) == 1 else 200)

    async def get_events(
        self,
        after: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=1, le=LISTED)] = 1000,
        wait: Annotated[float, Query(ge=0)] = 0,
    ) -> Response:
        """Return events after a version with their answers, one a line; wait up to `wait` seconds for the first."""
        if self.session.version <= after and wait:
            if self._followers >= self.limits.followers:
                raise ProblemError(429, "too many requests wait for events", retry_after=5)
            self._followers += 1
            try:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._until_after(after), min(wait, self.limits.follow_seconds))
            finally:
                self._followers -= 1
        lines = await run_in_threadpool(self.session.events_after, after, limit)
        return Response(b"".join(lines), media_type=LINES)

    async def _until_after(self, version: int) -> None:
        while self.session.version <= version and not self.writer.is_ending:
            await self.writer.changed.wait()

    async def solve(self, request: Request) -> Response:
        """Solve an allocation problem from the body, beside the session: jobs, and optionally cluster, policy and options."""
        body = await self._body(request)
        if not self._solving.acquire(blocking=False):
            raise ProblemError(429, "another problem is being solved", retry_after=1)
        try:
            return self._answer(await run_in_threadpool(self._solved, body))
        finally:
            self._solving.release()

    def _solved(self, body: str) -> dict[str, Any]:
        given = checked_problem(body, self.limits)
        cluster = Cluster.from_inline(spec) if (spec := given.get("cluster", "")) else self.session.scheduler.cluster
        jobs = check_records(Job, ((f"jobs[{number}]", each) for number, each in enumerate(given["jobs"])))
        problem = AllocationProblem.from_jobs(jobs, cluster, self.session.scheduler.profile)
        chosen = named_policy("body", given.get("policy", "max_min_fairness"), given.get("options", {}))
        return solve(problem, chosen, time_limit_seconds=self.limits.longest_solve).to_dict()

    async def _body(self, request: Request) -> str:
        try:
            return str((await asyncio.wait_for(request.body(), self.limits.body_seconds)).decode())
        except TimeoutError:
            raise ProblemError(408, f"the body did not arrive within {self.limits.body_seconds:g} s", connection="close") from None
        except UnicodeDecodeError:
            raise ProblemError(422, "the body is not UTF-8 text") from None
        except ClientDisconnect:
            raise ProblemError(400, "the body ends too early") from None

    def _answer(self, document: Mapping[str, Any], status: int = 200) -> Response:
        text = json.dumps({"schema_version": Session.schema_version, **document})
        return Response(text, status, {"cache-control": "no-store"}, JSON)

    def reading(self, read: Callable[..., dict[str, Any]]) -> Callable[..., Response]:
        """Return a route with the arguments of a method of the reader that answers with what it returns."""

        @wraps(read)
        def route(**given: Any) -> Response:
            return self._answer(read(**given))

        return route

    async def health(self) -> Response:
        """Return that the service answers."""
        return Response('{"ok": true}', media_type=JSON)

    async def get_page(self, request: Request) -> Response:
        """Return the page for people, without data if the caller has no token."""
        text, headers = await run_in_threadpool(self.page.html, is_open=request.scope["role"] is not None)
        return Response(text, headers=headers, media_type="text/html")

    async def get_cookie(self, request: Request) -> Response:
        """Return a cookie with the token of the request, which may only read."""
        if request.scope["role"] != READ:
            raise ProblemError(403, "the page takes a token that may only read, and this one may write")
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        return Response(status_code=204, headers={"set-cookie": cookie_of(request.scope["server"][1], token)})

    async def get_metrics(self) -> Response:
        """Return the metrics of Prometheus."""
        return Response(await run_in_threadpool(self.metrics.text), media_type="text/plain; version=0.0.4; charset=utf-8")


def application(session: Session, hosts: Sequence[str], tokens: Mapping[str, str], limits: Limits) -> tuple[Guard, Routes]:
    """Return the ASGI application of a session, and its routes, whose writer the server starts."""
    routes, app = Routes(session, limits), FastAPI(title="gavel api", version="1", docs_url=None, redoc_url=None, openapi_url=None)
    table: list[tuple[str, str, Any, str]] = [
        ("POST", "/v1/events", routes.post_events, "apply events in order"),
        ("GET", "/v1/events", routes.get_events, "events after a version, or wait for the first"),
        ("GET", "/v1/rounds/current", routes.reading(routes.reader.current_round), "the last round, and what runs now"),
        ("GET", "/v1/jobs/{job_id:path}/explanation", routes.reading(routes.reader.explanation), "why a job gets what it gets"),
        ("GET", "/v1/jobs/{job_id:path}", routes.reading(routes.reader.job), "a job: what it holds, and why it waits"),
        ("GET", "/v1/tenants", routes.reading(routes.reader.tenants), "shares of tenants: entitled, promised, delivered"),
        ("POST", "/v1/solve", routes.solve, "solve a problem beside the session"),
        ("GET", "/metrics", routes.get_metrics, "metrics of Prometheus"),
        ("GET", "/healthz", routes.health, "whether the service answers"),
    ]
    for path, route in (("/", routes.get_page), ("/cookie", routes.get_cookie)):
        app.add_api_route(path, route, include_in_schema=False, response_class=Response)
    for method, path, route, summary in table:
        app.add_api_route(path, route, methods=[method], summary=summary, response_class=Response, response_model=None)
    app.add_api_route("/openapi.json", lambda: Response(openapi(app), media_type=JSON), include_in_schema=False)
    app.add_exception_handler(ProblemError, _on_problem)
    app.add_exception_handler(GavelError, _on_input_error)
    app.add_exception_handler(RequestValidationError, _on_wrong_query)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(Exception, _on_fault)
    return Guard(app, hosts, tokens, limits, routes.metrics), routes


async def _on_problem(_: Request, error: Any) -> Response:
    found: ProblemError = error
    return found.response()


async def _on_input_error(_: Request, error: Any) -> Response:
    is_missing = isinstance(error, UnknownNameError) and _.method == "GET"
    missing = f"it is not in the session, which knows of the last {KEPT_JOBS:,} jobs that have left how they did"
    return ProblemError(*((404, missing) if is_missing else (422, "the request is refused")), fault_documents(error)).response()


async def _on_wrong_query(_: Request, error: Any) -> Response:
    texts = [(each["loc"][-1], WORDING.get(each["type"], each["msg"]).format(**each.get("ctx", {}))) for each in error.errors()]
    faults = [{"where": "query", "field": str(name), "problem": text} for name, text in texts]
    return ProblemError(422, "the request is refused", faults).response()


async def _on_fault(_: Request, error: Any) -> Response:  # which is logged, too
    return ProblemError(500, f"gavel-py has a fault: {type(error).__name__}").response()


async def _on_http_error(_: Request, error: Any) -> Response:
    return ProblemError(error.status_code, "there is no such path, or it does not take this method").response()


def openapi(app: FastAPI) -> str:
    """Return the OpenAPI document: routes as they are declared, events and jobs from their records."""
    document: dict[str, Any] = app.openapi() | {"x-schema-version": Session.schema_version}
    text = json.dumps([json_schema("event"), json_schema("job")]).replace("#/$defs/", "#/components/schemas/")
    event, job = json.loads(text)
    schemas = event.pop("$defs") | {"Event": event, "Job": job}
    schemas["SubmitEvent"]["properties"]["job"] = {"$ref": "#/components/schemas/Job"}
    document.setdefault("components", {}).setdefault("schemas", {}).update(schemas)
    one = {"$ref": "#/components/schemas/Event"}
    content = {JSON: {"schema": {"type": "array", "items": one}}, LINES: {"schema": one}}
    document["paths"]["/v1/events"]["post"]["requestBody"] = {"required": True, "content": content}
    return json.dumps(document)
