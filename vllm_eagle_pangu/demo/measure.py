# SPDX-License-Identifier: Apache-2.0
"""Requests through the OpenAI client, their times, and the server's own counters."""

import statistics
import time
from dataclasses import dataclass, field

from openai import OpenAI

from vllm_eagle_pangu import ties
from vllm_eagle_pangu.demo import settings
from vllm_eagle_pangu.demo.server import Server

REQUEST_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Completion:
    text: str
    prompt_ids: list[int]
    ids: list[int]
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return len(self.ids) / self.seconds


@dataclass
class Record:
    """What one method did: completions by prompt index, and its speculation counters."""

    name: str
    completions: dict[int, list[Completion]] = field(default_factory=dict)
    drafts: float = 0.0
    accepted: float = 0.0

    def tokens_per_second(self) -> float:
        """Tokens per second over all prompts, each at the median of its repeats."""
        times = [statistics.median(c.seconds for c in runs) for runs in self.completions.values()]
        return sum(len(runs[0].ids) for runs in self.completions.values()) / sum(times)

    def tau(self) -> float | None:
        """Mean acceptance length, bonus token included; None without speculation."""
        return 1 + self.accepted / self.drafts if self.drafts else None


class Client:
    """One server, asked one request at a time, always greedily and for a fixed length."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.api = OpenAI(
            base_url=f"{server.url}/v1", api_key="none", timeout=REQUEST_TIMEOUT_S, max_retries=0
        )

    def complete(self, prompt: str, tokens: int) -> Completion:
        begin = time.perf_counter()
        answer = self.api.completions.create(
            model=settings.SERVED_NAME,
            prompt=prompt,
            max_tokens=tokens,
            temperature=0.0,
            extra_body={"ignore_eos": True, "return_token_ids": True},
        )
        seconds = time.perf_counter() - begin
        choice = answer.choices[0]
        # What vLLM adds to OpenAI's fields.
        extra = choice.model_extra or {}
        ids = extra["token_ids"]
        assert len(ids) == tokens, f"asked for {tokens} tokens, got {len(ids)}"
        return Completion(choice.text, extra["prompt_token_ids"], ids, seconds)

    def stream(self, prompt: str, tokens: int) -> tuple[list[int], list[int]]:
        """Token ids of a streamed completion, and how many came with each chunk."""
        chunks = self.api.completions.create(
            model=settings.SERVED_NAME,
            prompt=prompt,
            max_tokens=tokens,
            temperature=0.0,
            stream=True,
            extra_body={"ignore_eos": True, "return_token_ids": True},
        )
        ids: list[int] = []
        sizes: list[int] = []
        for chunk in chunks:
            new = (chunk.choices[0].model_extra or {}).get("token_ids") or []
            if new:
                ids += new
                sizes.append(len(new))
        return ids, sizes

    def decode_logits(self, prompt: list[int], tokens: int) -> tuple[list[int], list[ties.Logits]]:
        """A completion's token ids, and the highest logits that each was drawn from."""
        answer = self.api.completions.create(
            model=settings.SERVED_NAME,
            prompt=prompt,
            max_tokens=tokens,
            temperature=0.0,
            logprobs=ties.TOP,
            extra_body={
                "ignore_eos": True,
                "return_token_ids": True,
                "return_tokens_as_token_ids": True,
            },
        )
        choice = answer.choices[0]
        assert choice.logprobs is not None and choice.logprobs.top_logprobs is not None
        rows: list[ties.Logits] = [
            {int(name.removeprefix("token_id:")): value for name, value in row.items()}
            for row in choice.logprobs.top_logprobs
        ]
        return (choice.model_extra or {})["token_ids"], rows

    def prefill_logits(self, prompt: list[int], ids: list[int]) -> list[ties.Logits]:
        """The highest logits before each of `ids`, and its own, from a prefill of all tokens."""
        answer = self.api.completions.create(
            model=settings.SERVED_NAME,
            prompt=prompt + ids,
            max_tokens=1,
            temperature=0.0,
            extra_body={"prompt_logprobs": ties.TOP},
        )
        rows = (answer.choices[0].model_extra or {})["prompt_logprobs"][len(prompt) :]
        return [{int(token): entry["logprob"] for token, entry in row.items()} for row in rows]

    def warm_up(self, prompt: str, tokens: int) -> None:
        for _ in range(2):
            self.complete(prompt, tokens)


def record_round(
    clients: dict[str, Client], records: dict[str, Record], prompts: list[str], tokens: int
) -> None:
    """Every prompt once on every server, server after server for the same prompt."""
    before = {name: client.server.counters() for name, client in clients.items()}
    for index, prompt in enumerate(prompts):
        for name, client in clients.items():
            runs = records[name].completions.setdefault(index, [])
            runs.append(client.complete(prompt, tokens))
    for name, client in clients.items():
        drafts, accepted = client.server.counters()
        records[name].drafts += drafts - before[name][0]
        records[name].accepted += accepted - before[name][1]


def target_rounding(record: Record, plain: Client, exact: Client) -> ties.Rounding:
    """How far rounding moves the target's logits here, over plain decoding's own completions.

    `exact` serves the target in float32.
    """
    pairs: list[tuple[ties.Logits, ties.Logits]] = []
    for first, *_ in record.completions.values():
        ids, decoded = plain.decode_logits(first.prompt_ids, len(first.ids))
        rows = exact.prefill_logits(first.prompt_ids, ids)
        pairs += zip(decoded, rows, strict=True)
        pairs += zip(plain.prefill_logits(first.prompt_ids, ids), rows, strict=True)
    return ties.rounding(pairs)


def plant_wrong_token(completion: Completion, exact: Client) -> int:
    """Put a token in where the target is surest: the last of its highest. Returns the position.

    As far from a tie as the output offers, so that every sane bound must find it.
    """
    rows = exact.prefill_logits(completion.prompt_ids, completion.ids)
    at = max(range(len(rows)), key=lambda i: max(rows[i].values()) - min(rows[i].values()))
    completion.ids[at] = min(rows[at], key=rows[at].__getitem__)
    return at
