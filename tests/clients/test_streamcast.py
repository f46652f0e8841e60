"""The published streamcast client, unchanged, against declared streams."""

import asyncio
import contextlib
import json

import pytest
import streamcast
from websockets.exceptions import ConnectionClosed

from declared import TRADES, ask, at, declare, end_offset, raw, trade
from stack import Stack


@pytest.fixture(scope="module")
def served(binary, tmp_path_factory):
    folder = tmp_path_factory.mktemp("streamcast")
    with Stack(binary, folder / "data", environment=declare(folder)) as running:
        yield running


async def take(subscription, count, seconds=30):
    found = []
    async with asyncio.timeout(seconds):
        while len(found) < count:
            found.extend(await subscription.recv_many(count - len(found)))
    return found


async def closed(stack, path, *messages):
    """The code and reason with which the server ends a connection, and the frames before."""
    frames = []
    with pytest.raises(ConnectionClosed) as ended:
        async with asyncio.timeout(20):
            async with raw(stack, path) as (greeting, socket):
                for message in messages:
                    await socket.send(message)
                while True:
                    frames.append(json.loads(await socket.recv()))
    return ended.value.rcvd.code, ended.value.rcvd.reason, frames


# Publishing and following


async def test_single_rows_lists_and_pipelined_rows_get_dense_offsets(served):
    async with streamcast.publish(at(served, "trades")) as out:
        assert out.info.schema["properties"].keys() == TRADES["properties"].keys()
        first = await out.send(trade(0))
        assert await out.send_many([trade(n) for n in range(1, 51)]) == list(range(first + 1, first + 51))
        assert await out.send_many([]) == []
        futures = [await out.submit(trade(n)) for n in range(51, 251)]
        assert await asyncio.gather(*futures) == list(range(first + 51, first + 251))
        many = [await out.submit_many([trade(n), trade(n)]) for n in range(251, 261)]
        assert sum(await asyncio.gather(*many), []) == list(range(first + 251, first + 271))
    async with streamcast.connect(at(served, "trades"), offset=first) as subscription:
        found = await take(subscription, 271)
    assert [offset for offset, _, _ in found] == list(range(first, first + 271))
    assert [row["event_ts"] for _, _, row in found[:251]] == list(range(251))
    assert all(isinstance(ts, int) for _, ts, _ in found)


async def test_eight_publishers_at_once_share_the_log(served):
    async def publish(k):
        async with streamcast.publish(at(served, "trades")) as out:
            futures = [await out.submit(trade(n, f"p{k}")) for n in range(60)]
            return await asyncio.gather(*futures)

    offsets = await asyncio.gather(*(publish(k) for k in range(8)))
    assert all(own == sorted(own) for own in offsets)
    together = sorted(sum(offsets, []))
    assert together == list(range(together[0], together[0] + 480))


async def test_scenario_01_earliest_on_a_stream_never_written(binary, tmp_path):
    with Stack(binary, tmp_path / "data", environment=declare(tmp_path)) as fresh:
        async with streamcast.connect(at(fresh, "trades"), offset=streamcast.EARLIEST) as subscription:
            assert subscription.info.replay == (1, 1)
            async with streamcast.publish(at(fresh, "trades")) as out:
                assert await out.send(trade(7)) == 1
            assert (await subscription.recv())[2] == trade(7)


async def test_scenario_02_at_the_end_and_beyond_it(served):
    end = await end_offset(served, "orders")
    async with streamcast.connect(at(served, "orders"), offset=end) as subscription:
        assert subscription.info.replay == (end, end)
        async with streamcast.publish(at(served, "orders")) as out:
            assert await out.send(trade(1)) == end
        assert (await subscription.recv())[0] == end
    with pytest.raises(streamcast.NotReplayable) as refused:
        await streamcast.connect(at(served, "orders"), offset=end + 2)
    assert refused.value.why == "ahead"
    assert refused.value.fields == {"offset": end + 2, "end_offset": end + 1}


