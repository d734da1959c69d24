"""What `filter` operations have in common: paging, sorting, searching, lists of ids."""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from broker.domain.values import STORABLE, Model, check_storable

MAX_LIMIT = 1_000
MAX_SKIP = 2**31
MAX_IDS = 1_000
MAX_SEARCH_CHARACTERS = 1_000


class Order(StrEnum):
    """Ascending or descending."""

    ASC = "asc"
    DESC = "desc"


def split_commas(value: Any) -> Any:
    """The parts of a comma-separated text; a list, which WebSocket callers may send, stays one.

    A text with more parts than any list may have is not taken apart to its end.
    """
    return value.split(",", MAX_IDS) if isinstance(value, str) else value


CommaList = BeforeValidator(split_commas)
Search = Annotated[str, Field(max_length=MAX_SEARCH_CHARACTERS), AfterValidator(check_storable), STORABLE]


class NoParams(Model):
    """Takes nothing."""


class ListParams(Model):
    """Paging and order of a filter."""

    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT)] = 100
    skip: Annotated[int, Field(ge=0, le=MAX_SKIP)] = 0
    order: Annotated[Order, Field(strict=False)] | None = None
    search: Search | None = None
