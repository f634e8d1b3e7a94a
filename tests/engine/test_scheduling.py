# SPDX-License-Identifier: Apache-2.0
"""Trees give way: each step serves everybody as a step of plain decoding would."""

import random
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from vllm import SamplingParams

pytestmark = pytest.mark.engine

SHAPE = (4, 5, 16)
# 24 trees have 408 rows.
CROWDED = {"max_model_len": 256, "max_num_seqs": 24, "max_num_batched_tokens": 96}
SETTINGS = {
    "chunked prefills": CROWDED,
    "whole prefills": CROWDED | {"max_num_batched_tokens": 256, "enable_chunked_prefill": False},
    "priorities": CROWDED | {"scheduling_policy": "priority", "enable_prefix_caching": True},
}


@dataclass(frozen=True)
class Arrival:
    """A request, and the engine step before which it comes."""

    step: int
    prompt: list[int]
    max_tokens: int
    priority: int = 0


@dataclass
class Service:
    """What one request got: rows and new tokens by step, and all of its tokens."""

    rows: dict[int, int] = field(default_factory=dict)
    nodes: dict[int, int] = field(default_factory=dict)
    emitted: dict[int, int] = field(default_factory=dict)
    tokens: list[int] = field(default_factory=list)

    @property
    def first_token(self) -> int:
        return min(self.emitted)

    @property
    def longest_gap(self) -> int:
        """Steps from one token to the next, at most."""
        steps = sorted(self.emitted)
        return max((after - before for before, after in pairwise(steps)), default=0)


def serve(running, arrivals) -> list[Service]:
    """Decode the arrivals greedily, and note what each of them gets in each step."""
    engine, services = running.llm.llm_engine, [Service() for _ in arrivals]
    outputs = watched(running.scheduler)
    waiting = sorted(enumerate(arrivals), key=lambda pair: (pair[1].step, pair[0]), reverse=True)
    step = 0
    while waiting or engine.has_unfinished_requests():
        while waiting and waiting[-1][1].step <= step:
            index, arrival = waiting.pop()
            params = SamplingParams(temperature=0.0, max_tokens=arrival.max_tokens, ignore_eos=True)
            prompt = {"prompt_token_ids": arrival.prompt}
            engine.add_request(str(index), prompt, params, priority=arrival.priority)
        for output in engine.step():
            service = services[int(output.request_id)]
            tokens = list(output.outputs[0].token_ids)
            if len(tokens) > len(service.tokens):
                service.emitted[step] = len(tokens) - len(service.tokens)
            service.tokens = tokens
        for req_id, rows in outputs[-1].num_scheduled_tokens.items():
            service = services[int(req_id.split("-")[0])]
            nodes = len(outputs[-1].scheduled_spec_decode_tokens.get(req_id, ()))
            service.rows[step], service.nodes[step] = rows - nodes, nodes
        step += 1
    return services


def watched(scheduler) -> list:
    """Fills with what the scheduler sends to the worker."""
    schedule, outputs = scheduler.schedule, []

    def watch(*args, **kwargs):
        outputs.append(schedule(*args, **kwargs))
        return outputs[-1]

    scheduler.schedule = watch
    return outputs


def crowd(seed: int) -> list[Arrival]:
    """Sixty requests, thirty of them at once, some with one token to read or one to write."""
    rng = random.Random(seed)
    return [
        Arrival(
            step=max(0, i - 29) // 3,
            prompt=[rng.randrange(256) for _ in range(rng.choice([1, 5, 40, 100]))],
            max_tokens=rng.choice([1, 2, 3, 10, 40, 70]),
            priority=rng.randrange(3),
        )
        for i in range(60)
    ]


