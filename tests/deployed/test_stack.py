"""The template itself, deployed by the command that a user runs, on an emulator of the whole cloud.

The emulator runs the real binaries as processes, and it checks every call against the policies of the role that makes
it: what a function may not do fails here.
"""

import asyncio
import json
import os
import platform
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import emulator
import httpx
import pytest
import table
import websockets
from signed import Signed, signed_url

ROOT = Path(__file__).resolve().parents[2]
STACK = "tidewheel-test"
CATALOGUE = "streams"
# A schedule fires once a minute, and a debug build starts slowly on busy cores.
PATIENCE = 150


@dataclass
class Deployed:
    """What the command printed, and where it is reached on this machine."""

    url: str
    outputs: dict
    environment: dict
    sources: dict
    command: list

    def deploy(self, **parameters):
        """Runs the command, with more parameters; answers what it printed."""
        more = [part for name, value in parameters.items() for part in ("--parameter", f"{name}={value}")]
        done = subprocess.run([*self.command, *more], env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return dict(line.split(None, 1) for line in done.stdout.splitlines())

    @property
    def http_url(self):
        return f"{self.url}/_aws/execute-api/{self.outputs['HttpApiId']}/$default"

    @property
    def stream_url(self):
        found = self.outputs["HttpStreamUrl"].split("//")[1].split(".")[0]
        return f"{self.url}/_aws/lambda-url/{found}"

    @property
    def socket_url(self):
        return f"{self.url.replace('http', 'ws', 1)}/_aws/execute-api/{self.outputs['SocketApiId']}/live"

    def client(self, service):
        return table.client(service, self.url)

    def http(self):
        return httpx.Client(base_url=self.http_url, auth=Signed("execute-api"), timeout=60, trust_env=False)


@pytest.fixture(scope="module")
def deployed(stripped, tmp_path_factory):
    running = emulator.start_ministack({"AUTH": "true"})
    try:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "AWS_ENDPOINT_URL": running.url,
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
        }
        machine = "x86_64" if platform.machine() in ("x86_64", "AMD64") else "arm64"
        sources = _sources(running.url)
        command = [
            ROOT / "infra" / "deploy",
            *("--stack", STACK),
            *("--binaries", stripped),
            *("--out", tmp_path_factory.mktemp("deploy")),
            *("--parameter", f"Architecture={machine}"),
            *("--parameter", f"GlueDatabase={CATALOGUE}"),
            *(part for name, value in sources.items() for part in ("--parameter", f"{name}={value}")),
            # The emulator's CloudFormation does not know it; made by hand below.
            *("--without", "SocketReply"),
        ]
        made = Deployed(running.url, {}, environment, sources, command)
        made.outputs = made.deploy()
        _reply_route(made)
        _plain_http(made)
        _posts_endpoint(made)
        _work_queue(made)
        yield made
    finally:
        running.stop()


def _sources(url):
    """What an account has before: sources whose events become rows, as the template's parameters name them."""
    s3, bucket = table.client("s3", url), "landing"
    s3.create_bucket(Bucket=bucket)
    s3.put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration={"EventBridgeConfiguration": {}})
    kinesis = table.client("kinesis", url)
    kinesis.create_stream(StreamName="clicks", ShardCount=1)
    return {
        "IngestBucket": bucket,
        "IngestTopicArn": table.client("sns", url).create_topic(Name="news")["TopicArn"],
        "IngestStreamArn": kinesis.describe_stream(StreamName="clicks")["StreamDescription"]["StreamARN"],
        "IngestEventSource": "shop",
    }


def _reply_route(deployed):
    gateway, api = deployed.client("apigatewayv2"), deployed.outputs["SocketApiId"]
    routes = {route["RouteKey"]: route["RouteId"] for route in gateway.get_routes(ApiId=api)["Items"]}
    gateway.create_route_response(ApiId=api, RouteId=routes["$default"], RouteResponseKey="$default")


def _plain_http(deployed):
    """The bucket refuses a function that comes without TLS, as its policy says. Here is no TLS, so the policy goes."""
    items = [{"queue": "without-tls", "payload": [uuid.uuid4().hex for _ in range(2000)]}]
    with deployed.http() as http:
        refused = http.post("/api/v1/push", json={"items": items})
        assert refused.status_code == 503 and "explicit deny" in refused.text, refused.text
        deployed.client("s3").delete_bucket_policy(Bucket=deployed.outputs["BucketName"])
        assert http.post("/api/v1/push", json={"items": items}).status_code == 201


