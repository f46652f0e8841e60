"""Functions that die, sleep, or lose their replies in the middle of what they do: nothing is left half done."""

import asyncio

import pytest
from double.proxy import Fault
from world import done

# More calls to the store than any of these requests makes.
MOST_CALLS = 60
HARM = ["kill-before", "kill-after", "lose"]


async def until_not_struck(world, harm, request, check):
    """Does a request with the harm at its first call, at its second, and so on, as long as it has so many calls.

    `request(round)` does it once and answers the response; a client whose request failed does the same again.
    """
    for at in range(1, MOST_CALLS):

        async def once(at=at):
            return await request(at)

        response, struck = await world.under(Fault(at, harm), once)
        if not struck:
            assert done(response), response.text
            assert at > 1, "the request made no call at all"
            return at - 1
        for _ in range(3):
            if done(response):
                break
            response = await request(at)
        assert done(response), response.text
        await check(at)
    raise AssertionError(f"more than {MOST_CALLS} calls")


@pytest.mark.parametrize("harm", HARM)
async def test_a_push_that_dies_anywhere_and_is_repeated_is_there_once(world, name, harm):
    async with world() as w:
        rows = []

        async def request(at):
            return await w.push(name, {"n": at}, {"n": -at}, ids=[f"{at}-a", f"{at}-b"])

        async def check(at):
            rows.extend([{"n": at}, {"n": -at}])
            assert [data for _, data in await w.log(name)] == rows

        calls = await until_not_struck(w, harm, request, check)
        rows.extend([{"n": calls + 1}, {"n": -calls - 1}])
        assert await w.log(name) == list(enumerate(rows))


@pytest.mark.parametrize("harm", HARM)
async def test_an_acknowledgement_that_dies_anywhere_and_is_repeated_counts_once(world, name, harm):
    async with world() as w:
        for at in range(1, MOST_CALLS):
            await w.push(name, {"n": at})
            messages = await w.pop(name, leaseSeconds=4)
            assert [m["data"] for m in messages] == [{"n": at}], f"not what was pushed last, after {harm} at call {at}"
            response, struck = await w.under(Fault(at, harm), lambda messages=messages: w.ack(messages))
            for _ in range(3):
                # One that took effect has ended its lease, and a late copy of it is told so.
                if done(response) or "expired lease" in response.text:
                    break
                response = await w.ack(messages)
            assert done(response) or harm == "kill-after", response.text
            if not struck:
                assert at > 1 and done(response)
                break
        # Whatever was only leased and not acknowledged would come again when its lease lapses.
        assert await w.pop(name, wait="true", timeout=5000) == []


@pytest.mark.parametrize("harm", HARM)
async def test_a_transaction_that_dies_anywhere_is_all_or_nothing(world, name, harm):
    async with world() as w:
        source, sink = f"{name}-in", f"{name}-out"
        for at in range(1, MOST_CALLS):
            await w.push(source, {"n": at})
            (message,) = await w.pop(source)
            body = {
                "operations": [
                    {
                        "type": "ack",
                        "transactionId": message["transactionId"],
                        "partitionId": message["partitionId"],
                        "consumerGroup": "g",
                        "status": "completed",
                    },
                    {"type": "push", "items": [{"queue": sink, "partition": "p", "payload": {"n": at}}]},
                ],
                "requiredLeases": [message["leaseId"]],
            }
            response, struck = await w.under(
                Fault(at, harm), lambda b=body: w.client.post("/api/v1/transaction", json=b)
            )
            out = [data["n"] for _, data in await w.log(sink)]
            if done(response):
                assert out == list(range(1, at + 1))
            else:
                # Nobody was told. Either all of it happened or nothing: the message is acknowledged if and only if
                # the output is there.
                acknowledged = not done(await w.ack([message])) or at in out
                assert (at in out) == acknowledged
                if at not in out:
                    await w.push(sink, {"n": at})
            if not struck:
                assert at > 1
                break


async def test_a_frozen_function_that_is_thawed_after_its_lease_changes_nothing(world, name):
    async with world() as w:
        w.http.frozen_seconds = 60
        await w.client.post("/api/v1/configure", json={"queue": name, "options": {"leaseTime": 1}})
        await w.push(name, {"n": 1})
        mine = await w.pop(name)
        assert len(mine) == 1
        # The write of the acknowledgement is on its way when its function freezes.
        writes = frozenset({"PutItem", "UpdateItem", "TransactWriteItems"})
        w.proxy.arm(Fault(1, "freeze-before", among=writes))
        late = asyncio.ensure_future(w.ack(mine, status="completed"))
        await w.proxy.struck.wait()
        w.proxy.faults.clear()
        frozen = w.victim()
        # Another function's pop waits for the lease to lapse, and gets the message.
        theirs = await w.pop(name, wait="true", timeout=20_000)
        assert [m["data"] for m in theirs] == [{"n": 1}]
        assert theirs[0]["leaseId"] != mine[0]["leaseId"]
        frozen.thaw()
        w.proxy.thawed.set()
        response = await late
        assert not done(response), response.text
        # The new holder's lease is as good as ever, and the message is done once.
        assert done(await w.ack(theirs))
        assert await w.pop(name) == []


