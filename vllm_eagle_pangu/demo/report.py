# SPDX-License-Identifier: Apache-2.0
"""What the demo prints."""

import sys
from collections.abc import Iterable

from vllm_eagle_pangu import ties
from vllm_eagle_pangu.demo import options
from vllm_eagle_pangu.demo.client import Client, Record
from vllm_eagle_pangu.measure.files import aligned
from vllm_eagle_pangu.measure.server import server_environment, server_flags
from vllm_eagle_pangu.ties import Difference

PROMPT_LINES = 4
COMPLETION_LINES = 10
ENDS = "\x1b[0m"

METHOD = f"""\
Batch 1, greedy; tokens per second as the client sees them, prompt included: per
prompt the median of {options.REPEATS} runs. The servers stand side by side, idle but for the one
asked; each prompt goes to all methods in turn, so that a slow minute slows them all. tau = tokens
per target forward, from the servers' own counters. Rounding: how far the plain server's logits lie
from those of the same target in float32, for the same tokens. A near-tie: every token of the output
lies no farther behind float32's best than that allows."""

# By method, by prompt index.
Differences = dict[str, dict[int, Difference]]


def completion(prompt: str, text: str, chunks: list[int]) -> str:
    """The end of the prompt behind bars, its completion behind arrows, and how it streamed in."""
    first, *further = text.splitlines() or [""]
    *before, last = prompt.splitlines()[-PROMPT_LINES:]
    dropped = ["..."] if len(further) > COMPLETION_LINES else []
    lines = [f"  | {line}" for line in [*before, last + first]]
    lines += [f"  > {line}" for line in [*further[:COMPLETION_LINES], *dropped]]
    return "\n".join([*lines, f"  ({sum(chunks)} tokens streamed in {len(chunks)} chunks)\n"])


def spoken(prompt: str, chunks: Iterable[tuple[str, list[int]]]) -> tuple[list[int], list[int]]:
    """Print an answer as it comes, what each step of the engine accepted as one piece: in turns of
    two colours on a terminal, else between bars. Sizes of the chunks, and all token ids.

    `chunks`: text and token ids of each.
    """
    marks = ("\x1b[36m", "\x1b[33m") if sys.stdout.isatty() else ("", "|")
    print("\n".join(f"  | {line}" for line in prompt.splitlines()[-PROMPT_LINES:]), end="\n  > ")
    sizes, ids = list[int](), list[int]()
    for text, part in chunks:
        mark = marks[len(sizes) % 2 if marks[0] else bool(sizes)]
        print(mark + text.replace("\n", "\n  > "), end="", flush=True)
        sizes.append(len(part))
        ids += part
    print(f"{ENDS if marks[0] else ''}\n  ({len(ids)} tokens in {len(sizes)} pieces)\n", flush=True)
    return sizes, ids


def differences(
    records: dict[str, Record], reference: Record, exact: Client, bound: float
) -> Differences:
    """Every prompt on which a method's output parts from plain decoding's, `reference`, judged; of
    its repeats the one with the token that lies farthest behind. `exact` serves in float32."""
    found: Differences = {}
    for name, record in records.items():
        found[name] = {}
        for index, runs in record.completions.items():
            expected = reference.completions[index][0]
            for run in runs:
                if run.ids == expected.ids:
                    continue
                logits = exact.prefill_logits(expected.prompt_ids, run.ids)
                judged = ties.judge(expected.ids, run.ids, logits, bound)
                if index not in found[name] or max(judged.gaps) > max(found[name][index].gaps):
                    found[name][index] = judged
    return found


def sweep_table(chains: list[Record], fastest: str) -> str:
    rows = []
    for record in chains:
        marked = "fastest" if record.name == fastest else ""
        rows.append([record.name, f"{record.tokens_per_second():.1f}", _tau(record), marked])
    title = f"vLLM's own eagle3 with the same head, first {options.SWEEP_PROMPTS} prompts:"
    return f"\n{title}\n" + aligned(["method", "tokens/s", "tau", ""], rows)


def comparison(
    records: dict[str, Record], rounding: ties.Rounding, differing: Differences, streams_alike: bool
) -> str:
    """The headline table, every difference below it, and how it was measured.

    The first record is plain decoding's.
    """
    plain = next(iter(records.values()))
    header = ["method", "tokens/s", "ratio", "tau", "identical to plain"]
    rows = []
    for name, record in records.items():
        speed = record.tokens_per_second()
        ratio = f"{speed / plain.tokens_per_second():.2f}"
        verdict = "-" if record is plain else _verdict(len(record.completions), differing[name])
        rows.append([name, f"{speed:.1f}", ratio, _tau(record), verdict])
    lines = ["", aligned(header, rows), "", f"Rounding: {rounding}."]
    for name, found in differing.items():
        lines += [f"{name}, prompt {index}: {_judgement(d)}" for index, d in sorted(found.items())]
    alike = "the same" if streams_alike else "OTHER"
    return "\n".join([*lines, f"Streamed answers of the tree: {alike} tokens.", METHOD])


def figures(
    records: dict[str, Record],
    chains: list[Record],
    rounding: ties.Rounding,
    differing: Differences,
) -> dict[str, object]:
    """Everything measured, for a file."""

    def one(record: Record) -> dict[str, object]:
        seconds = {i: [run.seconds for run in runs] for i, runs in record.completions.items()}
        speed = record.tokens_per_second()
        return {"tokens_per_second": speed, "tau": record.tau(), "seconds": seconds}

    return {
        "methods": {name: one(record) for name, record in records.items()},
        "chains": {record.name: one(record) for record in chains},
        "rounding": vars(rounding),
        "differences": {
            name: {
                index: vars(d) | {"wrong": d.wrong, "near_tie": d.near_tie}
                for index, d in found.items()
            }
            for name, found in differing.items()
        },
        "settings": {"flags": server_flags(), "environment": server_environment()},
    }


def _tau(record: Record) -> str:
    tau = record.tau()
    return "-" if tau is None else f"{tau:.2f}"


def _verdict(prompts: int, found: dict[int, Difference]) -> str:
    near = sum(difference.near_tie for difference in found.values())
    wrong = len(found) - near
    parts = [f"{prompts - len(found)} of {prompts}"]
    parts += [f"{near} part at a near-tie"] if near else []
    parts += [f"{wrong} WRONG"] if wrong else []
    return ", ".join(parts)


def _judgement(difference: Difference) -> str:
    at, gaps = difference.position, difference.gaps
    parting = (
        f"parts at token {at} ({difference.plain} or {difference.other}), where they lie "
        f"{gaps[at]:.4f} or less behind the target's best"
    )
    if difference.wrong is None:
        return f"{parting}; no token lies farther than {max(gaps):.4f}: near-tie"
    return f"{parting}; token {difference.wrong} lies {gaps[difference.wrong]:.4f} behind: WRONG"
