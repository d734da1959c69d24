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
        signing_keys: with one of which URLs must be signed; none takes unsigned ones.
    """

    hosts: HostRules = field(default_factory=HostRules)
    presets: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    signing_keys: tuple[str, ...] = ()
