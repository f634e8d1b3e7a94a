# SPDX-License-Identifier: Apache-2.0
"""The page's sections below its header, in order."""

from collections.abc import Mapping, Sequence
from typing import Any

from vllm_eagle_pangu.tracing.report.comparison import EXAMPLE, Method
from vllm_eagle_pangu.tracing.report.markup import (
    chart,
    escape,
    microseconds,
    pair,
    percent,
    section,
    table,
)
from vllm_eagle_pangu.tracing.report.statistics import WHOLE_STEP, Statistics

# Longer tables are no reading matter.
TABLE_REQUESTS = 200
COMPARE = '<code class="flag">--compare FILE</code>'
TOKENIZER = '<code class="flag">--tokenizer FOLDER</code>'


def headline(statistics: Statistics) -> str:
    medians = statistics.medians
    whole = [stage for stage in statistics.stages if stage.name == WHOLE_STEP]
    cards = [
        ("τ, tokens per step", f"{statistics.tau:.2f}", f"median {medians['tokens per step']:g}"),
        ("steps of a request", f"{statistics.request_steps:,}", _engine_steps(statistics)),
        (
            "requests",
            f"{len(statistics.requests):,}",
            f"median τ of one {medians['tau of a request']:.2f}",
        ),
        ("tokens emitted", f"{statistics.tokens:,}", "accepted and bonus"),
        (
            "drafted nodes verified",
            f"{statistics.nodes:,}",
            f"median {medians['nodes per step']:g} per step",
        ),
        (
            "of them accepted",
            percent(statistics.accepted / statistics.nodes) if statistics.nodes else "–",
            "falls as trees grow",
        ),
        ("prefix, median", f"{medians['prefix tokens']:,.0f}", "tokens before the root"),
    ]
    if whole:
        cards.append(
            ("engine step, median", microseconds(whole[0].p50), f"p99 {microseconds(whole[0].p99)}")
        )
    boxes = [
        f"<div{' class=chief' if index == 0 else ''}><dt>{escape(name)}</dt>"
        f"<dd>{escape(value)}<small>{escape(note)}</small></dd></div>"
        for index, (name, value, note) in enumerate(cards)
    ]
    return f'<dl class="cards">{"".join(boxes)}</dl>'


def emitted(statistics: Statistics, charts: Mapping[str, str]) -> str:
    return section(
        "Tokens per step",
        "What one target forward yields for a request: the accepted path and the bonus token. "
        "τ is the mean.",
        pair(
            chart(
                "Distribution of τ",
                "1 means that nothing was accepted.",
                charts["tau-distribution"],
            ),
            chart("τ by request", "One dot per request.", charts["tau-by-request"]),
        ),
        "<h3>Requests</h3>",
        _requests(statistics),
    )


def acceptance(statistics: Statistics, charts: Mapping[str, str]) -> str:
    if not statistics.positions:
        return section("Acceptance", "No step of this run drafted a node.")
    rows = [
        [
            str(position.depth),
            percent(position.share.value),
            percent(position.conditional.value),
            percent(position.of_offered.value),
            f"{position.tried - position.offered:,} of {position.tried:,}",
        ]
        for position in statistics.positions
    ]
    return section(
        "Acceptance",
        "Where accepted paths end, and how far the drafter's own probabilities can be trusted. "
        "Whiskers hold 95 %.",
        pair(
            chart(
                "By position",
                "Share of steps whose accepted path reached a depth.",
                charts["acceptance-by-position"],
            ),
            table(
                [
                    "depth",
                    "reached",
                    "of those at d−1",
                    "of those with a node at d",
                    "path ended for want of nodes",
                ],
                rows,
            ),
            chart(
                "By place among siblings",
                "Of nodes whose parent was accepted, by the drafter's order.",
                charts["acceptance-by-rank"],
            ),
            chart(
                "Calibration",
                "On the dashed line the target agrees as often as the drafter expects; "
                "greedy draws bend the line to an S.",
                charts["calibration"],
            ),
        ),
    )


