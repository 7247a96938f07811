"""The part of a Kubernetes API server that kubectl needs to get and patch objects: discovery, reads, and JSON patches."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

PLURALS = {"Job": "jobs", "Cohort": "cohorts"} | {
    kind: f"{kind.lower()}s" for kind in ("ClusterQueue", "LocalQueue", "ResourceFlavor", "Workload")
}
NAMESPACED = {"Job", "LocalQueue", "Workload"}


def patched(document: Any, patch: Sequence[Mapping[str, Any]]) -> Any:
    """The document after a JSON patch of test, add, replace and remove (RFC 6902), or None if a test or a path fails."""
    copy = json.loads(json.dumps(document))
    for each in patch:
        way = [part.replace("~1", "/").replace("~0", "~") for part in each["path"].split("/")[1:]]
        at = copy
        for part in way[:-1]:
            at = at[int(part)] if isinstance(at, list) else at.get(part, {})
        if each["op"] in ("test", "replace", "remove") and way[-1] not in at:
            return None
        if each["op"] == "test":
            if at[way[-1]] != each["value"]:
                return None
        elif each["op"] == "remove":
            del at[way[-1]]
        else:
            at[way[-1]] = each["value"]
    return copy


class FakeApiServer:
    """A server on loopback that keeps objects; `url` is its address, `objects` {path: object}."""

    def __init__(self, items: Sequence[Mapping[str, Any]]) -> None:
        self.objects = {self.path_of(each): json.loads(json.dumps(each)) for each in items}
        self.kinds = {(each["apiVersion"], each["kind"]) for each in items}
        self.writes = 0
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:  # quiet
                pass

            def answer(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"null")
                code, found = server.handle(self.command, urlsplit(self.path).path.rstrip("/"), body)
                text = json.dumps(found).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_PATCH = answer  # noqa: N815

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()

    def path_of(self, each: Mapping[str, Any]) -> str:
        namespace = f"/namespaces/{each['metadata']['namespace']}" if "namespace" in each["metadata"] else ""
        return f"/apis/{each['apiVersion']}{namespace}/{PLURALS[each['kind']]}/{each['metadata']['name']}"

    def handle(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if method == "GET" and (found := self.discovered(path)) is not None:
            return 200, found
        if method == "GET" and path in self.objects:
            return 200, self.objects[path]
        if method == "GET":
            listed = [each for way, each in self.objects.items() if way.rsplit("/", 1)[0].endswith(path.rsplit("/", 1)[-1])]
            return (
                (200, {"kind": "List", "apiVersion": "v1", "metadata": {}, "items": listed}) if listed else failed(404, "NotFound")
            )
        if path not in self.objects:
            return failed(404, "NotFound")
        new = patched(self.objects[path], body)
        if new is None:
            return failed(422, "Invalid")
        self.writes += 1
        new["metadata"]["resourceVersion"] = str(self.writes)
        self.objects[path] = new
        return 200, new

    def discovered(self, path: str) -> Any:
        versions = sorted({version for version, _ in self.kinds})
        if path == "/api":
            return {"kind": "APIVersions", "versions": []}
        if path == "/apis":
            groups = [(version.split("/")[0], {"groupVersion": version, "version": version.split("/")[1]}) for version in versions]
            listed = [{"name": name, "versions": [each], "preferredVersion": each} for name, each in groups]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
        version = path.removeprefix("/apis/")
        if version not in versions:
            return None
        resources = [
            {
                "name": PLURALS[kind],
                "singularName": kind.lower(),
                "kind": kind,
                "namespaced": kind in NAMESPACED,
                "verbs": ["get", "list", "patch"],
            }
            for each, kind in sorted(self.kinds)
            if each == version
        ]
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources}


def failed(code: int, reason: str) -> tuple[int, Any]:
    return code, {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "reason": reason,
        "message": reason,
        "code": code,
    }
