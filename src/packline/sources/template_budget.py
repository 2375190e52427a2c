"""Budget of a template per record: steps of loops, and characters of produced text.

Both are counted before they are spent, and in the same way on every machine, without a clock, so a refused
record is always refused.

A value put into a list is counted with everything in it. A list that contains one list twice, which contains
another twice, and so on, takes no memory until it is printed or compared: so no value of a template is larger
when printed than its counted size.

Cost: one visit of each value that is put into another one. Reading is counted too, for loops that read: one
step per 16 kB of text, or per 16 values.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from jinja2 import Undefined

from packline.sources.records import RecordProblem

MOST_BITS = 4096
"""Maximum bits of an integer: repeated products are soon too long to print."""
TEXT_A_STEP = 1 << 14
"""Characters of text read per step."""
VALUES_A_STEP = 16
"""Values read, for example compared, per step."""
HOLDERS = (list, tuple, dict)


def measure(value: Any, most: int) -> tuple[int, int]:
    """Count the values in a value, at any depth, and the characters of text.

    Stops once there are more values than `most`.

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
    """Budget of one record.

    Args:
        steps: maximum steps of loops.
        characters: maximum characters of produced text, printed or not.
    """

    def __init__(self, steps: int, characters: int) -> None:
        self._most = steps, characters
        self.refill()

    @property
    def steps(self) -> int:
        """Remaining steps."""
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
        """Count a value with everything in it, before it is put into another one `times` times."""
        values, characters = measure(value, self._steps)
        self.spend_steps(values * times)
        self.spend_characters(characters * times)

    def read(self, value: Any) -> None:
        """Count a value that is traversed, for example by a comparison."""
        values, characters = measure(value, self._steps * VALUES_A_STEP)
        self.spend_steps(values // VALUES_A_STEP + characters // TEXT_A_STEP)

    def operate(self, operator: str, left: Any, right: Any) -> None:
        """Count the result of an operator in advance.

        Raises:
            RecordProblem: `%` with a string, or the budget is exceeded.
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
            iter(values)  # raises an error with its name
        if isinstance(values, list | tuple | dict | str | range):
            self.spend_steps(len(values))
            return list(values)
        if not isinstance(values, Iterable):
            raise RecordProblem("template", f"a {type(values).__name__} has nothing to loop over")
        found = list(islice(values, self._steps + 1))
        self.spend_steps(len(found))
        return found
