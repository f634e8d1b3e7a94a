# SPDX-License-Identifier: Apache-2.0
"""`make demo`: tree speculation, plain decoding and vLLM's own chains on the same prompts."""

import argparse
import contextlib
import sys
import time

from openai import OpenAIError

from vllm_eagle_pangu.demo import options, pair, report
from vllm_eagle_pangu.demo.client import Client, Record, plant_wrong_token, recorded
from vllm_eagle_pangu.measure.method import Method, chain
from vllm_eagle_pangu.measure.server import Server, ended_by_sigterm

TREE = "tree"
PLAIN = "plain"
EXACT = "float32"
# Servers of the sweep that load at the same time: each takes about 2 GB.
LOADED_TOGETHER = 2


def ready(
    stack: contextlib.ExitStack, servers: list[Server], prompt: str, tokens: int, chat: bool
) -> dict[str, Client]:
    """Start servers that load side by side, wait for them, then warm each up."""
    begin = time.monotonic()
    for server in servers:
        stack.enter_context(server)
    clients = {server.name: Client(server.wait(), ends=chat) for server in servers}
    for client in clients.values():
        for _ in range(2):
            client.complete(prompt, tokens)
    names = ", ".join(clients)
    print(f"[{names}] ready after {time.monotonic() - begin:.0f} s", flush=True)
    return clients


def show(client: Client, prompts: list[str], tokens: int) -> bool:
    """Print every completion of the tree; whether streaming gave the same tokens."""
    same = True
    for prompt in prompts:
        whole = client.complete(prompt, tokens)
        same = report.spoken(prompt, client.stream(prompt, tokens)) == whole.ids and same
    return same


def sweep(
    stack: contextlib.ExitStack,
    found: pair.Pair,
    lengths: tuple[int, ...],
    prompts: list[str],
    tokens: int,
) -> tuple[list[Record], Client]:
    """Rank chain lengths; return the record of each, and the client of the fastest.

    Servers come in pairs. The fastest so far is measured again beside each pair, so that only
    figures of the same minute are compared.
    """
    tried: list[Record] = []
    best: Client | None = None
    for start in range(0, len(lengths), LOADED_TOGETHER):
        servers = [
            Server(way.name, found.target, way.speculative_config(str(found.draft)))
            for way in map(chain, lengths[start : start + LOADED_TOGETHER])
        ]
        clients = ready(stack, servers, prompts[0], tokens, found.chat)
        if best is not None:
            clients[best.server.name] = best
        records = recorded(clients, prompts, tokens, repeats=1)
        tried += [records[server.name] for server in servers]
        fastest = max(records, key=lambda name: records[name].tokens_per_second())
        for name, client in clients.items():
            if name != fastest:
                client.server.stop()
        best = clients[fastest]
    assert best is not None, "at least one chain length is tried"
    return tried, best


def run(arguments: argparse.Namespace) -> int:
    """The whole demo. Returns 0, or 1 if it broke or an output differs but at a near-tie.

    Raises FileNotFoundError where there is no such pair.
    """
    found = pair.find(arguments.pair)
    try:
        with ended_by_sigterm():
            return compare(arguments, found)
    except (RuntimeError, OpenAIError) as error:
        print(f"eagle-pangu demo: {error}", file=sys.stderr)
        return 1


def compare(arguments: argparse.Namespace, found: pair.Pair) -> int:
    """Serve the pair in every way, ask all the same, print the tables, end the servers."""
    prompts = found.read_prompts(arguments.prompts)
    tokens = arguments.tokens
    with contextlib.ExitStack() as stack:
        drafting = Method("tree", arguments.nodes).speculative_config(str(found.draft))
        both = [Server(TREE, found.target, drafting), Server(PLAIN, found.target, None)]
        clients = ready(stack, both, prompts[0], tokens, found.chat)
        streams_alike = show(clients[TREE], prompts, tokens)
        chains, best = sweep(
            stack, found, arguments.chains, prompts[: options.SWEEP_PROMPTS], tokens
        )
        # Plain decoding first: the others are compared with it.
        clients = {PLAIN: clients[PLAIN], best.server.name: best, TREE: clients[TREE]}
        records = recorded(clients, prompts, tokens, options.REPEATS)
        # Once nothing is timed any more.
        judge = Server(EXACT, found.target, None, ("--dtype=float32",))
        exact = ready(stack, [judge], prompts[0], tokens, found.chat)[EXACT]
        if arguments.plant_wrong_token:
            at = plant_wrong_token(records[TREE].completions[0][-1], exact)
            print(f"Planted a wrong token in the tree's last answer to prompt 0: token {at}.")
        rounding, differences = report.differences(records, clients[PLAIN], exact)
    print(report.sweep_table(chains, best.server.name))
    print(report.comparison(records, rounding, differences, streams_alike))
    honest = all(d.near_tie for by_prompt in differences.values() for d in by_prompt.values())
    return 0 if honest and streams_alike else 1
