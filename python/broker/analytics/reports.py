"""Which reports can be read, with which parameters, and how long they may be cached.

Matomo's request is built again from what is named here: a method of `METHODS`, the parameters of
`ReportParams`, and ours (the site, the user, the format). PHP reads ` idSite`, `id.Site[` or `idSite%00x` as
names that look different; here a name is one of those below, letter for letter, or the request is refused, so
that none can reach Matomo under another name. What calls other methods by name (`API.getBulkRequest`,
`API.getProcessedReport`, `API.getRowEvolution`), and methods about single visitors, are refused here.
"""

import re
from datetime import date, datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from broker.domain.values import Id, Model

MAX_ROWS = 10_000
TODAY_S = 60.0  # figures of a day that goes on
PAST_S = 3_600.0
_MAX_TEXT_CHARACTERS = 4_096
# A day that is over in UTC goes on for twelve more hours where a site's clock is furthest behind.
_LAST_TIMEZONE = timedelta(hours=12)

_BY_MODULE = {
    "Actions": (
        "get getPageUrls getPageUrlsFollowingSiteSearch getPageTitles getPageTitlesFollowingSiteSearch"
        " getEntryPageUrls getEntryPageTitles getExitPageUrls getExitPageTitles getPageUrl getPageTitle"
        " getDownloads getDownload getOutlinks getOutlink getSiteSearchKeywords"
        " getSiteSearchNoResultKeywords getSiteSearchCategories"
    ),
    "API": "get",
    "Contents": "getContentNames getContentPieces",
    "CustomDimensions": "getCustomDimension",
    "CustomReports": "getCustomReport",
    "DevicePlugins": "getPlugin",
    "DevicesDetection": (
        "getType getBrand getModel getOsFamilies getOsVersions getBrowsers getBrowserVersions"
        " getBrowserEngines"
    ),
    "Events": (
        "getCategory getAction getName getActionFromCategoryId getNameFromCategoryId getCategoryFromActionId"
        " getNameFromActionId getActionFromNameId getCategoryFromNameId"
    ),
    "Goals": "get getDaysToConversion getVisitsUntilConversion",
    "Live": "getCounters",
    "PagePerformance": "get",
    "Referrers": (
        "get getReferrerType getAll getKeywords getSearchEngines getCampaigns getWebsites getSocials"
    ),
    "Resolution": "getResolution getConfiguration",
    "UserCountry": "getCountry getContinent getRegion getCity",
    "UserLanguage": "getLanguage getLanguageCode",
    "VisitFrequency": "get",
    "VisitTime": "getVisitInformationPerLocalTime getVisitInformationPerServerTime getByDayOfWeek",
    "VisitorInterest": (
        "getNumberOfVisitsPerVisitDuration getNumberOfVisitsPerPage getNumberOfVisitsByDaysSinceLast"
        " getNumberOfVisitsByVisitCount"
    ),
    "VisitsSummary": (
        "get getVisits getUniqueVisitors getUsers getActions getMaxActions getSumVisitsLength"
        " getVisitsConverted getBounceCount"
    ),
}
METHODS = frozenset(f"{module}.{name}" for module, names in _BY_MODULE.items() for name in names.split())

_DAY = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_DATE = re.compile(
    rf"today|yesterday|(?:last|previous)[1-9][0-9]{{0,3}}|{_DAY}|{_DAY},(?:{_DAY}|today|yesterday)"
)
_COLUMNS = re.compile(r"[A-Za-z0-9_.,-]{1,4096}")
_LANGUAGE = re.compile(r"[a-z]{2,3}(?:-[a-z]{2,4})?")
_TEXT = re.compile(r"[^\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f]*")
# Every day that each month has: which others there are, no pattern says.
_SCHEMA_DAY = "[12][0-9]{3}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"
_SCHEMA_DATE = (
    f"(today|yesterday|(last|previous)[1-9][0-9]{{0,3}}|{_SCHEMA_DAY}(,({_SCHEMA_DAY}|today|yesterday))?)"
)


def _matching(pattern: re.Pattern[str], text: str) -> AfterValidator:
    """Refuses a text that does not match as a whole; `text` says to people what does."""

    def check(value: str) -> str:
        if not pattern.fullmatch(value):
            raise ValueError(text)
        return value

    return AfterValidator(check)


def _described(pattern: str) -> Any:
    """The same rule for the OpenAPI document."""
    return Field(json_schema_extra={"pattern": f"^{pattern}$"})


def _date(value: str) -> str:
    if not _DATE.fullmatch(value):
        raise ValueError(
            "must be a date (YYYY-MM-DD), two with a comma, today, yesterday, lastN or previousN"
        )
    for part in re.findall(_DAY, value):
        try:
            date.fromisoformat(part)
        except ValueError:
            raise ValueError(f"{part} is not a date") from None
    return value


