# SPDX-License-Identifier: Apache-2.0
"""`eagle-pangu report RUN`: write the page and its charts."""

import argparse
from pathlib import Path

from vllm_eagle_pangu.config import refusal

PAGE = "index.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the `report` subcommand."""
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a recorded run")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="where the page goes (RUN/report)"
    )
    parser.add_argument(
        "--tokenizer", type=Path, metavar="FOLDER", help="show token texts: the target's folder"
    )
    parser.add_argument(
        "--compare",
        type=Path,
        metavar="BENCH.json",
        help='speed and tau of methods: {"methods": [{"name", "tau", "speedup"}, ...]}',
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the report and print where it is."""
    print(write_report(arguments.run, arguments.out, arguments.tokenizer, arguments.compare))
    return 0


def write_report(
    run: Path,
    out: Path | None = None,
    tokenizer: Path | None = None,
    compare: Path | None = None,
) -> Path:
    """Write `out`/index.html and one PNG per chart beside it. Returns the page's path.

    `run`: a run's folder, or one that holds a single run; `out`: the run's `report` by default;
    `tokenizer`: folder to read token texts with; `compare`: see `comparison.EXAMPLE`.

    Raises:
        FileNotFoundError: no run there.
        ValueError: names the file or option, what is wrong with it and the mend.
    """
    from vllm_eagle_pangu.tracing.reader import find_run
    from vllm_eagle_pangu.tracing.report.charts import draw_charts
    from vllm_eagle_pangu.tracing.report.comparison import read_methods
    from vllm_eagle_pangu.tracing.report.explorer import explorer_data
    from vllm_eagle_pangu.tracing.report.page import render
    from vllm_eagle_pangu.tracing.report.recording import read_recording
    from vllm_eagle_pangu.tracing.report.statistics import statistics_of
    from vllm_eagle_pangu.tracing.report.token_texts import read_tokenizer

    recording = read_recording(find_run(run))
    out = out or recording.folder / "report"
    methods = read_methods(compare) if compare else []
    texts = read_tokenizer(tokenizer) if tokenizer else None
    statistics = statistics_of(recording) if recording.steps else None
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refusal("out", str(out), f"no folder: {error}", "pass another --out") from error
    charts = draw_charts(statistics, methods, out) if statistics else {}
    data = explorer_data(recording.steps, texts)
    page = out / PAGE
    html = render(recording, statistics, charts, methods, data)
    # Half a surrogate pair is a character to JSON and not to UTF-8.
    page.write_text(html, encoding="utf-8", errors="xmlcharrefreplace")
    return page
