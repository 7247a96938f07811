"""The service: one scheduler behind a log of events, for schedulers in other languages.

`session` applies events and survives a kill; `log` has them on disk; `events` says what an event is, `schemas` the same as JSON
schemas. `server` serves a session over HTTP: `http` has the routes and limits, `reader` the answers, `metrics` what Prometheus
reads, `page` what people see. FastAPI is imported only when a session is served.
"""

from gavel_py.service.schemas import json_schema
from gavel_py.service.server import serve_api
from gavel_py.service.session import Session

__all__ = ["Session", "json_schema", "serve_api"]
