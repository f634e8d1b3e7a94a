# SPDX-License-Identifier: Apache-2.0
"""Numbers as the page writes them."""

import math


def grouped(value: float) -> str:
    """Whole, in groups of three digits."""
    return f"{value:,.0f}"


def percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{100 * share:.1f} %"


def microseconds(value: float) -> str:
    """Three digits, in the unit that reads best."""
    for unit in ("µs", "ms"):
        if value < 999.5:
            return f"{_three_digits(value)} {unit}"
        value /= 1000
    return f"{_three_digits(value)} s"


def _three_digits(value: float) -> str:
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
