"""The cloud's services on this machine, for tests: installed when needed, started on free ports, stopped after.

    with emulator.running() as endpoints:      # in a test
        endpoints.dynamodb, endpoints.s3, endpoints.stack
    tests/emulator/with COMMAND...             # around a command: TIDEWHEEL_TEST_DYNAMODB and so on name them

Two emulators, both on loopback only and both forgetting everything when they stop: dynoxide for DynamoDB, because
it is five times as fast, and MiniStack for S3 and for the whole stack (DynamoDB with streams and expiry, Lambda, API
Gateway, SQS, EventBridge, CloudFormation). Neither shows transaction conflicts on plain writes, throttling or stale
reads; those are tested on scripted replies and on the faulty store.
"""

from .endpoints import Endpoints
from .install import dynoxide, python
from .process import Emulator, EmulatorFailed, running, start_dynoxide, start_ministack

__all__ = [
    "Emulator",
    "EmulatorFailed",
    "Endpoints",
    "dynoxide",
    "python",
    "running",
    "start_dynoxide",
    "start_ministack",
]
