# SPDX-License-Identifier: Apache-2.0
"""What a check found: one line of `eagle-pangu doctor`."""

from dataclasses import dataclass

OK = "ok"
# One of vLLM's traps: nothing of the user's is at fault, and there is a command that mends it.
TRAP = "trap"
WRONG = "wrong"
# What it needs is wrong: said there.
NOT_RUN = "unrun"


@dataclass(frozen=True)
class Finding:
    """`mend`: a command for a shell; empty where nothing is to be mended or no command does it.

    `log`: the last lines of the process that died of it; `rung`, `seconds`: on the ladder, where it
    was found and what it took.
    """

    name: str
    state: str
    text: str
    mend: str = ""
    log: str = ""
    rung: str = ""
    seconds: float | None = None

    def line(self) -> str:
        took = "" if self.seconds is None else f" ({self.seconds:.1f} s)"
        mend = f"; mend: {self.mend}" if self.mend else ""
        return f"{self.state:<6}{self.name:<15} {self.text}{took}{mend}"


def reason(error: Exception) -> str:
    """An exception in a line; of a pydantic ValidationError what its first check said."""
    listed = getattr(error, "errors", None)
    text = str(listed()[0]["msg"]) if callable(listed) else str(error)
    text = text.removeprefix("Value error, ")
    kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
    return kind + " ".join(text.split())
