"""What the tests of consumers have in common: numbered messages in, numbers out."""

import asyncio
import time


async def push(queen, queue, numbers, partition="Default", ids=None):
    """Pushes {"n": number} for each, and returns the server's answers."""
    items = [{"data": {"n": number}} for number in numbers]
    for item, transaction_id in zip(items, ids or []):
        item["transactionId"] = transaction_id
    return await queen.queue(queue).partition(partition).push(items)


def reader(queen, queue, group, *, batch=100, partition="Default", partitions=16):
    """A pop that does not wait, of everything the group has not had."""
    return (
        queen.queue(queue)
        .partition(partition)
        .group(group)
        .subscription_mode("all")
        .batch(batch)
        .partitions(partitions)
        .wait(False)
    )


def numbers(messages):
    return [message["data"]["n"] for message in messages]


async def drain(queen, queue, group, *, want, seconds=20.0):
    """Pops and acknowledges until `want` messages came, or all of `want` when it is a set of transaction ids.
    Fails the test when they do not."""
    messages, seen, deadline = [], set(), time.monotonic() + seconds
    while len(messages) < want if isinstance(want, int) else not want <= seen:
        assert time.monotonic() < deadline, f"{queue} gave {len(messages)} messages in {seconds} s, wanted {want}"
        batch = await (
            queen.queue(queue)
            .group(group)
            .subscription_mode("all")
            .batch(1000)
            .partitions(16)
            .wait(True)
            .timeout_millis(500)
            .pop()
        )
        if batch:
            answer = await queen.ack(batch, True, {"group": group})
            assert answer["success"] is True, answer
            messages += batch
            seen.update(message["transactionId"] for message in batch)
    return messages


async def eventually(look, *, seconds=20.0):
    """Polls until `look()` gives something true, and returns that; the last thing otherwise."""
    deadline = time.monotonic() + seconds
    while True:
        found = await look()
        if found or time.monotonic() > deadline:
            return found
        await asyncio.sleep(0.05)
