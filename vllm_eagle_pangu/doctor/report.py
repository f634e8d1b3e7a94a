# SPDX-License-Identifier: Apache-2.0
"""One Markdown file of what the ladder found, and the same as JSON: fit for a public bug report."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timezone
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from vllm_eagle_pangu.doctor.finding import NOT_RUN, OK, Finding
from vllm_eagle_pangu.measure.files import write_json
from vllm_eagle_pangu.measure.scrubbed import scrubbed, scrubbed_environment
from vllm_eagle_pangu.tracing.provenance import git_state, versions


def write(found: Sequence[Finding], device: str, out: Path) -> None:
    """`out` in Markdown, and a file of the same name that ends in .json."""
    git = git_state()
    facts = {
        "date": datetime.now(timezone.utc).isoformat(timespec="minutes"),
        "device": device,
        "versions": versions(),
        "commit": git and f"{git['commit'][:12]}{' with changes' if git['dirty'] else ''}",
        "environment": scrubbed_environment(),
    }
    clean = [
        replace(one, text=scrubbed(one.text), mend=scrubbed(one.mend), log=scrubbed(one.log))
        for one in found
    ]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n\n".join(_page(facts, clean)) + "\n", encoding="utf-8")
    write_json({**facts, "findings": list(map(asdict, clean))}, out.with_suffix(".json"))


def _page(facts: dict, findings: Sequence[Finding]) -> Iterator[str]:
    yield f"# eagle-pangu doctor on {facts['device']}"
    packages = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    source = f"; commit {facts['commit']}" if facts["commit"] else ""
    yield f"{facts['date']}; {packages}{source}."
    by_rung = {rung: list(found) for rung, found in groupby(findings, attrgetter("rung"))}
    rows = [(name, _state(found), _seconds(found)) for name, found in by_rung.items()]
    yield _table(("rung", "state", "seconds"), rows)
    for name, found in by_rung.items():
        yield f"## {name}"
        lines = [(f.name, f.state, _seconds([f]), _said(f)) for f in found]
        yield _table(("what", "state", "seconds", "seen"), lines)
        yield from (f"Log of {f.name}:\n\n```text\n{f.log}\n```" for f in found if f.log)
    yield "## Environment"
    kept = facts["environment"].items()
    yield "\n".join(f"- `{name}={text}`" for name, text in kept) or "None of ours or vLLM's is set."


def _state(found: Sequence[Finding]) -> str:
    if found[0].state == NOT_RUN:
        return found[0].text
    wrong = sum(finding.state != OK for finding in found)
    return f"{wrong} of {len(found)} to mend" if wrong else OK


def _seconds(found: Sequence[Finding]) -> str:
    return f"{sum(finding.seconds or 0 for finding in found):.1f}"


def _said(finding: Finding) -> str:
    return finding.text + (f"; mend: `{finding.mend}`" if finding.mend else "")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """All to the left: most of it is text."""
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *cells))
