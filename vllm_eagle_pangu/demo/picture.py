# SPDX-License-Identifier: Apache-2.0
"""Draws one verified tree as SVG: `python -m vllm_eagle_pangu.demo.picture TREE.json TREE.svg`.

The JSON holds lists over the tree's rows, row 0 the root: `tokens` (texts), `parent` (row
indices), `score` (cumulative log-probabilities of the drafter), and `accepted` (rows of the
accepted path in order, the root left out), `bonus` (text of the token after it), `prompt`.
"""

import json
import math
import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
CHARACTER_WIDTH = 8.4
BOX_HEIGHT = 30
ROW_HEIGHT = 44
COLUMN_GAP = 46
MARGIN = 24
CAPTION_HEIGHT = 78

INK = "#1f2933"
FAINT = "#7b8794"
LINE = "#b8c2cc"
PAPER = "#ffffff"
BOX = "#f5f7fa"
PATH = "#0b7a5c"
PATH_FILL = "#d9f2e8"
ROOT_FILL = "#e4e7eb"
BONUS_FILL = "#fff3d1"
BONUS = "#b7791f"


@dataclass(frozen=True)
class Node:
    text: str
    note: str
    depth: int
    kind: str
    parent: int | None


def visible(token: str) -> str:
    """A token with its white space made visible."""
    spaces = len(token) - len(token.lstrip(" "))
    shown = ("␣" * spaces if spaces <= 2 else f"␣×{spaces} ") + token[spaces:]
    return shown.replace("\n", "⏎").replace("\t", "⇥").rstrip() or "∅"


def nodes_of(tree: dict[str, Any]) -> list[Node]:
    """The tree's rows, and behind the last accepted one the bonus token."""
    accepted = set(tree["accepted"])
    nodes: list[Node] = []
    for row, (token, parent) in enumerate(zip(tree["tokens"], tree["parent"], strict=True)):
        if row == 0:
            nodes.append(Node(visible(token), "root", 0, "root", None))
            continue
        kind = "accepted" if row in accepted else "rejected"
        probability = math.exp(tree["score"][row])
        note = f"{probability:.2f}" if probability >= 0.005 else "<.01"
        nodes.append(Node(visible(token), note, nodes[parent].depth + 1, kind, parent))
    last = tree["accepted"][-1] if tree["accepted"] else 0
    bonus = Node(visible(tree["bonus"]), "bonus", nodes[last].depth + 1, "bonus", last)
    return [*nodes, bonus]


def rows_of(nodes: list[Node]) -> list[float]:
    """Vertical place of each node in rows: leaves stacked, a parent level with its first child.

    The accepted path's child comes first, so that the path is a straight line on top.
    """
    place = [0.0] * len(nodes)
    free = 0

    def put(index: int) -> None:
        nonlocal free
        below = [child for child, node in enumerate(nodes) if node.parent == index]
        below.sort(key=lambda child: nodes[child].kind == "rejected")
        for child in below:
            put(child)
        place[index] = place[below[0]] if below else free
        free += not below

    put(0)
    return place


def columns_of(nodes: list[Node]) -> tuple[list[float], list[float]]:
    """Left edge and width of the boxes of each depth."""
    depths = range(max(node.depth for node in nodes) + 1)
    widths = [
        24 + CHARACTER_WIDTH * max(len(n.text) + len(n.note) + 2 for n in nodes if n.depth == depth)
        for depth in depths
    ]
    lefts = [MARGIN + sum(widths[:depth]) + COLUMN_GAP * depth for depth in depths]
    return lefts, widths


STYLES = {
    "root": (ROOT_FILL, FAINT, INK),
    "accepted": (PATH_FILL, PATH, PATH),
    "rejected": (BOX, LINE, INK),
    "bonus": (BONUS_FILL, BONUS, BONUS),
}


def box(node: Node, left: float, top: float, width: float) -> str:
    fill, stroke, ink = STYLES[node.kind]
    weight = "600" if node.kind in ("accepted", "bonus") else "400"
    dash = ' stroke-dasharray="4 3"' if node.kind == "bonus" else ""
    thick = 2 if node.kind == "accepted" else 1.2
    middle = top + BOX_HEIGHT / 2 + 5
    return (
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{BOX_HEIGHT}" rx="7" '
        f'fill="{fill}" stroke="{stroke}" stroke-width="{thick}"{dash}/>'
        f'<text x="{left + 12:.1f}" y="{middle:.1f}" font-size="14" font-weight="{weight}" '
        f'fill="{ink}">{escape(node.text)}</text>'
        f'<text x="{left + width - 12:.1f}" y="{middle:.1f}" font-size="11" text-anchor="end" '
        f'fill="{ink if node.kind != "rejected" else FAINT}">{node.note}</text>'
    )


def edge(start: tuple[float, float], end: tuple[float, float], kind: str) -> str:
    (x0, y0), (x1, y1) = start, end
    middle = (x0 + x1) / 2
    stroke = {"accepted": PATH, "bonus": BONUS}.get(kind, LINE)
    width = 2.6 if kind == "accepted" else 1.4
    dash = ' stroke-dasharray="4 3"' if kind == "bonus" else ""
    return (
        f'<path d="M{x0:.1f} {y0:.1f} C{middle:.1f} {y0:.1f} {middle:.1f} {y1:.1f} '
        f'{x1:.1f} {y1:.1f}" fill="none" stroke="{stroke}" stroke-width="{width}"{dash}/>'
    )


def draw(tree: dict[str, Any]) -> str:
    """The SVG text of one tree (see the module's docstring for its keys)."""
    nodes = nodes_of(tree)
    rows = rows_of(nodes)
    lefts, widths = columns_of(nodes)
    tops = [CAPTION_HEIGHT + row * ROW_HEIGHT for row in rows]
    width = max(lefts[-1] + widths[-1] + MARGIN, 760.0)
    height = max(tops) + BOX_HEIGHT + MARGIN + 20
    edges, boxes = [], []
    for node, top in zip(nodes, tops, strict=True):
        left = lefts[node.depth]
        boxes.append(box(node, left, top, widths[node.depth]))
        if node.parent is not None:
            before = nodes[node.parent].depth
            start = (lefts[before] + widths[before], tops[node.parent] + BOX_HEIGHT / 2)
            edges.append(edge(start, (left, top + BOX_HEIGHT / 2), node.kind))
    accepted = len(tree["accepted"])
    title = (
        f"{len(tree['tokens']) - 1} drafted nodes, one target forward: "
        f"{accepted} accepted + 1 bonus = {accepted + 1} tokens"
    )
    after = "after  …" + visible(tree["prompt"][-70:])
    head = (
        f'<text x="{MARGIN}" y="32" font-size="15" font-weight="600" fill="{INK}">{title}</text>'
        f'<text x="{MARGIN}" y="54" font-size="12" fill="{FAINT}">{escape(after)}</text>'
        f'<text x="{MARGIN}" y="{height - 14:.0f}" font-size="11" fill="{FAINT}">'
        "number: the drafter's probability of the path down to that node</text>"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="{FONT}" role="img">'
        f"<title>{title}</title>"
        f'<rect width="100%" height="100%" rx="10" fill="{PAPER}"/>'
        + "\n".join([head, *edges, *boxes])
        + "</svg>\n"
    )


if __name__ == "__main__":
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    target.write_text(draw(json.loads(source.read_text(encoding="utf-8"))), encoding="utf-8")