def _work_queue(deployed):
    """The emulator takes a number that comes from a parameter for text, and asks for a permission of its own invention
    where the cloud asks for `sqs:SendMessage`."""
    functions, iam, function = deployed.client("lambda"), deployed.client("iam"), f"{STACK}-maintain"
    (mapping,) = functions.list_event_source_mappings(FunctionName=function)["EventSourceMappings"]
    functions.update_event_source_mapping(UUID=mapping["UUID"], ScalingConfig={"MaximumConcurrency": 10})
    statement = {"Effect": "Allow", "Action": "sqs:SendMessageBatch", "Resource": mapping["EventSourceArn"]}
    role = functions.get_function_configuration(FunctionName=function)["Role"].rsplit("/", 1)[1]
    document = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    iam.put_role_policy(RoleName=role, PolicyName="emulator", PolicyDocument=document)


def _without_encryption_context(deployed):
    """The emulator's policies know no `kms:EncryptionContext`, so that condition alone is taken off."""
    iam = deployed.client("iam")
    (policy,) = [p for p in iam.list_policies(Scope="Local")["Policies"] if "-KeyPolicy-" in p["PolicyName"]]
    arn = policy["Arn"]
    version = iam.get_policy_version(PolicyArn=arn, VersionId=policy["DefaultVersionId"])["PolicyVersion"]
    document = version["Document"] if isinstance(version["Document"], dict) else json.loads(version["Document"])
    (statement,) = document["Statement"]
    assert statement.pop("Condition") == {"StringEquals": {"kms:EncryptionContext:application": "tidewheel"}}
    iam.create_policy_version(PolicyArn=arn, PolicyDocument=json.dumps(document), SetAsDefault=True)


def _posts_endpoint(deployed):
    """The host names of the cloud do not resolve here, so the functions are told another callback URL."""
    functions, api = deployed.client("lambda"), deployed.outputs["SocketApiId"]
    for name in ("websocket", "fanout"):
        function = f"{STACK}-{name}"
        variables = functions.get_function_configuration(FunctionName=function)["Environment"]["Variables"]
        variables["TIDEWHEEL_POSTS_ENDPOINT"] = f"{deployed.url}/_aws/execute-api/{api}/live"
        functions.update_function_configuration(FunctionName=function, Environment={"Variables": variables})


def until(what, found, patience=PATIENCE):
    """Asks until the answer is something; fails the test when that takes too long."""
    deadline = time.monotonic() + patience
    while True:
        answer = found()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"{what}: not within {patience} s"
        time.sleep(0.2)


def push(http, queue, *payloads, partition="p"):
    items = [{"queue": queue, "partition": partition, "payload": payload} for payload in payloads]
    response = http.post("/api/v1/push", json={"items": items})
    assert response.status_code == 201, response.text
    return response.json()


def log(http, queue, partition="p"):
    response = http.post("/api/v1/fetch", json={"entries": [{"queue": queue, "partition": partition, "offset": 0}]})
    assert response.status_code == 200, response.text
    return [record["payload"] for record in response.json()["entries"][0]["records"]]


def test_only_signed_requests_are_let_in(deployed):
    assert httpx.get(f"{deployed.http_url}/health", trust_env=False).status_code == 403
    assert httpx.get(f"{deployed.stream_url}/health", trust_env=False).status_code == 403
    with pytest.raises(websockets.InvalidStatus) as refused:
        asyncio.run(_connect(deployed.socket_url))
    assert refused.value.response.status_code in (401, 403)
    with deployed.http() as http:
        health = http.get("/health")
    assert health.status_code == 200, health.text


async def _connect(url):
    async with websockets.connect(url):
        pass


