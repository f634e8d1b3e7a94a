# SPDX-License-Identifier: Apache-2.0
"""What the demo prints."""

import sys
from collections.abc import Iterable
from itertools import chain

from vllm_eagle_pangu import ties
from vllm_eagle_pangu.demo import options
from vllm_eagle_pangu.demo.client import Client, Record
from vllm_eagle_pangu.measure.files import aligned
from vllm_eagle_pangu.measure.lossless import judged
from vllm_eagle_pangu.ties import Difference

PROMPT_LINES = 4
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


def spoken(prompt: str, chunks: Iterable[tuple[str, list[int]]]) -> list[int]:
    """Print an answer as it comes, what each step of the engine accepted as one piece: in turns of
    two colours on a terminal, else between bars. The ids of all its tokens.

    `chunks`: text and token ids of each.
    """
    marks = ("\x1b[36m", "\x1b[33m") if sys.stdout.isatty() else ("", "|")
    print("\n".join(f"  | {line}" for line in prompt.splitlines()[-PROMPT_LINES:]), end="\n  > ")
    ids, count = list[int](), 0
    for text, part in chunks:
        mark = marks[count % 2 if marks[0] else bool(count)]
        print(mark + text.replace("\n", "\n  > "), end="", flush=True)
        ids += part
        count += 1
    print(f"{ENDS if marks[0] else ''}\n  ({len(ids)} tokens in {count} pieces)\n", flush=True)
    return ids


def differences(
    records: dict[str, Record], plain: Client, exact: Client
) -> tuple[ties.Rounding, Differences]:
    """How far rounding moves the target's logits here, and every prompt on which a method's output
    parts from plain decoding's, judged by it; of its repeats the one with the token that lies
    farthest behind. `exact` serves in float32."""
    firsts = [runs[0] for runs in next(iter(records.values())).completions.values()]
    prompts = [first.prompt_ids for first in firsts]
    drawn = [plain.decode_logits(first.prompt_ids, len(first.ids)) for first in firsts]
    outputs = [ids for ids, _ in drawn]
    low = [*(rows for _, rows in drawn), *map(plain.prefill_logits, prompts, outputs)]
    parted = [
        (name, index, run.ids)
        for name, record in records.items()
        for index, runs in record.completions.items()
        for run in runs
        if run.ids != outputs[index]
    ]
    rounding, judgements = judged(
        lambda *both: list(map(exact.prefill_logits, *both)),
        prompts,
        outputs,
        list(chain.from_iterable(low)),
        [(index, ids) for _, index, ids in parted],
    )
    found: Differences = {name: {} for name in records}
    # Of each prompt the last stays, which is the farthest behind.
    both = zip(parted, judgements, strict=True)
    for (name, index, _), judgement in sorted(both, key=lambda one: max(one[1].gaps)):
        found[name][index] = judgement
    return rounding, found


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
