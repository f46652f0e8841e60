"""Every public method and option of Queen's Python SDK has a test that covers it by name."""

import importlib
from pathlib import Path

from sdk_surface import SURFACE

# What no test covers, and why.
EXCUSED = {
    "Ephemeral.push(buffered)": "queues in memory alone are refused, and the SDK repeats a buffer for ever",
}


def of_the_sdk():
    for path in sorted(Path(__file__).parent.glob("test_sdk_*.py")):
        module = importlib.import_module(path.stem)
        yield from (value for name, value in vars(module).items() if name.startswith("test_") and callable(value))


def test_every_method_and_option_of_the_sdk_is_covered_by_name():
    covered = set().union(*(getattr(test, "covers", set()) for test in of_the_sdk()))
    unknown = covered - SURFACE
    assert not unknown, f"names that the SDK does not have: {sorted(unknown)}"
    needless = covered & EXCUSED.keys()
    assert not needless, f"covered and excused at once: {sorted(needless)}"
    missing = SURFACE - covered - EXCUSED.keys()
    assert not missing, f"{len(missing)} of {len(SURFACE)} are covered by no test: {sorted(missing)}"
