# SPDX-License-Identifier: Apache-2.0
"""How a head's acceptance grew while it was trained, as SVG.

python benchmarks/growth.py configs/train/logs/smollm2-acceptance.csv docs/smollm2-growth.svg
"""

import csv
import sys
from pathlib import Path

from vllm_eagle_pangu.bench.figures import canvas


def main(log: Path, picture: Path) -> None:
    with log.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    tokens = [float(row["tokens"]) / 1e6 for row in rows]
    with canvas(picture, (7.0, 3.2)) as axes:
        labels = {"tau_top": "bound for trees of width 4", "tau_chain": "chains of 5"}
        for column, label in labels.items():
            axes.plot(tokens, [float(row[column]) for row in rows], marker="o", label=label)
        axes.set_xlabel("million tokens trained on")
        axes.set_ylabel("tau on held-out answers")
        axes.set_ylim(bottom=1)
        axes.legend(frameon=False)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
