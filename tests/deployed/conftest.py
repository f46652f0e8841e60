"""Real function binaries on two grounds: the double with a fast table, and the template on the emulator."""

import contextlib
import io
import json
import os
import shutil
import subprocess
import uuid
from pathlib import Path

import emulator
import httpx
import pytest
from background import Background
from queen import Queen
from table import make
from world import World

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("http", "websocket", "fanout", "maintain", "ingest")


@pytest.fixture(scope="session")
def binaries():
    """The folder of the functions' binaries: TIDEWHEEL_BINARIES, else the debug build of this checkout."""
    named = os.environ.get("TIDEWHEEL_BINARIES")
    if named is None:
        command = ["cargo", "metadata", "--format-version", "1", "--no-deps"]
        metadata = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE)
        named = Path(json.loads(metadata.stdout)["target_directory"]) / "debug"
    folder = Path(named)
    missing = [name for name in NAMES if not (folder / f"tidewheel-{name}").exists()]
    assert not missing, f"not built in {folder}: {missing}"
    return folder


@pytest.fixture(scope="session")
def endpoints():
    """DynamoDB and S3 for the functions behind the double."""
    with emulator.running() as endpoints:
        yield endpoints


@pytest.fixture
def world(binaries, endpoints, tmp_path):
    """Makes worlds: a table of their own, with functions before it. Enter one with `async with`."""
    table, bucket = make(endpoints)
    return lambda **options: World(binaries, endpoints, table, bucket, tmp_path, **options)


@pytest.fixture(scope="session")
def stack(binaries, endpoints, tmp_path_factory):
    """The HTTP function behind its front, for the tests of the SDK: whatever they ask of a server, they ask of it."""
    table, bucket = make(endpoints)
    with Background(lambda: World(binaries, endpoints, table, bucket, tmp_path_factory.mktemp("stack"))) as world:
        yield world


@pytest.fixture
def name(request):
    """A prefix for queues, groups and queries that no other test has."""
    return f"{request.node.name.split('[')[0].removeprefix('test_')[:40]}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def http(stack):
    with httpx.Client(base_url=stack.url, timeout=40, trust_env=False) as client:
        yield client


@pytest.fixture
async def queen(stack):
    client = Queen(stack.url)
    try:
        yield client
    finally:
        # Its talk at closing is kept off the test's output.
        with contextlib.redirect_stdout(io.StringIO()):
            await client.close()


@pytest.fixture(scope="session")
def stripped(binaries, tmp_path_factory):
    """The binaries without their symbols, as they would be uploaded."""
    folder = tmp_path_factory.mktemp("binaries")
    for name in NAMES:
        binary = folder / f"tidewheel-{name}"
        shutil.copy2(binaries / binary.name, binary)
        subprocess.run(["strip", binary], check=True)
    return folder
