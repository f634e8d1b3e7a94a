# SPDX-License-Identifier: Apache-2.0
"""Prompt files in their published forms, the selection, chat templates."""

import gzip
import json

import pytest

from vllm_eagle_pangu.bench.config import PromptConfig
from vllm_eagle_pangu.measure.prompts import (
    Conversations,
    Prompt,
    packaged_humaneval,
    read_prompts,
    select,
    spread,
)

HUMANEVAL = [
    {
        "task_id": f"HumanEval/{number}",
        "prompt": f"def f{number}(x):\n",
        "entry_point": f"f{number}",
        "canonical_solution": "    return x\n",
        "test": "def check(candidate):\n    assert candidate(1) == 1\n",
    }
    for number in range(3)
]
MT_BENCH = [
    {"question_id": 81, "category": "writing", "turns": ["Write.", "Rewrite."]},
    {"question_id": 101, "category": "math", "turns": ["Add."], "reference": ["2"]},
]


class WordTokenizer:
    """A token per word; its ids are their places in a list that grows."""

    def __init__(self, template=True):
        self.words, self.chat_template = [], "there" if template else None

    def __call__(self, text, add_special_tokens=True):
        known = ["<s>"] * add_special_tokens + text.split()
        self.words += [word for word in known if word not in self.words]
        return {"input_ids": [self.words.index(word) for word in known]}

    def decode(self, ids, skip_special_tokens):
        assert skip_special_tokens
        return " ".join(self.words[i] for i in ids)

    def apply_chat_template(self, messages, tokenize, add_generation_prompt):
        assert not tokenize and add_generation_prompt
        return " ".join(f"<{m['role']}> {m['content']}" for m in messages) + " <assistant>"


def write(path, entries):
    text = "".join(json.dumps(entry) + "\n\n" for entry in entries)
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt") as file:
        file.write(text)
    return path


@pytest.mark.parametrize("name", ["HumanEval.jsonl", "HumanEval.jsonl.gz"])
def test_humaneval_is_read_plain_and_compressed(tmp_path, name):
    prompts = read_prompts("humaneval", write(tmp_path / name, HUMANEVAL))
    assert prompts[2] == Prompt("HumanEval/2", ("def f2(x):\n",))
    assert len(prompts) == 3


def test_humaneval_comes_with_its_package():
    try:
        file = packaged_humaneval()
    except ValueError as error:
        pytest.skip(str(error))
    prompts = read_prompts("humaneval", file)
    assert len(prompts) == 164
    assert "def has_close_elements" in prompts[0].turns[0]


def test_mt_bench_keeps_one_or_two_turns(tmp_path):
    prompts = read_prompts("mt_bench", write(tmp_path / "question.jsonl", MT_BENCH))
    assert prompts == [
        Prompt("mt-bench-81", ("Write.", "Rewrite.")),
        Prompt("mt-bench-101", ("Add.",)),
    ]


@pytest.mark.parametrize(
    ("source", "entry", "message"),
    [
        ("humaneval", {"prompt": "x"}, 'holds no task_id; write one {"task_id": "...", "prompt"'),
        ("humaneval", {"task_id": "a", "prompt": ""}, "holds no prompt"),
        ("mt_bench", {"turns": ["x"]}, "holds no question_id"),
        ("mt_bench", {"question_id": True, "turns": ["x"]}, "holds no question_id"),
        (
            "mt_bench",
            {"question_id": 1, "turns": "x"},
            r'holds no turns.* "turns": \["...", "..."\]',
        ),
        ("mt_bench", {"question_id": 1, "turns": []}, "holds no turns"),
        ("mt_bench", {"question_id": 1, "turns": ["x"] * 3}, "holds no turns"),
        ("heldout", [1], "holds no id"),
    ],
)
def test_a_bad_line_is_named(tmp_path, source, entry, message):
    path = write(tmp_path / "file.jsonl", [entry])
    with pytest.raises(ValueError, match=f"file.jsonl': line 1 {message}"):
        read_prompts(source, path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"No such file.*; write one"):
        read_prompts("humaneval", tmp_path / "none.jsonl")


def test_the_second_turn_is_asked_with_the_first_answer_in_the_conversation():
    tokenizer = WordTokenizer()
    talk, turns = Conversations(tokenizer, chat=True), ("Write.", "Rewrite.")
    assert talk.text(turns) == "<user> Write. <assistant>"
    answer = tokenizer("Done so.", add_special_tokens=False)["input_ids"]
    asked = "<user> Write. <assistant> Done so. <user> Rewrite. <assistant>"
    assert talk.text(turns, ["Done so."]) == asked
    assert talk.ids(turns, [answer]) == tokenizer(asked, add_special_tokens=False)["input_ids"]


def test_without_a_template_turns_and_answers_follow_each_other():
    talk = Conversations(WordTokenizer(template=False), chat=False)
    turns = ("Write.", "Rewrite.")
    assert talk.text(turns, ["Done."]) == "Write.\n\nDone.\n\nRewrite."
    assert talk.ids(turns)[0] == talk.tokenizer.words.index("<s>")


def test_a_chat_without_a_template_is_refused():
    with pytest.raises(ValueError, match=r"chat=True.*no chat template"):
        Conversations(WordTokenizer(template=False), chat=True)


def selected(lengths, config, room):
    prompts = [Prompt(f"p{i}", ("x",)) for i in range(len(lengths))]
    return select(prompts, {f"p{i}": length for i, length in enumerate(lengths)}, config, room)


@pytest.mark.parametrize(
    ("choice", "chosen"),
    [("first", ["p0", "p1"]), ("longest", ["p4", "p2"]), ("spread", ["p1", "p4"])],
)
def test_selection_by_length(choice, chosen):
    config = PromptConfig(count=2, choice=choice)
    found = selected([3, 2, 9, 1, 8, 40], config, room=10)
    assert [prompt.id for prompt in found] == chosen


def test_nothing_that_fits_is_refused():
    config = PromptConfig(min_tokens=5)
    with pytest.raises(ValueError, match="no prompt has 5 to 10 tokens"):
        selected([3, 20], config, room=10)


def test_fewer_prompts_are_taken_at_equal_distances():
    assert spread(list("abcdefgh"), 4) == ["b", "d", "f", "h"]
    assert spread(list("abc"), None) == list("abc")
    assert spread(list("abc"), 9) == list("abc")
