# SPDX-License-Identifier: Apache-2.0
"""A request as its line in `requests.jsonl`, summed up over its steps."""

from dataclasses import dataclass
from typing import Any

from vllm_eagle_pangu.tracing.schema import SCHEMA


@dataclass
class RequestTotals:
    """Steps that verified a tree of the request, nodes verified in them, nodes accepted."""

    started_us: int
    steps: int = 0
    nodes: int = 0
    accepted: int = 0

    def add(self, nodes: int, accepted: int) -> None:
        """One more step."""
        self.steps += 1
        self.nodes += nodes
        self.accepted += accepted

    @property
    def tau(self) -> float | None:
        """Tokens per step, bonus included; None for a request without a verified tree."""
        return round(1 + self.accepted / self.steps, 4) if self.steps else None

    def record(
        self, request: str, prompt_tokens: int, output_tokens: int, ended_us: int
    ) -> dict[str, Any]:
        """The line."""
        return {
            "schema": SCHEMA,
            "kind": "request",
            "request": request,
            "prompt_tokens": prompt_tokens,
            "output_tokens": output_tokens,
            "steps": self.steps,
            "nodes": self.nodes,
            "accepted": self.accepted,
            "tau": self.tau,
            "started_us": self.started_us,
            "ended_us": ended_us,
        }
