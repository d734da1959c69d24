import re
from dataclasses import fields, replace
from pathlib import Path

import pytest

from broker.deployments import environment
from broker.deployments.reload_plan import keep_from_start, plan_reload
from broker.settings import SettingError, Settings

PRESENT = Settings()


def test_what_may_change_changes_and_the_rest_waits() -> None:
    loaded = replace(PRESENT, log_level="debug", ws_lag_s=5.0, http_port=9000, trusted_proxies=("10.0.0.1",))
    reload = plan_reload(PRESENT, loaded)
    assert reload.settings == replace(PRESENT, log_level="debug", ws_lag_s=5.0)
    assert reload.lines() == [
        "applied: BROKER_LOG_LEVEL, BROKER_WS_LAG_S",
        "BROKER_HTTP_PORT: takes effect at the next start of `broker up`",
        "BROKER_TRUSTED_PROXIES: takes effect at the next start of `broker up`",
    ]


def test_no_change_is_told_as_such() -> None:
    reload = plan_reload(PRESENT, PRESENT)
    assert reload.settings == PRESENT
    assert reload.lines() == ["no setting has changed"]


def test_what_waits_goes_on_waiting() -> None:
    loaded = replace(PRESENT, http_port=9000)
    first = plan_reload(PRESENT, loaded)
    assert plan_reload(first.settings, loaded).waiting == ("BROKER_HTTP_PORT",)


def test_no_secret_is_told() -> None:
    loaded = replace(PRESENT, matomo_token="hunter2", database_url="postgresql://a:hunter2@db/x")
    told = " ".join(plan_reload(PRESENT, loaded).lines())
    assert "BROKER_MATOMO_TOKEN" in told
    assert "hunter2" not in told


def test_what_does_not_go_with_what_stays_is_refused() -> None:
    """The fewest replicas are of the ingress too, and stay; the most would be fewer now."""
    present = replace(PRESENT, api_replicas_min=4)
    loaded = replace(PRESENT, api_replicas_min=2, api_replicas_max=2)
    with pytest.raises(
        SettingError, match=r"^BROKER_API_REPLICAS_MIN: .*next start of BROKER_API_REPLICAS_MIN"
    ):
        plan_reload(present, loaded)


def test_what_a_reload_does_not_exchange_has_settings_that_wait() -> None:
    """The ingress, and the environment of Ray, are there from the start to the end."""
    fixed = {entry.name for entry in fields(Settings) if entry.metadata["at_start"]}
    known = {entry.name for entry in fields(Settings)}
    folder = Path(environment.__file__).parent
    for name in ("ingress", "ingress_certificate", "ingress_check", "ingress_start", "environment"):
        text = (folder / f"{name}.py").read_text()
        used = set(re.findall(r"\bsettings\.(\w+)", text)) & known
        assert used <= fixed, name
    assert set(environment._INGRESS_SETTINGS) <= fixed


def test_what_a_start_has_made_up_is_kept() -> None:
    present = Settings(ingress_key="made-up-by-the-start")
    kept = keep_from_start(Settings(drain_s=2.0), present)
    assert (kept.ingress_key, kept.drain_s) == ("made-up-by-the-start", 2.0)
