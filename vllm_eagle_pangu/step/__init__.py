# SPDX-License-Identifier: Apache-2.0
"""One decoding step, in torch alone: read `step.py` first, then the stages in their order.

    place    the drafted trees' rows in the batch            `place.Placed`
    verify   who attends whom in the target's forward        `verify.verify_rows`
    accept   the target's draws to accepted paths            `accept.Accepted`
    commit   K/V of the accepted paths to their slots        `commit.Committed`
    extend   the head's K/V by what was accepted             `extend.Extended`
    grow     the next trees, level by level                  `grow.DraftedTrees`

Nothing here knows a runner: `view.BatchView` is all that a step learns of vLLM's batch, and what it
needs done there goes through `commit.Pages` and `drafter.Head`. Results are immutable.
"""
