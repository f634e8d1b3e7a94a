# SPDX-License-Identifier: Apache-2.0
"""An engine in a process of its own: commands as JSON lines on stdin, replies on stdout.

    python -m vllm_eagle_pangu.bench.host

`{"command": "start", "model": ..., "speculative": ..., "options": {...}}`, then any number of
`{"command": "measure", "requests": [{"id": ..., "ids": [...], "params": {...}}], ...}`. Between
commands the process waits in a read and takes no processor time. End of input ends it, so it
does not outlive the process that feeds it.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, TextIO

WARM_UP_TOKENS = 32
# Before each block: the engine's weights and buffers come back into the processor's caches.
BLOCK_WARM_UP_TOKENS = 8


def main() -> int:
    replies = _private_stdout()
    served: Any = None
    warm = WARM_UP_TOKENS
    for line in sys.stdin:
        command = json.loads(line)
        try:
            if command["command"] == "start":
                served = _start(command)
                _reply(replies, {"event": "ready"})
            else:
                _measure(served, command, warm, replies)
                warm = BLOCK_WARM_UP_TOKENS
        # Whatever the engine raises is the experiment's result, and not the end of the others.
        except Exception as error:
            _reply(replies, {"event": "failed", "error": f"{type(error).__name__}: {error}"})
            if served is None:
                return 1
    if served is not None:
        served.close()
    return 0


def _private_stdout() -> TextIO:
    """The pipe to the parent; what anybody prints goes to stderr from here on."""
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return pipe


def _reply(replies: TextIO, content: dict[str, Any]) -> None:
    replies.write(json.dumps(content) + "\n")
    replies.flush()


def _start(command: dict[str, Any]) -> Any:
    from vllm_eagle_pangu.measure.engine import Engine

    return Engine(command["model"], command["speculative"], **command["options"])


def _measure(served: Any, command: dict[str, Any], warm: int, replies: TextIO) -> None:
    """A reply for each request as soon as it is answered, and one at the end."""
    requests = command["requests"]
    served.generate([requests[0]["ids"]], max_tokens=warm, ignore_eos=True)
    for request in requests:
        timed = command["forward_times"]
        figures = served.measure(request["id"], request["ids"], timed, **request["params"])
        _reply(replies, {"event": "measured", "figures": figures})
    _reply(replies, {"event": "end"})


if __name__ == "__main__":
    sys.exit(main())
