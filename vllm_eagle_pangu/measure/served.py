# SPDX-License-Identifier: Apache-2.0
"""Clients of a server by HTTP, who ask again once they are answered.

aiohttp, which vLLM brings along and its own benchmark talks with: 32 streams in one thread.
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp

from vllm_eagle_pangu.measure.method import Method
from vllm_eagle_pangu.measure.server import SERVED_NAME, Server

# Till a server has dropped the requests of clients who are gone.
LEAVING_S = 0.2


class ServedLoop:
    """A `TakesTurns` of a server: its clients come with a turn and leave with it.

    `asked`: by the number of a turn, what they ask in it, one after the other.
    """

    def __init__(
        self,
        method: Method,
        server: Server,
        asked: Callable[[int], Iterator[Any]],
        clients: int = 1,
    ) -> None:
        self.method, self.server, self.asked, self.clients = method, server, asked, clients

    def turn(
        self, tokens: float = float("inf"), seconds: float = float("inf"), which: int = 0
    ) -> dict[str, Any]:
        """See `TakesTurns`; also of each answer, as far as it came, what a token took `behind` the
        first. Raises RuntimeError where a request fails."""
        before = self.server.counters()
        try:
            turn = asyncio.run(_Turn(self, tokens, which).taken(seconds))
        except aiohttp.ClientError as error:
            raise RuntimeError(f"a request failed: {error!r}") from error
        drafts, accepted = (b - a for a, b in zip(before, self.server.counters(), strict=True))
        return turn | {"drafts": drafts, "accepted": accepted}


class _Turn:
    def __init__(self, loop: ServedLoop, tokens: float, which: int) -> None:
        self.loop, self.tokens, self.emitted = loop, tokens, 0
        self.asked = loop.asked(which)
        self.first, self.behind = list[float](), list[float]()
        self.over = asyncio.Event()

    async def taken(self, seconds: float) -> dict[str, Any]:
        connector, forever = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)
        url = self.loop.server.url
        async with aiohttp.ClientSession(url, connector=connector, timeout=forever) as session:
            began = time.perf_counter()
            clients = [self._client(session) for _ in range(self.loop.clients)]
            tasks = [asyncio.create_task(work) for work in (self.over.wait(), *clients)]
            # A client ends by an error alone.
            ended, left = await asyncio.wait(
                tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            took = time.perf_counter() - began
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        for task in ended:
            task.result()
        await asyncio.sleep(LEAVING_S)
        times = {"first": self.first, "behind": self.behind}
        return {"tokens": self.emitted, "seconds": took, **times}

    async def _client(self, session: aiohttp.ClientSession) -> None:
        while True:
            prompt, params = next(self.asked)
            asked = {"model": SERVED_NAME, "prompt": prompt, "stream": True, **params}
            # When tokens came, and how many.
            came, began = list[tuple[float, int]](), time.perf_counter()
            answer = session.post("/v1/completions", json=asked | {"return_token_ids": True})
            try:
                async with answer as stream:
                    stream.raise_for_status()
                    async for line in stream.content:
                        count = _tokens(line)
                        if count:
                            came.append((time.perf_counter(), count))
                            self.emitted += count
                        if self.emitted >= self.tokens:
                            self.over.set()
            finally:
                self._note(began, came)

    def _note(self, began: float, came: list[tuple[float, int]]) -> None:
        """An answer's times, also of one that the turn's end cuts short."""
        if came:
            self.first.append(came[0][0] - began)
        if len(came) > 1:
            behind = sum(count for _, count in came[1:])
            self.behind.append((came[-1][0] - came[0][0]) / behind)


def _tokens(line: bytes) -> int:
    """How many a line of a stream holds. Raises RuntimeError for a server's error."""
    if not line.startswith(b"data: {"):
        return 0
    found = json.loads(line.removeprefix(b"data: "))
    if "choices" not in found:
        raise RuntimeError(f"a request failed: {found}")
    return len(found["choices"][0]["token_ids"] or ())
