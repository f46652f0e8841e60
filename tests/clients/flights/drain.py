"""Drains the windows with a consumer group and writes each delivered message to a file, one JSON object a line.

Delivery is at least once, so the file may hold a message more than once; its `id` tells. A *window* more than once
under different ids would be the fault that the job looks for.
"""

import argparse
import asyncio
import json
import signal

from queen import Queen

from . import source
from .report import say

GROUP = "windows-check"
BATCH = 2000


async def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("url")
    arguments.add_argument("file")
    options = arguments.parse_args()

    queen = Queen(options.url, retry_attempts=1)
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    ids, refused = set(), 0
    with open(options.file, "w") as file:
        say(ready=True)
        # After the signal, one more pass until nothing comes: the last windows must not be missed.
        while True:
            messages = await (
                queen.queue(source.WINDOWS)
                .group(GROUP)
                .subscription_mode("all")
                .batch(BATCH)
                .partitions(len(source.ORIGINS))
                .wait(True)
                .timeout_millis(500)
                .pop()
            )
            if not messages:
                if stopping.is_set():
                    break
                continue
            for message in messages:
                ids.add(message["id"])
                delivered = {"id": message["id"], "partition": message["partition"], "data": message["data"]}
                file.write(json.dumps(delivered) + "\n")
            file.flush()
            answer = await queen.ack(messages, True, {"group": GROUP})
            if answer.get("success") is not True:
                refused += 1
            say(windows=len(ids))
    await queen.close()
    say(finished=True, windows=len(ids), refused=refused)


if __name__ == "__main__":
    asyncio.run(main())