def stages(statistics: Statistics, charts: Mapping[str, str]) -> str:
    if not statistics.stages:
        return section("Stages of a step", "This run recorded no times.")
    rows = [
        [
            stage.name,
            f"{stage.steps:,}",
            microseconds(stage.p50),
            microseconds(stage.p90),
            microseconds(stage.p99),
            "–" if stage.share is None else percent(stage.share),
        ]
        for stage in statistics.stages
    ]
    return section(
        "Stages of a step",
        "Times of the whole batch; every engine step counts once, however many requests it served.",
        pair(
            chart("Where the time goes", "", charts["stages"]),
            table(["stage", "steps", "p50", "p90", "p99", "share of time"], rows),
        ),
    )


def speed(methods: Sequence[Method], charts: Mapping[str, str]) -> str:
    title = "Speed against τ"
    if not methods:
        example = f"<code>{escape(EXAMPLE)}</code>"
        return section(title, "", f"<p>Pass {COMPARE} with {example} for this section.</p>")
    rows = [
        [f"{number}  {m.name}", f"{m.tau:.2f}", f"{m.speedup:.2f}", f"{m.step_cost:.2f}"]
        for number, m in enumerate(methods, start=1)
    ]
    return section(
        title,
        "Speed is τ divided by what a step costs. Dotted lines join methods whose steps cost "
        "the same, in steps of plain decoding.",
        pair(
            chart(
                "Methods",
                "Below the dashed line a method is slower than plain decoding.",
                charts["speedup-by-tau"],
            ),
            table(["method", "τ", "speed", "cost of a step"], rows),
        ),
    )


def trees(data: Mapping[str, Any]) -> str:
    kept, total = len(data["steps"]), data["total"]
    words = [
        "Choose a step by list, by bar or with the keys ← and →; with shift, a request.",
        "Numbers: the drafter's probability of a node given its parent · of its whole path.",
    ]
    if kept < total:
        words.append(f"The page holds {kept:,} of the run's {total:,} steps, evenly chosen.")
    texts = ""
    if data["texts"] is None:
        texts = f"<p>Nodes show token ids; pass {TOKENIZER} for their texts.</p>"
    return section("Trees", " ".join(words), texts, TREE_VIEW, anchor="trees")


TREE_VIEW = """\
<div class="controls">
<span><label for="request">request</label>
<button id="earlier-request" type="button" aria-label="previous request">‹</button>
<select id="request"></select>
<button id="later-request" type="button" aria-label="next request">›</button></span>
<span><label for="step">step</label>
<button id="earlier" type="button" aria-label="previous step">‹</button>
<select id="step"></select>
<button id="later" type="button" aria-label="next step">›</button></span>
</div>
<div id="strip"></div>
<p id="told" aria-live="polite"></p>
<p id="before" class="mono" hidden></p>
<div id="tree" tabindex="0"></div>
<div class="legend">
<span><i class="root"></i>root</span>
<span><i class="accepted"></i>accepted</span>
<span><i class="bonus"></i>bonus token</span>
<span><i class="refused"></i>the target drew another token</span>
<span><i class="untested"></i>never compared: parent not accepted</span>
</div>"""


def _engine_steps(statistics: Statistics) -> str:
    batch = statistics.medians["batch size"]
    return f"in {statistics.engine_steps:,} engine steps, median batch {batch:g}"


def _requests(statistics: Statistics) -> str:
    rows = []
    for request in statistics.requests[:TABLE_REQUESTS]:
        done = request.finished
        duration = done.duration_us if done else None
        rows.append(
            [
                request.name,
                f"{done.prompt_tokens:,}" if done else "–",
                f"{done.output_tokens:,}" if done else "–",
                f"{request.steps:,}",
                f"{request.nodes:,}",
                f"{request.accepted:,}",
                f"{request.tau:.2f}",
                "–" if duration is None else microseconds(duration),
            ]
        )
    header = ["request", "prompt", "output", "steps", "nodes", "accepted", "τ", "duration"]
    more = len(statistics.requests) - len(rows)
    note = f'<p class="faint">and {more:,} more requests</p>' if more else ""
    return table(header, rows) + note
