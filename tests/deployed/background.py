"""Asynchronous servers on a thread of their own, for tests that are not asynchronous or have another loop."""

import asyncio
import threading


class Background:
    """An asynchronous context manager, entered on a loop of its own thread."""

    def __init__(self, make):
        self._make = make
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(120)

    def __enter__(self):
        self._thread.start()
        self._manager = self._make()
        return self.run(self._manager.__aenter__())

    def __exit__(self, *_):
        self.run(self._manager.__aexit__(None, None, None))
        self.run(_end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


async def _end():
    """Ends whatever is still under way on this loop."""
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