@pytest.mark.parametrize("setting", SETTINGS)
def test_no_request_waits_longer_than_under_plain_decoding(
    engine, tiny_pangu, tiny_head, tree_config_of, setting
):
    """Regression: the first requests' trees took all rows of a step, and the others waited until
    those had ended; a request with one token to read waited for the rows of a whole tree."""
    load = crowd(seed=3)
    with engine(tiny_pangu, None, **SETTINGS[setting]) as running:
        plain = serve(running, load)
    with engine(tiny_pangu, tree_config_of(tiny_head, SHAPE), **SETTINGS[setting]) as running:
        trees = serve(running, load)
    assert [service.tokens for service in trees] == [service.tokens for service in plain]
    for got, want in zip(trees, plain, strict=True):
        assert got.first_token <= want.first_token
        assert got.longest_gap <= max(want.longest_gap, 1)
        assert max(got.emitted) <= max(want.emitted)
    verified = sum(sum(service.nodes.values()) for service in trees)
    assert verified > 1000, "so few trees starve nobody: this test tests nothing"


def test_a_prefill_gets_the_rows_that_it_gets_beside_plain_decoding(
    engine, tiny_pangu, tiny_head, tree_config_of
):
    """Regression: prefills got what the trees of running requests left over, here nothing."""
    decoding = [Arrival(0, [i, i + 1], max_tokens=120) for i in range(12)]
    load = [*decoding, *(Arrival(6, list(range(k, k + 150)), 40) for k in range(3))]
    chunks = []
    for spec in (None, tree_config_of(tiny_head, SHAPE)):
        with engine(tiny_pangu, spec, **CROWDED) as running:
            *others, first, second, third = serve(running, load)
        assert all(max(service.emitted) > max(third.rows) for service in others)
        chunks.append([service.rows for service in (first, second, third)])
    prefills = [{s: n for s, n in rows.items() if n > 1} for rows in chunks[1]]
    assert prefills == [{s: n for s, n in rows.items() if n > 1} for rows in chunks[0]]
    assert sum(prefills[0].values()) == 150 and len(prefills[0]) == 2


@pytest.mark.parametrize("setting", ["chunked prefills", "whole prefills"])
def test_it_is_known_who_waits_for_rows(engine, tiny_pangu, setting, tiny_head, tree_config_of):
    """Whoever did not get his first token in a step that reads prompts, though there was room for
    his request; not whoever waits for another one to end."""
    load = [Arrival(0 if i < 9 else 12, [i] * 90, max_tokens=30) for i in range(15)]
    settings = SETTINGS[setting] | {"max_num_seqs": 12}
    with engine(tiny_pangu, tree_config_of(tiny_head, SHAPE), **settings) as running:
        outputs = watched(running.scheduler)
        services = serve(running, load)
    checked = set()
    for step, output in enumerate(outputs):
        here = [r for r, each in enumerate(load) if each.step <= step]
        began = [r for r in here if min(services[r].rows) <= step]
        unread = [r for r in began if services[r].first_token > step]
        reads = any(services[r].rows.get(step, 0) > 1 for r in began)
        ended = sum(max(services[r].rows) < step for r in began)
        room = 12 - (len(began) - ended)
        expected = len(unread) + min(len(here) - len(began), room) if reads else 0
        assert output.others_waiting == expected, step
        checked.add(expected)
    assert len(checked) >= 5


def test_who_waits_for_blocks_does_not_wait_for_rows(engine, tiny_pangu, tiny_head, tree_config_of):
    """Trees that gave way to him would do so until another request ends."""
    # Eight usable blocks of 128 slots, two for each request.
    tight = CROWDED | {"num_gpu_blocks_override": 9}
    load = [Arrival(0, [i] * 90, max_tokens=60 + 5 * i) for i in range(10)]
    with engine(tiny_pangu, tree_config_of(tiny_head, (2, 1, 2)), **tight) as running:
        outputs = watched(running.scheduler)
        services = serve(running, load)
    waited = 0
    for step, output in enumerate(outputs):
        rows = sum(service.rows.get(step, 0) for service in services)
        if rows < tight["max_num_batched_tokens"]:
            assert output.others_waiting == 0
            reads = any(service.rows.get(step, 0) > 1 for service in services)
            waited += reads and any(min(service.rows) > step for service in services)
    assert waited > 1


