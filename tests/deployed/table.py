"""A table and a bucket of a world's own, made on the emulators from the template."""

import uuid

import deployed_store
from deployed_store import client

__all__ = ["client", "make"]


def make(endpoints):
    """A new table on the fast DynamoDB and a new bucket, as the template describes them; answers their names."""
    table, bucket = f"table-{uuid.uuid4().hex[:12]}", f"bucket-{uuid.uuid4().hex[:12]}"
    deployed_store.make(endpoints.dynamodb, endpoints.s3, table, bucket)
    return table, bucket
