"""The WHERE of a query that a caller narrows down."""

from collections.abc import Iterable
from typing import Any


class Conditions:
    """What must all hold. A `{}` in a condition stands for its value, which is a parameter and never SQL."""

    def __init__(self, first: str, *values: object) -> None:
        """Args: values: of the parameters `$1`, `$2` … of the query."""
        self.values: list[Any] = [*values]
        self._all = [first]

    def add(self, condition: str, value: object = None) -> None:
        """Add a condition, with its value if it has one."""
        if value is not None:
            condition = condition.replace("{}", self.parameter(value))
        self._all.append(condition)

    def parameter(self, value: object) -> str:
        """What stands for a value in conditions."""
        self.values.append(value)
        return f"${len(self.values)}"

    def add_given(self, condition: str, value: object) -> None:
        """Add a condition unless its value is None."""
        if value is not None:
            self.add(condition, value)

    def add_any(self, conditions: Iterable[str] | None) -> None:
        """Add that one of these holds, unless they are None."""
        if conditions is not None:
            self.add(f"({' OR '.join(conditions)})")

    def __str__(self) -> str:
        return " AND ".join(self._all)
