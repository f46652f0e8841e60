"""What becomes rows: objects of the bucket, and streams that are encrypted with a key of the key service."""

import json
import uuid

import pytest
import table


def created(bucket, key, etag):
    """The event of EventBridge for a new object."""
    detail = {"bucket": {"name": bucket}, "object": {"key": key, "etag": etag.strip('"')}}
    return {
        "version": "0",
        "id": uuid.uuid4().hex,
        "source": "aws.s3",
        "detail-type": "Object Created",
        "detail": detail,
    }


@pytest.mark.parametrize(
    ("ending", "content", "rows"),
    [
        ("jsonl", '{"n": 1.0}\n{"n": 2}\nbad\n', [{"n": 1.0}, {"n": 2}]),
        ("csv", 'n,name\n1,"a ""b"""\n2\n3,é\n', [{"n": "1", "name": 'a "b"'}, {"n": "3", "name": "é"}]),
    ],
)
async def test_an_object_becomes_rows_once_and_tells_of_its_bad_ones(world, name, ending, content, rows):
    async with world() as w:
        s3 = table.client("s3", w.endpoints.s3)
        key = f"sales/é {name}.{ending}"
        tag = s3.put_object(Bucket=w.bucket, Key=key, Body=content.encode())["ETag"]
        for _ in range(2):
            answer = await w.ingest.invoke(created(w.bucket, key, tag))
            assert answer.json() == {"objects": 1}
        assert await w.log(w.bucket, "Default") == list(enumerate(rows))
        ((_, told),) = await w.log(f"{w.bucket}-rejected", "Default")
        assert told["source"] == f"arn:aws:s3:::{w.bucket}/{key}" and told["error"]
        # Another object under the same name is another event's.
        s3.put_object(Bucket=w.bucket, Key=key, Body=b'{"n": 9}\n')
        assert (await w.ingest.invoke(created(w.bucket, key, tag))).error is None
        assert len(await w.log(w.bucket, "Default")) == len(rows)


async def test_an_object_that_is_larger_than_one_invocation_goes_on_through_the_queue(world, name):
    sources = {"TIDEWHEEL_INGEST": json.dumps([{"source": "arn:aws:s3:::*", "stream": name, "partition": "p"}])}
    async with world(environment=sources) as w:
        sqs = table.client("sqs", w.endpoints.stack)
        queue = sqs.create_queue(QueueName=f"q-{uuid.uuid4().hex}")["QueueUrl"]
        w.ingest.environment["TIDEWHEEL_QUEUE"] = queue
        # Below the time that is kept for the last commit: each invocation stops before it begins.
        w.ingest.timeout = 15
        s3 = table.client("s3", w.endpoints.s3)
        tag = s3.put_object(Bucket=w.bucket, Key="a.jsonl", Body=b"".join(b"%d\n" % n for n in range(2500)))["ETag"]
        assert (await w.ingest.invoke(created(w.bucket, "a.jsonl", tag))).error is None
        assert await w.log(name) == []
        (message,) = sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=5)["Messages"]
        record = {
            "messageId": message["MessageId"],
            "receiptHandle": "r",
            "body": message["Body"],
            "attributes": {},
            "messageAttributes": {},
            "eventSource": "aws:sqs",
            "eventSourceARN": "arn:aws:sqs:us-east-1:000000000000:ingest",
            "awsRegion": "us-east-1",
        }
        w.ingest.timeout = 300
        assert (await w.ingest.invoke({"Records": [record]})).json() == {"batchItemFailures": []}
        assert await w.log(name) == [(n, n) for n in range(2500)]


async def test_an_encrypted_stream_lies_in_no_clear_text_and_is_read_by_another_process(world, name, endpoints):
    kms = table.client("kms", endpoints.stack)
    key = kms.create_key()["KeyMetadata"]["Arn"]
    async with world(environment={"TIDEWHEEL_KMS_KEY": key}) as w:
        options = {"queue": name, "options": {"encryptionEnabled": True}}
        assert (await w.client.post("/api/v1/configure", json=options)).is_success
        secret = f"secret-{uuid.uuid4().hex}"
        assert (await w.push(name, {"pin": secret})).status_code == 201
        items = table.client("dynamodb", endpoints.dynamodb).scan(TableName=w.table)["Items"]
        assert items and secret not in repr(items)
        (environment,) = w.http.environments
        await environment.stop()
        assert [m["data"] for m in await w.pop(name)] == [{"pin": secret}]

    # Without the key nothing is stored in the clear instead.
    async with world() as w:
        await w.client.post("/api/v1/configure", json=options)
        refused = await w.push(name, {"pin": secret})
        assert '"failed"' in refused.text or not refused.is_success, refused.text
