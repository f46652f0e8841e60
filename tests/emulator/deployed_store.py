"""Makes the deployed store on emulators: the table and the bucket as the template in infra/ describes them.

    PYTHON tests/emulator/deployed_store.py --dynamodb URL --s3 URL --table NAME --bucket NAME

PYTHON is the emulators' (`emulator.python()`), which has the SDK. There is no second description: what is made is read
from the template, so a table that the code does not fit fails here as it would in an account.
"""

import argparse
from pathlib import Path

import boto3
import yaml
from botocore.config import Config
from endpoints import CREDENTIALS, REGION

TEMPLATE = Path(__file__).resolve().parents[2] / "infra" / "template.yaml"


class Template(yaml.SafeLoader):
    """YAML with CloudFormation's tags; what they compute is of no interest here."""


Template.add_multi_constructor("!", lambda loader, suffix, node: None)


def properties(kind):
    """The properties of the template's only resource of a type."""
    resources = yaml.load(TEMPLATE.read_text(), Template)["Resources"].values()
    found = [resource["Properties"] for resource in resources if resource["Type"] == kind]
    if len(found) != 1:
        raise SystemExit(f"{TEMPLATE} has {len(found)} resources of type {kind}")
    return found[0]


def client(service, url):
    return boto3.client(
        service,
        endpoint_url=url,
        region_name=REGION,
        aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        config=Config(s3={"addressing_style": "path"}, proxies={}),
    )


def make(dynamodb, s3, table, bucket):
    """Makes the table and the bucket."""
    described = properties("AWS::DynamoDB::Table")
    properties("AWS::S3::Bucket")
    tables = client("dynamodb", dynamodb)
    tables.create_table(
        TableName=table,
        AttributeDefinitions=described["AttributeDefinitions"],
        KeySchema=described["KeySchema"],
        BillingMode=described["BillingMode"],
        StreamSpecification={"StreamEnabled": True, **described["StreamSpecification"]},
    )
    tables.get_waiter("table_exists").wait(TableName=table, WaiterConfig={"Delay": 1})
    tables.update_time_to_live(TableName=table, TimeToLiveSpecification=described["TimeToLiveSpecification"])
    client("s3", s3).create_bucket(Bucket=bucket)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("dynamodb", "s3", "table", "bucket"):
        arguments.add_argument(f"--{name}", required=True)
    make(**vars(arguments.parse_args()))
