# SPDX-License-Identifier: Apache-2.0
"""How much of what steps with trees were to emit they emit."""

# What a tree weighs in what is kept at length, and a step at most, whatever it has: the tokens of a
# few dozen trees say a fifth more or less by chance alone. Of late a step weighs as much at least.
TREE, MOST, LATE = 1 / 512, 1 / 8, 1 / 64
# Where they are so far apart, the head or its texts became others: what is of late is believed.
APART = 0.2


class Kept:
    """The share of promised tokens that came: `share`, 1 before there were any."""

    LEARNT = ("late", "long", "_unsaid")

    def __init__(self) -> None:
        # Of late and at length, means of a step: tokens that it emitted, and that it was to emit.
        self.late, self.long = [0.0, 0.0], [0.0, 0.0]
        # How little that says yet: a few dozen trees may be lucky.
        self._unsaid = 1.0

    @property
    def share(self) -> float:
        """What a promise is worth."""
        return self._unsaid + (1 - self._unsaid) * _share(self.long)

    def saw(self, trees: int, emitted: float, hoped: float) -> bool:
        """A step of so many trees emitted so much of what was hoped; whether that is another share
        than it was at length."""
        long = min(TREE * trees, MOST)
        for mean, weight in ((self.late, max(LATE, long)), (self.long, long)):
            mean[0] += weight * (emitted - mean[0])
            mean[1] += weight * (hoped - mean[1])
        self._unsaid *= (1 - LATE) ** trees
        other = abs(_share(self.late) - _share(self.long)) > APART
        if other:
            self.long = [*self.late]
        return other

    def forget_half(self) -> None:
        """Of what steps fell short, or brought beyond: it was long ago."""
        for mean in (self.late, self.long):
            mean[0] += 0.5 * (mean[1] - mean[0])


def _share(mean: list[float]) -> float:
    emitted, hoped = mean
    return emitted / hoped if hoped else 1.0
