"""The caller's address, for limits and logs, and the check that the request came through the ingress.

The ingress writes one header into every request: a secret that it shares with the replicas, the door, and the
address that the connection came from. The secret tells the ingress from whoever else reaches a replica's
port; those are refused. `X-Forwarded-For` counts from `BROKER_TRUSTED_PROXIES` alone.

Without a secret there is no such ingress (HAProxy cannot run on the machine, or a test calls in process): the
caller is the peer of the connection.
"""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from broker.errors import InsufficientScope
from broker.rest.trusted_proxies import TrustedProxies

HEADER = "x-broker-ingress"
PUBLIC = "public"
OPERATIONS = "operations"
REFUSAL = "requests must come through the ingress"

_CALLERS = 10_000  # remembered at a time
_REMEMBERED_CHARACTERS = 256  # of a header; a stranger does not fill the memory with longer ones
_HEADER = HEADER.encode()
_FORWARDED = b"x-forwarded-for"


@dataclass(frozen=True, slots=True)
class CallOrigin:
    """The address of who calls, and whether it came through the operators' door."""

    address: str
    is_operator: bool


class Callers:
    """Tells callers. Safe for any number of requests on one event loop."""

    def __init__(self, key: str, proxies: TrustedProxies) -> None:
        """Args: key: the secret of the ingress; empty when there is none."""
        self._key = key.encode()
        self._proxies = proxies
        # Reading addresses takes longer than most of what else a request takes. What is wrong is not kept.
        self._remembered = lru_cache(_CALLERS)(self._of_ingress)

    def identify(self, scope: Mapping[str, Any], headers: dict[bytes, bytes]) -> CallOrigin:
        """The caller of a request. Takes the ingress's header out of `headers`: nobody may hand it on.

        Raises:
            InsufficientScope: the request did not come through the ingress.
        """
        told = headers.pop(_HEADER, b"")
        forwarded = _forwarded(scope) if _FORWARDED in headers else ""
        if not self._key:
            client = scope.get("client")
            return CallOrigin(self._proxies.caller(client[0] if client else "", forwarded), is_operator=True)
        read = self._remembered if len(forwarded) <= _REMEMBERED_CHARACTERS else self._of_ingress
        return read(told, forwarded)

    def _of_ingress(self, told: bytes, forwarded: str) -> CallOrigin:
        secret, _, rest = told.partition(b" ")
        if not hmac.compare_digest(secret, self._key):
            raise InsufficientScope(REFUSAL)
        door, _, peer = rest.decode("latin-1").partition(" ")
        return CallOrigin(self._proxies.caller(peer, forwarded), is_operator=door == OPERATIONS)


def _forwarded(scope: Mapping[str, Any]) -> str:
    """All of `X-Forwarded-For`: a proxy may add a line of its own (RFC 9110, section 5.3)."""
    return ",".join(value.decode("latin-1") for name, value in scope["headers"] if name == _FORWARDED)
