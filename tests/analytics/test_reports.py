"""`broker.analytics.reports`: for how long a report may be used again, and what Matomo is asked with."""

from datetime import UTC, datetime

import pytest

from broker.analytics.reports import METHODS, ReportParams

NOW = datetime(2026, 7, 19, 10, 30, tzinfo=UTC)


def params(**fields: object) -> ReportParams:
    return ReportParams.model_validate(
        {"projectId": "own", "method": "VisitsSummary.get"} | fields, by_alias=True, by_name=False
    )


@pytest.mark.parametrize(
    ("date", "period", "kept_s"),
    [
        (None, None, 60), ("today", "day", 60), ("yesterday", "day", 60), ("last7", "day", 60),
        ("2026-07-01", "day", 3600), ("2026-07-17", "day", 3600), ("2026-07-18", "day", 60),
        ("2026-07-19", "day", 60), ("2026-07-14", "week", 60), ("2026-07-07", "week", 3600),
        ("2026-06-30", "month", 3600), ("2026-07-01", "month", 60), ("2025-12-02", "month", 3600),
        ("2025-02-01", "year", 3600), ("2026-01-01", "year", 60), ("2026-06-01,2026-07-01", "range", 3600),
        ("2026-06-01,today", "range", 60), ("2026-06-01,yesterday", "range", 60),
        ("2026-01-01,2026-07-13", "week", 60), ("2026-01-01,2026-07-12", "week", 3600),
    ],
)  # fmt: skip
def test_a_report_is_kept_longer_when_its_days_are_over_everywhere(
    date: str | None, period: str | None, kept_s: int
) -> None:
    assert params(date=date, period=period).kept_s(NOW) == kept_s


def test_a_day_is_over_when_it_is_over_in_the_last_time_zone() -> None:
    over = datetime(2026, 7, 19, 12, 0, tzinfo=UTC)
    assert params(date="2026-07-18", period="day").kept_s(over) == 3600


def test_counters_of_now_are_never_kept_long() -> None:
    assert params(method="Live.getCounters", date="2020-01-01").kept_s(NOW) == 60


def test_the_site_is_ours_and_rows_are_bounded() -> None:
    sent = params(segment="a==b", filter_limit=10_000, idDimension=3).parameters("7")
    assert sent == {"segment": "a==b", "filter_limit": 10_000, "idDimension": 3, "idSite": "7"}
    assert params().parameters("7") == {"filter_limit": 100, "idSite": "7"}


def test_no_method_calls_another_or_tells_of_single_visitors_or_changes_anything() -> None:
    for method in METHODS:
        module, _, name = method.partition(".")
        assert module not in ("SitesManager", "UsersManager", "CoreAdminHome", "MultiSites", "ImageGraph")
        assert name.startswith("get")
    assert {method for method in METHODS if method.startswith(("API.", "Live."))} == {
        "API.get",
        "Live.getCounters",
    }
