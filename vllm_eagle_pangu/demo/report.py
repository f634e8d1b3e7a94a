# SPDX-License-Identifier: Apache-2.0
"""What the demo prints."""

from vllm_eagle_pangu.demo import settings, table, ties
from vllm_eagle_pangu.demo.measure import Client, Record
from vllm_eagle_pangu.demo.ties import Difference

PROMPT_LINES = 4
COMPLETION_LINES = 10
TOP_LOGITS = 5

METHOD = f"""\
Batch 1, greedy, fixed length; tokens per second as the client sees them, prompt included: per
prompt the median of {settings.REPEATS} runs. The servers stand side by side, idle but for the one
asked; each prompt goes to all methods in turn, so that a slow minute slows them all. tau = tokens
per target forward, from the servers' own counters. A near-tie: the target's logits of both tokens
lie within {ties.TIE_UNITS} bfloat16 units, the rounding of sums taken in another order."""

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


def differences(records: dict[str, Record], plain: Client) -> Differences:
    """Every prompt on which a method's output parts from plain decoding's, judged."""
    reference = next(record for name, record in records.items() if name == plain.server.name)
    found: Differences = {}
    for name, record in records.items():
        found[name] = {}
        for index, runs in record.completions.items():
            expected = reference.completions[index][0]
            for run in runs:
                position = ties.first_difference(expected.ids, run.ids)
                if position is None:
                    continue
                context = expected.prompt_ids + expected.ids[:position]
                logits = plain.next_logits(context, TOP_LOGITS)
                tokens = expected.ids[position], run.ids[position]
                judged = ties.classify(position, *tokens, logits)
                if index not in found[name] or judged.gap > found[name][index].gap:
                    found[name][index] = judged
    return found


def sweep_table(chains: list[Record], fastest: str) -> str:
    rows = [
        [
            record.name,
            f"{record.tokens_per_second():.1f}",
            _tau(record),
            "fastest" if record.name == fastest else "",
        ]
        for record in chains
    ]
    title = f"vLLM's own eagle3 with the same head, first {settings.SWEEP_PROMPTS} prompts:"
    return f"\n{title}\n" + table.render(["method", "tokens/s", "tau", ""], rows)


def comparison(records: dict[str, Record], differing: Differences, streams_alike: bool) -> str:
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
    lines = ["", table.render(header, rows), ""]
    for name, found in differing.items():
        lines += [f"{name}, prompt {index}: {_judgement(d)}" for index, d in sorted(found.items())]
    lines.append(
        f"Streamed answers of the tree: {'the same' if streams_alike else 'OTHER'} tokens."
    )
    lines.append(METHOD)
    return "\n".join(lines)


def figures(
    records: dict[str, Record], chains: list[Record], differing: Differences
) -> dict[str, object]:
    """Everything measured, for a file."""

    def one(record: Record) -> dict[str, object]:
        seconds = {i: [run.seconds for run in runs] for i, runs in record.completions.items()}
        speed = record.tokens_per_second()
        return {"tokens_per_second": speed, "tau": record.tau(), "seconds": seconds}

    return {
        "methods": {name: one(record) for name, record in records.items()},
        "chains": {record.name: one(record) for record in chains},
        "differences": {
            name: {index: vars(d) | {"near_tie": d.near_tie} for index, d in found.items()}
            for name, found in differing.items()
        },
        "settings": {
            "flags": settings.server_flags(),
            "environment": settings.server_environment(),
        },
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
    kind = "near-tie" if difference.near_tie else "NOT A TIE"
    return (
        f"parts at token {difference.position} ({difference.plain} or {difference.other}): "
        f"the target's logits are {difference.gap:.4f} apart, one bfloat16 unit there is "
        f"{difference.unit:.4f}: {kind}"
    )
