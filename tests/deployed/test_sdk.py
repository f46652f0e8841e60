"""Queen's published SDK against the HTTP function: the same tests that the local stack passes, unchanged.

Those that kill and restart the server they talk to are left out here; functions are killed in test_deaths.py. So is
the one whose names hold a `/`: an HTTP API decodes it, and the SDK puts names into paths. Through the function URL it
works (test_http.py).
"""

import inspect

import httpx
import test_queues
import test_streams
import test_transactions
from queen import Queen

HERE = {"queen", "stack", "name", "http"}

SLASHED = {"test_names_with_unusual_characters"}

for module in (test_queues, test_streams, test_transactions):
    for title, test in vars(module).items():
        if title.startswith("test_") and title not in SLASHED and inspect.isfunction(test):
            parametrized = {
                argument.strip()
                for mark in getattr(test, "pytestmark", [])
                if mark.name == "parametrize"
                for argument in (mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0])
            }
            if set(inspect.signature(test).parameters) - parametrized <= HERE:
                globals()[title] = test


async def test_names_with_unusual_characters_through_the_function_url(stack, name):
    queen = Queen(stack.stream_url)
    with httpx.Client(base_url=stack.stream_url, timeout=40, trust_env=False) as http:
        await test_queues.test_names_with_unusual_characters(queen, http, name)
    await queen.close()
