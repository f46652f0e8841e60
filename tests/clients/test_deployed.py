"""The binary on the deployed store (emulators of DynamoDB and S3): the main job, several servers at once, bad starts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import websockets
from shared_store import deployed
from flights import tables
from stack import Stack, StackFailed
from test_readme import BLOCKS
from websockets.sync.client import connect

CLIENTS = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def store():
    with deployed() as store:
        yield store


@pytest.fixture
def servers(binary, store, tmp_path):
    """Makes servers on the one store; none of them is left running."""
    made = []

    def make(**options):
        made.append(Stack(binary, tmp_path / f"server{len(made)}", store=store, **options))
        return made[-1]

    yield make
    for one in made:
        one.kill()


def push(server, queue, numbers):
    items = [{"queue": queue, "partition": "p", "payload": {"n": n}, "transactionId": f"{queue}-{n}"} for n in numbers]
    answer = httpx.post(f"{server.url}/api/v1/push", json={"items": items}, timeout=60, trust_env=False)
    assert answer.status_code == 201, answer.text
    return [item["status"] for item in answer.json()]


def test_the_main_job_on_the_deployed_store(binary):
    options = ["--rows", "4000", "--lease", "5", "--batch", "500", "--push-batch", "100", "--seal-every", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "flights.job", "--binary", binary, "--store", "dynamodb", *options],
        cwd=CLIENTS,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout
    for line in ("all rows are published in the bucket", "the server was killed and came back"):
        assert f"{line}\n" in done.stdout
    assert "FAIL" not in done.stdout and "PASS  PyIceberg: each flight once" in done.stdout


async def test_what_one_server_takes_another_serves(servers, store, name):
    """Pushes, pops, sockets and tables on different servers; one of them dies, and nobody misses it."""
    first, second = servers(seal_every=0.2).start(), servers(seal_every=0.2).start()
    assert push(first, name, range(50)) == ["queued"] * 50
    assert push(second, name, range(40, 60)) == ["duplicate"] * 10 + ["queued"] * 10

    async with websockets.connect(f"{second.socket_url}/{name}?partition=p&offset=0", proxy=None) as socket:
        assert "end_offset" in json.loads(await socket.recv())
        replayed = [json.loads(await socket.recv())[2]["n"] for _ in range(60)]
        assert replayed == list(range(60))
        # Nobody tells this server: it looks.
        push(first, name, range(60, 65))
        assert [json.loads(await socket.recv())[2]["n"] for _ in range(5)] == list(range(60, 65))

    pop = {"consumerGroup": "g", "subscriptionMode": "all", "batch": 1000, "wait": "true", "timeout": 20000}
    url = f"{second.url}/api/v1/pop/queue/{name}"
    popped = httpx.get(url, params=pop, timeout=60, trust_env=False).json()["messages"]
    assert [message["data"]["n"] for message in popped] == list(range(65))

    # The lease is the store's: the other server gives out nothing of it.
    url = f"{first.url}/api/v1/pop/queue/{name}"
    again = httpx.get(url, params={**pop, "wait": "false"}, timeout=60, trust_env=False)
    assert again.status_code == 204, again.text

    first.kill()
    push(second, name, range(65, 80))
    table = tables.bucket_of(store, name)
    assert tables.wait_for(table, 80, 60) == 80
    query = f"select count(*), count(distinct \"offset\"), max(\"offset\") from iceberg_scan('{table}')"
    assert tables.duck(table).sql(query).fetchone() == (80, 80, 79)
    assert second.terminate() == 0


def test_a_server_that_seals_nothing_leaves_it_to_others(servers, store, name):
    quiet = servers(seal_every=0, environment={"TIDEWHEEL_MAINTAIN_EVERY": "0"}).start()
    push(quiet, name, range(10))
    assert quiet.terminate() == 0
    table = tables.bucket_of(store, name)
    assert tables.published(table) == 0
    sealing = servers(seal_every=0.2).start()
    assert tables.wait_for(table, 10, 60) == 10
    assert sealing.terminate() == 0


def test_the_relay_of_the_front_page(binary, servers, store, name, tmp_path):
    """The command as the page has it, beside a server that does the rest."""
    command = BLOCKS["relay"].strip().replace("<table>", store.table).replace("<bucket>", store.bucket)
    assert f" {binary} serve " in (command := command.replace(" tidewheel serve ", f" {binary} serve "))
    environment = {**os.environ, **store.environment, "TIDEWHEEL_LISTEN": "127.0.0.1:0"}
    for told in ("TIDEWHEEL_STORE", "TIDEWHEEL_TABLE", "TIDEWHEEL_BUCKET"):
        environment.pop(told)
    relay = subprocess.Popen(
        ["bash", "-c", f"exec env {command}"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        said = next(line for line in relay.stdout if line.startswith("listening on "))
        other = servers(seal_every=0).start()
        push(other, name, range(3))
        with connect(f"ws://{said.strip().rpartition('//')[2]}/{name}?partition=p&offset=0", proxy=None) as socket:
            assert "end_offset" in json.loads(socket.recv())
            assert [json.loads(socket.recv())[2]["n"] for _ in range(3)] == [0, 1, 2]
    finally:
        relay.kill()
        relay.wait()


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        ({"TIDEWHEEL_TABLE": ""}, 2, "TIDEWHEEL_TABLE is not set"),
        ({"TIDEWHEEL_BUCKET": ""}, 2, "TIDEWHEEL_BUCKET is not set"),
        ({"TIDEWHEEL_TABLE": "misspelt"}, 1, "table `misspelt` does not exist in region `us-east-1`"),
        ({"TIDEWHEEL_BUCKET": "misspelt"}, 1, "bucket `misspelt` does not exist"),
        ({"AWS_ENDPOINT_URL_DYNAMODB": "http://127.0.0.1:9"}, 1, "table `tidewheel-test` cannot be reached"),
        ({"AWS_REGION": "", "AWS_DEFAULT_REGION": "", "AWS_EC2_METADATA_DISABLED": "true"}, 2, "set AWS_REGION"),
        (
            {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_EC2_METADATA_DISABLED": "true"},
            1,
            "no credentials are found",
        ),
    ],
)
def test_a_start_that_cannot_be_says_why(servers, change, status, said):
    with pytest.raises(StackFailed) as failed:
        servers(environment=change).start()
    assert failed.value.status == status, failed.value.log
    assert said in failed.value.log
    assert "panicked" not in failed.value.log