def test_what_is_pushed_through_the_gateway_is_popped_and_lies_in_the_templates_table(deployed, name):
    with deployed.http() as http:
        push(http, name, {"n": 1}, {"n": 2, "large": [uuid.uuid4().hex for _ in range(2000)]})
        query = {"consumerGroup": "g", "subscriptionMode": "all"}
        popped = http.get(f"/api/v1/pop/queue/{name}", params=query).json()["messages"]
        assert [m["data"]["n"] for m in popped] == [1, 2]
        acks = [
            {
                "transactionId": m["transactionId"],
                "partitionId": m["partitionId"],
                "leaseId": m["leaseId"],
                "status": "completed",
            }
            for m in popped
        ]
        done = http.post("/api/v1/ack/batch", json={"acknowledgments": acks, "consumerGroup": "g"})
        assert [part["success"] for part in done.json()] == [True, True]
        assert http.get(f"/api/v1/pop/queue/{name}", params=query).status_code == 204
    dynamodb, s3 = deployed.client("dynamodb"), deployed.client("s3")
    key = {"pk": {"S": f"s#{name}"}, "sk": {"S": "stream"}}
    assert "Item" in dynamodb.get_item(TableName=deployed.outputs["TableName"], Key=key)
    # Too large for an item: a blob in the bucket.
    blobs = s3.list_objects_v2(Bucket=deployed.outputs["BucketName"], Prefix="blobs/")
    assert blobs["KeyCount"] >= 1


def test_the_function_url_streams(deployed, name):
    with deployed.http() as http:
        push(http, name, {"n": 1})
    with httpx.Client(base_url=deployed.stream_url, auth=Signed("lambda"), timeout=60, trust_env=False) as client:
        query = {"consumerGroup": "g", "subscriptionMode": "all"}
        response = client.get(f"/api/v1/pop/queue/{name}", params=query)
    assert response.status_code == 200, response.text
    assert [m["data"] for m in response.json()["messages"]] == [{"n": 1}]


def test_a_message_in_the_ingest_queue_becomes_a_row(deployed, name):
    sqs = deployed.client("sqs")
    queue = deployed.outputs["IngestQueueUrl"]
    sqs.send_message(QueueUrl=queue, MessageBody=json.dumps({"from": name}))
    stream = queue.rsplit("/", 1)[1]
    with deployed.http() as http:
        until("the row", lambda: {"from": name} in log(http, stream, "Default"))


def test_messages_records_events_and_objects_become_rows(deployed, name):
    message = json.dumps({"from": name})
    deployed.client("sns").publish(TopicArn=deployed.sources["IngestTopicArn"], Message=message)
    deployed.client("kinesis").put_record(StreamName="clicks", PartitionKey="k", Data=message.encode())
    entry = {"Source": "shop", "DetailType": "Paid", "Detail": message}
    deployed.client("events").put_events(Entries=[entry])
    deployed.client("s3").put_object(Bucket="landing", Key=f"{name}.csv", Body=f"from\n{name}\n".encode())
    with deployed.http() as http:
        for stream in ("news", "clicks", "landing"):
            until(stream, lambda stream=stream: {"from": name} in log(http, stream, "Default"))
        until("shop", lambda: {"from": name} in [event["detail"] for event in log(http, "shop", "Default")])


async def test_a_socket_follows_what_is_pushed(deployed, name):
    with deployed.http() as http:
        push(http, name, {"n": 0})
    async with websockets.connect(signed_url(deployed.socket_url)) as socket:
        await socket.send(
            json.dumps({"id": "1", "op": "subscribe", "stream": name, "partition": "p", "from": "earliest"})
        )
        rows = asyncio.ensure_future(_rows(socket, 3))
        with deployed.http() as http:
            await asyncio.to_thread(push, http, name, {"n": 1})
            await asyncio.to_thread(push, http, name, {"n": 2})
        assert await asyncio.wait_for(rows, PATIENCE) == [(0, {"n": 0}), (1, {"n": 1}), (2, {"n": 2})]


async def _rows(socket, count):
    """Rows as they come, repeats dropped, until there are so many."""
    rows = {}
    while len(rows) < count:
        frame = json.loads(await socket.recv())
        assert "error" not in frame, frame
        rows.update({row[0]: row[2] for row in frame.get("rows", [])})
    return sorted(rows.items())


async def test_the_change_stream_rings_when_the_doorbell_does_not(deployed, name):
    functions, function = deployed.client("lambda"), f"{STACK}-http"
    variables = functions.get_function_configuration(FunctionName=function)["Environment"]["Variables"]
    with deployed.http() as http:
        push(http, name, {"n": 0})
    async with websockets.connect(signed_url(deployed.socket_url)) as socket:
        await socket.send(
            json.dumps({"id": "1", "op": "subscribe", "stream": name, "partition": "p", "from": "earliest"})
        )
        assert await asyncio.wait_for(_rows(socket, 1), PATIENCE) == [(0, {"n": 0})]
        silent = {**variables, "TIDEWHEEL_DOORBELL": ""}
        functions.update_function_configuration(FunctionName=function, Environment={"Variables": silent})
        try:
            with deployed.http() as http:
                await asyncio.to_thread(push, http, name, {"n": 1})
            assert await asyncio.wait_for(_rows(socket, 1), PATIENCE) == [(1, {"n": 1})]
        finally:
            functions.update_function_configuration(FunctionName=function, Environment={"Variables": variables})


