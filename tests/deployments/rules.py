"""The recording and alert rules of `deploy/prometheus`, as tests read them."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml

RULES = Path(__file__).parents[2] / "deploy" / "prometheus"


class Rule(NamedTuple):
    """One rule; an alert has labels and annotations."""

    name: str
    text: str
    is_alert: bool
    waits: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


@cache
def read_rules() -> tuple[Rule, ...]:
    """All rules, the recording ones first."""
    rules: list[Rule] = []
    for name in ("recording.yml", "alerts.yml"):
        document = yaml.load((RULES / name).read_text(), Loader=yaml.CSafeLoader)
        for rule in (rule for group in document["groups"] for rule in group["rules"]):
            is_alert = "alert" in rule
            wanted = {"alert", "expr", "for", "labels", "annotations"} if is_alert else {"record", "expr"}
            assert rule.keys() == wanted, rule
            rules.append(
                Rule(
                    rule["alert" if is_alert else "record"],
                    rule["expr"],
                    is_alert,
                    rule.get("for", ""),
                    rule.get("labels", {}),
                    rule.get("annotations", {}),
                )
            )
    return tuple(rules)