async def test_scenario_03_attached_while_a_publisher_streams(served):
    acknowledged, stop = [], asyncio.Event()

    async def publish():
        async with streamcast.publish(at(served, "trades")) as out:
            while not stop.is_set():
                acknowledged.extend(await out.send_many([trade(n) for n in range(5)]))

    publishing = asyncio.create_task(publish())
    try:
        while len(acknowledged) < 50:
            await asyncio.sleep(0)
        for back in (1, 3, 40):
            start = acknowledged[-1] - back
            async with streamcast.connect(at(served, "trades"), offset=start) as subscription:
                found = await take(subscription, 150)
            assert [offset for offset, _, _ in found] == list(range(start, start + 150))
    finally:
        stop.set()
        await publishing


async def test_scenario_04_the_same_bytes_live_and_replayed(served):
    text = 'é "quoted" \\ / <> \u2028 \U0001f30a'
    async with raw(served, "trades") as (_, one), raw(served, "trades") as (_, two):
        async with raw(served, "trades?publish") as (_, publisher):
            offset = (await ask(publisher, trade(1, text)))["ok"][0]
        live = [await one.recv(), await two.recv()]
    async with raw(served, f"trades?offset={offset}") as (_, replay):
        replayed = await replay.recv()
    assert live == [replayed, replayed] and json.loads(replayed)[2] == trade(1, text)
    assert text.replace("\\", "\\\\").replace('"', '\\"') in replayed, "not escaped more than it must be"


async def test_scenario_05_values_are_their_columns_live_and_replayed(served):
    row = {"trace_id": "AB" * 16, "attrs": {"b": "2", "a": "1"}, "res": {"service": "s"}, "f32": 1.1}
    async with raw(served, "bin") as (_, live), raw(served, "bin?publish") as (_, publisher):
        offset = (await ask(publisher, row))["ok"][0]
        frame = await live.recv()
    async with raw(served, f"bin?offset={offset}") as (_, replay):
        assert await replay.recv() == frame
    assert json.loads(frame)[2] == {
        "trace_id": "ab" * 16,
        "payload": None,
        "attrs": {"b": "2", "a": "1"},
        "res": {"service": "s", "n": None},
        "f32": 1.100000023841858,
    }
    async with raw(served, "trades") as (_, live), raw(served, "trades?publish") as (_, publisher):
        await ask(publisher, {**trade(1), "price": 2})
        assert '"price":2.0' in await live.recv()


async def test_scenario_06_one_bad_row_refuses_its_list(served):
    async with streamcast.publish(at(served, "trades")) as out:
        before = await out.send(trade(1))
        with pytest.raises(streamcast.Rejected, match="price"):
            await out.send_many([trade(1), {**trade(2), "price": "dear"}, trade(3)])
        assert await out.send(trade(4)) == before + 1


async def test_scenario_07_numbers_and_texts_that_nothing_can_hold_are_answered(served):
    row = json.dumps(trade(1))
    async with raw(served, "trades?publish") as (_, publisher):
        for bad in (
            row.replace('"event_ts": 1', '"event_ts": 9223372036854775808'),
            row.replace('"event_ts": 1', '"event_ts": true'),
            row.replace('"event_ts": 1', '"event_ts": 1.0'),
            row.replace("1.5", "NaN"),
            row.replace("1.5", "Infinity"),
            row.replace("1.5", "-Infinity"),
            row.replace("1.5", "1e400"),
            row.replace("1.5", "9007199254740993"),
            row.replace('"A"', '"\\ud800"'),
        ):
            assert bad != row
            answer = await ask(publisher, bad)
            assert answer["error"] in ("rejected", "bad_frame") and answer["detail"], (bad, answer)
        assert list(await ask(publisher, row)) == ["ok"]


async def test_scenario_08_nobody_brings_the_streams_own_columns(served):
    async with streamcast.publish(at(served, "trades")) as out:
        for column in ("streamcast_ts", "litelink_offset"):
            with pytest.raises(streamcast.Rejected, match=column):
                await out.send({**trade(1), column: 1})


