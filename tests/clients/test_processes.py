"""The server as a process: one per data folder, polite under SIGTERM, safe under SIGKILL."""

import asyncio
import json
import os
import subprocess
import time

import httpx
import pytest

from conftest import queen_at
from consuming import drain, push
from stack import StackFailed


def test_a_second_process_on_the_same_data_is_refused(own_stack):
    first = own_stack().start()
    second = own_stack()
    with pytest.raises(StackFailed) as refused:
        second.start()
    assert refused.value.status not in (0, None)
    said = refused.value.log.lower()
    assert str(first.data) in refused.value.log and ("already" in said or "in use" in said or "locked" in said), (
        said
    )
    assert httpx.get(f"{first.url}/health", trust_env=False).status_code == 200


def test_a_taken_port_is_refused_with_its_name(own_stack):
    first = own_stack("one").start()
    second = own_stack("two")
    second.port = first.port
    with pytest.raises(StackFailed) as refused:
        second.start()
    assert f"127.0.0.1:{first.port}" in refused.value.log


def test_every_option_is_explained_and_has_an_environment_variable(binary):
    text = subprocess.run([binary, "serve", "--help"], check=True, stdout=subprocess.PIPE, text=True).stdout
    for option, variable in (
        ("--listen", "TIDEWHEEL_LISTEN"),
        ("--data", "TIDEWHEEL_DATA"),
        ("--seal-every", "TIDEWHEEL_SEAL_EVERY"),
    ):
        assert option in text and variable in text, text


def test_the_environment_is_enough(binary, tmp_path):
    environment = {**os.environ, "TIDEWHEEL_LISTEN": "127.0.0.1:0", "TIDEWHEEL_DATA": str(tmp_path / "data")}
    process = subprocess.Popen(
        [binary, "serve"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert any(line.startswith("listening on http://127.0.0.1:") for line in process.stdout)
        assert (tmp_path / "data").is_dir()
    finally:
        process.kill()
        process.wait()


def test_health_and_metrics_answer(http):
    health = http.get("/health")
    assert health.status_code == 200 and health.json()["status"] == "healthy"
    metrics = http.get("/metrics/prometheus")
    assert metrics.status_code == 200 and "tidewheel_" in metrics.text
    assert all(line.startswith("#") or len(line.rsplit(" ", 1)) == 2 for line in metrics.text.splitlines() if line)


async def test_sigterm_answers_what_it_has_taken_and_ends_in_peace(own_stack, name):
    stack = own_stack().start()
    answered = {}

    async def keep_pushing(queen, producer):
        n = 0
        while True:
            answers = await push(queen, name, [n], partition=str(producer), ids=[f"{producer}-{n}"])
            answered[answers[0]["transaction_id"]] = answers[0]["status"]
            n += 1

    async with queen_at(stack.url, retry_attempts=1) as queen:
        waiting = asyncio.create_task(
            queen.queue(f"{name}-empty").group("g").wait(True).timeout_millis(30_000).pop()
        )
        producers = [asyncio.create_task(keep_pushing(queen, producer)) for producer in range(4)]
        while len(answered) < 100:
            await asyncio.sleep(0.01)
        begun = time.monotonic()
        status = await asyncio.to_thread(stack.terminate)
        assert status == 0, stack.said()
        assert time.monotonic() - begun < 20, "a waiting pop must not hold up the end"
        await asyncio.gather(*producers, waiting, return_exceptions=True)
    assert set(answered.values()) == {"queued"}
    stack.start()
    async with queen_at(stack.url) as queen:
        await drain(queen, name, "g", want=answered.keys())


async def test_sigkill_loses_nothing_that_was_acknowledged(own_stack, name):
    """Pushes and acknowledgements under way at every kill; offsets must stay dense and nothing may come back."""
    stack = own_stack().start()
    # `tried` holds what an acknowledgement was sent for: if its answer was lost, it may have counted or not.
    answered, tried, done, producers = {}, set(), set(), 4
    rounds = 10

    async def keep_pushing(queen, producer, round_):
        n = 0
        while True:
            transaction_id = f"{producer}-{round_}-{n}"
            answers = await push(
                queen,
                name,
                [transaction_id] * 3,
                partition=str(producer),
                ids=[f"{transaction_id}-{i}" for i in range(3)],
            )
            for i, answer in enumerate(answers):
                answered[f"{transaction_id}-{i}"] = answer["status"]
            n += 1

    async def keep_consuming(queen):
        while True:
            messages = await (
                queen.queue(name)
                .group("g")
                .subscription_mode("all")
                .batch(50)
                .partitions(producers)
                .wait(True)
                .timeout_millis(1000)
                .pop()
            )
            tried.update(message["transactionId"] for message in messages)
            if messages and (await queen.ack(messages, True, {"group": "g"}))["success"] is True:
                for message in messages:
                    assert message["transactionId"] not in done, "acknowledged before, delivered again"
                    done.add(message["transactionId"])

    for round_ in range(rounds):
        async with queen_at(stack.url, retry_attempts=1) as queen:
            if round_ == 0:
                await queen.queue(name).config({"lease_time": 2}).create()
            tasks = [asyncio.create_task(keep_pushing(queen, producer, round_)) for producer in range(producers)]
            tasks.append(asyncio.create_task(keep_consuming(queen)))
            before = len(answered)
            while len(answered) < before + 150:
                await asyncio.sleep(0.01)
                failed = [task for task in tasks if task.done()]
                assert not failed, failed
            stack.kill()
            # Producers end with an error; the consumer would go on asking.
            await asyncio.wait(tasks[:producers], timeout=5)
            for task in tasks:
                task.cancel()
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                assert not isinstance(ended, AssertionError), ended
        stack.start()

    async with queen_at(stack.url) as queen:
        everything = await drain(queen, name, "from the start", want=answered.keys())
        rest = await drain(queen, name, "g", want=answered.keys() - tried)
    assert len(everything) == len({message["transactionId"] for message in everything}), "stored twice"
    for partition in {message["partition"] for message in everything}:
        offsets = [message["offset"] for message in everything if message["partition"] == partition]
        assert offsets == list(range(len(offsets)))
    assert done.isdisjoint(message["transactionId"] for message in rest)


async def test_logs_can_be_json(own_stack, name):
    stack = own_stack(environment={"TIDEWHEEL_LOG_FORMAT": "json", "TIDEWHEEL_LOG": "info"}).start()
    async with queen_at(stack.url) as queen:
        await push(queen, name, [1])
    assert stack.terminate() == 0
    lines = [line for line in stack.log.read_text().splitlines() if line.startswith("{")]
    assert lines and all(json.loads(line) for line in lines)
