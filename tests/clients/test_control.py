"""The control plane over plain HTTP, with Basic credentials, as a controller that repeats everything uses it."""

import asyncio
import base64
import json
import subprocess
import uuid

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": ["string", "null"]}}, "required": ["n"]}
DEFINITION = {"schema": SCHEMA, "storage_profile": "local", "initialization": "create_if_absent"}


class Controller:
    """Sends each change under a key of its own until it is answered, and waits for its operation."""

    def __init__(self, url, key=None):
        auth = httpx.BasicAuth("controller", key) if key else None
        self.http = httpx.Client(base_url=f"{url}/control/v1", auth=auth, timeout=30, trust_env=False)

    def view(self, name):
        answer = self.http.get(f"/streams/{name}")
        return None if answer.status_code == 404 else answer.json()

    def send(self, method, path, body, matches, key=None):
        condition = "If-None-Match" if matches == "*" else "If-Match"
        headers = {"Idempotency-Key": key or uuid.uuid4().hex, condition: matches}
        return self.http.request(method, path, json=body, headers=headers)

    def change(self, method, path, body, matches):
        key = uuid.uuid4().hex
        first = self.send(method, path, body, matches, key)
        again = self.send(method, path, body, matches, key)
        assert (again.status_code, again.content) == (first.status_code, first.content)
        assert first.status_code in (200, 202), first.text
        assert first.headers["etag"] == f'"{first.json()["revision"]}"'
        place = first.headers["location"].removeprefix("/control/v1")
        for _ in range(1000):
            operation = self.http.get(place).json()
            if operation["status"] in ("succeeded", "failed"):
                return operation
        raise AssertionError(operation)

    def desire(self, name, state):
        etag = f'"{self.view(name)["revision"]}"'
        operation = self.change("PUT", f"/streams/{name}/desired", {"state": state}, etag)
        assert operation["status"] == "succeeded", operation


@pytest.fixture
def controller(stack):
    return Controller(stack.url)


def test_a_stream_is_declared_and_served(controller, stack, name):
    name = name.replace("_", "-")
    assert controller.view(name) is None
    operation = controller.change("PUT", f"/streams/{name}", DEFINITION, "*")
    assert operation["status"] == "succeeded"
    assert controller.view(name)["observed"]["state"] == "stopped"
    controller.desire(name, "serving")
    view = controller.view(name)
    assert view["observed"]["write_admission"] is True
    assert list(view["definition"]["schema"]["properties"]) == ["n", "s"]
    assert view["stream_id"]
    names, cursor = [], None
    while True:
        query = {"limit": 1} | ({"cursor": cursor} if cursor else {})
        page = controller.http.get("/streams", params=query).json()
        names += [stream["name"] for stream in page["streams"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert name in names and names == sorted(names)


def test_what_was_accepted_is_there_after_a_kill(own_stack, name):
    server = own_stack().start()
    controller = Controller(server.url)
    controller.change("PUT", "/streams/s", DEFINITION, "*")
    answer = controller.send("PUT", "/streams/s/desired", {"state": "serving"}, '"1"', "the-key")
    assert answer.status_code == 202
    server.kill()
    server.start()
    controller = Controller(server.url)
    again = controller.send("PUT", "/streams/s/desired", {"state": "serving"}, '"1"', "the-key")
    assert again.content == answer.content
    assert controller.view("s")["observed"]["state"] == "serving"
    assert controller.view("s")["observed"]["generation"] == 1


def test_grants_and_logs(own_stack, binary):
    """Credentials decide, and are written nowhere."""
    server = own_stack(environment={"TIDEWHEEL_LOG": "trace"}).start()

    def make(*grants):
        command = [binary, "keys", "create", "--data", str(server.data)]
        command += [part for grant in grants for part in ("--grant", grant)]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[0]

    admin = make("admin:*")
    owner = make("control:mine*", "read:mine*")
    assert Controller(server.url).http.get("").status_code == 401
    controller = Controller(server.url, owner)
    assert controller.change("PUT", "/streams/mine", DEFINITION, "*")["status"] == "succeeded"
    refused = controller.send("PUT", "/streams/theirs", DEFINITION, "*")
    assert refused.status_code == 403
    assert refused.json()["error"]["code"] == "forbidden"
    assert Controller(server.url, admin).change("PUT", "/streams/theirs", DEFINITION, "*")["status"] == "succeeded"
    listed = controller.http.get("/streams").json()["streams"]
    assert [stream["name"] for stream in listed] == ["mine"]
    body = {"entries": [{"queue": "tidewheel.audit", "offset": 0}]}
    log = httpx.post(f"{server.url}/api/v1/fetch", json=body, headers={"x-api-key": admin}, trust_env=False)
    said = server.said() + log.text
    for key in (admin, owner):
        secret = key.rsplit("_", 1)[1]
        assert secret not in said
        basic = base64.b64encode(f"controller:{key}".encode()).decode()
        assert basic not in said
    entries = [record["payload"] for record in log.json()["entries"][0]["records"]]
    assert any(e["outcome"] == 403 and e["stream"] == "theirs" for e in entries), json.dumps(entries)


async def test_a_stopped_stream_is_not_there_for_sockets(controller, stack, name):
    name = name.replace("_", "-")
    controller.change("PUT", f"/streams/{name}", DEFINITION, "*")

    async def code(query=""):
        """How a connection ends, or None if it is greeted."""
        async with connect(f"{stack.socket_url}/{name}{query}", compression=None) as socket:
            try:
                await socket.recv()
                return None
            except ConnectionClosed as closed:
                return closed.rcvd.code

    async def becomes(expected, query=""):
        # What another process has changed is known within two seconds.
        for _ in range(100):
            if await code(query) == expected:
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"{await code(query)} and not {expected}")

    assert await code() == 4404, "it was declared and not brought up"
    controller.desire(name, "serving")
    await becomes(None)
    await becomes(None, "?publish")
    controller.desire(name, "stopped")
    await becomes(4404)
    await becomes(4404, "?publish")
