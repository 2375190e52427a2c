"""What one record may cost a template: steps of loops, and characters of text that is made.

Both are counted before they are spent, and the same way on every machine: there is no clock in it, so a
record that is refused once is refused always.

What is put into a list is counted with all that is in it. A list of one list twice, and of that twice, and so
on, takes no memory until somebody writes it out or compares it: so no value that a template makes is larger,
written out, than what was counted for it.

Cost: a look at each value that is put into another one. Reading is counted too, for loops that read: a step
for 16 kB of text, or for 16 values.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from jinja2 import Undefined

from packline.sources.records import RecordProblem

MOST_BITS = 4096
"""Of a whole number: a product of products is soon too long to print."""
TEXT_A_STEP = 1 << 14
"""Reading this much text is a step."""
VALUES_A_STEP = 16
"""Reading, such as comparing, so many values is a step."""
HOLDERS = (list, tuple, dict)


def measure(value: Any, most: int) -> tuple[int, int]:
    """How many values there are in a value, at any depth, and how many characters of text.

    It stops once there are more values than `most`.

    >>> measure("abc", 9), measure([1, ["ab", {"c": 2}]], 9)
    ((0, 3), (5, 3))
    """
    if isinstance(value, str):
        return 0, len(value)
    values = characters = 0
    rest = [value] if isinstance(value, HOLDERS) else []
    while rest and values <= most:
        one = rest.pop()
        values += len(one)
        for part in one if not isinstance(one, dict) else (*one, *one.values()):
            if isinstance(part, str):
                characters += len(part)
            elif isinstance(part, HOLDERS):
                rest.append(part)
    return values, characters


class Budget:
    """What one record may cost.

    Args:
        steps: of loops.
        characters: of text that is made, whether it is printed or not.
    """

    def __init__(self, steps: int, characters: int) -> None:
        self._most = steps, characters
        self.refill()

    @property
    def steps(self) -> int:
        """Those that are left."""
        return self._steps

    def refill(self) -> None:
        """Begin the next record."""
        self._steps, self._characters = self._most

    def spend_steps(self, count: int) -> None:
        """Count steps of a loop, before it runs."""
        self._steps -= count
        if self._steps < 0:
            raise RecordProblem("template", f"its loops take more than {self._most[0]:,} steps")

    def spend_characters(self, count: int) -> None:
        """Count text, before it is made."""
        self._characters -= count
        if self._characters < 0:
            raise RecordProblem("template", f"it makes more than {self._most[1]:,} characters")

    def copy(self, value: Any, times: int = 1) -> None:
        """Count a value with all that is in it, before it is put into another one so many times."""
        values, characters = measure(value, self._steps)
        self.spend_steps(values * times)
        self.spend_characters(characters * times)

    def read(self, value: Any) -> None:
        """Count a value that is gone through, such as one that is compared."""
        values, characters = measure(value, self._steps * VALUES_A_STEP)
        self.spend_steps(values // VALUES_A_STEP + characters // TEXT_A_STEP)

    def operate(self, operator: str, left: Any, right: Any) -> None:
        """Count what an operator would make.

        Raises:
            RecordProblem: of `%` with a string, or too much.
        """
        if isinstance(left, str) and operator == "%":
            raise RecordProblem("template", "'%' formats strings: print the values one by one instead")
        if operator == "*":
            for many, times in ((left, right), (right, left)):
                if isinstance(many, str | list | tuple) and isinstance(times, int):
                    self.copy(many, max(times, 0))
            whole = isinstance(left, int) and isinstance(right, int)
            if whole and left.bit_length() + right.bit_length() > MOST_BITS:
                raise RecordProblem("template", f"a number of more than {MOST_BITS} bits")
        if operator == "+" and isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
            self.copy(left)
            self.copy(right)

    def listed(self, values: Any) -> list[Any]:
        """The values of a list, an object (its names), a string or an iterator, counted as steps."""
        if isinstance(values, Undefined):
            iter(values)  # says which one it is
        if isinstance(values, list | tuple | dict | str | range):
            self.spend_steps(len(values))
            return list(values)
        if not isinstance(values, Iterable):
            raise RecordProblem("template", f"a {type(values).__name__} has nothing to loop over")
        found = list(islice(values, self._steps + 1))
        self.spend_steps(len(found))
        return found
