# SPDX-License-Identifier: Apache-2.0
"""What a head missed while no tree was in sight is attended by nobody's draft."""

import random
import time

import numpy as np
import pytest
import torch
import vllm

from vllm_eagle_pangu.core.policy import NONE, TreePolicy
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.engine.attention import TreeAttentionMixin
from vllm_eagle_pangu.step.missed import Missed
from vllm_eagle_pangu.step.stages import Observer

SIZE, PAGES = 4, 24
SHAPE = TreeShape(3, 3, 8)


@pytest.mark.parametrize("seed", range(8))
def test_a_prefix_starts_behind_the_last_slot_that_was_missed(seed):
    """Against a set of slots; requests come and go, and share whole pages."""
    choose = random.Random(seed)
    missed, holes = Missed(), set()
    free, tables, lengths = list(range(PAGES)), {}, {}
    checked = 0
    for step in range(300):
        if len(tables) < 3:
            # Some begin with the pages of another one, as a prefix cache has them.
            pages = []
            if tables and choose.random() < 0.5:
                other = choose.choice(list(tables))
                pages = tables[other][: lengths[other] // SIZE]
            tables[step], lengths[step] = list(pages), len(pages) * SIZE
        slots = []
        for request, table in tables.items():
            for position in range(lengths[request], lengths[request] + choose.randint(1, 6)):
                if position // SIZE == len(table):
                    table.append(free.pop(0))
                slots.append(table[position // SIZE] * SIZE + position % SIZE)
                lengths[request] = position + 1
        if choose.random() < 0.3:
            missed.add(np.array(slots), SIZE)
            holes |= set(slots)
        else:
            missed.read(torch.tensor([*slots, -1]))
            holes -= set(slots)
        expected = [start_of(table, lengths[r], holes) for r, table in tables.items()]
        if choose.random() < 0.5:
            # What was missed in several steps is then counted at once.
            pass
        elif missed.any:
            rows = [[*table, *[0] * (PAGES - len(table))] for table in tables.values()]
            padded = torch.tensor(rows)
            found = missed.starts(padded, torch.tensor(list(lengths.values())))
            assert found.tolist() == expected
            checked += any(expected)
        else:
            assert not any(expected)
        for request in [r for r in tables if lengths[r] > 24 or choose.random() < 0.1]:
            table = tables.pop(request)
            del lengths[request]
            held = {page for other in tables.values() for page in other}
            free += [page for page in table if page not in held]
    assert checked > 50


def start_of(table: list[int], length: int, holes: set[int]) -> int:
    """A page that is begun anew is whole; until then what was read in front of a hole is lost."""
    bad = [p for p in range(length) if table[p // SIZE] * SIZE + p % SIZE in holes]
    return bad[-1] + 1 if bad else 0


class NowAndThen(TreePolicy):
    """Trees for all in some steps, none in others, and whole stretches that may be missed."""

    def __init__(self) -> None:
        self.random, self.left, self.kind = random.Random(0), 0, 0
        self.planned, self.unasked = [0, 0, 0], 0
        # Whether all nodes of a tree could be drafted: what is NaN is no node.
        self.whole = []
        # Whether steps were told what drawing took: what others save is reckoned beside it.
        self.drew = set()

    def rests(self, batch, unasked=NONE):
        self.unasked += unasked.steps
        self.left -= unasked.steps
        return self.random.choice((1, 2, 7)) if self.kind == 2 else 0

    def plan(self, requests):
        return [SHAPE if self.kind == 1 else None] * len(requests)

    def keep(self, trees, requests, batch):
        for tree in trees:
            self.whole += tree.valid.all(dim=1).tolist()
        return trees

    def observe(self, report):
        self.drew.add("draw" in report.seconds)
        if self.left <= 0:
            self.kind, self.left = self.random.randrange(3), self.random.randint(1, 9)
        self.left -= 1
        self.planned[self.kind] += 1


class Rests(TreePolicy):
    """Trees for nobody, and hardly a step that is asked for."""

    def __init__(self) -> None:
        self.asked = self.unasked = self.emitted = self.timed = 0
        self.seconds = 0.0

    def rests(self, batch, unasked=NONE):
        self.asked, self.unasked = self.asked + 1, self.unasked + unasked.steps
        self.emitted += unasked.emitted
        assert unasked.rows >= unasked.emitted >= unasked.steps >= unasked.timed
        self.timed, self.seconds = self.timed + unasked.timed, self.seconds + unasked.seconds
        return 7

    def plan(self, requests):
        raise AssertionError("it rests")


@pytest.mark.engine
@pytest.mark.skipif(vllm.__version__.startswith("0.23"), reason="0.23's CPU sampler ignores seeds")
@pytest.mark.parametrize("rows", [3, 64])
def test_seeded_prompts_that_are_read_in_a_rest_draw_as_in_one_piece(
    engine, tiny_pangu, tiny_head, tree_config_of, rows
):
    """Regression: a chunk of one row looks like a decoded token, but its draw is to be taken back.
    What is decoded, and prompts that are read to their end, pass unasked."""
    random.seed(1)
    prompts = [[random.randrange(3, 250) for _ in range(9 + 4 * n)] for n in range(6)]
    asked = {"temperature": 1.0, "seed": 5, "max_tokens": 30}
    small = {"max_model_len": 256, "max_num_seqs": 3}
    with engine(tiny_pangu, None, **small) as plain:
        expected = plain.generate(prompts, **asked)
    spec = tree_config_of(tiny_head, (1, 1, 1))
    with engine(tiny_pangu, spec, **small, max_num_batched_tokens=rows) as trees:
        trees.runner.step.policy = policy = Rests()
        began = time.perf_counter()
        assert trees.generate(prompts, **asked) == expected
        took = time.perf_counter() - began
    assert policy.unasked > 20
    # The first one behind a step that was told of is not timed, nor is one that reads a prompt.
    assert 0 < policy.timed < policy.unasked and 0 < policy.seconds < took
    assert rows == 3 or policy.unasked > 3 * policy.asked, (policy.unasked, policy.asked)


@pytest.mark.engine
def test_whoever_goes_is_no_reason_to_ask(engine, tiny_pangu, tiny_head, tree_config_of):
    """Regression: by HTTP it was asked anew whenever a client came or went, every few steps."""
    spec = tree_config_of(tiny_head, (1, 1, 1))
    with engine(tiny_pangu, spec, max_model_len=256) as trees:
        trees.runner.step.policy = policy = Rests()
        asked = trees.llm.llm_engine
        for n, tokens in enumerate((24, 40, 40, 40)):
            params = vllm.SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
            asked.add_request(str(n), {"prompt_token_ids": [5, 6, n + 7]}, params)
        while asked.has_unfinished_requests():
            asked.step()
    # For 7 steps each, in one of which a request ends.
    assert policy.asked <= 40 // 7 + 1
    assert 3 * policy.unasked < policy.emitted < 4 * policy.unasked


class RestsSoon(TreePolicy):
    """Has the drafter follow every third step alone, with no tree."""

    def __init__(self) -> None:
        self.steps = 0

    def rests(self, batch, unasked=NONE):
        self.steps += 1
        return int(self.steps % 3 != 1)

    def plan(self, requests):
        return [None] * len(requests)


@pytest.mark.engine
def test_what_is_to_be_read_when_a_rest_begins_never_is(
    engine, tiny_pangu, tiny_head, tree_config_of, monkeypatch
):
    """Regression: the drafter read the prompts of all requests that came together behind one whose
    trees pay, and the scheduler was told in each step that nothing is drafted."""
    prompts = [[5, 6, n + 7] * 30 for n in range(4)]
    with engine(tiny_pangu, None, max_model_len=256) as plain:
        expected = plain.generate(prompts, max_tokens=30)
    with engine(tiny_pangu, tree_config_of(tiny_head, (1, 1, 1)), max_model_len=256) as trees:
        trees.runner.step.policy = policy = RestsSoon()
        # Whoever calls them ends the test.
        monkeypatch.setattr(trees.runner.draft_head, "read", None)
        monkeypatch.setattr(trees.scheduler, "update_draft_token_ids", None)
        assert trees.generate(prompts, max_tokens=30) == expected
    assert policy.steps == 30


@pytest.mark.engine
def test_time_between_two_turns_is_no_unasked_step_s(engine, tiny_pangu, tiny_head, tree_config_of):
    """Where engines take turns, or nobody asks for anything."""
    spec = tree_config_of(tiny_head, (1, 1, 1))
    with engine(tiny_pangu, spec, max_model_len=256) as trees:
        trees.runner.step.policy = policy = Rests()
        asked, stepped = trees.llm.llm_engine, 0.0
        params = vllm.SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
        for turn in range(12):
            # A request lasts for three turns; in the fourth one nobody is served.
            if turn % 4 == 0:
                asked.add_request(str(turn), {"prompt_token_ids": [5, 6, turn + 7]}, params)
            for _ in range(12):
                if asked.has_unfinished_requests():
                    began = time.perf_counter()
                    asked.step()
                    stepped += time.perf_counter() - began
            time.sleep(0.3)
            if turn % 4 < 3:
                trees.runner.stages.resume()
    assert policy.timed > 20
    assert policy.seconds < stepped + 0.5


@pytest.mark.engine
@pytest.mark.parametrize(("window", "watched"), [(None, False), (None, True), (12, False)])
def test_no_draft_attends_what_was_missed_and_no_token_changes(
    engine, tiny_pangu, tiny_head, tree_config_of, window, watched, monkeypatch
):
    """The head's pages hold nothing but NaN at first: who attends a slot that nobody wrote to
    drafts nothing. Where nobody watches, steps of a rest pass unseen. With a prefix cache, and
    prompts that share their beginnings."""
    random.seed(0)
    shared = [random.randrange(3, 250) for _ in range(150)]
    prompts = [[*shared[: 20 * n], *range(40, 40 + 7 * n)] for n in range(1, 8)] * 2
    small = {"max_model_len": 256, "max_num_batched_tokens": 64, "max_num_seqs": 3}
    small |= {"enable_prefix_caching": True, "block_size": 32}
    asked = [(prompts, {})]
    # vLLM 0.23's CPU sampler ignores seeds unless every request of a batch has one.
    if not vllm.__version__.startswith("0.23"):
        others = [[9 + number, *prompt] for number, prompt in enumerate(prompts)]
        asked.append((others, {"temperature": 1.0, "seed": 5}))
    # Plain vLLM dies of a seed over prefill chunks on CPU.
    with engine(tiny_pangu, None, **small | {"max_num_batched_tokens": 1024}) as plain:
        expected = [plain.generate(each, max_tokens=40, **params) for each, params in asked]
    more = {} if window is None else {"drafter_window": window}
    spec = tree_config_of(tiny_head, (3, 3, 8), **more)
    with engine(tiny_pangu, spec, **small) as trees:
        policy = NowAndThen()
        head = trees.runner.draft_head
        assert head.rowwise
        (layer,) = head.layers
        layer.kv_cache.fill_(float("nan"))
        pages = layer.impl.pages(layer, layer.kv_cache)
        add = Missed.add

        def add_and_spoil(self, slots, page_size):
            """What another request left there would be attended without a trace."""
            for slot in slots.tolist():
                pages.key[slot // page_size, :, slot % page_size] = float("nan")
            add(self, slots, page_size)

        monkeypatch.setattr(Missed, "add", add_and_spoil)
        ours, looked = TreeAttentionMixin.forward, []

        def looks_for_trees(self, layer, query, key, value, cache, metadata, *args, **named):
            if layer not in head.layers:
                looked.append(metadata.tree)
            return ours(self, layer, query, key, value, cache, metadata, *args, **named)

        monkeypatch.setattr(TreeAttentionMixin, "forward", looks_for_trees)
        trees.runner.step.policy = policy
        if watched:
            trees.runner.stages.observers += (Observer(),)
        for (each, params), texts in zip(asked, expected, strict=True):
            assert trees.generate(each, max_tokens=40, **params) == texts
    assert min(policy.planned) > 12 * len(asked) and policy.drew == {True}
    assert bool(policy.unasked) != watched
    assert len(policy.whole) > 50 and all(policy.whole)
    assert looked and None not in looked, "in a step without trees the target's layers are vLLM's"
