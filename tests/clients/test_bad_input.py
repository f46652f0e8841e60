"""What a sender gets for bad input: the right status, an error that says what is wrong, and nothing changed."""

import json
import socket
from urllib.parse import urlsplit

import pytest

from consuming import numbers, push, reader

MIB = 1024 * 1024
BODY_LIMIT = 64 * MIB
JSON = {"content-type": "application/json"}


def error_of(answer, status):
    """The error text of a refusal, which must be JSON and must say something."""
    assert answer.status_code == status, (answer.status_code, answer.text[:500])
    text = answer.json()["error"]
    assert isinstance(text, str) and len(text) > 5, answer.text
    return text


def queue_exists(http, name):
    answer = http.get(
        f"/api/v1/pop/queue/{name}", params={"consumerGroup": "probe", "subscriptionMode": "all", "wait": "false"}
    )
    return answer.status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/push",
        "/api/v1/ack",
        "/api/v1/ack/batch",
        "/api/v1/transaction",
        "/api/v1/configure",
        "/streams/v1/queries",
        "/streams/v1/state/get",
        "/streams/v1/cycle",
    ],
)
@pytest.mark.parametrize("body", [b'{"items":[', b"", b"nonsense", b'{"a":1}{"b":2}', b"[" * 5000])
def test_malformed_json(http, path, body):
    error_of(http.post(path, content=body, headers=JSON), 400)


@pytest.mark.parametrize(
    "field, value",
    [
        ("queue", 7),
        ("queue", None),
        ("partition", []),
        ("transactionId", {"a": 1}),
        ("payload", ...),
    ],
)
def test_an_item_of_the_wrong_type_refuses_the_whole_push(http, name, field, value):
    good = {"queue": name, "payload": {"n": 1}}
    bad = {key: content for key, content in {**good, field: value}.items() if content is not ...}
    error = error_of(http.post("/api/v1/push", json={"items": [good, bad]}), 400)
    assert field in error, error
    assert not queue_exists(http, name)


@pytest.mark.parametrize(
    "body", [{}, {"items": None}, {"items": {}}, {"items": "x"}, {"items": [1]}, [], "x", 5, None]
)
def test_a_push_that_is_no_list_of_items(http, body):
    error_of(http.post("/api/v1/push", content=json.dumps(body), headers=JSON), 400)


def test_an_empty_push_is_nothing_wrong(http):
    answer = http.post("/api/v1/push", json={"items": []})
    assert (answer.status_code, answer.json()) == (201, [])


@pytest.mark.parametrize(
    "path, body, word",
    [
        ("/api/v1/configure", {"options": {}}, "queue"),
        ("/api/v1/configure", {"queue": 5}, "queue"),
        ("/api/v1/configure", {"queue": "q", "mode": "sideways"}, "mode"),
        ("/api/v1/ack", {"partitionId": "x"}, "transactionId"),
        ("/api/v1/ack/batch", {"acknowledgments": "x"}, "acknowledgments"),
        ("/api/v1/transaction", {"operations": "x"}, "operations"),
        ("/api/v1/transaction", {"operations": [{"type": "dance"}]}, "dance"),
        ("/streams/v1/queries", {"source_queue": "s", "config_hash": "h"}, "name"),
        ("/streams/v1/queries", {"name": "n", "config_hash": "h"}, "source_queue"),
        ("/streams/v1/queries", {"name": "n", "source_queue": "s", "config_hash": ""}, "config_hash"),
        ("/streams/v1/state/get", {"partition_id": "p"}, "query_id"),
        ("/streams/v1/state/get", {"query_id": "q"}, "partition_id"),
        ("/streams/v1/cycle", {"partition_id": "p"}, "query_id"),
        ("/streams/v1/cycle", {"query_id": "q"}, "partition_id"),
    ],
)
def test_a_missing_or_mistyped_field_is_named(http, path, body, word):
    assert word in error_of(http.post(path, json=body), 400)


def test_a_pop_without_a_queue_or_a_label(http):
    assert http.get("/api/v1/pop").status_code == 400


@pytest.mark.parametrize("query", ["batch=many", "wait=perhaps", "timeout=-5", "partitions=x", "leaseSeconds=soon"])
def test_a_pop_with_nonsense_numbers_harms_nobody(http, name, query):
    answer = http.get(f"/api/v1/pop/queue/{name}?consumerGroup=g&wait=false&{query}")
    assert answer.status_code in (204, 400), answer.text


def test_an_unknown_route(http):
    answer = http.get("/api/v1/no/such/thing")
    assert error_of(answer, 404)
    assert answer.json()["code"] == "no_such_route"