async def test_scenario_09_nested_values_that_do_not_fit_name_their_path(served):
    row = {"trace_id": b"\1" * 16, "attrs": {"a": "1"}, "res": {"service": "s"}, "f32": 1.5}
    async with streamcast.publish(at(served, "bin")) as out:
        for change, path in (
            ({"attrs": [["a", "1"]]}, "attrs"),
            ({"attrs": {"a": None}}, "attrs"),
            ({"res": {"service": "s", "colour": 1}}, "colour"),
            ({"res": {"service": None}}, "service"),
            ({"trace_id": b"\1" * 15}, "trace_id"),
        ):
            with pytest.raises(streamcast.Rejected, match=path):
                await out.send({**row, **change})
        offset = await out.send(row)
    async with streamcast.connect(at(served, "bin"), offset=offset, where={"trace_id": "01" * 16}) as subscription:
        assert (await subscription.recv())[2]["trace_id"] == b"\1" * 16


async def test_scenario_10_frames_at_and_over_the_limit(served):
    def row(size):
        short = json.dumps(trade(1, ""))
        return json.dumps(trade(1, "x" * (size - len(short))))

    code, reason, frames = await closed(served, "trades?publish", row(400), row(1 << 20), row((1 << 20) + 1), row(400))
    assert code == 1009 and [list(frame) for frame in frames] == [["ok"], ["ok"]]
    assert json.loads(reason) == {"error": "too_big", "size": (1 << 20) + 1, "limit": 1 << 20, "stream": "trades"}
    code, reason, frames = await closed(served, "small?publish", row(300), row(301))
    assert code == 1009 and len(frames) == 1 and json.loads(reason)["limit"] == 300


# Exactly once


async def test_scenario_11_repeats_are_answered_with_their_offsets_and_not_sent_on(served, name):
    async with streamcast.publish(at(served, "orders"), publisher=name) as out:
        assert (out.info.publisher.last_seq, out.info.publisher.last_offset) == (0, None)
        async with streamcast.connect(at(served, "orders")) as subscription:
            first = await out.send(trade(1), seq=1)
            pair = await out.send_many([trade(2), trade(3)], seq=2)
            assert await out.send(trade(1), seq=1) == first
            assert await out.send_many([trade(2), trade(3)], seq=2) == pair
            mixed = await out.send_many([trade(2), trade(3), trade(4)], seq=2)
            assert mixed[:2] == pair
            with pytest.raises(streamcast.SequenceGap) as gap:
                await out.send(trade(9), seq=9)
            assert (gap.value.expected, gap.value.got) == (5, 9)
            last = await out.send(trade(5), seq=5)
            found = await take(subscription, 5)
    assert [offset for offset, _, _ in found] == [first, *mixed, last]
    async with streamcast.publish(at(served, "orders"), publisher=name) as out:
        assert (out.info.publisher.last_seq, out.info.publisher.last_offset) == (5, last)
    async with raw(served, f"orders?publish&publisher={name}") as (greeting, publisher):
        assert greeting["publisher"] == {"id": name, "last_seq": 5, "last_offset": last}
        assert await ask(publisher, [5, trade(5)]) == {"ok": [last], "dup": 1}
        assert await ask(publisher, [8, trade(5)]) == {"error": "gap", "expected": 6, "got": 8}
        for bad in ([0, trade(5)], trade(5), [6, []], [True, trade(5)], [6]):
            assert (await ask(publisher, bad))["error"] == "bad_frame", bad


async def test_scenario_12_after_a_refused_row_everything_is_a_gap(served, name):
    async with streamcast.publish(at(served, "orders"), publisher=name) as out:
        rows = [trade(1), {**trade(2), "price": "dear"}, trade(3), trade(4)]
        futures = [await out.submit(row, seq=seq) for seq, row in enumerate(rows, 1)]
        answers = await asyncio.gather(*futures, return_exceptions=True)
        assert isinstance(answers[0], int) and isinstance(answers[1], streamcast.Rejected)
        assert [(type(gap), gap.expected) for gap in answers[2:]] == [(streamcast.SequenceGap, 2)] * 2
        futures = [await out.submit(trade(seq), seq=seq) for seq in (2, 3, 4)]
        assert await asyncio.gather(*futures) == list(range(answers[0] + 1, answers[0] + 4))


