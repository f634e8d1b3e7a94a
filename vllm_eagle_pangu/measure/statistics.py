# SPDX-License-Identifier: Apache-2.0
"""Rates, spreads, and what speculation can give by the usual formulas."""

import statistics
from collections.abc import Collection, Iterable, Sequence
from math import log
from typing import Any

import numpy as np


def percentile(values: Sequence[float], share: float) -> float:
    """By linear interpolation between the two nearest; `share` from 0 to 100."""
    return float(np.percentile(values, share))


def latency(name: str, seconds: Sequence[float]) -> dict[str, float | None]:
    """Its columns: the median and the 99th percentile in milliseconds, None of no times."""
    columns = {f"{name}_ms": 50, f"{name}_p99_ms": 99}
    return {
        column: 1e3 * percentile(seconds, share) if seconds else None
        for column, share in columns.items()
    }


def rate(tokens: Iterable[float], seconds: Iterable[Collection[float]]) -> float:
    """All tokens over all time, of each answer the median of its repeats' seconds."""
    return sum(tokens) / sum(map(statistics.median, seconds))


def tau(drafts: float, accepted: float) -> float | None:
    """Tokens per target forward, bonus included; None without a draft."""
    return 1 + accepted / drafts if drafts else None


def spread_of(ratios: Collection[float]) -> dict[str, Any]:
    """A speed-up's columns: one ratio per repeat, their median, the least and the greatest."""
    return {
        "repeats": len(ratios),
        "speedup": statistics.median(ratios),
        "speedup_min": min(ratios),
        "speedup_max": max(ratios),
    }


def mean_of(ratios: Collection[float]) -> dict[str, float | None]:
    """Columns of ratios round by round: their geometric mean, and the standard error of their
    logarithms' mean, so a share of it; None of one round."""
    spread = statistics.stdev(map(log, ratios)) if len(ratios) > 1 else None
    error = None if spread is None else spread / len(ratios) ** 0.5
    return {"mean": statistics.geometric_mean(ratios), "error": error}


def acceptance_rate(accepted: int, drafts: int, full_drafts: int) -> float | None:
    """alpha, the chance that a drafted token is accepted if those before it were.

    The maximum-likelihood value where it is the same at every position: of the tokens that came to
    trial, the share accepted. A draft's first rejected token is tried, those behind it are not;
    a draft accepted in full has no rejected one. None without a trial.
    """
    trials = accepted + drafts - full_drafts
    return accepted / trials if trials else None


def expected_tokens(alpha: float, length: int) -> float:
    """Tokens per step of a chain of K = `length`, the bonus token included (Leviathan et al. 2023,
    equation 1)."""
    return sum(alpha**accepted for accepted in range(length + 1))
