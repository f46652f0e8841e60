"""The deployed store on this machine: emulators of DynamoDB and S3, with the template's table and bucket in them."""

import contextlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS))

import emulator  # noqa: E402 (found by the line above)

TABLE, BUCKET = "tidewheel-test", "tidewheel-test"


@dataclass(frozen=True)
class Deployed:
    """A store that servers may be started on, as many as one likes."""

    endpoints: emulator.Endpoints
    table: str = TABLE
    bucket: str = BUCKET

    @property
    def environment(self):
        """What a server on this store must be told."""
        return {
            **self.endpoints.for_sdk(),
            "NO_PROXY": "127.0.0.1,localhost",
            "TIDEWHEEL_STORE": "dynamodb",
            "TIDEWHEEL_TABLE": self.table,
            "TIDEWHEEL_BUCKET": self.bucket,
        }


@contextlib.contextmanager
def deployed():
    """A new store, empty, for as long as the block lasts."""
    with emulator.running() as endpoints:
        store = Deployed(endpoints)
        script = [emulator.python(), TESTS / "emulator" / "deployed_store.py"]
        where = ["--dynamodb", endpoints.dynamodb, "--s3", endpoints.s3, "--table", TABLE, "--bucket", BUCKET]
        subprocess.run([*map(str, script), *where], check=True)
        yield store
