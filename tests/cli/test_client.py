# SPDX-License-Identifier: Apache-2.0
"""What the demo reads from vLLM's answers, beyond the fields of OpenAI's."""

import json
from types import SimpleNamespace

import httpx
import openai
import pytest

from vllm_eagle_pangu.demo import report
from vllm_eagle_pangu.demo.client import Client

IDS = {"index": 0, "text": "ab", "finish_reason": "length", "token_ids": [5, 6]}
LOGPROBS = {"top_logprobs": [{"token_id:5": -0.25, "token_id:6": -2.0}]}
PROMPT_LOGPROBS = [None, {"7": {"logprob": -1.0}}, {"8": {"logprob": -1.5}, "9": {"logprob": -4.0}}]


@pytest.fixture
def client():
    """Of a server that answers as vLLM does, in the fields that are asked for."""

    def answer(request):
        body = json.loads(request.content)
        assert body["temperature"] == 0 and body["return_token_ids"]
        assert body["ignore_eos"] != found.ends
        if body.get("stream"):
            parts = [{**IDS, "token_ids": ids} for ids in ([5], None, [6, 7])]
            lines = [json.dumps({"choices": [part]}) for part in parts]
            text = "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"])
            return httpx.Response(200, text=text, headers={"content-type": "text/event-stream"})
        choice = {**IDS, "prompt_token_ids": [1, 2]}
        choice["logprobs"] = LOGPROBS if body.get("logprobs") else None
        choice["prompt_logprobs"] = PROMPT_LOGPROBS if body.get("prompt_logprobs") else None
        return httpx.Response(200, json={"choices": [choice]})

    found = Client(SimpleNamespace(url="http://server"))
    found.api = openai.OpenAI(
        base_url="http://server/v1",
        api_key="none",
        http_client=httpx.Client(transport=httpx.MockTransport(answer)),
    )
    return found


def test_tokens_of_whole_and_streamed_answers(client):
    whole = client.complete("p", 2)
    assert (whole.prompt_ids, whole.ids) == ([1, 2], [5, 6])
    assert list(client.stream("p", 3)) == [("ab", [5]), ("ab", [6, 7])]


def test_logits_by_token_of_what_was_drawn_and_of_what_is_asked_about(client):
    assert client.decode_logits([1, 2], 2) == ([5, 6], [{5: -0.25, 6: -2.0}])
    assert client.prefill_logits([1], [7, 8]) == [{7: -1.0}, {8: -1.5, 9: -4.0}]


def test_an_answer_of_another_length_is_no_measurement(client):
    with pytest.raises(AssertionError, match="2 tokens, not 3"):
        client.complete("p", 3)
    client.ends = True
    assert client.complete("p", 3).ids == [5, 6]
    with pytest.raises(AssertionError, match="2 tokens, not 1"):
        client.complete("p", 1)


CHUNKS = [("One", [1]), (" two\nthree", [2, 3]), (" four", [4])]


@pytest.mark.parametrize(
    ("terminal", "shown"),
    [
        (False, "  > One| two\n  > three| four\n"),
        (True, "  > \x1b[36mOne\x1b[33m two\n  > three\x1b[36m four\x1b[0m\n"),
    ],
)
def test_each_step_is_seen_as_one_piece(capsys, monkeypatch, terminal, shown):
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    assert report.spoken("Hi?\nAnswer:", iter(CHUNKS)) == [1, 2, 3, 4]
    said = capsys.readouterr().out
    assert said.startswith("  | Hi?\n  | Answer:\n" + shown)
    assert said.endswith("(4 tokens in 3 pieces)\n\n")
