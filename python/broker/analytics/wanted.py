"""The required set-up of a site: custom dimensions and custom reports, read from a YAML file.

The file that is shipped stands beside this module; an operator may name another one. It is read once, at
start, so that a mistake in it stops the start and not a later set-up.
"""

import re
from collections import Counter
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Self

import yaml
from pydantic import AfterValidator, Field, ValidationError, model_validator

from broker.domain.titles import camel_case
from broker.domain.values import Model

_MAX_FILE_BYTES = 1 << 20
_NAME = re.compile(r"[\w -]{1,255}")  # what Matomo takes for a dimension
_METRIC = re.compile(r"[A-Za-z0-9_.]{1,100}")
_OWN_DIMENSION = re.compile(r"(visit|action)\.([A-Za-z0-9]+)")
_MATOMOS_DIMENSION = re.compile(r"[A-Z][A-Za-z0-9]*\.[A-Z][A-Za-z0-9]*")


class WantedError(Exception):
    """The set-up file cannot be used; the text names the file and what is wrong."""


class Scope(StrEnum):
    """What a custom dimension is about: a whole visit, or one action."""

    VISIT = "visit"
    ACTION = "action"


def _name(value: str) -> str:
    if not _NAME.fullmatch(value) or value != value.strip() or not camel_case(value):
        raise ValueError("must be 1 to 255 letters, digits, spaces, dashes and underscores")
    return value


def _metric(value: str) -> str:
    if not _METRIC.fullmatch(value):
        raise ValueError("must be the name of a metric, such as nb_visits")
    return value


def _dimension(value: str) -> str:
    if not _OWN_DIMENSION.fullmatch(value) and not _MATOMOS_DIMENSION.fullmatch(value):
        raise ValueError("must be visit.name, action.name, or one of Matomo's such as Actions.PageUrl")
    return value


WantedName = Annotated[str, AfterValidator(_name)]


class Extraction(Model):
    """Where Matomo takes the value of an action's dimension from by itself."""

    dimension: str
    pattern: str


class WantedDimension(Model):
    """A custom dimension."""

    name: WantedName
    scope: Annotated[Scope, Field(strict=False)]
    extractions: tuple[Extraction, ...] = Field(default=(), strict=False)
    case_sensitive: bool = True

    @property
    def key(self) -> str:
        """The name by which clients know it."""
        return camel_case(self.name)


class WantedReport(Model):
    """A report of the plugin CustomReports. `dimensions` are in their order from the outside in."""

    name: WantedName
    type: Annotated[str, Field(pattern="^(table|evolution)$")] = "table"
    description: str = ""
    dimensions: Annotated[tuple[Annotated[str, AfterValidator(_dimension)], ...], Field(strict=False)] = ()
    metrics: Annotated[
        tuple[Annotated[str, AfterValidator(_metric)], ...], Field(strict=False, min_length=1, max_length=20)
    ]
    segment: str = ""

    @property
    def key(self) -> str:
        """The name by which clients know it."""
        return camel_case(self.name)


class Wanted(Model):
    """Everything that a site should have; `version` counts the changes of the file."""

    version: Annotated[int, Field(ge=1)]
    dimensions: Annotated[tuple[WantedDimension, ...], Field(strict=False)] = ()
    reports: Annotated[tuple[WantedReport, ...], Field(strict=False)] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Names differ as keys, and reports are about dimensions that are there."""
        _refuse_repeated("dimensions", [f"{entry.scope}.{entry.key}" for entry in self.dimensions])
        _refuse_repeated("reports", [entry.key for entry in self.reports])
        for entry in self.dimensions:
            if entry.extractions and entry.scope is not Scope.ACTION:
                raise ValueError(
                    f"dimensions: {entry.name}: only dimensions of the scope action can have extractions"
                )
        known = {f"{entry.scope}.{entry.key}" for entry in self.dimensions}
        for report in self.reports:
            for name in report.dimensions:
                if _OWN_DIMENSION.fullmatch(name) and name not in known:
                    raise ValueError(f"reports: {report.name}: there is no dimension {name}")
        return self


def load_wanted(path: Path | None = None) -> Wanted:
    """Read the set-up file; None is the one that is shipped. Raises WantedError."""
    place = str(path) if path else "the default set-up"
    try:
        text = path.read_bytes() if path else files(__package__).joinpath("wanted.yaml").read_bytes()
    except OSError as error:
        raise WantedError(f"{place}: {error.strerror or error}") from error
    return parse_wanted(text, place)


def parse_wanted(content: bytes, place: str) -> Wanted:
    """Read the content of a set-up file. Raises WantedError, which names `place`."""
    if len(content) > _MAX_FILE_BYTES:
        raise WantedError(f"{place}: must not be over {_MAX_FILE_BYTES} bytes")
    try:
        return Wanted.model_validate(yaml.safe_load(content), by_alias=True, by_name=False)
    except (yaml.YAMLError, RecursionError, UnicodeDecodeError) as error:
        raise WantedError(f"{place}: is not valid YAML: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in fault["loc"])
        text = fault["msg"].removeprefix("Value error, ")
        raise WantedError(f"{place}: {where}{': ' if where else ''}{text}") from None


def _refuse_repeated(field: str, keys: list[str]) -> None:
    for key, count in Counter(keys).items():
        if count > 1:
            raise ValueError(f"{field}: {key} must not be repeated")
