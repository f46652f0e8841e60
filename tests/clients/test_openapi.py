"""The description of the API and its answers agree: requests made from the one, at random, are answered as it says.

What is asked for is bounded: so many requests for each operation, none that waits, none that pauses the server. The
requests come from a seed, so that a failure comes again."""

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from stack import Stack

EXAMPLES = 25
METHODS = {"get", "post", "put", "delete"}
# They would pause the server for all that follow.
SWITCHES = {"POST /api/v1/system/maintenance", "POST /api/v1/system/maintenance/pop"}
# It would close the server to all that follow.
FIRST_KEY = "POST /keys"

# 503 is for a store that is busy and for pauses, and nothing here brings either about.
CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]


@pytest.fixture(scope="module")
def described(binary, tmp_path_factory):
    """A server of its own: random requests delete and rename whatever they meet."""
    with Stack(binary, tmp_path_factory.mktemp("openapi") / "data") as running:
        fill(running.url)
        yield running


@pytest.fixture(scope="module")
def there(binary, tmp_path_factory):
    """The names of what a server holds that nothing has deleted from, and the server."""
    with Stack(binary, tmp_path_factory.mktemp("there") / "data") as running:
        yield running, fill(running.url)


@pytest.fixture(scope="module")
def description(described):
    return schemathesis.openapi.from_url(f"{described.url}/openapi.json")


def fill(url):
    """Something of each kind, so that answers are not all empty."""
    with httpx.Client(base_url=url, timeout=30, trust_env=False) as http:
        items = [{"queue": "q", "partition": str(n % 3), "payload": {"n": n}} for n in range(9)]
        assert http.post("/api/v1/push", json={"items": items}).status_code == 201
        popped = http.get("/api/v1/pop/queue/q?consumerGroup=g&subscriptionMode=all&batch=1").json()
        message = popped["messages"][0]
        ack = {key: message[key] for key in ("transactionId", "partitionId", "leaseId")}
        ack |= {"status": "dlq", "consumerGroup": "g", "error": "a reason"}
        assert http.post("/api/v1/ack", json=ack).json()[0]["dlq"] is True
        trace = {key: message[key] for key in ("transactionId", "partitionId")}
        trace |= {"traceNames": ["name"], "data": {"step": 1}}
        assert http.post("/api/v1/traces", json=trace).status_code == 201
        query = {"name": "query", "source_queue": "q", "config_hash": "hash"}
        query_id = http.post("/streams/v1/queries", json=query).json()["query_id"]
        return {
            "queue": "q",
            "group": "g",
            "name": "name",
            "partition": message["partitionId"],
            "transaction": message["transactionId"],
            "query": query_id,
        }


def bounded(case):
    """A request as it was made up, but none that waits."""
    if "wait" in (case.query or {}):
        case.query["wait"] = "false"
    if isinstance(case.body, dict) and case.body.get("maxWaitMs"):
        case.body["maxWaitMs"] = 0
    return case


def failure_of(operation):
    """What is wrong with an operation, or None."""

    @seed(20261129)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def answers_are_as_described(case):
        bounded(case).call_and_validate(checks=CHECKS)

    try:
        answers_are_as_described()
    except (Exception, BaseExceptionGroup) as failure:  # each operation is told of
        return f"{operation.label}: {failure}"
    return None


def test_answers_are_as_described(description):
    operations = [found.ok() for found in description.get_all_operations()]
    assert len(operations) > 55
    tried = [operation for operation in operations if operation.label not in SWITCHES | {FIRST_KEY}]
    failures = [failure for failure in map(failure_of, tried) if failure]
    assert not failures, "\n\n".join(failures)


DETAILS = [
    "/api/v1/pop/queue/{queue}",
    "/api/v1/resources/queues/{queue}",
    "/api/v1/resources/queues/{queue}/depth",
    "/api/v1/status/queues/{queue}",
    "/api/v1/consumer-groups/{group}",
    "/api/v1/messages/{partition}/{transaction}",
    "/api/v1/traces/{partition}/{transaction}",
    "/api/v1/traces/by-name/{name}",
]


@pytest.mark.parametrize("path", DETAILS)
def test_what_is_there_is_answered_as_described(there, description, path):
    """Names at random find nothing; these find something."""
    server, names = there
    answer = httpx.get(server.url + path.format(**names), timeout=30, trust_env=False)
    assert answer.status_code == 200, answer.text
    description[path]["GET"].validate_response(answer)


def test_a_cycle_is_answered_as_described(there, description):
    server, names = there
    with httpx.Client(base_url=server.url, timeout=30, trust_env=False) as http:
        pop = "/api/v1/pop/queue/q?consumerGroup=streams.query&subscriptionMode=all&batch=2"
        popped = http.get(pop).json()
        last = popped["messages"][-1]
        cycle = {
            "query_id": names["query"],
            "partition_id": last["partitionId"],
            "state_ops": [{"type": "upsert", "key": "k", "value": {"windowEnd": 1}}],
            "push_items": [{"queue": "out", "payload": {"sum": 3}}],
            "ack": {"transactionId": last["transactionId"], "leaseId": popped["leaseId"], "count": 2},
        }
        committed = http.post("/streams/v1/cycle", json=cycle)
        assert committed.json()["success"] is True, committed.text
        description["/streams/v1/cycle"]["POST"].validate_response(committed)
        refused = http.post("/streams/v1/cycle", json=cycle)
        assert refused.json()["success"] is False, refused.text
        description["/streams/v1/cycle"]["POST"].validate_response(refused)
        state = {"query_id": names["query"], "partition_id": last["partitionId"]}
        rows = http.post("/streams/v1/state/get", json=state)
        assert len(rows.json()["rows"]) == 1
        description["/streams/v1/state/get"]["POST"].validate_response(rows)


def test_switches_answer_as_described(described, description):
    """The operations that the random requests leave out."""
    for path in ("/api/v1/system/maintenance", "/api/v1/system/maintenance/pop"):
        for enabled in (True, False):
            answer = httpx.post(described.url + path, json={"enabled": enabled}, timeout=30, trust_env=False)
            assert answer.status_code == 200
            description[path]["POST"].validate_response(answer)


def test_keys_answer_as_described(own_stack, description):
    server = own_stack().start()
    made = httpx.post(f"{server.url}/keys", json={"grants": ["admin:*"]}, trust_env=False)
    description["/keys"]["POST"].validate_response(made)
    with httpx.Client(base_url=server.url, timeout=30, trust_env=False) as http:
        refused = http.get("/keys")
        assert refused.status_code == 401
        description["/keys"]["GET"].validate_response(refused)
        http.headers["x-api-key"] = made.json()["key"]
        description["/keys"]["GET"].validate_response(http.get("/keys"))
        key = f"/keys/{made.json()['id']}"
        rotated = http.post(f"{key}/rotate", json={"overlapSeconds": 60})
        description["/keys/{id}/rotate"]["POST"].validate_response(rotated)
        description["/keys/{id}"]["PUT"].validate_response(http.put(key, json={"disabled": False}))
        description["/keys/{id}"]["DELETE"].validate_response(http.delete(key))


def test_every_operation_is_described_with_its_refusals(description):
    for path, item in description.raw_schema["paths"].items():
        for method, operation in item.items():
            if method in METHODS:
                assert {"400", "500", "503"} <= operation["responses"].keys(), (method, path)


def test_the_page_reads_the_description_and_nothing_else(described):
    page = httpx.get(f"{described.url}/docs", timeout=30, trust_env=False)
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert 'fetch("/openapi.json")' in page.text
    assert "https://" not in page.text and "src=" not in page.text, "nothing comes from elsewhere"