async def test_scenario_13_a_second_connection_takes_the_publisher_over(served, name):
    old = await streamcast.publish(at(served, "orders"), publisher=name)
    futures = [await old.submit(trade(seq), seq=seq) for seq in range(1, 31)]
    new = await streamcast.publish(at(served, "orders"), publisher=name)
    counted = new.info.publisher.last_seq
    answers = await asyncio.gather(*futures, return_exceptions=True)
    landed = [offset for offset in answers if isinstance(offset, int)]
    assert len(landed) <= counted, "what was acknowledged is counted"
    with pytest.raises((streamcast.Superseded, ConnectionClosed)):
        await old.send(trade(99), seq=99)
    start = new.info.publisher.last_offset
    offsets = [await new.send(trade(seq), seq=seq) for seq in range(counted + 1, counted + 4)]
    assert offsets == sorted(offsets) and (start is None or offsets[0] > start)
    await new.close()
    with contextlib.suppress(Exception):
        await old.close()
    code, reason = old.connection.close_code, old.connection.close_reason
    assert (code, json.loads(reason)) == (4409, {"error": "superseded"})


async def test_scenario_14_a_gap_fails_its_own_frame_and_no_others(served, name):
    async with streamcast.publish(at(served, "orders"), publisher=name) as claimed:
        plain = [await streamcast.publish(at(served, "orders")) for _ in range(3)]
        for _ in range(10):
            futures = [await one.submit(trade(1)) for one in plain]
            bad = await claimed.submit(trade(1), seq=7)
            assert all(isinstance(offset, int) for offset in await asyncio.gather(*futures))
            with pytest.raises(streamcast.SequenceGap):
                await bad
        for one in plain:
            await one.close()


async def test_an_id_is_1_to_128_bytes_and_needs_a_stream_that_keeps_marks(served):
    longest = "é" * 64
    async with streamcast.publish(at(served, "orders"), publisher=longest) as out:
        assert out.info.publisher.id == longest
    code, reason, _ = await closed(served, f"orders?publish&publisher={'x' * 129}")
    assert code == 4400 and json.loads(reason)["error"] == "bad_request"
    with pytest.raises(streamcast.ExactlyOnceUnavailable) as refused:
        await streamcast.publish(at(served, "trades"), publisher="p")
    assert refused.value.why == "stream"


# Slow, gone, closing


async def test_scenario_16_a_slow_subscriber_gets_a_prefix_and_resumes(served):
    slow = await streamcast.connect(at(served, "slow"), max_queue=1)
    offsets = []
    async with streamcast.connect(at(served, "slow")) as fast, streamcast.publish(at(served, "slow")) as out:
        for _ in range(60):
            offsets += await out.send_many([trade(n, "z" * 60_000) for n in range(10)])
            await take(fast, 10)
    found = []
    with pytest.raises(streamcast.TooSlow) as refused:
        async with asyncio.timeout(60):
            while True:
                found.append((await slow.recv())[0])
    assert found == offsets[: len(found)] and len(found) < len(offsets)
    assert refused.value.offset == (found[-1] if found else None) and refused.value.backlog == 16
    start = found[-1] + 1 if found else offsets[0]
    async with streamcast.connect(at(served, "slow"), offset=start) as subscription:
        rest = await take(subscription, offsets[-1] - start + 1, 60)
    assert [offset for offset, _, _ in rest] == list(range(start, offsets[-1] + 1))


