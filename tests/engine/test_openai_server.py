# SPDX-License-Identifier: Apache-2.0
"""vLLM's OpenAI server as a user starts it: engine and worker in processes of their own."""

import json
import os
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import openai
import pytest

from vllm_eagle_pangu.measure.server import ProcessGroup, Server

pytestmark = pytest.mark.engine

MODEL = "target"
TOKENS = 48
CLIENTS = 4
OPTIONS = {
    "served-model-name": MODEL,
    "host": "127.0.0.1",
    "dtype": "float32",
    "max-model-len": 1152,
    "max-num-seqs": CLIENTS,
    "max-num-batched-tokens": 512,
    "chat-template": "{% for message in messages %}{{ message['content'] }}{% endfor %}",
}
# Long enough that a request is still decoded while others come and go.
MANY_TOKENS = 800
# A busy machine may hold this process until such a request has ended, which shows nothing.
TRIES = 5


class TreeServer(Server):
    """The server alone, with nothing set that the demo sets for its measurements."""

    def __init__(self, target: Path, speculative: dict[str, object], log: Path) -> None:
        super().__init__(MODEL, target, speculative)
        self.log = log

    def command(self) -> list[str]:
        line = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager"]
        line += [f"--model={self.target}", f"--port={self.port}"]
        line += [f"--{name}={value}" for name, value in OPTIONS.items()]
        return [*line, "--speculative-config", json.dumps(self.speculative)]

    def start(self) -> "TreeServer":
        environment = {k: v for k, v in os.environ.items() if k != "VLLM_ENABLE_V1_MULTIPROCESSING"}
        self.group = ProcessGroup(self.command(), environment, self.log)
        return self

    def metric(self, name: str) -> float:
        """The value of vLLM's metric of that name."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=120) as answer:
            lines = answer.read().decode().splitlines()
        (line,) = [line for line in lines if line.startswith(f"vllm:{name}{{")]
        return float(line.rsplit(" ", 1)[1])


@pytest.fixture(scope="module")
def prompts(heldout_prompts):
    return [prompt for prompt in heldout_prompts if len(prompt) < 300][: 2 * CLIENTS]


@pytest.fixture(scope="module")
def plain(engine, pair, prompts):
    """What the target alone says to each prompt: token ids."""
    with engine(pair[0]) as plain_engine:
        return plain_engine.generate(prompts, max_tokens=TOKENS)


@pytest.fixture(scope="module")
def server(pair, tree_config_of, shapes, tmp_path_factory):
    speculative = tree_config_of(pair[1], shapes["default"])
    with TreeServer(pair[0], speculative, tmp_path_factory.mktemp("server") / "log") as served:
        yield served.wait()


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=600)


def ask(client, prompt, **options):
    return client.completions.create(prompt=prompt, **wishes(**options))


def wishes(**options) -> dict:
    """Greedy and of a fixed length unless told otherwise."""
    extra = {"ignore_eos": True, "return_token_ids": True}
    settings = {"model": MODEL, "max_tokens": TOKENS, "temperature": 0.0, "extra_body": extra}
    return settings | options


def token_ids(choice) -> list[int]:
    return (choice.model_extra or {}).get("token_ids") or []


def test_concurrent_streams_are_plain_decoding_in_chunks_of_a_path(server, client, prompts, plain):
    def stream(prompt):
        usage = {"include_usage": True}
        *chunks, last = ask(client, prompt, stream=True, stream_options=usage)
        text = "".join(chunk.choices[0].text for chunk in chunks)
        return [token_ids(chunk.choices[0]) for chunk in chunks], text, last.usage

    before = server.counters()
    with ThreadPoolExecutor(CLIENTS) as pool:
        streams = list(pool.map(stream, prompts))
    whole = [ask(client, prompt).choices[0] for prompt in prompts]

    assert [list(chain(*pieces)) for pieces, _, _ in streams] == plain
    assert [token_ids(choice) for choice in whole] == plain
    assert [text for _, text, _ in streams] == [choice.text for choice in whole]
    assert max(len(piece) for pieces, _, _ in streams for piece in pieces) > 1
    assert {usage.completion_tokens for _, _, usage in streams} == {TOKENS}
    drafts, accepted = (now - then for now, then in zip(server.counters(), before, strict=True))
    assert accepted > drafts > 0


def test_a_chat_is_decoded_like_its_rendered_prompt(client, engine, pair):
    messages = [{"role": "user", "content": "def read_lines(path):\n"}]
    answer = client.chat.completions.create(messages=messages, **wishes())
    prompt = (answer.model_extra or {})["prompt_token_ids"]
    with engine(pair[0]) as plain_engine:
        assert [token_ids(answer.choices[0])] == plain_engine.generate([prompt], max_tokens=TOKENS)


def test_a_stop_string_ends_the_text_in_the_middle_of_a_path(client, prompts):
    texts = {prompt: ask(client, prompts[prompt]).choices[0].text for prompt in range(3)}
    for prompt, text in texts.items():
        # Letters that end no token of their own, as often as not.
        stop = text[len(text) // 2 : len(text) // 2 + 2]
        choice = ask(client, prompts[prompt], stop=[stop]).choices[0]
        assert choice.finish_reason == "stop"
        assert choice.text == text[: text.index(stop)]


def test_a_bad_request_is_refused_and_those_in_flight_are_answered(server, client, prompts, plain):
    wrong = {"temperature": -1.0, "logit_bias": {"5": 2.0}, "top_p": 2.0}

    def refused_in_flight() -> bool:
        chunks = ask(client, prompts[0], max_tokens=MANY_TOKENS, stream=True)
        ids = token_ids(next(chunks).choices[0])
        for key, value in wrong.items():
            with pytest.raises(openai.BadRequestError, match=key):
                ask(client, prompts[1], **{key: value})
        in_flight = server.metric("num_requests_running") == 1
        for chunk in chunks:
            ids += token_ids(chunk.choices[0])
        assert ids[:TOKENS] == plain[0]
        assert len(ids) == MANY_TOKENS
        return in_flight

    assert any(refused_in_flight() for _ in range(TRIES))


def test_a_client_that_leaves_leaves_nothing_running(server, client, prompts, plain):
    # As many texts as there may be at once: what lasts longest.
    asked = CLIENTS * MANY_TOKENS
    longest = {"n": CLIENTS, "temperature": 1.0, "max_tokens": MANY_TOKENS}
    tries = []

    def left_in_flight() -> bool:
        before, began = server.metric("generation_tokens_total"), time.monotonic()
        gone = ask(client, prompts[0], stream=True, **longest)
        next(gone)
        first = time.monotonic()
        gone.close()
        deadline = time.monotonic() + 30
        while server.metric("num_requests_running"):
            assert time.monotonic() < deadline, "the request of a closed stream is still decoded"
            time.sleep(0.1)
        decoded = server.metric("generation_tokens_total") - before
        tries.append(f"first after {first - began:.2f} s, {decoded} decoded")
        return decoded < asked

    assert any(left_in_flight() for _ in range(TRIES)), tries
    assert token_ids(ask(client, prompts[1]).choices[0]) == plain[1]


def test_a_seed_gives_the_same_text_again(client, prompts):
    def sampled(seed):
        return ask(client, prompts[0], temperature=0.8, seed=seed).choices[0].text

    first = sampled(3)
    assert sampled(3) == first
    assert len({sampled(seed) for seed in range(4, 8)}) > 1
