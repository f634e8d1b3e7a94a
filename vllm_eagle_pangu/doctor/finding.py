# SPDX-License-Identifier: Apache-2.0
"""What a check found: one line of `eagle-pangu doctor`."""

from dataclasses import dataclass

OK = "ok"
# One of vLLM's traps: nothing of the user's is at fault, and there is a command that mends it.
TRAP = "trap"
WRONG = "wrong"


@dataclass(frozen=True)
class Finding:
    """`mend`: a command for a shell; empty where nothing is to be mended or no command does it."""

    name: str
    state: str
    text: str
    mend: str = ""

    def line(self) -> str:
        mend = f"; mend: {self.mend}" if self.mend else ""
        return f"{self.state:<6}{self.name:<16}{self.text}{mend}"