def test_trees_of_a_crowd_have_equal_shares(engine, tiny_pangu, tiny_head, tree_config_of):
    """Regression: the first trees were whole, the last requests got not even a root."""
    load = [Arrival(0, [7, 8, i], max_tokens=60) for i in range(20)]
    with engine(tiny_pangu, tree_config_of(tiny_head, SHAPE), **CROWDED) as running:
        services = serve(running, load)
    # Each has been prefilled in step 0, and none can have ended within ten steps.
    for step in range(1, 10):
        nodes = [service.nodes[step] for service in services]
        assert sum(nodes) == 96 - 20
        assert max(nodes) - min(nodes) <= 1


@pytest.mark.parametrize("shape", [SHAPE, (1, 5, 5)], ids=["tree", "chain"])
def test_what_cannot_be_emitted_any_more_is_neither_drafted_nor_verified(
    engine, tiny_pangu, tiny_head, tree_config_of, shape
):
    """Regression: a request with one token left drafted and verified a full tree."""
    load = [Arrival(0, [5, 6, 7, i], max_tokens=1 + i % 12) for i in range(24)]
    settings = CROWDED | {"max_num_batched_tokens": 512}
    with engine(tiny_pangu, tree_config_of(tiny_head, shape), **settings) as running:
        drafted = left_when_drafted(running.scheduler)
        services = serve(running, load)
        counted = {m.name: m.value for m in running.llm.get_metrics() if hasattr(m, "value")}
    verified = defaultdict(set)
    for arrival, service in zip(load, services, strict=True):
        assert len(service.tokens) == arrival.max_tokens
        left = arrival.max_tokens
        for step in sorted(service.rows):
            verified[left].add(service.nodes[step])
            left -= service.emitted.get(step, 0)
    assert verified[1] == {0}
    assert max(verified[2]) == shape[0]
    assert max(verified[12]) == 0 and max(verified[11]) == shape[2], "prefilled, then decoded"
    assert drafted and min(drafted) >= 2
    nodes = sum(sum(service.nodes.values()) for service in services)
    assert counted["vllm:spec_decode_num_draft_tokens"] == nodes


def left_when_drafted(scheduler) -> list[int]:
    """Fills with the tokens that a request had left when a tree was drafted for it."""
    update, left = scheduler.update_draft_token_ids, []

    def watch(drafts):
        for req_id, nodes in zip(drafts.req_ids, drafts.draft_token_ids, strict=True):
            request = scheduler.requests.get(req_id)
            if nodes:
                ended = request is None
                left.append(0 if ended else request.max_tokens - request.num_output_tokens)
        update(drafts)

    scheduler.update_draft_token_ids = watch
    return left


def test_trees_preempt_nobody(engine, tiny_pangu, tiny_head, tree_config_of):
    """Regression: slots for a tree and for drafts behind it preempted other requests."""
    # Eleven usable blocks of 128 slots, and as many requests that end with their block.
    tight = CROWDED | {"num_gpu_blocks_override": 12, "max_num_batched_tokens": 256}
    load = [Arrival(i, [i] * (60 + i), max_tokens=128 - 60 - i) for i in range(11)]
    preempted, served = [], []
    for spec in (None, tree_config_of(tiny_head, SHAPE)):
        with engine(tiny_pangu, spec, **tight) as running:
            count = count_preemptions(running.scheduler)
            served.append(serve(running, load))
            preempted.append(len(count))
    plain, trees = served
    assert [service.tokens for service in trees] == [service.tokens for service in plain]
    assert preempted == [0, 0]
    assert sum(sum(service.nodes.values()) for service in trees) > 500


def count_preemptions(scheduler) -> list[str]:
    """Fills with the ids of preempted requests."""
    preempt, preempted = scheduler._preempt_request, []

    def watch(request, *args, **kwargs):
        preempted.append(request.request_id)
        return preempt(request, *args, **kwargs)

    scheduler._preempt_request = watch
    return preempted
