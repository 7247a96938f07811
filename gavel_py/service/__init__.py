"""The service: one scheduler behind a log of events, for schedulers in other languages.

`session` applies events and survives a kill; `log` has them on disk; `events` says what an event is, `schemas`
as JSON schemas, too. `server` serves a session over
HTTP: `http` has the routes, `protocol` the time limits of connections, `metrics` what Prometheus reads. Only these import FastAPI.
"""

from gavel_py.service.schemas import json_schema
from gavel_py.service.server import serve_api
from gavel_py.service.session import Session

__all__ = ["Session", "json_schema", "serve_api"]
