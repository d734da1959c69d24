"""The figures that the model multiplies: each with its name, its unit and where it comes from."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

STANDING = Path(__file__).with_name("constants.json")
"""Those that stand in bench/README.md, in documents and in settings."""


class ConstantsError(Exception):
    """A file has not the constants that the model needs."""


@dataclass(frozen=True, slots=True)
class Constant:
    """One figure.

    Attributes:
        source: a command of this bench, a document, or a file of the product.
    """

    name: str
    value: float
    unit: str
    source: str


class Constants:
    """All figures of the model, by name; those that are named `…_cpu_us` are µs of one core."""

    def __init__(self, constants: Mapping[str, Constant]) -> None:
        self._constants = dict(constants)

    @classmethod
    def read(cls, path: Path = STANDING) -> Self:
        """Read a file of constants.

        Raises:
            ConstantsError: it is not there, is no list of constants, or lacks one that stands in the bench.
        """
        try:
            entries = [Constant(**entry) for entry in json.loads(path.read_text())]
        except (OSError, ValueError, TypeError) as error:
            raise ConstantsError(f"{path}: {error}") from None
        constants = cls({one.name: one for one in entries})
        if path != STANDING:
            lacking = cls.read().names - constants.names
            if lacking:
                raise ConstantsError(f"{path} lacks {', '.join(sorted(lacking))}")
        for one in entries:
            if not isinstance(one.value, int | float) or one.value < 0:
                raise ConstantsError(f"{path}: {one.name} is {one.value!r}, which is no figure")
        return constants

    def write(self, path: Path) -> None:
        """Write all to a file that `read` takes, one constant a line."""
        lines = [json.dumps(asdict(one), ensure_ascii=False) for one in self]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("[\n  " + ",\n  ".join(lines) + "\n]\n")

    def measured(self, values: Mapping[str, float], source: str) -> "Constants":
        """The same with other values, which `source` gave. Raises KeyError for a name that none has."""
        changed = {
            name: replace(self._constants[name], value=value, source=source) for name, value in values.items()
        }
        return Constants(self._constants | changed)

    @property
    def names(self) -> frozenset[str]:
        """Of all constants."""
        return frozenset(self._constants)

    def __iter__(self) -> Iterator[Constant]:
        return iter(self._constants.values())

    def __getitem__(self, name: str) -> float:
        return self._constants[name].value
