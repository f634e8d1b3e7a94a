# SPDX-License-Identifier: Apache-2.0
"""Requests through the OpenAI client, their times, and the server's own counters."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from openai import OpenAI

from vllm_eagle_pangu import ties
from vllm_eagle_pangu.measure.server import SERVED_NAME, Server
from vllm_eagle_pangu.measure.statistics import rate, tau
from vllm_eagle_pangu.measure.turns import turns

REQUEST_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Completion:
    prompt_ids: list[int]
    ids: list[int]
    seconds: float


@dataclass
class Record:
    """What one method did: completions by prompt index, and its speculation counters."""

    name: str
    completions: dict[int, list[Completion]] = field(default_factory=dict)
    drafts: float = 0.0
    accepted: float = 0.0

    def tokens_per_second(self) -> float:
        """Tokens per second over all prompts, each at the median of its repeats."""
        runs = self.completions.values()
        return rate((len(one[0].ids) for one in runs), ([c.seconds for c in one] for one in runs))

    def tau(self) -> float | None:
        """Mean acceptance length, bonus token included; None without speculation."""
        return tau(self.drafts, self.accepted)


class Client:
    """One server, asked one request at a time, always greedily.

    For a fixed length, unless the target `ends` its answers itself.
    """

    def __init__(self, server: Server, ends: bool = False) -> None:
        self.server, self.ends = server, ends
        self.api = OpenAI(
            base_url=f"{server.url}/v1", api_key="none", timeout=REQUEST_TIMEOUT_S, max_retries=0
        )

    def _ask(self, prompt: str | list[int], tokens: int, vllms: dict[str, Any], **more: Any) -> Any:
        """`vllms`: what vLLM adds to OpenAI's parameters."""
        return self.api.completions.create(
            model=SERVED_NAME,
            prompt=prompt,
            max_tokens=tokens,
            temperature=0.0,
            extra_body={"ignore_eos": not self.ends, "return_token_ids": True, **vllms},
            **more,
        )

    def complete(self, prompt: str, tokens: int) -> Completion:
        begin = time.perf_counter()
        choice = self._ask(prompt, tokens, {}).choices[0]
        seconds = time.perf_counter() - begin
        found = len(choice.token_ids)
        assert found == tokens or (self.ends and found < tokens), f"{found} tokens, not {tokens}"
        return Completion(choice.prompt_token_ids, choice.token_ids, seconds)

    def stream(self, prompt: str, tokens: int) -> Iterator[tuple[str, list[int]]]:
        """Text and token ids of each chunk of a streamed completion."""
        for chunk in self._ask(prompt, tokens, {}, stream=True):
            choice = chunk.choices[0]
            ids = getattr(choice, "token_ids", None) or []
            if ids:
                yield choice.text, ids

    def decode_logits(self, prompt: list[int], tokens: int) -> tuple[list[int], list[ties.Logits]]:
        """A completion's token ids, and the highest logits that each was drawn from."""
        answer = self._ask(prompt, tokens, {"return_tokens_as_token_ids": True}, logprobs=ties.TOP)
        choice = answer.choices[0]
        rows: list[ties.Logits] = [
            {int(name.removeprefix("token_id:")): value for name, value in row.items()}
            for row in choice.logprobs.top_logprobs
        ]
        return choice.token_ids, rows

    def prefill_logits(self, prompt: list[int], ids: list[int]) -> list[ties.Logits]:
        """The highest logits before each of `ids`, and its own, from a prefill of all tokens."""
        answer = self._ask(prompt + ids, 1, {"prompt_logprobs": ties.TOP})
        rows = answer.choices[0].prompt_logprobs[len(prompt) :]
        return [{int(token): entry["logprob"] for token, entry in row.items()} for row in rows]


def recorded(
    clients: dict[str, Client], prompts: list[str], tokens: int, repeats: int
) -> dict[str, Record]:
    """Every prompt so many times on every server, server after server for the same prompt."""
    before = {name: client.server.counters() for name, client in clients.items()}
    records = {name: Record(name) for name in clients}
    for _, (index, prompt), order in turns(list(clients), list(enumerate(prompts)), repeats):
        for name in order:
            runs = records[name].completions.setdefault(index, [])
            runs.append(clients[name].complete(prompt, tokens))
    for name, client in clients.items():
        drafts, accepted = client.server.counters()
        records[name].drafts = drafts - before[name][0]
        records[name].accepted = accepted - before[name][1]
    return records


def plant_wrong_token(completion: Completion, exact: Client) -> int:
    """Put a token in where the target is surest: the last of its highest. Returns the position.

    As far from a tie as the output offers, so that every sane bound must find it.
    """
    rows = exact.prefill_logits(completion.prompt_ids, completion.ids)
    at = max(range(len(rows)), key=lambda i: max(rows[i].values()) - min(rows[i].values()))
    completion.ids[at] = min(rows[at], key=rows[at].__getitem__)
    return at