async def test_scenario_17_a_subscriber_that_leaves_a_quiet_stream_is_not_counted(served):
    import httpx

    async def count():
        async with httpx.AsyncClient(trust_env=False) as client:
            streams = (await client.get(f"{served.url}/stats")).json()["streams"]
        return {stream["name"]: stream["subscribers"] for stream in streams}["short"]

    subscription = await streamcast.connect(at(served, "short"))
    assert await count() == 1
    await subscription.close()
    async with asyncio.timeout(10):
        while await count():
            pass


async def test_scenario_18_a_close_in_the_middle_of_a_replay_is_answered(served):
    async with streamcast.publish(at(served, "trades")) as out:
        offsets = [await out.send_many([trade(n) for n in range(1_000)]) for _ in range(3)]
    subscription = await streamcast.connect(at(served, "trades"), offset=offsets[0][0])
    await subscription.recv()
    async with asyncio.timeout(5):
        await subscription.close()
    assert subscription.connection.close_code == 1000


# Filters, bounds, refusals


async def test_scenario_19_where_is_the_same_live_and_replayed(served, name):
    rows = [trade(n, f"{name}-{'ab'[n % 2]}", tag=None if n % 3 else "t") for n in range(12)]
    filters = {
        "equality": ({"ticker": f"{name}-a"}, lambda r: r["ticker"].endswith("-a")),
        "membership": ({"event_ts": [1, 2.0, 99]}, lambda r: r["event_ts"] in (1, 2)),
        "and": ({"ticker": f"{name}-b", "side": True}, lambda r: r["ticker"].endswith("-b")),
        "null": ({"ticker": [f"{name}-a", f"{name}-b"], "tag": None}, lambda r: r["tag"] is None),
        "nothing": ({"event_ts": "1"}, lambda r: False),
    }
    live = {key: await streamcast.connect(at(served, "trades"), where=where) for key, (where, _) in filters.items()}
    async with streamcast.publish(at(served, "trades")) as out:
        offsets = await out.send_many(rows)
    for key, (where, matches) in filters.items():
        wanted = [offset for offset, row in zip(offsets, rows) if matches(row)]
        assert live[key].info.where == where
        assert [offset for offset, _, _ in await take(live[key], len(wanted))] == wanted, key
        async with streamcast.connect(at(served, "trades"), offset=offsets[0], where=where) as replay:
            assert replay.info.replay[0] == offsets[0]
            assert [offset for offset, _, _ in await take(replay, len(wanted))] == wanted, key
        await live[key].close()
    for bad in ({"colour": 1}, {"ticker": []}, {"ticker": {"a": 1}}):
        with pytest.raises(streamcast.ProtocolError):
            await streamcast.connect(at(served, "trades"), where=bad)
    for bad in ({"res": None}, {"attrs": "x"}, {"trace_id": "zz"}):
        code, _, _ = await closed(served, f"bin?where={json.dumps(bad)}".replace('"', "%22").replace(" ", ""))
        assert code == 4400, bad


async def test_scenario_20_too_old_says_by_how_much(served):
    async with streamcast.publish(at(served, "short")) as out:
        offsets = await out.send_many([trade(n) for n in range(30)])
    end = offsets[-1] + 1
    with pytest.raises(streamcast.NotReplayable) as refused:
        await streamcast.connect(at(served, "short"), offset=end - 11)
    assert refused.value.why == "too_old"
    assert refused.value.fields == {"offset": end - 11, "behind": 11, "max_replay": 10}
    async with streamcast.connect(at(served, "short"), offset=end - 10) as subscription:
        assert len(await take(subscription, 10)) == 10
    with pytest.raises(streamcast.NotReplayable) as refused:
        await streamcast.connect(at(served, "short"), offset=streamcast.EARLIEST)
    assert refused.value.why == "too_old"


