"""Administration of an account's image rules by the command line, directly in the database."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from broker.domain.audit import Actor
from broker.errors import InvalidRequest
from broker.images.errors import InvalidOptions
from broker.images.host_rules import MAX_HOSTS, HostRules
from broker.images.options import parse_preset
from broker.storage.database import Database
from broker.storage.image_rules import ImageRules, StoredImageRules

MAX_PRESETS = 100
_KEYS = 2  # the newest, and the one before while its URLs are exchanged

Signing = Literal["on", "off", "rotate"]


@dataclass(frozen=True, slots=True)
class RuleChange:
    """What to change; None leaves it as it is.

    Attributes:
        hosts: all of them; empty allows any public one.
        presets: name → options, added or replaced; without options it is removed.
        signing: `on` makes a key where there is none; `rotate` makes another one, beside which the one before
            is accepted; `off` forgets them.
    """

    hosts: Sequence[str] | None = None
    presets: Mapping[str, str] | None = None
    signing: Signing | None = None


@dataclass(frozen=True, slots=True)
class Changed:
    """The rules now, and the signing key if one was made; it is not shown again."""

    rules: StoredImageRules
    made_key: str | None


async def change_rules(database: Database, account: str, change: RuleChange) -> Changed:
    """Change an account's rules; replicas follow within seconds.

    Raises:
        NotFound: there is no such account.
        InvalidRequest: a host or a preset is not valid, or there are too many.
    """
    is_made, key = False, secrets.token_urlsafe(32)

    def changed(rules: StoredImageRules) -> StoredImageRules:
        nonlocal is_made
        if change.hosts is not None:
            rules = replace(rules, hosts=_hosts(change.hosts))
        if change.presets is not None:
            rules = replace(rules, presets=_presets(rules.presets, change.presets))
        if change.signing == "off":
            rules = replace(rules, signing_keys=())
        elif change.signing == "rotate" or (change.signing == "on" and not rules.signing_keys):
            is_made = True
            rules = replace(rules, signing_keys=(key, *rules.signing_keys)[:_KEYS])
        return rules

    rules = await ImageRules(database).change(account, changed, Actor.operator())
    return Changed(rules, key if is_made else None)


def _hosts(entries: Sequence[str]) -> tuple[str, ...]:
    hosts = tuple(dict.fromkeys(entry.lower() for entry in entries))
    if len(hosts) > MAX_HOSTS:
        raise InvalidRequest.of_field("image_host", f"at most {MAX_HOSTS}")
    try:
        HostRules.of(hosts)
    except ValueError as error:
        raise InvalidRequest.of_field("image_host", str(error)) from None
    return hosts


def _presets(known: Mapping[str, str], changed: Mapping[str, str]) -> dict[str, str]:
    presets = dict(known)
    for name, options in changed.items():
        if not options:
            presets.pop(name, None)
            continue
        try:
            presets[name] = parse_preset(name, options)
        except InvalidOptions as error:
            raise InvalidRequest.of_field("image_preset", f"{name}: {error.message}") from None
    if len(presets) > MAX_PRESETS:
        raise InvalidRequest.of_field("image_preset", f"at most {MAX_PRESETS}")
    return presets
