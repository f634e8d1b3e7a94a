# SPDX-License-Identifier: Apache-2.0
"""Clients of a server by HTTP, who ask again once they are answered.

aiohttp, which vLLM brings along and its own benchmark talks with: 32 streams in one thread.
"""

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import aiohttp

from vllm_eagle_pangu.measure.method import Method
from vllm_eagle_pangu.measure.server import SERVED_NAME, Server

# Till a server has dropped the requests of clients who are gone.
LEAVING_S = 0.2


class ServedLoop:
    """A `TakesTurns` of a server: its clients come with a turn and leave with it."""

    def __init__(self, method: Method, server: Server, asked: Iterator[Any]) -> None:
        self.method, self.server, self.asked, self.clients = method, server, asked, 1

    def turn(self, tokens: float = float("inf"), seconds: float = float("inf")) -> dict[str, Any]:
        """See `TakesTurns`."""
        before = self.server.counters()
        turn = asyncio.run(_Turn(self, tokens).taken(None if seconds == float("inf") else seconds))
        drafts, accepted = (b - a for a, b in zip(before, self.server.counters(), strict=True))
        return turn | {"drafts": drafts, "accepted": accepted}


class _Turn:
    def __init__(self, loop: ServedLoop, tokens: float) -> None:
        self.loop, self.tokens, self.emitted = loop, tokens, 0
        self.first: list[float] = []
        self.over = asyncio.Event()

    async def taken(self, seconds: float | None) -> dict[str, Any]:
        connector, forever = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)
        url = self.loop.server.url
        async with aiohttp.ClientSession(url, connector=connector, timeout=forever) as session:
            began = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                clients = [
                    group.create_task(self._client(session)) for _ in range(self.loop.clients)
                ]
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.over.wait(), seconds)
                took = time.perf_counter() - began
                for client in clients:
                    client.cancel()
        await asyncio.sleep(LEAVING_S)
        return {"tokens": self.emitted, "seconds": took, "first": self.first}

    async def _client(self, session: aiohttp.ClientSession) -> None:
        while True:
            prompt, params = next(self.loop.asked)
            asked = {"model": SERVED_NAME, "prompt": prompt, "stream": True, **params}
            began, awaited = time.perf_counter(), True
            answer = session.post("/v1/completions", json=asked | {"return_token_ids": True})
            async with answer as stream:
                stream.raise_for_status()
                async for line in stream.content:
                    if not line.startswith(b"data: {"):
                        continue
                    count = len(json.loads(line[6:])["choices"][0]["token_ids"] or ())
                    if count and awaited:
                        self.first.append(time.perf_counter() - began)
                        awaited = False
                    self.emitted += count
                    if self.emitted >= self.tokens:
                        self.over.set()
