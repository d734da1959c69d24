"""A site as Matomo describes it, and its ids in the project's metadata.

Matomo writes numbers as numbers or as texts, by its version and its database; here an id is a text of digits
and nothing else, so that nothing that stands in metadata can name several sites or all of them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from broker.analytics.wanted import Scope

METADATA_KEY = "analytics"
_ID = re.compile(r"[1-9][0-9]{0,9}")
_FALSE = (False, None, 0, "0", "")
_OWN_REPORT_DIMENSION = "CustomDimension.CustomDimension"


class Reader(StrEnum):
    """What the read-only user may do with the site."""

    VIEW = "view"
    NONE = "none"
    REFUSED = "refused"  # Matomo does not accept its token
    OTHER = "other"  # the token is not that user's


@dataclass(frozen=True, slots=True)
class SiteIds:
    """The ids that metadata holds under `analytics`.

    Attributes:
        id_site: None before there is a site.
        is_malformed: there is something in its place that is no id of a site.
        dimensions: by scope, then by the dimension's key.
        reports: by the report's key.
    """

    id_site: str | None = None
    is_malformed: bool = False
    dimensions: Mapping[Scope, Mapping[str, str]] = field(
        default_factory=lambda: {scope: {} for scope in Scope}
    )
    reports: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_metadata(cls, metadata: Mapping[str, Any]) -> "SiteIds":
        """Read what is there; metadata is free, so anything may be."""
        stored = metadata.get(METADATA_KEY)
        if not isinstance(stored, dict):
            return cls(is_malformed=stored is not None)
        id_site = parse_id(stored.get("idSite"))
        dimensions = stored.get("dimensionIds")
        by_scope = dimensions if isinstance(dimensions, dict) else {}
        return cls(
            id_site,
            is_malformed=id_site is None and stored.get("idSite") is not None,
            dimensions={scope: _ids(by_scope.get(scope.value)) for scope in Scope},
            reports=_ids(stored.get("reportIds")),
        )

    def merged_into(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Metadata with these ids; whatever else it holds, under `analytics` too, stays as it is."""
        stored = _object(metadata.get(METADATA_KEY))
        dimensions = _object(stored.get("dimensionIds"))
        for scope in Scope:
            known = _object(dimensions.get(scope.value))
            dimensions[scope.value] = known | dict(self.dimensions[scope])
        reports = _object(stored.get("reportIds")) | dict(self.reports)
        ids = {"idSite": self.id_site, "dimensionIds": dimensions, "reportIds": reports}
        return {**metadata, METADATA_KEY: stored | ids}


@dataclass(frozen=True, slots=True)
class Dimension:
    """A custom dimension that the site has. `raw` is what Matomo said."""

    id: str
    name: str
    scope: str
    is_active: bool = True
    extractions: tuple[tuple[str, str], ...] = ()
    case_sensitive: bool = True
    raw: Mapping[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Report:
    """A custom report that the site has. `dimensions` are Matomo's names, from the outside in."""

    id: str
    name: str
    type: str
    dimensions: tuple[str, ...]
    metrics: frozenset[str]
    segment: str = ""
    is_active: bool = True
    raw: Mapping[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class FoundSite:
    """What Matomo has of one site.

    Attributes:
        site: its metadata as Matomo said it.
        free_slots: how many dimensions can be added, by scope.
        dimensions: None while the plugin CustomDimensions is not active.
        reports: None while the plugin CustomReports is not there or not active.
    """

    site: Mapping[str, Any]
    free_slots: Mapping[str, int]
    dimensions: tuple[Dimension, ...] | None
    reports: tuple[Report, ...] | None
    reader: Reader

    @property
    def group(self) -> str:
        """The group that the site is in; empty for none."""
        return str(self.site.get("group") or "")

    @property
    def can_be_read(self) -> bool:
        """Whether the read-only user sees it."""
        return self.reader is Reader.VIEW


def parse_id(value: object) -> str | None:
    """An id as Matomo counts them from 1, written as a number or as a text; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    text = str(value)
    return text if _ID.fullmatch(text) else None


def parse_dimension(raw: Mapping[str, Any]) -> Dimension:
    """A custom dimension. Raises ValueError for what is none."""
    found = raw.get("extractions")
    extractions = [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []
    return Dimension(
        id=_required_id(raw, "idcustomdimension"),
        name=str(raw.get("name", "")),
        scope=str(raw.get("scope", "")),
        is_active=raw.get("active", True) not in _FALSE,
        extractions=tuple(
            (str(entry.get("dimension", "")), str(entry.get("pattern", ""))) for entry in extractions
        ),
        case_sensitive=raw.get("case_sensitive", True) not in _FALSE,
        raw=raw,
    )


def parse_report(raw: Mapping[str, Any]) -> Report:
    """A custom report. Raises ValueError for what is none."""
    return Report(
        id=_required_id(raw, "idcustomreport"),
        name=str(raw.get("name", "")),
        type=str(raw.get("report_type", "")),
        dimensions=tuple(_texts(raw.get("dimensions"))),
        metrics=frozenset(_texts(raw.get("metrics"))),
        segment=str(raw.get("segment_filter") or ""),
        is_active=raw.get("status", "active") == "active",
        raw=raw,
    )


def report_dimension(id_dimension: str) -> str:
    """How a report names a custom dimension."""
    return f"{_OWN_REPORT_DIMENSION}{id_dimension}"


def _required_id(raw: Mapping[str, Any], name: str) -> str:
    found = parse_id(raw.get(name))
    if found is None:
        raise ValueError(f"{name} is missing")
    return found


def _texts(value: object) -> list[str]:
    """The members of a list; PHP writes one with gaps as an object."""
    members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [str(member) for member in members]


def _ids(value: object) -> dict[str, str]:
    members = value.items() if isinstance(value, dict) else ()
    parsed = {str(name): parse_id(member) for name, member in members}
    return {name: id_ for name, id_ in parsed.items() if id_ is not None}


def _object(value: object) -> dict[str, Any]:
    return dict(value) if isinstance(value, dict) else {}
