# SPDX-License-Identifier: Apache-2.0
"""Deliberate faults of the AscendC kernels: what a comparison or the twin must notice."""

from typing import NamedTuple


class Mutant(NamedTuple):
    """Replace `old`, which stands once in the kernel, with `new`."""

    what: str
    old: str
    new: str


MUTANTS: dict[str, tuple[Mutant, ...]] = {
    "tree_accept": (
        Mutant("a padding row is walked", "if (validLocal_.GetValue(node + k) == 0) continue;", ""),
        Mutant(
            "a cousin is taken for a child",
            "if (parentLocal_.GetValue(node + k) != static_cast<int64_t>(row)) continue;",
            "",
        ),
        Mutant(
            "the highest of twin siblings is walked",
            "for (uint32_t k = row + 1; k < tiling_.rows; k++) {",
            "for (uint32_t k = tiling_.rows - 1; k > row; k--) {",
        ),
        Mutant("the last row is never a child", "k < tiling_.rows;", "k + 1 < tiling_.rows;"),
        Mutant(
            "the walk is one node too long", "length < tiling_.depth)", "length <= tiling_.depth)"
        ),
        Mutant(
            "the bonus is the token of the node, not the draw at it",
            "draw = drawLocal_.GetValue(node + row);",
            "draw = tokenLocal_.GetValue(node + row);",
        ),
        Mutant(
            "steps lie R apart instead of D + 1",
            "node = r * tiling_.rows, step = r * (tiling_.depth + 1);",
            "node = r * tiling_.rows, step = r * tiling_.rows;",
        ),
        Mutant("the rest of the output is 0", "SetValue(step + i, -1)", "SetValue(step + i, 0)"),
        Mutant("the rest is not filled", "i = length + 1; i <=", "i = length + 2; i <="),
        Mutant(
            "requests are dealt to cores one by one",
            "requestsPerCore = tiling_.groupsPerCore * kGroup;",
            "requestsPerCore = (tiling_.batch + GetBlockNum() - 1) / GetBlockNum();",
        ),
        Mutant("draws are read while they are loaded", "Sync<HardEvent::MTE2_S>();", ""),
        Mutant("paths are stored while they are written", "Sync<HardEvent::S_MTE3>();", ""),
        Mutant("the next group writes while paths are stored", "Sync<HardEvent::MTE3_S>();", ""),
        Mutant("the next group is loaded while draws are read", "Sync<HardEvent::S_MTE2>();", ""),
        Mutant(
            "a group is always loaded whole", "Group(b, Least(kGroup, end - b))", "Group(b, kGroup)"
        ),
    ),
    "draft_batch": (
        Mutant(
            "chains are not shifted",
            "part.first + part.i + 1, shifted",
            "part.first + part.i, shifted",
        ),
        Mutant("a chain ends with its own token", "i < part.last ?", "i < part.last + 1 ?"),
        Mutant("the bonus row is padding", "padded = i > length", "padded = i >= length"),
        Mutant("one row too many is accepted", "padded = i > length", "padded = i > length + 1"),
        Mutant(
            "padding is written to pages", "padded ? -1 : slotLocal_", "padded ? 0 : slotLocal_"
        ),
        Mutant(
            "hidden states are taken one row later",
            "part.first + pathRowLocal_.GetValue(i - part.i)",
            "part.first + 1 + pathRowLocal_.GetValue(i - part.i)",
        ),
        Mutant(
            "rows of a path are read relative to the batch",
            "part.first + pathRowLocal_.GetValue(i - part.i)",
            "pathRowLocal_.GetValue(i - part.i)",
        ),
        Mutant(
            "paths lie D + 1 apart whatever their columns",
            "static_cast<uint64_t>(part.b) * tiling_.pathColumns + part.i",
            "static_cast<uint64_t>(part.b) * (tiling_.depth + 1) + part.i",
        ),
        Mutant(
            "a cut tree reads beyond its rows",
            "high = LeastOf(part.end - 1, part.last)",
            "high = part.end - 1",
        ),
        Mutant("trees take D rows", "tree ? tiling_.depth + 1 :", "tree ? tiling_.depth :"),
        Mutant(
            "the sample row is one too low", "GetValue(b) : count - 1)", "GetValue(b) : count - 2)"
        ),
        Mutant("the last start is missing", "if (samples < starts) ", "if (samples > starts) "),
        Mutant("ids are always int64", "wide_ = wide;", "wide_ = true;"),
        Mutant("a full tile is not flushed", "if (put_ == kTile) Flush();", ""),
        Mutant(
            "rows are stored while they are written",
            "Sync<HardEvent::S_MTE3>();\n    Store(tokens_",
            "Store(tokens_",
        ),
        Mutant(
            "the next rows are written while these are stored", "Sync<HardEvent::MTE3_S>();", ""
        ),
        Mutant(
            "requests, not blocks of rows, are split",
            "row_ = static_cast<uint32_t>(GetBlockIdx()) * tiling_.rowsPerCore;",
            "row_ = static_cast<uint32_t>(GetBlockIdx()) * (tiling_.rowsPerCore - 1);",
        ),
    ),
    "tree_build": (
        Mutant(
            "of equal scores the higher index is kept",
            "left == right && a > b",
            "left == right && a < b",
        ),
        Mutant("the worst are kept", "return left < right ||", "return left > right ||"),
        Mutant("NaN is a score", "if (magnitude > kInfinity) return kNone;", ""),
        Mutant("zeros differ by their sign", "magnitude == 0 ? 0 : Flip(bits)", "Flip(bits)"),
        Mutant("-inf is kept", "if (key > kNone) Offer(c);", "Offer(c);"),
        Mutant(
            "a child may outrank its parent", "key = key < bound ? key : bound;", "(void)bound;"
        ),
        Mutant(
            "scores are not flipped back", "Flip(keyLocal_.GetValue(c))", "keyLocal_.GetValue(c)"
        ),
        Mutant(
            "a parent is found one row below",
            "rowOf_.GetValue(static_cast<uint32_t>(parentLocal_.GetValue(c)))",
            "rowOf_.GetValue(static_cast<uint32_t>(parentLocal_.GetValue(c)) + 1)",
        ),
        Mutant("an ancestor is the row before", "Inherit(row, above);", "Inherit(row, row - 1);"),
        Mutant("a node does not see its ancestors", "Inherit(row, above);", "Clear(row);"),
        Mutant("a node does not see itself", "      See(row);\n", ""),
        Mutant("a bit of the packed mask is missing", "(1u << (row % 32))", "(1u << (row % 31))"),
        Mutant(
            "the packed mask has one word",
            "row * tiling_.maskWords + row / 32",
            "row * tiling_.maskWords",
        ),
        Mutant(
            "rows of the mask lie R apart in the unified buffer",
            "outVisible_.SetValue(row * tiling_.visiblePitch + row, 1);",
            "outVisible_.SetValue(row * tiling_.rows + row, 1);",
        ),
        Mutant(
            "padding sees itself",
            "outVisible_.SetValue(row * tiling_.visiblePitch, 1);",
            "outVisible_.SetValue(row * tiling_.visiblePitch + row, 1);",
        ),
        Mutant(
            "padding sees nothing in the packed mask",
            "outMask_.SetValue(row * tiling_.maskWords, 1);",
            "",
        ),
        Mutant(
            "siblings are linked backwards",
            "uint32_t row = rows - 1; row > 0; row--",
            "uint32_t row = 1; row < rows; row++",
        ),
        Mutant("links leak into the next request", "    outFirstChild_.SetValue(row, 0);\n", ""),
        Mutant("rows of the last request are left in the table", "rowOf_.SetValue(c + 1, 0);", ""),
        Mutant(
            "the next request is loaded while this one is read", "Sync<HardEvent::S_MTE2>();", ""
        ),
        Mutant(
            "the next request writes while this one is stored", "Sync<HardEvent::MTE3_S>();", ""
        ),
        Mutant(
            "a heap child is never compared with its sibling",
            "child + 1 < nodes && ",
            "child + 1 > nodes && ",
        ),
    ),
    "kv_commit": (
        Mutant("slot -1 is written", "if (slot < 0 || slot >=", "if (slot >="),
        Mutant("row 0 is a node of the path", "if (node == 0) continue;", ""),
        Mutant("the root's slot is stored", "if (row != 0) slotLocal_", "slotLocal_"),
        Mutant(
            "the last accepted node is left out",
            "for (uint32_t i = 1; i < Reach(); i++) {\n      const uint32_t node",
            "for (uint32_t i = 1; i + 1 < Reach(); i++) {\n      const uint32_t node",
        ),
        Mutant(
            "a node goes to the slot of its row, not of its place on the path",
            "slot = linearLocal_.GetValue(i)",
            "slot = linearLocal_.GetValue(node)",
        ),
        Mutant(
            "slots are those of the row, not of the place on the path",
            "linearLocal_.GetValue(base + i)",
            "linearLocal_.GetValue(base + row)",
        ),
        Mutant(
            "scratch rows lie D + 1 apart",
            "from = static_cast<uint64_t>(b) * tiling_.rows + node",
            "from = static_cast<uint64_t>(b) * tiling_.pathColumns + node",
        ),
        Mutant(
            "every layer is written to the first one's pages",
            "cache_[value].GetDataPtr<uint8_t>(layer)",
            "cache_[value].GetDataPtr<uint8_t>(0)",
        ),
        Mutant(
            "values are written as keys", "scratch_[value].GetDataPtr", "scratch_[0].GetDataPtr"
        ),
        Mutant(
            "a core goes on with the last request's path",
            "if (item == first || item % perRequest == 0)",
            "if (item == first)",
        ),
        Mutant(
            "only the first tile of a row is copied",
            "for (uint32_t at = 0; at < bytes; at += tiling_.tileBytes) {",
            "for (uint32_t at = 0; at < 1; at++) {",
        ),
        Mutant(
            "a row is stored before it came",
            "      copies_.EnQue(row);\n      row = copies_.DeQue<uint8_t>();\n",
            "",
        ),
        Mutant("rows are never given back", "copies_.FreeTensor(row);", ""),
        Mutant("slots are stored while they are written", "Sync<HardEvent::S_MTE3>();", ""),
        Mutant(
            "the next slots are written while these are stored", "Sync<HardEvent::MTE3_S>();", ""
        ),
        Mutant("a path is read while it is loaded", "Sync<HardEvent::MTE2_S>();", ""),
    ),
}
