"""One server for the whole run, and a fresh one for the tests that kill it. Names are unique per test."""

import contextlib
import io
import json
import os
import subprocess
import uuid
from pathlib import Path

import httpx
import pytest
from queen import Queen

from stack import Stack

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def binary():
    """The server under test: TIDEWHEEL_BINARY, else the debug build of this checkout."""
    named = os.environ.get("TIDEWHEEL_BINARY")
    if named is None:
        metadata = subprocess.run(
            ["cargo", "metadata", "--format-version", "1", "--no-deps"],
            cwd=ROOT,
            check=True,
            stdout=subprocess.PIPE,
        )
        named = Path(json.loads(metadata.stdout)["target_directory"]) / "debug" / "tidewheel"
    path = Path(named)
    assert path.exists(), f"{path} is not built: cargo build --package tidewheel"
    return path


@pytest.fixture(scope="session")
def stack(binary, tmp_path_factory):
    with Stack(binary, tmp_path_factory.mktemp("shared") / "data") as running:
        yield running


@pytest.fixture
def own_stack(binary, tmp_path):
    """A server that a test may kill. Started by the test, so that it can choose the options."""
    made = []

    def make(name="data", **options):
        made.append(Stack(binary, tmp_path / name, **options))
        return made[-1]

    yield make
    for one in made:
        one.kill()


@pytest.fixture
def name(request):
    """A prefix for queues, groups and queries that no other test has."""
    return f"{request.node.name.split('[')[0].removeprefix('test_')[:40]}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def http(stack):
    with httpx.Client(base_url=stack.url, timeout=30, trust_env=False) as client:
        yield client


@contextlib.asynccontextmanager
async def queen_at(url, **options):
    """The SDK's client; its talk at closing is kept off the test's output."""
    queen = Queen(url, **options)
    try:
        yield queen
    finally:
        with contextlib.redirect_stdout(io.StringIO()):
            await queen.close()


@pytest.fixture
async def queen(stack):
    async with queen_at(stack.url) as client:
        yield client