async def test_scenario_31_queries_are_read_as_documented(served):
    for query in ("?publish=0", "?publish&publish", "?offset=%31", "?offset=5&offset=1", ""):
        async with raw(served, f"trades{query}") as (greeting, _):
            assert greeting["stream"] == "trades", query
    for path in ("trades/", "/trades", "a/b", "trades?colour=1", "trades?Offset=1", "trades?offset=", "trades?offset=x"):
        code, reason, _ = await closed(served, path)
        assert code == 4400 and json.loads(reason)["error"] == "bad_request" and len(reason) <= 123, path
    with pytest.raises(streamcast.StreamNotFound) as refused:
        await streamcast.connect(at(served, "nothing"))
    assert set(refused.value.serves) >= {"trades", "orders"}


async def test_a_stream_without_a_log_passes_rows_on(served):
    async with streamcast.connect(at(served, "live")) as subscription, streamcast.publish(at(served, "live")) as out:
        info = subscription.info
        assert (info.durable, info.end_offset, info.metadata, info.stream_id) == (False, None, None, None)
        assert await out.send(trade(1)) is None
        assert await out.send_many([trade(2), trade(3)]) == [None, None]
        found = await take(subscription, 3)
        assert [(offset, row) for offset, _, row in found] == [(None, trade(n)) for n in (1, 2, 3)]
        assert all(isinstance(ts, int) for _, ts, _ in found)
        with pytest.raises(streamcast.Rejected, match="price"):
            await out.send({**trade(1), "price": "dear"})
    with pytest.raises(streamcast.NotReplayable) as refused:
        await streamcast.connect(at(served, "live"), offset=1)
    assert refused.value.why == "not_durable"
    async with streamcast.connect(at(served, "raw")) as subscription, streamcast.publish(at(served, "raw")) as out:
        assert out.info.schema is None
        await out.send({"any": [1, {"x": None}]})
        assert (await subscription.recv())[2] == {"any": [1, {"x": None}]}


# Cursors, outbox, inbox


async def test_a_cursor_resumes_after_the_last_row_handled(served, tmp_path):
    cursor = tmp_path / "cursor"
    async with streamcast.publish(at(served, "trades")) as out:
        offsets = await out.send_many([trade(n) for n in range(6)])
    async with streamcast.connect(at(served, "trades"), offset=offsets[0], cursor=str(cursor)) as subscription:
        subscription.commit((await take(subscription, 3))[-1][0])
    async with streamcast.connect(at(served, "trades"), cursor=str(cursor)) as subscription:
        assert [offset for offset, _, _ in await take(subscription, 3)] == offsets[3:]


async def test_scenario_28_an_outbox_drops_only_its_bad_row_and_an_inbox_has_every_row_once(served, tmp_path, name):
    start = await end_offset(served, "orders")
    store = await streamcast.SqliteStore.open(str(tmp_path / "outbox.db"))
    async with streamcast.outbox(at(served, "orders"), publisher=name, store=store, send_batch=10) as out:
        async with store.transaction() as tx:
            await out.send_many([trade(n, name) for n in range(25)], tx=tx)
        async with store.transaction() as tx:
            await out.send({**trade(25, name), "price": "dear"}, tx=tx)
            await out.send(trade(26, name), tx=tx)
        await out.flush(30)
        assert await out.pending() == 0
    async with streamcast.publish(at(served, "orders"), publisher=name) as out:
        assert out.info.publisher.last_seq == 26
    await store.close()

    store, found = await streamcast.SqliteStore.open(str(tmp_path / "inbox.db")), []
    async with streamcast.inbox(at(served, "orders"), subscriber=name, store=store, offset=start) as box:
        async with asyncio.timeout(30):
            while len(found) < 26:
                rows, _ = await box.recv_many(7)
                found += [row["event_ts"] for _, _, row in rows if row["ticker"] == name]
    assert found == [*range(25), 26]
    async with streamcast.inbox(at(served, "orders"), subscriber=name, store=store) as box:
        async with streamcast.publish(at(served, "orders")) as out:
            after = await out.send(trade(99, "after"))
        async with asyncio.timeout(30):
            while True:
                offset, _, row, _ = await box.recv()
                assert row["ticker"] != name, "a row that was processed came back"
                if offset == after:
                    break
    await store.close()