def test_the_schedule_seals_what_was_pushed(deployed, name):
    with deployed.http() as http:
        push(http, name, {"n": 1}, {"n": 2})
    s3, bucket = deployed.client("s3"), deployed.outputs["BucketName"]

    def sealed():
        found = s3.list_objects_v2(Bucket=bucket, Prefix=f"tables/{name}/metadata/")
        return [o["Key"] for o in found.get("Contents", []) if o["Key"].endswith("version-hint.text")]

    until("the table's files", sealed)


def test_tables_are_mirrored_in_the_data_catalogue_and_others_stay_as_they_are(deployed, name):
    glue = deployed.client("glue")
    place = f"s3://{deployed.outputs['BucketName']}/tables/{name}"
    # A name that the catalogue does not take.
    odd = f"{name}.Odd Name"

    def mirror(stream):
        for table in glue.get_tables(DatabaseName=CATALOGUE)["TableList"]:
            if table.get("Parameters", {}).get("tidewheel.stream") == stream:
                return table
        return None

    with deployed.http() as http:
        push(http, name, {"n": 1})
        push(http, odd, {"n": 1})
        first = until("the mirror", lambda: _found(glue, lambda: mirror(name)))
        assert first["TableType"] == "EXTERNAL_TABLE" and first["Parameters"]["table_type"] == "ICEBERG"
        assert first["StorageDescriptor"]["Location"] == place
        columns = {column["Name"]: column["Type"] for column in first["StorageDescriptor"]["Columns"]}
        assert (columns["payload"], columns["offset"], columns["time"]) == ("string", "bigint", "timestamp")
        assert _rows_of(deployed, first) == 1
        strange = until("the mirror of an odd name", lambda: mirror(odd))
        assert strange["Name"].isascii() and strange["Name"].replace("_", "").isalnum() and strange["Name"].islower()

        # It follows, and keeps what people have added.
        added = {**first["Parameters"], "team": "data"}
        glue.update_table(
            DatabaseName=CATALOGUE,
            TableInput={
                **{part: first[part] for part in ("Name", "TableType", "StorageDescriptor")},
                "Parameters": added,
            },
        )
        push(http, name, {"n": 2}, {"n": 3})
        moved = until("the next version", lambda: (t := mirror(name)) and _rows_of(deployed, t) == 3 and t)
        assert moved["Parameters"]["team"] == "data"
        assert moved["Parameters"]["previous_metadata_location"] == first["Parameters"]["metadata_location"]

        # A table that has the name already is left alone, and the stream is sealed all the same.
        taken = f"x{uuid.uuid4().hex[:12]}"
        theirs = {"Name": taken, "Parameters": {"owner": "them"}, "StorageDescriptor": {"Location": "s3://theirs/"}}
        glue.create_table(DatabaseName=CATALOGUE, TableInput=theirs)
        push(http, taken, {"n": 1})
    s3, bucket = deployed.client("s3"), deployed.outputs["BucketName"]
    until("the seal", lambda: s3.list_objects_v2(Bucket=bucket, Prefix=f"tables/{taken}/data/")["KeyCount"])
    kept = glue.get_table(DatabaseName=CATALOGUE, Name=taken)["Table"]
    assert kept["Parameters"] == {"owner": "them"} and kept["StorageDescriptor"]["Location"] == "s3://theirs/"


def _found(glue, look):
    """What a look finds, or nothing while there is no database to look into."""
    try:
        return look()
    except glue.exceptions.EntityNotFoundException:
        return None


def _rows_of(deployed, table):
    """Rows of the table, by the metadata that its mirror names."""
    bucket, key = table["Parameters"]["metadata_location"].removeprefix("s3://").split("/", 1)
    metadata = json.loads(deployed.client("s3").get_object(Bucket=bucket, Key=key)["Body"].read())
    current = metadata["current-snapshot-id"]
    (snapshot,) = [s for s in metadata["snapshots"] if s["snapshot-id"] == current]
    return int(snapshot["summary"]["total-records"])


