"""Queen's published SDK against the HTTP function: the same tests that the local stack passes, unchanged.

Those that kill and restart the server they talk to are left out here; functions are killed in test_deaths.py.
"""

import inspect

import test_queues
import test_streams
import test_transactions

HERE = {"queen", "stack", "name", "http"}

for module in (test_queues, test_streams, test_transactions):
    for title, test in vars(module).items():
        if title.startswith("test_") and inspect.isfunction(test):
            parametrized = {
                argument.strip()
                for mark in getattr(test, "pytestmark", [])
                if mark.name == "parametrize"
                for argument in (mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0])
            }
            if set(inspect.signature(test).parameters) - parametrized <= HERE:
                globals()[title] = test
