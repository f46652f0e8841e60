"""The table and the bucket, made on an emulator from the template: there is no second description of them."""

import uuid

import boto3
import template

MADE_BY_HAND = ("AttributeDefinitions", "KeySchema", "BillingMode")


def client(service, url):
    return boto3.client(service, endpoint_url=url, region_name="us-east-1", **CREDENTIALS)


CREDENTIALS = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}


def make(endpoints):
    """A new table on the fast DynamoDB and a new bucket, as the template describes them; answers their names."""
    resources = template.load()["Resources"]
    described = resources["Table"]["Properties"]
    name = f"table-{uuid.uuid4().hex[:12]}"
    dynamodb = client("dynamodb", endpoints.dynamodb)
    stream = {"StreamEnabled": True, **described["StreamSpecification"]}
    dynamodb.create_table(
        TableName=name, StreamSpecification=stream, **{part: described[part] for part in MADE_BY_HAND}
    )
    dynamodb.update_time_to_live(TableName=name, TimeToLiveSpecification=described["TimeToLiveSpecification"])
    bucket = f"bucket-{uuid.uuid4().hex[:12]}"
    client("s3", endpoints.s3).create_bucket(Bucket=bucket)
    return name, bucket