Text = Annotated[
    str,
    Field(max_length=_MAX_TEXT_CHARACTERS),
    _matching(_TEXT, "must not have control characters"),
    _described(_TEXT.pattern),
]
Columns = Annotated[
    str, _matching(_COLUMNS, "must be names of columns with commas"), _described(_COLUMNS.pattern)
]
Language = Annotated[
    str, _matching(_LANGUAGE, "must be a code such as en or pt-br"), _described(_LANGUAGE.pattern)
]
Days = Annotated[str, AfterValidator(_date), _described(_SCHEMA_DATE)]
Number = Annotated[int, Field(ge=0, le=2**31 - 1)]
Flag = Annotated[int, Field(ge=0, le=1)]


class ReportParams(Model):
    """A report: its method, and the parameters that Matomo's documentation of the method names."""

    project_id: Id
    method: Annotated[Text, Field(min_length=1, max_length=100)] = Field(
        description="A reporting method of Matomo, such as `VisitsSummary.get`; others are 403."
    )
    period: Literal["day", "week", "month", "year", "range"] | None = None
    date: Days | None = Field(
        default=None,
        description="`YYYY-MM-DD`, two of them with a comma, `today`, `yesterday`, `lastN` or `previousN`.",
    )
    segment: Text | None = Field(default=None, description="Matomo's segment, such as `deviceType==tv`.")
    columns: Columns | None = None
    show_columns: Columns | None = None
    hide_columns: Columns | None = None
    flat: Flag | None = None
    expanded: Flag | None = None
    label: Text | None = None
    language: Language | None = None
    format_metrics: Flag | None = Field(default=None, alias="format_metrics")
    id_subtable: Number | None = None
    id_dimension: Number | None = None
    id_custom_report: Number | None = None
    id_goal: Number | None = None
    page_url: Text | None = None
    page_name: Text | None = None
    download_url: Text | None = None
    outlink_url: Text | None = None
    secondary_dimension: Annotated[str, Field(pattern="^event(Category|Action|Name)$")] | None = None
    last_minutes: Annotated[int, Field(ge=1, le=2_880)] | None = None
    filter_limit: Annotated[int, Field(ge=1, le=MAX_ROWS)] | None = Field(default=None, alias="filter_limit")
    filter_offset: Number | None = Field(default=None, alias="filter_offset")
    filter_truncate: Number | None = Field(default=None, alias="filter_truncate")
    filter_sort_column: Columns | None = Field(default=None, alias="filter_sort_column")
    filter_sort_order: Literal["asc", "desc"] | None = Field(default=None, alias="filter_sort_order")
    filter_column: Columns | None = Field(default=None, alias="filter_column")
    filter_pattern: Text | None = Field(default=None, alias="filter_pattern")
    filter_column_recursive: Columns | None = Field(default=None, alias="filter_column_recursive")
    filter_pattern_recursive: Text | None = Field(default=None, alias="filter_pattern_recursive")
    filter_excludelowpop: Columns | None = Field(default=None, alias="filter_excludelowpop")
    filter_excludelowpop_value: Number | None = Field(default=None, alias="filter_excludelowpop_value")

    def is_report(self) -> bool:
        """Whether the method is one that can be read here."""
        return self.method in METHODS

    def parameters(self, id_site: str) -> dict[str, str | int]:
        """What Matomo is asked with, besides method, format and token."""
        sent: dict[str, Any] = self.model_dump(
            by_alias=True, exclude={"project_id", "method"}, exclude_none=True
        )
        # Without a limit Matomo has one of its own, which operators can lift.
        return {"filter_limit": 100} | sent | {"idSite": id_site}

    def kept_s(self, now: datetime) -> float:
        """For how many seconds a report may be used again: longer when its days are over everywhere."""
        last = _last_day(self.period, self.date)
        is_past = last is not None and last < (now - _LAST_TIMEZONE).date()
        return PAST_S if is_past and not self.method.startswith("Live.") else TODAY_S


def _last_day(period: str | None, days: str | None) -> date | None:
    """The last day that a report is about; None where that depends on when it is asked."""
    found = re.findall(_DAY, days or "")
    if not found or re.sub(rf"{_DAY},?", "", days or ""):
        return None
    day = date.fromisoformat(found[-1])
    match period:
        case "week":
            return day + timedelta(days=6 - day.weekday())
        case "month":
            return (day.replace(day=28) + timedelta(days=4)).replace(day=1) - timedelta(days=1)
        case "year":
            return day.replace(month=12, day=31)
    return day