@pytest.mark.parametrize(
    "body",
    [
        b'{"items":[{"queue":"%s","payload":"\xff\xfe"}]}',
        b'{"items":[{"queue":"%s","payload":"x","transactionId":"\xc3\x28"}]}',
        b'{"items":[{"queue":"%s","payload":"x","partition":"\\ud800"}]}',
    ],
)
def test_invalid_utf_8(http, name, body):
    error_of(http.post("/api/v1/push", content=body % name.encode(), headers=JSON), 400)
    assert not queue_exists(http, name)


def test_a_body_over_the_limit_is_refused_before_it_is_read(http, stack, name):
    """Only the head is sent: the length alone must be enough, and the answer names the limit."""
    address = urlsplit(stack.url)
    with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
        connection.sendall(
            f"POST /api/v1/push HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {BODY_LIMIT + 1}\r\n\r\n".encode()
        )
        answer = connection.recv(65536).decode()
    assert answer.startswith("HTTP/1.1 413"), answer
    assert "64" in answer or str(BODY_LIMIT) in answer, answer
    assert http.get("/health").status_code == 200


def test_a_body_over_the_limit_without_a_length(http, name):
    def chunks():
        yield b'{"items":[{"queue":"' + name.encode() + b'","payload":"'
        for _ in range(65):
            yield b"x" * MIB

    try:
        answer = http.post("/api/v1/push", content=chunks(), headers=JSON)
    except Exception as error:  # the server may close before the client has sent it all
        assert type(error).__name__ in ("WriteError", "ReadError", "RemoteProtocolError"), error
    else:
        assert answer.status_code == 413
    assert not queue_exists(http, name)


def test_a_record_over_the_limit(http, name):
    items = [{"queue": name, "payload": "small"}, {"queue": name, "payload": "x" * (17 * MIB)}]
    answer = http.post("/api/v1/push", json={"items": items})
    assert answer.status_code in (400, 413), answer.text[:500]
    assert str(16 * MIB) in answer.json()["error"], answer.text[:500]
    assert not queue_exists(http, name)


@pytest.mark.parametrize(
    "field, value", [("queue", "q" * 5000), ("partition", "p" * 5000), ("transactionId", "t" * 70_000)]
)
def test_a_name_over_the_limit(http, name, field, value):
    answer = http.post("/api/v1/push", json={"items": [{"queue": name, "payload": 1, field: value}]})
    assert any(character.isdigit() for character in error_of(answer, 400)), "the limit is named"
    assert not queue_exists(http, name)


def test_a_bad_item_among_good_ones_is_refused_alone(http, name):
    """Partitions stand or fall alone; each item says what became of it, in the word on which the SDK raises."""
    items = [{"queue": name, "payload": {"n": 1}}, {"queue": "", "payload": 2}, {"queue": name, "payload": {"n": 3}}]
    answer = http.post("/api/v1/push", json={"items": items})
    assert answer.status_code == 201
    assert [item["status"] for item in answer.json()] == ["queued", "failed", "queued"]
    assert "name" in answer.json()[1]["error"] and "error" not in answer.json()[0]
    error_of(http.post("/api/v1/push", json={"items": items[1:2]}), 400)


async def test_an_unknown_status_is_a_failure_not_a_success(queen, name):
    await push(queen, name, [1, 2])
    held = await reader(queen, name, "g").pop()
    answer = await queen.ack(held[0], "Completed", {"group": "g"})
    assert answer["success"] is True and answer["dlq"] is False, answer
    assert numbers(await reader(queen, name, "g").pop()) == [1, 2]


async def test_acknowledgements_that_name_nothing(queen, http, name):
    await push(queen, name, [1, 2])
    held = await reader(queen, name, "g", batch=1).pop()
    place = {"partitionId": held[0]["partitionId"], "leaseId": held[0]["leaseId"], "consumerGroup": "g"}

    def ack(**fields):
        answer = http.post(
            "/api/v1/ack",
            json={**place, "transactionId": held[0]["transactionId"], "status": "completed", **fields},
        )
        assert answer.status_code == 200, answer.text
        return answer.json()[0]

    for fields, word in (
        ({"leaseId": "00000000-0000-0000-0000-000000000000"}, "lease"),
        ({"leaseId": "not a lease"}, "lease"),
        ({"transactionId": "never pushed"}, "unresolvable"),
        ({"consumerGroup": "never popped", "leaseId": None}, "consumer not found"),
    ):
        answer = ack(**fields)
        assert answer["success"] is False and word in answer["error"], (fields, answer)
    unknown = http.post(
        "/api/v1/ack", json={"transactionId": "x", "partitionId": "no such partition", "status": "completed"}
    )
    assert unknown.status_code in (200, 400, 404), unknown.text
    assert "success" not in unknown.text or unknown.json()[0]["success"] is False
    assert await reader(queen, name, "g").pop() == [], "the lease must be as it was"
    assert ack()["success"] is True
    assert numbers(await reader(queen, name, "g").pop()) == [2]


