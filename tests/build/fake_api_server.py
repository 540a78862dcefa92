"""A minimal API server over plain HTTP to run commands against: objects in a dict, one revision counter."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit


class FakeApiServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects = {}  # path -> object
        self.revision = 1
        self.log = []  # (method, path, query) of every request
        self.history = []  # (revision, type, path, object)
        self.changed = threading.Condition()
        self.answers = {}  # (method, path) -> [(status, headers, body)]: given instead, once each
        self.cut_watches = False
        self.kubeconfig = ""

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def put(self, path, value):
        with self.changed:
            before = self.objects.get(path)
            self.revision += 1
            metadata = {"uid": f"uid-{self.revision}", "creationTimestamp": "2026-11-15T07:40:00Z"}
            metadata |= (
                (before or {}).get("metadata", {})
                | value["metadata"]
                | {"resourceVersion": str(self.revision)}
            )
            metadata["managedFields"] = [{"manager": "lattice"}]
            self.objects[path] = {**value, "metadata": metadata}
            self.history.append((self.revision, "MODIFIED" if before else "ADDED", path, self.objects[path]))
            self.changed.notify_all()
            return self.objects[path]

    def remove(self, path):
        with self.changed:
            self.revision += 1
            self.history.append((self.revision, "DELETED", path, self.objects.pop(path)))
            self.changed.notify_all()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self._handle(self._get)

    def do_PATCH(self):
        self._handle(self._patch)

    def do_PUT(self):
        self._handle(self._put)

    def do_POST(self):
        self._handle(self._missing)

    def do_DELETE(self):
        self._handle(self._delete)

    def _handle(self, act):
        self.api: FakeApiServer = self.server
        split = urlsplit(self.path)
        self.where, self.query = split.path, dict(parse_qsl(split.query))
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.api.log.append((self.command, self.where, self.query))
        canned = self.api.answers.get((self.command, self.where))
        if canned:
            status, headers, value = canned.pop(0)
            self._answer(status, value, headers)
        else:
            act()

    def _put(self):
        value = json.loads(self.body)
        known = self.api.objects[self.where]
        if value["metadata"]["resourceVersion"] != known["metadata"]["resourceVersion"]:
            self._answer(
                409,
                {
                    "kind": "Status",
                    "reason": "Conflict",
                    "message": "the object has been modified",
                    "code": 409,
                },
            )
        else:
            self._answer(200, value if self.query.get("dryRun") else self.api.put(self.where, value))

    def _get(self):
        if self.where == "/version":
            self._answer(200, {"gitVersion": "v1.33.0+lattice"})
        elif self.query.get("watch"):
            self._watch()
        elif self.where in self.api.objects:
            result = self.api.objects[self.where]
            self._answer(200, self._table([result]) if self._wants_table() else result)
        elif "/" in self.where and self.where.rsplit("/", 1)[-1].endswith(("s", "es")):
            self._list()
        else:
            self._missing()

    def _list(self):
        results = [
            o for path, o in sorted(self.api.objects.items()) if self._inside(path) and self._selected(o)
        ]
        begin, limit = int(self.query.get("continue", 0)), int(self.query.get("limit", 0))
        page = results[begin : begin + limit] if limit else results
        more = str(begin + limit) if limit and begin + limit < len(results) else ""
        metadata = {"resourceVersion": str(self.api.revision), "continue": more}
        listed = self._table(page) if self._wants_table() else {"kind": "List", "items": page}
        self._answer(200, {**listed, "metadata": metadata})

    def _inside(self, path):
        folder, plural = self.where.rsplit("/", 1)
        return path.startswith(folder) and path.rsplit("/", 2)[-2] == plural

    def _selected(self, value):
        labels = value["metadata"].get("labels", {})
        wanted = [part.split("=") for part in self.query.get("labelSelector", "").split(",") if part]
        fields = [part.split("=") for part in self.query.get("fieldSelector", "").split(",") if part]
        return all(labels.get(k) == v for k, v in wanted) and all(
            self._field(value, k) == v for k, v in fields
        )

    @staticmethod
    def _field(value, path):
        for part in path.split("."):
            value = value.get(part, {})
        return value

    def _wants_table(self):
        return "as=Table" in self.headers.get("Accept", "")

    def _table(self, objects):
        columns = [
            {"name": "Name", "priority": 0},
            {"name": "Size", "priority": 0},
            {"name": "Note", "priority": 1},
        ]
        rows = [
            {"cells": [o["metadata"]["name"], o.get("spec", {}).get("size"), "-"], "object": o}
            for o in objects
        ]
        return {
            "kind": "Table",
            "columnDefinitions": columns,
            "rows": rows,
            "metadata": {"resourceVersion": str(self.api.revision)},
        }

    def _watch(self):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        since = int(self.query["resourceVersion"])
        while True:
            with self.api.changed:
                ready = [
                    h
                    for h in self.api.history
                    if h[0] > since and self._inside(h[2]) and self._selected(h[3])
                ]
                if not ready:
                    self.api.changed.wait(5)
                    continue
            for revision, kind, _, value in ready:
                since = revision
                shown = self._table([value]) if self._wants_table() else value
                line = json.dumps({"type": kind, "object": shown}).encode() + b"\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            if self.api.cut_watches:
                self.close_connection = True
                return

    def _patch(self):
        value = json.loads(self.body)
        before = self.api.objects.get(self.where)
        if before and all(before.get(k) == v for k, v in value.items() if k != "metadata"):
            self._answer(200, before)
        elif self.query.get("dryRun"):
            self._answer(
                200 if before else 201, {**value, "metadata": {"resourceVersion": "1", **value["metadata"]}}
            )
        else:
            self._answer(200 if before else 201, self.api.put(self.where, value))

    def _delete(self):
        if self.where not in self.api.objects:
            self._missing()
            return
        result = self.api.objects[self.where]
        if not self.query.get("dryRun"):
            self.api.remove(self.where)
        self._answer(
            200, {"kind": "Status", "status": "Success", "details": {"uid": result["metadata"]["uid"]}}
        )

    def _missing(self):
        parts = self.where.split("/")
        self._answer(
            404,
            {
                "kind": "Status",
                "reason": "NotFound",
                "code": 404,
                "message": f'{parts[-2]} "{parts[-1]}" not found',
                "details": {"kind": parts[-2], "name": parts[-1]},
            },
        )

    def _answer(self, status, value, headers=()):
        body = json.dumps(value).encode()
        self.send_response(status)
        for name, text in headers:
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def running_fake_api_server(folder):
    server = FakeApiServer()
    config = folder / "kubeconfig"
    config.write_text(
        json.dumps(
            {
                "current-context": "here",
                "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
                "clusters": [{"name": "here", "cluster": {"server": server.url}}],
                "users": [{"name": "me", "user": {"token": "secret"}}],
            }
        )
    )
    server.kubeconfig = str(config)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
