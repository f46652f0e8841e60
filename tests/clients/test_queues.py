"""Producers and consumers through the published Python SDK."""

import asyncio
import time

from consuming import drain, eventually, numbers, push, reader


async def test_a_push_answers_for_every_item_in_order(queen, name):
    ids = [f"{name}-{n}" for n in range(7)]
    answers = await push(queen, name, range(7), ids=ids)
    assert [answer["index"] for answer in answers] == list(range(7))
    assert {answer["status"] for answer in answers} == {"queued"}
    assert [answer["transaction_id"] for answer in answers] == ids
    assert len({answer["message_id"] for answer in answers}) == 7
    assert {answer["queueName"] for answer in answers} == {name}


async def test_messages_come_in_the_order_of_the_partition(queen, name):
    for start in range(0, 500, 50):
        await push(queen, name, range(start, start + 50), partition="east")
    messages = await reader(queen, name, "g", batch=1000, partition="east").pop()
    assert numbers(messages) == list(range(500))
    by_time_and_id = sorted(messages, key=lambda message: (message["createdAt"], message["id"]))
    assert by_time_and_id == messages


async def test_payloads_come_back_as_they_were_sent(http, name):
    payload = '{"z":1.0,"a":12345678901234567890,"e":1e400,"s":"\\u00e9\\ud83d\\ude00 \\/","n":null,"l":[[],{}]}'
    body = f'{{"items":[{{"queue":"{name}","payload":{payload}}}]}}'
    answer = http.post("/api/v1/push", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 201, answer.text
    popped = http.get(
        f"/api/v1/pop/queue/{name}", params={"consumerGroup": "g", "subscriptionMode": "all", "wait": "false"}
    )
    assert payload in popped.text


async def test_a_repeated_transaction_id_is_a_duplicate_of_the_first(queen, name):
    first = await push(queen, name, range(3), ids=["a", "b", "c"])
    again = await push(queen, name, [10, 11, 12], ids=["b", "new", "c"])
    assert [answer["status"] for answer in again] == ["duplicate", "queued", "duplicate"]
    assert [again[0]["message_id"], again[2]["message_id"]] == [first[1]["message_id"], first[2]["message_id"]]
    assert numbers(await reader(queen, name, "g").pop()) == [0, 1, 2, 11]


async def test_the_same_id_twice_in_one_push_is_stored_once(queen, name):
    answers = await push(queen, name, [1, 2], ids=["same", "same"])
    assert [answer["status"] for answer in answers] == ["queued", "duplicate"]
    assert answers[0]["message_id"] == answers[1]["message_id"]
    assert numbers(await reader(queen, name, "g").pop()) == [1]


async def test_ids_are_known_per_partition(queen, name):
    for partition in ("east", "west"):
        answers = await push(queen, name, [1], partition=partition, ids=["same"])
        assert answers[0]["status"] == "queued"


async def test_producers_that_race_with_one_id_store_it_once(queen, name):
    answers = await asyncio.gather(*(push(queen, name, [n], ids=["one"]) for n in range(12)))
    statuses = sorted(answer[0]["status"] for answer in answers)
    assert statuses == ["duplicate"] * 11 + ["queued"]
    assert len({answer[0]["message_id"] for answer in answers}) == 1
    assert len(await reader(queen, name, "g").pop()) == 1


async def test_a_batch_under_lease_is_given_to_nobody_else_in_the_group(queen, name):
    await push(queen, name, range(5))
    held = await reader(queen, name, "g", batch=2).pop()
    assert numbers(held) == [0, 1]
    assert await reader(queen, name, "g").pop() == []
    assert numbers(await reader(queen, name, "other").pop()) == [0, 1, 2, 3, 4]
    assert (await queen.ack(held, True, {"group": "g"}))["success"] is True
    assert numbers(await reader(queen, name, "g").pop()) == [2, 3, 4]


async def test_a_lease_that_runs_out_gives_the_batch_to_another(queen, name):
    await queen.queue(name).config({"lease_time": 1}).create()
    await push(queen, name, range(3))
    lost = await reader(queen, name, "g").pop()
    again = await eventually(lambda: reader(queen, name, "g").pop())
    assert numbers(again) == [0, 1, 2]
    assert again[0]["leaseId"] != lost[0]["leaseId"]
    assert (await queen.ack(lost, True, {"group": "g"}))["success"] is False
    assert (await queen.ack(again, True, {"group": "g"}))["success"] is True


async def test_a_renewed_lease_outlives_its_first_length(queen, name):
    await queen.queue(name).config({"lease_time": 1}).create()
    await push(queen, name, range(3))
    held = await reader(queen, name, "g").pop()
    renewed = await queen.renew(held[0])
    assert renewed["success"] is True and renewed["newExpiresAt"], renewed
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        assert await reader(queen, name, "g").pop() == []
        await asyncio.sleep(0.1)
    assert (await queen.ack(held, True, {"group": "g"}))["success"] is True


async def test_acknowledging_the_middle_completes_what_is_before_it(queen, name):
    await push(queen, name, range(4))
    held = await reader(queen, name, "g").pop()
    assert (await queen.ack(held[1], True, {"group": "g"}))["success"] is True
    assert await reader(queen, name, "g").pop() == [], "the rest is still under lease"
    failed = await queen.ack(held[2], False, {"group": "g", "error": "no"})
    assert failed["success"] is True and failed["dlq"] is False
    assert numbers(await reader(queen, name, "g").pop()) == [2, 3]


async def test_the_lowest_failure_holds_the_cursor_whatever_succeeds_after_it(queen, name):
    await push(queen, name, range(4))
    held = await reader(queen, name, "g").pop()
    statuses = ["completed", "failed", "completed", "completed"]
    mixed = [{**message, "_status": status} for message, status in zip(held, statuses)]
    answer = await queen.ack(mixed, True, {"group": "g"})
    assert answer["success"] is True, answer
    assert [one["transactionId"] for one in answer["results"]] == [message["transactionId"] for message in held]
    assert numbers(await reader(queen, name, "g").pop()) == [1, 2, 3]


async def test_a_message_that_fails_too_often_is_a_dead_letter_and_blocks_nobody(queen, name):
    await queen.queue(name).config({"retry_limit": 2}).create()
    await push(queen, name, ["poison", "next"])
    for attempt in range(3):
        held = await reader(queen, name, "g", batch=1).pop()
        assert numbers(held) == ["poison"], attempt
        answer = await queen.ack(held[0], False, {"group": "g", "error": f"attempt {attempt}"})
        assert answer["success"] is True and answer["dlq"] is (attempt == 2), answer
    assert numbers(await reader(queen, name, "g").pop()) == ["next"]
    letters = await queen.queue(name).dlq("g").get()
    assert [(letter["data"], letter["errorMessage"]) for letter in letters["messages"]] == [
        ({"n": "poison"}, "attempt 2")
    ]
    assert (await queen.queue(name).dlq("somebody else").get())["messages"] == []


async def test_a_retry_costs_nothing_and_a_dead_letter_can_be_asked_for(queen, name):
    await queen.queue(name).config({"retry_limit": 1}).create()
    await push(queen, name, [1, 2])
    for _ in range(5):
        held = await reader(queen, name, "g", batch=1).pop()
        assert (await queen.ack(held[0], "retry", {"group": "g"}))["dlq"] is False
    held = await reader(queen, name, "g", batch=1).pop()
    assert (await queen.ack(held[0], "dlq", {"group": "g", "error": "by hand"}))["dlq"] is True
    assert (await queen.queue(name).dlq("g").get())["messages"][0]["errorMessage"] == "by hand"
    assert numbers(await reader(queen, name, "g").pop()) == [2]


async def test_late_acknowledgements_are_told_so(queen, name):
    await push(queen, name, range(2))
    held = await reader(queen, name, "g").pop()
    assert (await queen.ack(held, True, {"group": "g"}))["success"] is True
    late = await queen.ack({key: held[0][key] for key in ("transactionId", "partitionId")}, True, {"group": "g"})
    assert late["success"] is True and late["noop"] is True
    refused = await queen.ack(
        {key: held[0][key] for key in ("transactionId", "partitionId")}, False, {"group": "g"}
    )
    assert refused["success"] is False and "already committed" in refused["error"]


async def test_a_waiting_pop_is_woken_by_a_push(queen, name):
    await push(queen, name, [0])
    await drain(queen, name, "g", want=1)
    begun = time.monotonic()
    waiting = asyncio.create_task(queen.queue(name).group("g").batch(10).wait(True).timeout_millis(20_000).pop())
    await asyncio.sleep(0.3)
    assert not waiting.done()
    await push(queen, name, [1], partition="a new one")
    assert numbers(await waiting) == [1]
    assert time.monotonic() - begun < 5


async def test_a_waiting_pop_ends_empty_at_its_time(queen, name):
    await queen.queue(name).create()
    begun = time.monotonic()
    assert await queen.queue(name).group("g").wait(True).timeout_millis(700).pop() == []
    assert 0.6 <= time.monotonic() - begun < 5


async def test_one_pop_takes_from_several_partitions_under_one_lease(queen, name):
    for partition in "abcde":
        await push(queen, name, [f"{partition}{n}" for n in range(3)], partition=partition)
    messages = await reader(queen, name, "g", partitions=3).pop()
    assert len({message["partition"] for message in messages}) == 3
    assert len({message["leaseId"] for message in messages}) == 1
    rest = await reader(queen, name, "g", partitions=16).pop()
    assert {message["partition"] for message in messages}.isdisjoint(message["partition"] for message in rest)
    assert sorted(numbers(messages + rest)) == sorted(f"{p}{n}" for p in "abcde" for n in range(3))
    assert (await queen.ack(messages, True, {"group": "g"}))["success"] is True


async def test_commit_on_delivery_needs_no_acknowledgement(queen, name):
    await push(queen, name, range(4))
    first = await reader(queen, name, "g", batch=3).commit_on_delivery().pop()
    assert numbers(first) == [0, 1, 2] and {message["leaseId"] for message in first} == {""}
    assert numbers(await reader(queen, name, "g").pop()) == [3]


async def test_a_new_group_starts_at_its_first_pop_unless_it_asks_for_all(queen, name):
    await push(queen, name, [1, 2])
    fresh = queen.queue(name).group("fresh").subscription_mode("new").batch(10).wait(False)
    assert await fresh.pop() == []
    await push(queen, name, [3])
    await push(queen, name, [4], partition="made later")
    found = await drain(queen, name, "fresh", want=2)
    assert sorted(numbers(found)) == [3, 4]
    assert sorted(numbers(await reader(queen, name, "everything").pop())) == [1, 2, 3, 4]


async def test_a_deleted_group_starts_over(queen, name):
    await push(queen, name, range(3))
    await drain(queen, name, "g", want=3)
    assert await reader(queen, name, "g").pop() == []
    assert (await queen.delete_consumer_group("g"))["success"] is True
    assert numbers(await drain(queen, name, "g", want=3)) == [0, 1, 2]


async def test_discovery_finds_queues_by_namespace_and_task(queen, name):
    for task in ("mail", "bills"):
        await queen.queue(f"{name}.{task}").namespace(name).task(task).create()
        await push(queen, f"{name}.{task}", [task])

    async def pop(**labels):
        builder = queen.queue().group("g").subscription_mode("all").batch(10).partitions(8).wait(False)
        for label, value in labels.items():
            builder = getattr(builder, label)(value)
        return await builder.pop()

    mail = await eventually(lambda: pop(namespace=name, task="mail"))
    assert numbers(mail) == ["mail"]
    assert numbers(await eventually(lambda: pop(namespace=name))) == ["bills"]
    assert (await queen.ack(mail, True, {"group": "g"}))["success"] is True


async def test_names_with_unusual_characters(queen, http, name):
    queue, partition = f'{name} / "ä" & <b>', "eu west\\1/é"
    answers = await push(queen, queue, [1], partition=partition, ids=['id "quoted" \\ é'])
    assert answers[0]["transaction_id"] == 'id "quoted" \\ é'
    found = await drain(queen, f"{name}%20%2F%20%22%C3%A4%22%20%26%20%3Cb%3E", "g", want=1)
    assert (found[0]["partition"], found[0]["transactionId"]) == (partition, 'id "quoted" \\ é')


async def test_a_deleted_queue_is_gone(queen, name):
    await push(queen, name, range(3))
    assert (await queen.queue(name).delete())["deleted"] is True
    assert await reader(queen, name, "g").pop() == []
    assert (await push(queen, name, [9]))[0]["status"] == "queued"
    assert numbers(await reader(queen, name, "g2").pop()) == [9]
