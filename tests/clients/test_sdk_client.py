"""The client of Queen's Python SDK itself: its options, several servers, and what this server does not have."""

import socket

import httpx
import pytest
from queen import EphemeralError, Queen

from conftest import queen_at
from consuming import numbers, push, reader
from sdk_surface import covers, held_to_what_it_covers  # noqa: F401


def nobody_listens():
    """A port that nobody has: bound, so that nobody else gets it, and not listening."""
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    return bound, f"http://127.0.0.1:{bound.getsockname()[1]}"


class Recording(httpx.AsyncHTTPTransport):
    """The real transport, which remembers what passed and may answer some of it itself."""

    def __init__(self, answers=()):
        super().__init__()
        self.seen, self.answers = [], list(answers)

    async def handle_async_request(self, request):
        self.seen.append(request)
        if self.answers:
            return httpx.Response(**self.answers.pop(0), request=request)
        return await super().handle_async_request(request)


@covers("Queen(config)")
@pytest.mark.parametrize("form", ["text", "list", "dictionary"])
async def test_a_client_takes_its_servers_in_every_form(stack, name, form):
    config = {"text": stack.url, "list": [stack.url, stack.url], "dictionary": {"urls": [stack.url]}}[form]
    async with queen_at(config) as queen:
        assert (await push(queen, name, [1]))[0]["status"] == "queued"


@covers(
    "Queen(url)", "Queen(transport)", "Queen(headers)", "Queen(bearer_token)", "Queen(timeout_millis)",
    "Queen(retry_attempts)", "Queen(retry_delay_millis)",
)  # fmt: skip
async def test_headers_and_a_token_are_sent_and_tolerated_and_failures_repeated(stack, name):
    busy = {"status_code": 503, "json": {"error": "busy"}}
    transport = Recording([busy, busy])
    options = {"headers": {"x-shop": "1"}, "bearer_token": "a.b.c", "transport": transport, "timeout_millis": 5000}
    queen = Queen(url=stack.url, retry_attempts=3, retry_delay_millis=10, **options)
    try:
        assert (await push(queen, name, [1]))[0]["status"] == "queued"
        assert len(transport.seen) == 3
        assert {request.headers["x-shop"] for request in transport.seen} == {"1"}
        assert {request.headers["authorization"] for request in transport.seen} == {"Bearer a.b.c"}
    finally:
        await queen.close()


@covers("Queen(retry_429)")
async def test_a_client_that_is_told_to_slow_down_comes_back(stack, name):
    transport = Recording([{"status_code": 429, "headers": {"retry-after": "0"}, "json": {"error": "slow"}}])
    policy = {"max_attempts": 3, "base_ms": 10, "cap_ms": 20}
    async with queen_at(stack.url, transport=transport, retry_429=policy) as queen:
        assert (await push(queen, name, [1]))[0]["status"] == "queued"
    assert len(transport.seen) == 2


@covers(
    "Queen(urls)", "Queen(load_balancing_strategy)", "Queen(affinity_hash_ring)", "Queen(enable_failover)",
    "Queen(health_retry_after_millis)",
)  # fmt: skip
@pytest.mark.parametrize("strategy", ["round-robin", "affinity", "session"])
async def test_a_client_of_several_servers_goes_to_one_that_lives(stack, name, strategy):
    name = f"{name}-{strategy}"
    bound, dead = nobody_listens()
    options = {"load_balancing_strategy": strategy, "affinity_hash_ring": 16, "health_retry_after_millis": 60_000}
    with bound:
        queen = Queen(urls=[dead, stack.url], enable_failover=True, retry_attempts=1, **options)
        try:
            for n in range(6):
                await push(queen, name, [n])
            assert numbers(await reader(queen, name, "g").pop()) == list(range(6))
        finally:
            await queen.close()


@covers("Queen(framed_pop)")
async def test_a_client_that_asks_for_packed_answers_reads_what_it_gets(stack, name):
    async with queen_at(stack.url, framed_pop=True) as queen:
        await push(queen, name, range(3))
        assert numbers(await reader(queen, name, "g").pop()) == [0, 1, 2]


@covers("Queen(binary_push)", "Queen(push_compression)")
@pytest.mark.parametrize("compressed", [False, True])
async def test_a_packed_push_is_refused_and_stores_nothing(stack, queen, name, compressed):
    """The binary bodies are not spoken here: the client is told so, rather than thought to have pushed."""
    async with queen_at(stack.url, binary_push=True, push_compression=compressed) as packed:
        with pytest.raises(Exception, match="JSON"):
            await push(packed, name, range(3))
    assert await reader(queen, name, "g").pop() == []


@covers(
    "Queen.ephemeral", "Ephemeral.configure", "Ephemeral.configure(options)", "Ephemeral.reset", "Ephemeral.delete",
    "Ephemeral.push", "Ephemeral.push(partition)", "Ephemeral.flush", "Ephemeral.flush(partition)", "Ephemeral.pop",
    "Ephemeral.pop(partition)", "Ephemeral.pop(batch)",
    "Ephemeral.pop(wait)", "Ephemeral.pop(timeout)", "Ephemeral.pop(timeout_millis)", "Ephemeral.pop(group)",
    "Ephemeral.pop(commit_on_delivery)", "Ephemeral.pop(auto_ack)", "Ephemeral.ack", "Ephemeral.ack(group)",
    "Ephemeral.ack(status)", "Ephemeral.ack(error)", "Ephemeral.queues", "Ephemeral.depth",
)  # fmt: skip
async def test_queues_that_keep_nothing_are_refused_in_so_many_words(queen, name):
    """Acknowledged means kept here, so there are no queues in memory alone: each call says that it is unsupported."""
    memory = queen.ephemeral
    calls = [
        lambda: memory.configure(name, options={"max_length": 10}),
        lambda: memory.reset(name),
        lambda: memory.delete(name),
        lambda: memory.push(name, [{"data": 1}], partition="p"),
        lambda: memory.pop(name, partition="p", batch=1, wait=False, timeout=1, group="g"),
        lambda: memory.pop(name, timeout_millis=100, commit_on_delivery=True),
        lambda: memory.pop(name, auto_ack=True),
        lambda: memory.ack(name, [{"id": "x", "partition": "p"}], group="g", status="failed", error="no"),
        lambda: memory.queues(),
        lambda: memory.depth(name),
    ]
    for number, call in enumerate(calls):
        with pytest.raises(EphemeralError) as refused:
            await call()
        assert refused.value.code == "ephemeral_unsupported", number
    await memory.flush(name, partition="p")
