"""Pushes every flight to the queue, one partition per origin, through the published Python SDK.

Each origin is one producer that waits for its answer before the next batch, so the order of the log is the order of
the schedule. A batch whose answer was lost is pushed again with the same transaction ids: the server must answer
with the first copy's offsets. With --pause-at-half each stops half way until a line comes on standard input.
"""

import argparse
import asyncio
import sys

from queen import Queen

from . import source
from .report import say

PAUSE_SECONDS = 0.2


async def create_queues(queen, lease_seconds):
    await queen.queue(source.QUEUE).config({"lease_time": lease_seconds}).create()
    await queen.queue(source.WINDOWS).config({"lease_time": lease_seconds}).create()


async def push_until_answered(queen, origin, batch, seen):
    items = [{"data": payload, "transactionId": source.transaction_id(payload)} for payload in batch]
    while True:
        try:
            return await queen.queue(source.QUEUE).partition(origin).push(items)
        except Exception as error:  # the server is away: its clients wait and ask again
            seen["retries"] += 1
            seen["last_error"] = f"{type(error).__name__}: {error}"
            await asyncio.sleep(PAUSE_SECONDS)


class Half:
    """Where the producers meet half way, and the word to go on."""

    def __init__(self, parties):
        self.parties = parties
        self.go = asyncio.Event()

    async def wait(self):
        self.parties -= 1
        if self.parties == 0:
            say(half=True)
            await asyncio.to_thread(sys.stdin.readline)
            self.go.set()
        await self.go.wait()


async def produce(queen, origin, events, size, half, seen):
    for start in range(0, len(events), size):
        if half and start <= len(events) // 2 < start + size:
            await half.wait()
        batch = events[start : start + size]
        answers = await push_until_answered(queen, origin, batch, seen)
        for index, answer in enumerate(answers):
            seen[answer["status"]] = seen.get(answer["status"], 0) + 1
            if answer.get("offset", start + index) != start + index:
                seen["misplaced"] += 1
        seen["pushed"] += len(batch)
        say(pushed=seen["pushed"])


async def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("url")
    arguments.add_argument("--rows", type=int)
    arguments.add_argument("--lease", type=int, default=10)
    arguments.add_argument("--batch", type=int, default=1000)
    arguments.add_argument("--pause-at-half", action="store_true")
    options = arguments.parse_args()
    by_origin = source.flights(options.rows)
    seen = {"pushed": 0, "retries": 0, "misplaced": 0, "queued": 0, "duplicate": 0, "last_error": None}
    queen = Queen(options.url, retry_attempts=1)
    await create_queues(queen, options.lease)
    say(ready=True)
    half = Half(len(source.ORIGINS)) if options.pause_at_half else None
    await asyncio.gather(
        *(
            produce(queen, origin, source.events(by_origin, origin), options.batch, half, seen)
            for origin in source.ORIGINS
        )
    )
    await queen.close()
    say(finished=True, **seen)


if __name__ == "__main__":
    asyncio.run(main())
