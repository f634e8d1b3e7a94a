# SPDX-License-Identifier: Apache-2.0
"""`make demo`: tree speculation, plain decoding and vLLM's own chains on the same prompts."""

import argparse
import contextlib
import json
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from vllm_eagle_pangu.demo import pair, report, settings
from vllm_eagle_pangu.demo.measure import Client, Record, record_round
from vllm_eagle_pangu.demo.server import Server

TREE = "tree"
PLAIN = "plain"
# Servers of the sweep that load at the same time: each takes about 2 GB.
LOADED_TOGETHER = 2


def tree_config(draft: Path, nodes: int) -> dict[str, object]:
    return {"method": "eagle_pangu", "model": str(draft), "num_speculative_tokens": nodes}


def chain_config(draft: Path, length: int) -> dict[str, object]:
    return {"method": "eagle3", "model": str(draft), "num_speculative_tokens": length}


def chain_name(length: int) -> str:
    return f"chain-{length}"


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """SIGTERM unwinds the stack like ctrl-C, so that the servers are ended."""

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def ready(servers: list[Server], prompt: str, tokens: int) -> dict[str, Client]:
    """Wait for servers that load side by side, then warm each up."""
    begin = time.monotonic()
    clients = {server.name: Client(server.wait()) for server in servers}
    for client in clients.values():
        client.warm_up(prompt, tokens)
    names = ", ".join(clients)
    print(f"[{names}] ready after {time.monotonic() - begin:.0f} s", flush=True)
    return clients


def show(client: Client, prompts: list[str], tokens: int) -> bool:
    """Print every completion of the tree; whether streaming gave the same tokens."""
    same = True
    for prompt in prompts:
        whole = client.complete(prompt, tokens)
        streamed, chunks = client.stream(prompt, tokens)
        same = same and streamed == whole.ids
        print(report.completion(prompt, whole.text, chunks), flush=True)
    return same


def sweep(
    stack: contextlib.ExitStack,
    target: Path,
    draft: Path,
    lengths: tuple[int, ...],
    prompts: list[str],
    tokens: int,
) -> tuple[dict[int, Record], Client, int]:
    """Rank chain lengths; return every record, and the client and length of the fastest.

    Servers come in pairs. The best so far is measured again beside each pair, so that only
    figures of the same minute are compared.
    """
    records: dict[int, Record] = {}
    best: tuple[int, Client] | None = None
    for start in range(0, len(lengths), LOADED_TOGETHER):
        batch = lengths[start : start + LOADED_TOGETHER]
        servers = {
            length: stack.enter_context(
                Server(chain_name(length), target, chain_config(draft, length))
            )
            for length in batch
        }
        named = ready(list(servers.values()), prompts[0], tokens)
        clients = {length: named[chain_name(length)] for length in batch}
        if best is not None:
            clients[best[0]] = best[1]
        rounds = {length: Record(chain_name(length)) for length in clients}
        by_name = {chain_name(length): client for length, client in clients.items()}
        record_round(by_name, {r.name: r for r in rounds.values()}, prompts, tokens)
        for length in batch:
            records[length] = rounds[length]
        fastest = max(rounds, key=lambda length: rounds[length].tokens_per_second())
        for length, client in clients.items():
            if length != fastest:
                client.server.stop()
        best = (fastest, clients[fastest])
    assert best is not None
    return records, best[1], best[0]


def run(arguments: argparse.Namespace) -> int:
    """The whole demo. Returns 0, or 1 if an output differs elsewhere than at a near-tie.

    Raises:
        FileNotFoundError: there is no demo pair.
    """
    found = pair.find(arguments.pair)
    prompts = found.read_prompts(arguments.prompts)
    tokens = arguments.tokens
    with ended_by_sigterm(), contextlib.ExitStack() as stack:
        tree = Server(TREE, found.target, tree_config(found.draft, arguments.nodes))
        plain = Server(PLAIN, found.target, None)
        for server in (tree, plain):
            stack.enter_context(server)
        clients = ready([tree, plain], prompts[0], tokens)

        streams_alike = show(clients[TREE], prompts, tokens)
        chains, chain_client, length = sweep(
            stack,
            found.target,
            found.draft,
            arguments.chains,
            prompts[: settings.SWEEP_PROMPTS],
            tokens,
        )
        chain = chain_name(length)
        clients = {PLAIN: clients[PLAIN], chain: chain_client, TREE: clients[TREE]}
        records = {name: Record(name) for name in clients}
        for _ in range(settings.REPEATS):
            record_round(clients, records, prompts, tokens)

        differences = report.differences(records, clients[PLAIN])
        print(report.sweep_table(chains, length))
        print(report.comparison(records, differences, streams_alike))
    if arguments.json:
        figures = report.figures(records, chains, differences)
        Path(arguments.json).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    honest = all(d.near_tie for found in differences.values() for d in found.values())
    return 0 if honest and streams_alike else 1
