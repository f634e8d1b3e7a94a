# SPDX-License-Identifier: Apache-2.0
"""Checks in a process of their own: what they import may fail, or end the process."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pkgutil import resolve_name

from vllm_eagle_pangu.doctor.finding import WRONG, Finding

# "RuntimeError: ..." at the end of a traceback; not the indented code above it.
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt|NotFound)\b.*")
_LOG_LINES = 40


def findings_of(
    name: str, check: str, *arguments: object, environment: Mapping[str, str] | None = None
) -> Iterator[Finding]:
    """What `check`, a function of this package such as "versions.torch", finds, as it does.

    Where it dies, a last finding of the given name says how. `environment`: on top of this one's.
    """
    command = [sys.executable, "-m", __name__, check, json.dumps(arguments)]
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        process = subprocess.Popen(
            command,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                yield Finding(**json.loads(line))
        if process.wait():
            errors.seek(0)
            log = errors.read()
            why = f"not checked: {death(process.returncode, log)}"
            yield Finding(name, WRONG, why, log="\n".join(log.splitlines()[-_LOG_LINES:]))


def findings_of_each(names: Sequence[str], check: str, *arguments: str) -> Iterator[Finding]:
    """One finding for each name, by one process; after one that ends it, another for the rest."""
    rest = list(names)
    while rest:
        for finding in findings_of(rest[0], check, *arguments, *rest):
            yield replace(finding, name=rest.pop(0)) if rest else finding


def import_failure(package: str) -> str | None:
    """Why `import package` fails in a process of its own; None where it does not.

    A failed import leaves torch's operator registry half filled, hence the process.
    """
    command = [sys.executable, "-c", f"import {package}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, errors="replace")
    return death(done.returncode, done.stderr) if done.returncode else None


def death(code: int, errors: str) -> str:
    """How a process ended, in a line: its exception, else its signal or exit code."""
    if code < 0:
        return f"the process was ended by {signal.Signals(-code).name}"
    found = [line for line in errors.splitlines() if _EXCEPTION.match(line)]
    return found[-1] if found else f"the process ended with code {code}"


if __name__ == "__main__":
    check = resolve_name(f"vllm_eagle_pangu.doctor.{sys.argv[1].replace('.', ':')}")
    # Each finding goes to the parent; what vLLM and others print goes to stderr.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as pipe:
        os.dup2(2, 1)
        for finding in check(*json.loads(sys.argv[2])):
            print(json.dumps(asdict(finding)), file=pipe, flush=True)