async def test_a_frozen_push_lands_once_however_late(world, name):
    async with world() as w:
        w.http.frozen_seconds = 60
        await w.push(name, {"n": 0})
        w.proxy.arm(Fault(1, "freeze-before", among=frozenset({"UpdateItem", "TransactWriteItems"})))
        late = asyncio.ensure_future(w.push(name, {"n": 1}, ids=["same"]))
        await w.proxy.struck.wait()
        w.proxy.faults.clear()
        frozen = w.victim()
        # The client gave up and asked again; another process answers.
        again = await w.push(name, {"n": 1}, ids=["same"])
        assert again.status_code == 201
        frozen.thaw()
        w.proxy.thawed.set()
        assert done(await late)
        assert await w.log(name) == [(0, {"n": 0}), (1, {"n": 1})]


@pytest.mark.parametrize("harm", ["throttle", "conflict"])
async def test_a_store_that_is_busy_for_a_moment_is_asked_again(world, name, harm):
    async with world() as w:
        await w.push(name, {"n": 0})
        fault = Fault(1, harm, among=frozenset({"UpdateItem", "TransactWriteItems"}))
        response, struck = await w.under(fault, lambda: w.push(name, {"n": 1}))
        assert struck and response.status_code == 201, response.text
        assert await w.log(name) == [(0, {"n": 0}), (1, {"n": 1})]


async def test_a_store_that_stays_busy_is_said_to_be(world, name):
    async with world() as w:
        await w.push(name, {"n": 0})
        fault = Fault(1, "throttle", among=frozenset({"UpdateItem", "TransactWriteItems"}), times=1000)
        response, _ = await w.under(fault, lambda: w.push(name, {"n": 1}))
        assert not done(response) and "retry" in response.text.lower() or response.status_code == 503, response.text
        assert await w.log(name) == [(0, {"n": 0})]


async def test_an_event_that_is_delivered_twice_is_one_row(world, name):
    async with world() as w:
        event = {"version": "0", "id": f"{name}-1", "source": name, "detail-type": "Paid", "detail": {"total": 1.50}}
        w.ingest.deliveries = 2
        w.ingest.send(event)
        await w.ingest.settled()
        assert w.ingest.dead_letters == []
        rows = await w.log(name, "Default")
        assert [(offset, row["id"]) for offset, row in rows] == [(0, f"{name}-1")]


async def test_an_ingest_function_that_dies_anywhere_stores_each_message_once(world, name):
    async with world() as w:
        w.harmed = w.ingest
        source = f"arn:aws:sqs:us-east-1:000000000000:{name}"
        rows = []
        for at in range(1, MOST_CALLS):
            records = [
                {"messageId": f"{at}-{n}", "receiptHandle": "r", "body": f'{{"n": {at}, "m": {n}}}', "attributes": {},
                 "messageAttributes": {}, "eventSource": "aws:sqs", "eventSourceARN": source, "awsRegion": "us-east-1"}
                for n in (1, 2)
            ]  # fmt: skip
            await w.ingest.invoke({"Records": []})  # a process that is warm
            w.proxy.arm(Fault(at, "kill-after"))
            answer = await w.ingest.invoke({"Records": records})
            struck = w.proxy.struck.is_set()
            w.proxy.faults.clear()
            if answer.error is not None:
                # What the queue does with a batch whose function died.
                answer = await w.ingest.invoke({"Records": records})
            assert answer.json() == {"batchItemFailures": []}
            rows.extend({"n": at, "m": n} for n in (1, 2))
            assert await w.log(name, "Default") == list(enumerate(rows))
            if not struck:
                assert at > 1
                break


@pytest.mark.parametrize("harm", HARM)
async def test_a_cycle_that_dies_anywhere_and_is_repeated_counts_once(world, name, harm):
    async with world() as w:
        source, sink, group = f"{name}-in", f"{name}-out", f"streams.{name}"
        await w.push(source, {"n": 0})
        register = {"name": name, "source_queue": source, "sink_queue": sink, "config_hash": "h"}
        query = (await w.client.post("/streams/v1/queries", json=register)).json()["query_id"]
        total = 0
        for at in range(1, MOST_CALLS):
            messages = await w.pop(source, group=group, leaseSeconds=4)
            assert [m["data"] for m in messages] == [{"n": at - 1}], f"after {harm} at call {at}"
            total += at - 1
            cycle = {
                "query_id": query,
                "partition_id": messages[0]["partitionId"],
                "consumer_group": group,
                "state_ops": [{"type": "upsert", "key": "total", "value": total}],
                "push_items": [{"queue": sink, "partition": "x", "payload": {"total": total}}],
                "ack": {
                    "transactionId": messages[-1]["transactionId"],
                    "leaseId": messages[0]["leaseId"],
                    "status": "completed",
                    "count": 1,
                },
                "release_lease": True,
            }
            response, struck = await w.under(
                Fault(at, harm), lambda c=cycle: w.client.post("/streams/v1/cycle", json=c)
            )
            for _ in range(3):
                if done(response) or "lease" in response.text:
                    break
                response = await w.client.post("/streams/v1/cycle", json=cycle)
            # Whoever answered, the cycle is there once: its state, its output and its position.
            asked = {"query_id": query, "partition_id": cycle["partition_id"]}
            state = (await w.client.post("/streams/v1/state/get", json=asked)).json()["rows"]
            assert [row["value"] for row in state] == [total]
            assert [data["total"] for _, data in await w.log(sink, "x")] == [n * (n + 1) // 2 for n in range(at)]
            await w.push(source, {"n": at})
            if not struck:
                assert at > 1 and done(response)
                break
