"""Live rows over a WebSocket: greeting, replay, the join of the two, and refusals that say why."""

import asyncio
import json

import pytest
import websockets

from consuming import push


def at(stack, path):
    return websockets.connect(f"{stack.socket_url}/{path}", proxy=None, max_size=None, close_timeout=2)


async def rows(socket, count):
    return [json.loads(await asyncio.wait_for(socket.recv(), 20)) for _ in range(count)]


async def test_a_greeting_comes_first_and_says_what_follows(queen, stack, name):
    await push(queen, name, range(3))
    async with at(stack, f"{name}?offset=0") as socket:
        greeting = json.loads(await socket.recv())
        assert greeting["streamcast"] in (4, 5)
        assert greeting["stream"] == name and greeting["durable"] is True and greeting["schema"] is None
        assert greeting["end_offset"] == 4 and greeting["replay"] == [1, 4]
        assert [(offset, row) for offset, _, row in await rows(socket, 3)] == [(n + 1, {"n": n}) for n in range(3)]


async def test_replay_and_live_rows_join_without_a_seam(queen, stack, name):
    await push(queen, name, range(100))

    async def keep_pushing():
        for start in range(100, 400, 10):
            await push(queen, name, range(start, start + 10))

    async with at(stack, f"{name}?offset=0") as socket:
        pushing = asyncio.create_task(keep_pushing())
        await socket.recv()
        found = await rows(socket, 400)
        await pushing
    assert [(offset, row["n"]) for offset, _, row in found] == [(n + 1, n) for n in range(400)]
    times = [ts for _, ts, _ in found]
    assert times == sorted(times)


async def test_an_offset_is_where_it_starts(queen, stack, name):
    await push(queen, name, range(10))
    async with at(stack, f"{name}?offset=8") as socket:
        assert json.loads(await socket.recv())["replay"] == [8, 11]
        assert [offset for offset, *_ in await rows(socket, 3)] == [8, 9, 10]


async def test_without_an_offset_only_new_rows_come(queen, stack, name):
    await push(queen, name, range(10))
    async with at(stack, name) as socket:
        greeting = json.loads(await socket.recv())
        assert greeting["replay"] is None and greeting["end_offset"] == 11
        await push(queen, name, [10])
        assert [(offset, row) for offset, _, row in await rows(socket, 1)] == [(11, {"n": 10})]


async def test_a_partition_is_followed_by_name(queen, stack, name):
    await push(queen, name, [0])
    await push(queen, name, [1, 2], partition="east")
    async with at(stack, f"{name}?partition=east&offset=0") as socket:
        await socket.recv()
        assert [(offset, row) for offset, _, row in await rows(socket, 2)] == [(1, {"n": 1}), (2, {"n": 2})]


async def test_every_subscriber_gets_the_same_frames_live_and_replayed(queen, stack, name):
    payload = {
        "text": 'ä "quoted" \u001f',
        "number": 12345678901234567,
        "double": 2.0,
        "list": [None, True, {"b": 1, "a": 2}],
    }
    await push(queen, name, [0])
    async with at(stack, name) as first, at(stack, name) as second:
        await first.recv()
        await second.recv()
        await queen.queue(name).push([{"data": payload}])
        live = [await first.recv(), await second.recv()]
    async with at(stack, f"{name}?offset=2") as third:
        await third.recv()
        replayed = await third.recv()
    assert live == [replayed, replayed]
    assert json.loads(replayed)[2] == payload and list(json.loads(replayed)[2]) == list(payload)


@pytest.mark.parametrize(
    "query, code, word",
    [
        ("offset=-1", 4400, "offset"),
        ("offset=soon", 4400, "offset"),
        ("colour=red", 4400, "colour"),
        ("offset=99", 4416, "ahead"),
    ],
)
async def test_a_bad_query_is_closed_with_its_reason(queen, stack, name, query, code, word):
    await push(queen, name, [0])
    with pytest.raises(websockets.ConnectionClosed) as closed:
        async with at(stack, f"{name}?{query}") as socket:
            while True:
                await asyncio.wait_for(socket.recv(), 20)
    assert closed.value.rcvd.code == code
    assert word in closed.value.rcvd.reason and json.loads(closed.value.rcvd.reason)["error"]


async def test_an_unknown_stream_is_closed_as_not_found(stack, name):
    with pytest.raises(websockets.ConnectionClosed) as closed:
        async with at(stack, f"{name}?offset=0") as socket:
            await asyncio.wait_for(socket.recv(), 20)
    assert closed.value.rcvd.code == 4404
    assert json.loads(closed.value.rcvd.reason)["error"] == "no_such_stream"
