# SPDX-License-Identifier: Apache-2.0
"""What the engine writes down of its steps, and what is made of it; see docs/traces.md.

`writer` records a run (`config` says whether and how much, `lines` what a step's lines hold,
`bounded_lines` how much of them), with `manifest` and `provenance` beside it; `reader` gives it
back. When a step fails, `dump` writes it down, and `replay` (`eagle-pangu replay`, in `command`)
checks it again without the engine, its commits in `cache_invariants`, and against the target itself
in `target_draws`.
"""
