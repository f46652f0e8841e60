"""Where the emulators listen, and what a process must know to talk to them."""

from dataclasses import dataclass

REGION = "us-east-1"

# The emulators take any credentials; the SDKs insist on some.
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}


@dataclass(frozen=True)
class Endpoints:
    """URLs of the emulators. `s3` and `stack` are the same process; `stack` has a DynamoDB of its own."""

    dynamodb: str
    stack: str

    @property
    def s3(self):
        return self.stack

    def for_tests(self):
        """Environment variables of a test process, which makes its own clients."""
        return {
            "TIDEWHEEL_TEST_DYNAMODB": self.dynamodb,
            "TIDEWHEEL_TEST_S3": self.s3,
            "TIDEWHEEL_TEST_STACK": self.stack,
        }

    def for_sdk(self, *, fast=True):
        """Environment variables of a process under test, whose SDK reads them: the fast DynamoDB, or the stack's."""
        return {
            **CREDENTIALS,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ENDPOINT_URL": self.stack,
            "AWS_ENDPOINT_URL_DYNAMODB": self.dynamodb if fast else self.stack,
            "AWS_ENDPOINT_URL_S3": self.s3,
        }
