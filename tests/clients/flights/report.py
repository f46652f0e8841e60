"""What the parts of the job say to it (one JSON object a line), and what the job says to a person."""

import json
import sys
import time


def say(**facts):
    """One line of progress for the job. Other lines on standard output are the SDK's own and are ignored."""
    print(json.dumps(facts), flush=True)


class Checks:
    """Named results, printed together at the end: each PASS or FAIL, with the detail of what failed."""

    def __init__(self):
        self.results = []

    def check(self, name, passed, detail=""):
        self.results.append((name, bool(passed), detail))
        return bool(passed)

    def equal(self, name, found, wanted):
        return self.check(name, found == wanted, f"found {shortened(found)}, wanted {shortened(wanted)}")

    @property
    def passed(self):
        return bool(self.results) and all(passed for _, passed, _ in self.results)

    def print(self):
        for name, passed, detail in self.results:
            print(
                f"{'PASS' if passed else 'FAIL'}  {name}" + (f"\n      {detail}" if detail and not passed else "")
            )
        good = sum(passed for _, passed, _ in self.results)
        print(f"{good} of {len(self.results)} checks passed", flush=True)


def shortened(value, limit=300):
    text = repr(value)
    return text if len(text) <= limit else text[:limit] + "..."


class Progress:
    """One line that rewrites itself on a terminal, and a line every few seconds where there is none."""

    QUIET_SECONDS = 5

    def __init__(self):
        self.terminal = sys.stdout.isatty()
        self.begun = time.monotonic()
        self.printed = 0.0

    def show(self, text, *, now=False):
        line = f"{time.monotonic() - self.begun:6.1f}s  {text}"
        if self.terminal:
            print(f"\r\033[2K{line}", end="", flush=True)
        elif now or time.monotonic() - self.printed >= self.QUIET_SECONDS:
            self.printed = time.monotonic()
            print(line, flush=True)

    def note(self, text):
        """A line that stays."""
        if self.terminal:
            print("\r\033[2K", end="")
        print(f"{time.monotonic() - self.begun:6.1f}s  {text}", flush=True)
