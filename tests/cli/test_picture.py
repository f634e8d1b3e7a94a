# SPDX-License-Identifier: Apache-2.0
"""The drawing of a tree."""

from typing import Any
from xml.etree import ElementTree

from vllm_eagle_pangu.demo import picture

SVG = "{http://www.w3.org/2000/svg}"
TREE: dict[str, Any] = {
    "prompt": "def f(a <b):\n",
    "tokens": ["    return", " a", " b", "\n", "<"],
    "parent": [0, 0, 0, 1, 1],
    "score": [0.0, -0.1, -2.5, -0.3, -3.0],
    "accepted": [1, 3],
    "bonus": "def",
}


def test_the_picture_is_xml_with_a_box_per_node_and_the_bonus():
    root = ElementTree.fromstring(picture.draw(TREE))

    _paper, *boxes = root.iter(SVG + "rect")
    assert len(boxes) == len(TREE["tokens"]) + 1
    assert len(list(root.iter(SVG + "path"))) == len(boxes) - 1
    texts = [text.text for text in root.iter(SVG + "text")]
    assert {"␣a", "⏎", "<", "def", "bonus"} <= set(texts)


def test_no_two_boxes_overlap_and_the_accepted_path_is_straight():
    root = ElementTree.fromstring(picture.draw(TREE))
    _paper, *boxes = root.iter(SVG + "rect")
    places = [(float(box.attrib["x"]), float(box.attrib["y"])) for box in boxes]

    assert len(set(places)) == len(places)
    accepted = {places[row][1] for row in [0, *TREE["accepted"]]}
    assert len(accepted) == 1
