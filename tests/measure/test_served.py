# SPDX-License-Identifier: Apache-2.0
"""Clients of a server by HTTP, which is stood in for: what a turn counts, and what ends it."""

import asyncio
import json
import threading
from functools import partial
from itertools import islice, repeat
from types import SimpleNamespace

import pytest

pytest.importorskip("aiohttp")
from aiohttp import web

from vllm_eagle_pangu.measure.closed_loop import requests
from vllm_eagle_pangu.measure.method import PLAIN
from vllm_eagle_pangu.measure.served import ServedLoop

# Tokens of the chunks of every answer: the first one's, then what comes with a step each.
CHUNKS = ([1], [2, 3], [], [4, 5, 6])


class Stub:
    """As vLLM streams: an answer is of `CHUNKS`, or as `instead` says of a request."""

    def __init__(self):
        self.asked, self.instead = [], lambda asked: None

    async def answer(self, request):
        self.asked.append(await request.json())
        instead = self.instead(self.asked[-1])
        if instead == "refused":
            raise web.HTTPBadRequest
        stream = web.StreamResponse()
        await stream.prepare(request)
        for ids in CHUNKS:
            await asyncio.sleep(0)
            line = instead or {"choices": [{"token_ids": ids}]}
            await stream.write(b"data: " + json.dumps(line).encode() + b"\n\n")
        await stream.write(b"data: [DONE]\n\n")
        return stream


@pytest.fixture
def stub():
    stub, loop, up = Stub(), asyncio.new_event_loop(), threading.Event()

    async def serve():
        app = web.Application()
        app.router.add_post("/v1/completions", stub.answer)
        stub.runner = web.AppRunner(app, shutdown_timeout=0)
        await stub.runner.setup()
        site = web.TCPSite(stub.runner, "127.0.0.1", 0)
        await site.start()
        stub.url = site.name
        up.set()

    def run():
        loop.run_until_complete(serve())
        loop.run_forever()

    thread = threading.Thread(target=run)
    thread.start()
    assert up.wait(10)
    yield stub
    asyncio.run_coroutine_threadsafe(stub.runner.cleanup(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def loop_of(stub, clients):
    counted = iter([(10.0, 4.0), (16.0, 13.0)])
    server = SimpleNamespace(url=stub.url, counters=lambda: next(counted))
    asked = partial(requests, [[7, 8], [9, 10]], 64, 0.0)
    return ServedLoop(PLAIN, server, asked, clients)


def test_a_turn_ends_with_its_tokens_and_has_the_times_of_answers_cut_short(stub):
    turn = loop_of(stub, clients=3).turn(tokens=3 * 6 + 1)
    assert turn["tokens"] >= 19 and turn["seconds"] > 0
    assert (turn["drafts"], turn["accepted"]) == (6, 9)
    assert 4 <= len(turn["first"]) <= 6 and 3 <= len(turn["behind"]) <= 6
    assert min(turn["first"]) > 0 and min(turn["behind"]) > 0
    assert all(asked["prompt"] in ([7, 8], [9, 10]) and asked["ignore_eos"] for asked in stub.asked)


def test_a_turn_begins_anew_and_asks_by_its_number(stub):
    asked = []
    for which in (3, 4):
        loop = loop_of(stub, clients=1)
        loop.turn(tokens=31, which=which)
        asked.append([(each["prompt"], each["max_tokens"]) for each in stub.asked[:5]])
        stub.asked.clear()
    expected = [
        [(prompt, params["max_tokens"]) for prompt, params in islice(loop.asked(which), 5)]
        for which in (3, 4)
    ]
    assert asked == expected and asked[0] != asked[1]


def test_a_turn_ends_with_its_time_though_no_tokens_come(stub):
    stub.instead = lambda asked: {"choices": [{"token_ids": []}]}
    turn = loop_of(stub, clients=2).turn(tokens=1, seconds=0.1)
    assert (turn["tokens"], turn["first"], turn["behind"]) == (0, [], [])


@pytest.mark.parametrize(
    ("instead", "said"), [("refused", "failed: .*400"), ({"error": "too long"}, "too long")]
)
def test_a_request_that_fails_ends_the_turn(stub, instead, said):
    answers = iter([None, instead, *repeat(None, 100)])
    stub.instead = lambda asked: next(answers)
    with pytest.raises(RuntimeError, match=said):
        loop_of(stub, clients=2).turn(tokens=200)
