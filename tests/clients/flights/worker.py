"""One worker of the streaming query: hourly windows per carrier, folded by the published Python SDK.

SIGTERM ends it after the batch in hand. SIGUSR1 makes it kill itself with SIGKILL in the middle of the next batch it
folds: a death that is certain to hold a lease, with work done and nothing committed.

Two options of the SDK matter here, and both are about what it keeps in memory:
- `on_late="include"`: a worker whose first commit of a partition fails has already moved its own watermark, and would
  drop the same events as late when they come again. Events come in order, so nothing else is ever late.
- `idle_flush_ms=0`: the flush closes windows by that same watermark, also those whose last batch never committed.
  The closing event closes the last windows instead.
"""

import argparse
import asyncio
import os
import signal

from queen import Queen
from queen.streams import Stream

from . import source
from .report import say

SAY_SECONDS = 0.25


class Death:
    """Armed by SIGUSR1; strikes at the next event."""

    armed = False

    def event_time(self, message):
        if self.armed:
            os.kill(os.getpid(), signal.SIGKILL)
        return source.scheduled_ms(message["data"])


def query(queen, event_time):
    """The chain. Its operators and their options are hashed by the SDK: both workers must say the same."""
    return (
        Stream.from_(queen.queue(source.QUEUE))
        .key_by(lambda message: message["data"]["carrier"])
        .window_tumbling(seconds=3600, event_time=event_time, on_late="include", idle_flush_ms=0)
        .aggregate(
            {
                "count": lambda flight: 1,
                "sum": lambda flight: flight["dep_delay"],
                "max": lambda flight: flight["dep_delay"],
            }
        )
        .map(
            lambda value, context: {
                "origin": context["partition"],
                "carrier": context["key"],
                "windowStart": context["windowStart"],
                "windowEnd": context["windowEnd"],
                **value,
            }
        )
        .to(queen.queue(source.WINDOWS))
    )


async def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("url")
    arguments.add_argument("--batch", type=int, default=2000)
    options = arguments.parse_args()

    queen = Queen(options.url, retry_attempts=1)
    stopping, death = asyncio.Event(), Death()
    loop = asyncio.get_running_loop()
    # The SDK's constructor installed handlers of its own; these replace them.
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    loop.add_signal_handler(signal.SIGUSR1, lambda: setattr(death, "armed", True))

    runner = await query(queen, death.event_time).run(
        query_id=source.QUERY,
        url=options.url,
        subscription_mode="all",
        batch_size=options.batch,
        max_partitions=1,
        max_wait_millis=500,
    )
    say(ready=True, query=runner.metrics()["serverQueryId"])
    while not stopping.is_set():
        try:
            await asyncio.wait_for(stopping.wait(), SAY_SECONDS)
        except TimeoutError:
            pass
        say(folded=runner.metrics()["messagesTotal"])
    await runner.stop()
    await queen.close()
    metrics = runner.metrics()
    say(
        finished=True,
        folded=metrics["messagesTotal"],
        cycles=metrics["cyclesTotal"],
        late=metrics["lateEventsTotal"],
        errors=metrics["errorsTotal"],
        last_error=metrics["lastError"],
    )


if __name__ == "__main__":
    asyncio.run(main())