def test_a_lease_that_does_not_exist_is_not_extended(http):
    answer = http.post("/api/v1/lease/no-such-lease/extend")
    assert answer.status_code == 200
    assert (answer.json()["success"], answer.json()["renewed"], answer.json()["newExpiresAt"]) == (False, 0, None)


@pytest.fixture
async def cycle(queen, http, name):
    """A cycle that would succeed, to be spoilt: returns a function of what to change."""
    source, sink = f"{name}-in", f"{name}-out"
    await push(queen, source, range(4))
    query = http.post(
        "/streams/v1/queries", json={"name": name, "source_queue": source, "sink_queue": sink, "config_hash": "h"}
    ).json()
    held = await reader(queen, source, f"streams.{name}").pop()
    good = {
        "query_id": query["query_id"],
        "partition_id": held[0]["partitionId"],
        "consumer_group": f"streams.{name}",
        "state_ops": [{"type": "upsert", "key": "k", "value": 1}],
        "push_items": [{"queue": sink, "payload": {"n": 1}}],
        "ack": {
            "transactionId": held[-1]["transactionId"],
            "leaseId": held[0]["leaseId"],
            "status": "completed",
            "count": 4,
        },
        "release_lease": True,
    }

    def send(**changed):
        return http.post("/streams/v1/cycle", json={**good, **changed})

    async def unchanged():
        state = http.post("/streams/v1/state/get", json={key: good[key] for key in ("query_id", "partition_id")})
        assert state.json()["rows"] == []
        assert await reader(queen, sink, "probe").pop() == []
        answer = send()
        assert answer.json()["success"] is True, "the lease and the query must be as they were"

    send.good, send.unchanged = good, unchanged
    return send


def refused(answer):
    """A cycle is refused in the body, or by a 4xx: never by a 5xx, which clients repeat."""
    assert answer.status_code in (200, 400, 404), answer.text
    body = answer.json()
    assert answer.status_code != 200 or body["success"] is False, body
    return body["error"]


async def test_a_cycle_with_an_unknown_state_operation(cycle):
    good = cycle.good["state_ops"][0]
    assert "incr" in refused(cycle(state_ops=[good, {"type": "incr", "key": "k"}]))
    await cycle.unchanged()


@pytest.mark.parametrize(
    "operation", [{"type": "upsert", "value": 1}, {"type": "upsert", "key": 5, "value": 1}, {"type": "delete"}, "x"]
)
async def test_a_cycle_with_a_broken_state_operation(cycle, operation):
    assert refused(cycle(state_ops=[cycle.good["state_ops"][0], operation]))
    await cycle.unchanged()


@pytest.mark.parametrize("item", [{"queue": 5, "payload": 1}, {"queue": "q" * 5000, "payload": 1}, "x"])
async def test_a_cycle_with_a_broken_output(cycle, item):
    assert refused(cycle(push_items=[cycle.good["push_items"][0], item]))
    await cycle.unchanged()


async def test_a_cycle_with_a_wrong_lease(cycle):
    assert "lease" in refused(cycle(ack={**cycle.good["ack"], "leaseId": "somebody else's"}))
    await cycle.unchanged()


async def test_a_cycle_of_an_unknown_query(cycle):
    assert "query not found" in refused(cycle(query_id="00000000-0000-0000-0000-000000000000"))
    assert refused(cycle(query_id="not an id"))
    await cycle.unchanged()


async def test_a_cycle_of_an_unknown_partition(cycle):
    assert "partition not found" in refused(cycle(partition_id="00000000-0000-0000-0000-000000000000"))
    assert refused(cycle(partition_id="not an id"))
    await cycle.unchanged()


def test_state_of_an_unknown_query_is_empty(http):
    body = {
        "query_id": "00000000-0000-0000-0000-000000000000",
        "partition_id": "00000000-0000-0000-0000-000000000000",
    }
    answer = http.post("/streams/v1/state/get", json=body)
    assert (answer.status_code, answer.json()["rows"]) == (200, [])
