"""Sockets through the managed gateway's double: order, limits, and what goes wrong on the way to a connection."""

import asyncio
import json

import httpx
import pytest
import websockets
from double.gateway import SocketFront
from double.lambdas import Answer
from double.proxy import Fault

# A debug build that starts for each invocation needs a moment on busy cores.
PATIENCE = 60


class Follower:
    """A client of the native frames: it keeps its position, drops what it has, and notices a hole."""

    def __init__(self, socket):
        self.socket, self.rows, self.frames, self.position = socket, [], [], None

    async def ask(self, **request):
        await self.socket.send(json.dumps(request))
        return await self.until(lambda: next((f for f in self.frames if self._answers(f, request["id"])), None))

    @staticmethod
    def _answers(frame, number):
        return frame.get("id") == number and not any(part in frame for part in ("rows", "missed", "too_large"))

    async def subscribe(self, stream, partition="p", start="earliest", **more):
        asked = {"id": "s", "op": "subscribe", "stream": stream, "partition": partition, "from": start, **more}
        answer = await self.ask(**asked)
        assert "subscribed" in answer, answer
        return answer["subscribed"]

    async def until(self, found, patience=PATIENCE):
        """Reads frames until something is there."""
        async with asyncio.timeout(patience):
            while (answer := found()) is None:
                self._take(json.loads(await self.socket.recv()))
        return answer

    async def until_rows(self, count):
        await self.until(lambda: True if len(self.rows) >= count else None)
        return self.rows

    def _take(self, frame):
        self.frames.append(frame)
        for offset, _, row in frame.get("rows", []):
            # A repeat after a doubtful delivery is allowed, a hole never.
            if offset < len(self.rows):
                assert self.rows[offset] == row, "a repeat is the same row"
                continue
            assert offset == len(self.rows), f"row {offset} came after {len(self.rows)} rows"
            self.rows.append(row)


def connect(w, query=""):
    return websockets.connect(w.socket_url + query, max_size=None, compression=None)


async def test_rows_reach_a_socket_in_order_from_the_beginning_and_live(world, name):
    async with world() as w:
        await w.push(name, *range(5))
        async with connect(w) as socket:
            follower = Follower(socket)
            await follower.subscribe(name)
            assert await follower.until_rows(5) == list(range(5))
            for n in range(5, 9):
                await w.push(name, n)
            assert await follower.until_rows(9) == list(range(9))


async def test_a_socket_publishes_and_is_answered_by_its_own_id(world, name):
    async with world() as w:
        async with connect(w) as socket:
            follower = Follower(socket)
            assert (await follower.ask(id=4, op="ping"))["pong"] is True
            asked = {"op": "publish", "stream": name, "partition": "p", "rows": [{"n": 1}, {"n": 2}]}
            answer = await follower.ask(id="a", **asked, transaction_ids=["x", "y"])
            assert [part["offset"] for part in answer["published"]] == [0, 1]
            again = await follower.ask(id="b", **asked, transaction_ids=["x", "y"])
            assert [(part["offset"], part["duplicate"]) for part in again["published"]] == [(0, True), (1, True)]
            refused = await follower.ask(id="c", op="nonsense")
            assert refused["error"]["code"]
        assert await w.log(name) == [(0, {"n": 1}), (1, {"n": 2})]


class Agreeing:
    """A function that agrees with everything: for what the gateway does by itself."""

    async def invoke(self, event):
        return Answer(b'{"statusCode": 200}')


@pytest.mark.parametrize("frames", [["x" * 33_000], ["x" * 30_000] * 5])
async def test_the_gateway_closes_on_frames_and_messages_over_its_limits(frames):
    async with SocketFront(Agreeing()) as front, websockets.connect(front.url, compression=None) as socket:
        await socket.send(frames if len(frames) > 1 else frames[0])
        with pytest.raises(websockets.ConnectionClosed) as closed:
            await socket.recv()
        assert closed.value.rcvd.code == 1009
        assert front.connections == {}


async def test_the_gateway_takes_no_post_over_its_limit_and_none_for_a_connection_that_is_gone():
    async with SocketFront(Agreeing()) as front, httpx.AsyncClient(trust_env=False) as client:
        async with websockets.connect(front.url, max_size=None, compression=None) as socket:
            await socket.send("hello")
            (connection,) = front.connections
            url = f"{front.posts_url}/@connections/{connection}"
            assert (await client.post(url, content=b"x" * (128 * 1024 + 1))).status_code == 413
            assert (await client.post(url, content=b"x" * 128 * 1024)).status_code == 200
            assert len(await socket.recv()) == 128 * 1024
            assert (await client.delete(url)).status_code == 204
            with pytest.raises(websockets.ConnectionClosed):
                await socket.recv()
        assert (await client.post(url, content=b"x")).status_code == 410


@pytest.mark.parametrize("fault", ["throttle", "error", "lose"])
async def test_a_post_that_fails_leaves_no_hole(world, name, fault):
    async with world() as w:
        async with connect(w) as socket:
            follower = Follower(socket)
            await w.push(name, 0)
            await follower.subscribe(name)
            await follower.until_rows(1)
            w.sockets.faults = [fault]
            try:
                for n in range(1, 4):
                    await w.push(name, n)
                await follower.until_rows(4)
            except websockets.ConnectionClosed:
                # Closing instead of a doubtful retry is allowed too: the client goes on from what it has.
                async with connect(w) as again:
                    follower.socket = again
                    await follower.subscribe(name, start={"offset": len(follower.rows)})
                    await follower.until_rows(4)
            assert follower.rows == list(range(4))


async def test_a_connection_that_is_gone_is_forgotten(world, name):
    async with world() as w:
        await w.push(name, 0)
        async with connect(w) as socket:
            follower = Follower(socket)
            await follower.subscribe(name)
            await follower.until_rows(1)
            (connection,) = w.sockets.connections
            # The gateway lost it and told nobody.
            del w.sockets.connections[connection]
            w.sockets.posts.clear()
            await w.push(name, 1)
            await w.fanout.settled()
        await w.push(name, 2)
        await w.fanout.settled()
        assert w.sockets.posts == []
        assert w.fanout.dead_letters == []


async def test_invocations_that_come_twice_deliver_every_row(world, name):
    async with world() as w:
        w.fanout.deliveries = 2
        async with connect(w) as socket:
            follower = Follower(socket)
            await w.push(name, 0)
            await follower.subscribe(name)
            for n in range(1, 6):
                await w.push(name, n)
            assert await follower.until_rows(6) == list(range(6))


async def sweep_often(w):
    """What the schedule does each minute."""
    while True:
        w.fanout.send({"sweep": {}})
        await asyncio.sleep(5)


@pytest.mark.parametrize("harm", ["kill-before", "kill-after"])
async def test_a_fanout_that_dies_anywhere_leaves_no_hole(world, name, harm):
    async with world() as w:
        w.harmed = w.fanout
        async with connect(w) as socket:
            follower = Follower(socket)
            await w.push(name, 0)
            await follower.subscribe(name)
            await follower.until_rows(1)
            await w.fanout.settled()
            # Every call is tried on the memory store; here each death costs the lease that it leaves behind, 30 seconds.
            for at, call in enumerate((3, 7, 10), start=1):
                w.proxy.arm(Fault(call, harm))
                await w.push(name, at)
                await w.fanout.settled()
                w.proxy.faults.clear()
                sweeping = asyncio.create_task(sweep_often(w))
                rows = await follower.until_rows(at + 1)
                sweeping.cancel()
                await w.fanout.settled()
                assert rows == list(range(at + 1))