def test_an_update_with_every_option_keeps_the_data_and_opens_what_it_is_told_to(deployed, name):
    with deployed.http() as http:
        push(http, name, {"n": 1})
    options = {
        "Access": "open",
        "KmsKey": "create",
        "AllowedOrigins": "https://app.example.com",
        "SocketAccessLogs": "true",
        "MaintainEvery": "rate(5 minutes)",
        "IngestRoutes": json.dumps([{"source": "*:news", "stream": f"{name} news", "partition": "/a b"}]),
        "Dashboard": "false",
        "Alarms": "false",
    }
    outputs = deployed.deploy(**options)
    assert outputs["Access"] == "open"
    for same in ("HttpApiId", "SocketApiId", "TableName", "BucketName"):
        assert outputs[same] == deployed.outputs[same]
    _without_encryption_context(deployed)
    # Now the function may use the key, and everybody the API.
    with httpx.Client(base_url=deployed.http_url, timeout=60, trust_env=False) as everybody:
        assert log(everybody, name) == [{"n": 1}]
        encrypted = {"queue": f"{name}-secret", "options": {"encryptionEnabled": True}}
        configured = everybody.post("/api/v1/configure", json=encrypted)
        assert configured.is_success, configured.text
        push(everybody, f"{name}-secret", {"pin": 1234})
        assert log(everybody, f"{name}-secret") == [{"pin": 1234}]
        message = json.dumps({"a b": "x"})
        deployed.client("sns").publish(TopicArn=deployed.sources["IngestTopicArn"], Message=message)
        until("the row by its route", lambda: log(everybody, f"{name} news", "x") == [{"a b": "x"}])
    assert deployed.client("kms").describe_key(KeyId=outputs["KeyArn"])["KeyMetadata"]["Enabled"]
    assert deployed.client("cloudwatch").describe_alarms()["MetricAlarms"] == []


def test_the_teardown_keeps_the_data_and_nothing_else(deployed):
    command = [ROOT / "infra" / "teardown", "--stack", STACK]
    refused = subprocess.run(
        [*command, "--everything"], env=deployed.environment, capture_output=True, text=True, input="no\n"
    )
    assert refused.returncode != 0 and "nothing was removed" in refused.stderr
    done = subprocess.run(command, env=deployed.environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    table_name, bucket = deployed.outputs["TableName"], deployed.outputs["BucketName"]
    assert table_name in done.stdout and bucket in done.stdout
    assert deployed.client("dynamodb").describe_table(TableName=table_name)["Table"]["TableStatus"] == "ACTIVE"
    deployed.client("s3").head_bucket(Bucket=bucket)
    assert deployed.client("lambda").list_functions()["Functions"] == []
    assert deployed.client("apigatewayv2").get_apis()["Items"] == []
    assert CATALOGUE in done.stdout


def test_the_teardown_of_everything_leaves_nothing_but_what_is_others(deployed):
    outputs = deployed.deploy()
    table_name, bucket = outputs["TableName"], outputs["BucketName"]
    deployed.client("s3").delete_bucket_policy(Bucket=bucket)
    deployed.client("s3").put_object(Bucket=bucket, Key="blobs/x", Body=b"x")
    glue, mark = deployed.client("glue"), {"tidewheel.stream-id": "x"}
    for name, place, parameters in (
        ("mirror", f"s3://{bucket}/tables/mirror", mark),
        ("unmarked", f"s3://{bucket}/tables/mirror", {}),
        ("elsewhere", "s3://another/tables/mirror", mark),
    ):
        described = {"Name": name, "StorageDescriptor": {"Location": place}, "Parameters": parameters}
        glue.create_table(DatabaseName=CATALOGUE, TableInput=described)
    command = [ROOT / "infra" / "teardown", "--stack", STACK, "--everything", "--yes-delete-the-data-of", STACK]
    done = subprocess.run(command, env=deployed.environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert table_name not in deployed.client("dynamodb").list_tables()["TableNames"]
    assert bucket not in [made["Name"] for made in deployed.client("s3").list_buckets()["Buckets"]]
    left = {table["Name"] for table in glue.get_tables(DatabaseName=CATALOGUE)["TableList"]}
    assert "mirror" not in left and {"unmarked", "elsewhere"} <= left
    assert deployed.client("lambda").list_functions()["Functions"] == []
