"""What an account says about pictures."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from broker.images.host_rules import HostRules


@dataclass(frozen=True, slots=True)
class AccountRules:
    """The rules of one account.

    Attributes:
        presets: name → options in their one spelling.
        signing_key: with which URLs must be signed; None takes unsigned ones.
    """

    hosts: HostRules = field(default_factory=HostRules)
    presets: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    signing_key: bytes | None = None
