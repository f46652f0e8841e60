"""The HTTP function behind the gateway's shapes and limits."""

import asyncio
from urllib.parse import quote

import httpx
import pytest
from double.gateway import HttpFront
from world import done


async def test_names_of_any_letters_come_through_both_gateways(world, name):
    async with world() as w:
        queue = f"{name} é%41?#+"
        await w.push(queue, 1, partition="a/b c")
        for base in (w.url, w.stream_url):
            async with httpx.AsyncClient(base_url=base, timeout=60, trust_env=False) as client:
                path = f"/api/v1/pop/queue/{quote(queue, safe='')}"
                response = await client.get(path, params={"consumerGroup": base, "subscriptionMode": "all"})
                assert response.status_code == 200, (path, response.text)
                assert [m["partition"] for m in response.json()["messages"]] == ["a/b c"]


async def test_a_slash_in_a_name_needs_the_function_url(world, name):
    async with world() as w:
        await w.push(name, 1, partition="a/b")
        path = f"/api/v1/pop/queue/{name}/partition/a%2Fb?consumerGroup=g&subscriptionMode=all"
        async with httpx.AsyncClient(base_url=w.stream_url, timeout=60, trust_env=False) as client:
            assert (await client.get(path)).status_code == 200
        # The HTTP API decodes it, and then it is one segment more.
        assert (await w.client.get(path)).status_code == 404


@pytest.mark.parametrize("stage", ["$default", "live"])
async def test_a_stage_is_no_part_of_the_path(world, stage):
    async with world() as w, HttpFront(w.http, stage=stage) as front:
        async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
            root = (await client.get(front.url + "/")).json()
            assert root["health"] == "/health"
            assert (await client.get(front.url + root["health"])).status_code == 200
            page = await client.get(front.url + "/", headers={"accept": "text/html"}, follow_redirects=True)
            assert page.status_code == 200 and "text/html" in page.headers["content-type"]


async def test_bodies_over_the_limits_are_413_and_name_them(world, name):
    async with world() as w:
        binary = {"content-type": "application/octet-stream"}
        response = await w.client.post("/api/v1/push", content=b"x" * 4_719_000, headers=binary)
        assert response.status_code == 413, response.text
        # This one the platform refuses by itself, before any function sees it.
        response = await w.client.post("/api/v1/push", content=b"x" * 7_000_000, headers=binary)
        assert response.status_code == 413
        # A body in base64 is a body like any other.
        item = b'{"items": [{"queue": "%s", "partition": "p", "payload": 1.0}]}' % name.encode()
        response = await w.client.post("/api/v1/push", content=item, headers=binary)
        assert response.status_code == 201, response.text
        assert await w.log(name) == [(0, 1.0)]


async def test_a_pop_never_outlives_its_function(world, name):
    async with world(timeout=6) as w:
        await w.push(name, 1)
        assert len(await w.pop(name)) == 1
        response = await w.client.get(
            f"/api/v1/pop/queue/{name}", params={"consumerGroup": "g", "wait": "true", "timeout": 60_000}
        )
        assert response.status_code == 204
        assert len(w.http.environments) == 1, "the function was not ended by its deadline"


async def test_a_waiting_pop_sees_what_another_process_pushes(world, name):
    async with world() as w:
        await w.push(name, 0)
        first = await w.pop(name)
        await w.ack(first)
        waiting = asyncio.ensure_future(w.pop(name, wait="true", timeout=20_000))
        while not any(e.current for e in w.http.environments):
            await asyncio.sleep(0)
        await w.push(name, 1)
        assert [m["data"] for m in await waiting] == [1]
        assert len(w.http.environments) == 2, "a waiting pop and a push are two processes"


async def test_a_long_reply_streams_through_the_function_url_and_is_split_by_the_http_api(world, name):
    async with world() as w:
        payload = "x" * 1_000_000
        for n in range(7):
            assert (await w.push(name, f"{n}{payload}")).status_code == 201
        async with httpx.AsyncClient(base_url=w.stream_url, timeout=60, trust_env=False) as client:
            query = {"consumerGroup": "whole", "subscriptionMode": "all", "batch": 100}
            response = await client.get(f"/api/v1/pop/queue/{name}", params=query)
        assert response.status_code == 200
        assert len(response.json()["messages"]) == 7 and len(response.content) > 6 * 1024 * 1024
        # Behind the HTTP API nothing is leased that a reply could not carry.
        got = []
        while messages := await w.pop(name):
            assert done(await w.ack(messages))
            got += [m["data"][0] for m in messages]
        assert got == [str(n) for n in range(7)]


async def test_functions_that_cannot_start_say_why(world):
    async with world(environment={"TIDEWHEEL_BUCKET": ""}) as w:
        assert (await w.client.get("/health")).status_code == 500
        assert "TIDEWHEEL_BUCKET is not set" in w.http.said()


async def test_many_functions_push_to_one_partition_at_once(world, name):
    processes, pushes = 8, 12
    async with world() as w:

        async def writer(number):
            offsets = []
            for n in range(pushes):
                response = await w.push(name, [number, n], ids=[f"{number}-{n}"])
                assert done(response), response.text
                offsets.append(response.json()[0]["offset"])
            return offsets

        offsets = await asyncio.gather(*(writer(number) for number in range(processes)))
        assert len(w.http.environments) == processes, "each writer has a process of its own"
        assert sorted(sum(offsets, [])) == list(range(processes * pushes))
        for number, mine in enumerate(offsets):
            assert mine == sorted(mine)
            rows = dict(await w.log(name))
            assert [rows[offset] for offset in mine] == [[number, n] for n in range(pushes)]


async def test_a_client_that_is_not_let_in_for_now_is_told_so(world, name):
    async with world() as w:
        w.http.concurrency = 1
        await w.push(name, 0)
        await w.ack(await w.pop(name))
        waiting = asyncio.ensure_future(w.pop(name, wait="true", timeout=3000))
        while not any(e.current for e in w.http.environments):
            await asyncio.sleep(0)
        assert (await w.push(name, 1)).status_code == 429
        assert await waiting == []
        assert (await w.push(name, 1)).status_code == 201
