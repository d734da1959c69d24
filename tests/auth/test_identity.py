"""Log-in with identity tokens: real keys, a real server of keys on loopback, a real database."""

import asyncio
import base64
import hashlib
import hmac
from collections.abc import AsyncIterator
from typing import Any

import jwt
import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from broker.auth import membership
from broker.auth.authenticator import AuthConfig, Authenticator
from broker.auth.identity import IdentityKeys
from broker.auth.identity_tokens import find_key
from broker.domain.audit import Actor
from broker.domain.identities import IdentityProvider
from broker.domain.users import Principal, Role
from broker.errors import BadCredentials, BrokerError, SlowDown, Unavailable
from broker.fetching.fetcher import FetchConfig, Fetcher
from broker.fetching.urls import AllowList
from broker.ids import IdSource
from broker.storage.audit import Audit, AuditQuery
from broker.storage.database import Database
from broker.storage.identity_providers import IdentityProviders
from broker.storage.users import Users
from tests.auth.services import CHEAP, MovedClock, make_user, open_database
from tests.fetching.upstream import Seen, Upstream, open_upstream, send

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

ISSUER = "https://login.example.org"
RSA_KEY = rsa.generate_private_key(65537, 2048)
SMALL_KEY = rsa.generate_private_key(65537, 1024)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
ED_KEY = ed25519.Ed25519PrivateKey.generate()
OTHER_KEY = rsa.generate_private_key(65537, 2048)
KEYS: dict[str, tuple[Any, str]] = {"r": (RSA_KEY, "RS256"), "e": (EC_KEY, "ES256"), "d": (ED_KEY, "EdDSA")}


def jwk(kid: str, key: Any, algorithm: str) -> dict[str, Any]:
    made = jwt.get_algorithm_by_name(algorithm).to_jwk(key.public_key(), as_dict=True)
    return made | {"kid": kid, "use": "sig"}


class KeyServer:
    """Serves a key set that can be changed, and can fail."""

    def __init__(self) -> None:
        self.keys = [jwk(kid, *pair) for kid, pair in KEYS.items()]
        self.status = 200

    async def __call__(self, _seen: Seen, writer: asyncio.StreamWriter) -> None:
        await send(writer, self.status, orjson.dumps({"keys": self.keys}))


class World:
    """An authenticator with one provider for the account `demo`, and a user `kim`."""

    def __init__(
        self,
        auth: Authenticator,
        database: Database,
        clock: MovedClock,
        server: KeyServer,
        upstream: Upstream,
    ) -> None:
        self.auth, self.database, self.clock = auth, database, clock
        self.server, self.upstream = server, upstream

    def claims(self, **changes: Any) -> dict[str, Any]:
        now_s = self.clock.now_ms() // 1000
        claims = {"iss": ISSUER, "sub": "s-1", "aud": "broker", "iat": now_s, "exp": now_s + 300}
        claims |= {"email": "kim@example.org", "email_verified": True} | changes
        return {name: value for name, value in claims.items() if value is not None}

    def token(self, kid: str = "r", headers: dict[str, Any] | None = None, **changes: Any) -> str:
        key, algorithm = KEYS[kid]
        return jwt.encode(self.claims(**changes), key, algorithm, headers={"kid": kid} | (headers or {}))

    async def log_in(self, token: str, account: str = "demo") -> Principal:
        issued = await self.auth.log_in_by_identity(account, token, "192.0.2.1")
        return await self.auth.authenticate(account, issued.text)

    async def refusal(self, token: str, account: str = "demo") -> BrokerError:
        with pytest.raises(BrokerError) as caught:
            await self.log_in(token, account)
        return caught.value

    async def trust(self, account: str = "demo", **changes: Any) -> None:
        url = self.upstream.url("/keys", host="127.0.0.1")
        provider = IdentityProvider(**{"issuer": ISSUER, "audiences": ("broker",), "jwks_url": url} | changes)
        await IdentityProviders(self.database).put(account, provider, Actor.operator())

    async def add(
        self, username: str, role: str = "user", email: str | None = None, account: str = "demo"
    ) -> str:
        user = await make_user(self.database, self.auth, username, role, account=account)
        await self.set_email(user.id, email, account=account)
        return user.id

    async def set_email(
        self, user_id: str, email: str | None, *, account: str = "demo", claims: bool = False
    ) -> None:
        await membership.change_user(
            Users(self.database),
            self.clock,
            account,
            user_id,
            lambda user: user.model_copy(update={"email": email}),
            claims_email=claims,
        )


@pytest.fixture
async def world(migrated_dsn: str) -> AsyncIterator[World]:
    clock, server = MovedClock(), KeyServer()
    async with (
        open_upstream(server) as upstream,
        open_database(migrated_dsn) as database,
        Fetcher(FetchConfig(AllowList(["127.0.0.1"]))) as fetcher,
    ):
        config = AuthConfig(issuer="https://localhost", token_lifetime_s=3600, passwords=CHEAP)
        auth = Authenticator(database, clock, IdSource(clock), config, fetcher.document)
        await auth.start()
        try:
            world = World(auth, database, clock, server, upstream)
            await world.trust()
            await world.add("kim", email="Kim@example.org")
            yield world
        finally:
            await auth.close()


@pytest.mark.parametrize("kid", KEYS)
async def test_verified_email_names_the_user(world: World, kid: str) -> None:
    who = await world.log_in(world.token(kid))
    assert (who.username, who.role, who.account) == ("kim", "user", "demo")


async def test_subject_counts_once_it_is_known(world: World) -> None:
    await world.log_in(world.token())
    await world.add("ada", email="ada@example.org")
    for changes in ({"email": None}, {"email_verified": False}, {"email": "ada@example.org"}):
        assert (await world.log_in(world.token(**changes))).username == "kim"
    assert (await world.log_in(world.token(sub="s-2", email="ada@example.org"))).username == "ada"


@pytest.mark.parametrize(
    "changes",
    [
        {"email_verified": False},
        {"email_verified": None},
        {"email_verified": "false"},
        {"email_verified": 1},
        {"email": None},
        {"email": "nobody@example.org"},
        {"email": ["kim@example.org"]},
        {"email": "\x00"},
        {"aud": "other"},
        {"aud": None},
        {"aud": ["other", "more"]},
        {"aud": []},
        {"iss": "https://evil.example.org"},
        {"iss": None},
        {"iss": ISSUER + "/"},
        {"iss": "\x00"},
        {"sub": None},
        {"sub": ""},
        {"sub": "x" * 256},
        {"sub": "\x00"},
        {"exp": None},
        {"exp": "soon"},
        {"exp": True},
        {"iat": None},
        {"nbf": "now"},
    ],
)
async def test_claim_that_is_wrong_is_refused(world: World, changes: dict[str, Any]) -> None:
    error = await world.refusal(world.token(**changes))
    assert (error.status, error.name) == (401, "bad_credentials")


async def test_one_of_several_audiences_is_enough(world: World) -> None:
    await world.log_in(world.token(aud=["other", "broker"]))
    await world.log_in(world.token(email_verified="true"))


@pytest.mark.parametrize(
    ("claim", "offset_s", "is_taken"),
    [
        ("exp", -28, True),
        ("exp", -31, False),
        ("nbf", 28, True),
        ("nbf", 33, False),
        ("iat", 28, True),
        ("iat", 33, False),
    ],
)
async def test_times_have_thirty_seconds_of_leeway(
    world: World, claim: str, offset_s: int, is_taken: bool
) -> None:
    token = world.token(**{claim: world.clock.now_ms() // 1000 + offset_s})
    if is_taken:
        await world.log_in(token)
    else:
        assert isinstance(await world.refusal(token), BadCredentials)


async def test_our_clock_judges(world: World) -> None:
    token = world.token()
    world.clock.forward_ms = 400_000
    assert isinstance(await world.refusal(token), BadCredentials)


def forged(world: World, header: dict[str, Any], secret: bytes | None) -> str:
    """A token made by hand, because no library would."""
    parts = [orjson.dumps(header), orjson.dumps(world.claims())]
    text = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)
    mark = b"" if secret is None else hmac.new(secret, text, hashlib.sha256).digest()
    return (text + b"." + base64.urlsafe_b64encode(mark).rstrip(b"=")).decode()


async def test_no_signature_and_shared_secrets_are_refused(world: World) -> None:
    public = orjson.dumps(world.server.keys[0])
    world.server.keys.append({"kty": "oct", "k": "c2VjcmV0", "kid": "o", "use": "sig"})
    for header, secret in (
        ({"alg": "none", "kid": "r"}, None),
        ({"alg": "NONE", "kid": "r"}, None),
        ({"kid": "r"}, None),
        ({"alg": "HS256", "kid": "r"}, public),
        ({"alg": "HS256", "kid": "o"}, b"secret"),
        ({"alg": "RS256", "kid": "r"}, public),
        ({"alg": "RS256", "kid": ["r"]}, None),
    ):
        assert isinstance(await world.refusal(forged(world, header, secret)), BadCredentials)


async def test_foreign_key_and_wrong_family_are_refused(world: World) -> None:
    claims = world.claims()
    for key, algorithm, kid in (
        (OTHER_KEY, "RS256", "r"),
        (RSA_KEY, "RS256", "e"),
        (RSA_KEY, "RS256", "unknown"),
    ):
        token = jwt.encode(claims, key, algorithm, headers={"kid": kid})
        assert isinstance(await world.refusal(token), BadCredentials)


async def test_critical_extensions_are_refused(world: World) -> None:
    assert isinstance(await world.refusal(world.token(headers={"crit": ["exp"]})), BadCredentials)


@pytest.mark.parametrize("token", ["", "x", "a.b.c", "..", "brk_x", "\x00", "é.é.é"])
async def test_what_is_no_token_is_refused(world: World, token: str) -> None:
    assert isinstance(await world.refusal(token), BadCredentials)


async def test_provider_of_another_account_is_unknown(world: World) -> None:
    await world.add("kim", email="kim@example.org", account="other")
    assert isinstance(await world.refusal(world.token(), "other"), BadCredentials)
    await world.trust("other", audiences=("elsewhere",))
    assert isinstance(await world.refusal(world.token(), "other"), BadCredentials)


async def test_address_of_two_users_names_neither(world: World) -> None:
    await world.add("twin", email="kim@example.org")
    assert isinstance(await world.refusal(world.token()), BadCredentials)


async def test_address_that_a_user_gave_itself_names_nobody(world: World) -> None:
    thief = await world.add("thief")
    await world.set_email(thief, "boss@example.org", claims=True)
    token = world.token(sub="boss", email="boss@example.org")
    assert isinstance(await world.refusal(token), BadCredentials)
    await world.set_email(thief, "boss@example.org")
    assert isinstance(await world.refusal(token), BadCredentials)  # the same address is no new one
    boss = await world.add("boss", email="boss@example.org")
    assert (await world.log_in(token)).subject == boss


async def test_a_role_that_the_provider_gives_is_in_the_audit_log(world: World) -> None:
    await world.trust(role_claim="groups", roles={"crew": Role.PRODUCER})
    for _ in range(2):
        await world.log_in(world.token(groups="crew"))
    rows, _ = await Audit(world.database).filter(
        "demo", AuditQuery(limit=9, skip=0, actions=["user.updated"])
    )
    assert [(row.entry.actor, row.entry.details) for row in rows] == [((None, ISSUER), {"role": "producer"})]


@pytest.mark.parametrize(
    ("value", "role"),
    [
        ("crew", "producer"),
        (["crew", "viewers"], "producer"),
        (["viewers"], "client"),
        ("unknown", "user"),
        (None, "user"),
        ([5, {}], "user"),
    ],
)
async def test_mapped_roles_are_given(world: World, value: Any, role: str) -> None:
    await world.trust(role_claim="groups", roles={"crew": Role.PRODUCER, "viewers": Role.CLIENT})
    assert (await world.log_in(world.token(groups=value))).role == role


async def test_last_admin_stays_one(world: World) -> None:
    await world.trust(role_claim="groups", roles={"crew": Role.USER})
    await world.add("root", "admin", email="root@example.org")
    assert (await world.log_in(world.token(sub="r", email="root@example.org", groups="crew"))).role == "admin"


async def test_keys_are_read_once_and_rotated_keys_count(world: World) -> None:
    for _ in range(3):
        await world.log_in(world.token())
    assert len(world.upstream.seen) == 1
    world.server.keys = [jwk("new", OTHER_KEY, "RS256")]
    token = jwt.encode(world.claims(), OTHER_KEY, "RS256", headers={"kid": "new"})
    world.clock.forward_ms += 31_000
    await world.log_in(token)
    assert len(world.upstream.seen) == 2
    assert isinstance(await world.refusal(world.token()), BadCredentials)


async def test_made_up_key_ids_do_not_hammer_the_provider(world: World) -> None:
    await world.log_in(world.token())
    for number in range(5):
        await world.refusal(world.token(headers={"kid": f"made-up-{number}"}))
    assert len(world.upstream.seen) == 1


async def test_known_keys_outlast_the_providers_server_for_an_hour(world: World) -> None:
    await world.log_in(world.token())
    world.server.status = 500
    world.clock.forward_ms += 3_590_000
    await world.log_in(world.token())
    world.clock.forward_ms += 60_000
    error = await world.refusal(world.token())
    assert (error.status, error.retry_after_s) == (503, 5)


async def test_without_keys_it_is_unavailable_and_no_failed_try(world: World) -> None:
    world.server.status = 404
    for _ in range(12):
        assert isinstance(await world.refusal(world.token()), Unavailable)


async def test_keys_at_an_inner_address_are_not_read(world: World) -> None:
    await world.trust(jwks_url=world.upstream.url("/keys", host="localhost"))
    assert isinstance(await world.refusal(world.token()), Unavailable)
    assert world.upstream.seen == []


async def test_too_many_failures_slow_down(world: World) -> None:
    bad = world.token(aud="other")
    for _ in range(10):
        await world.refusal(bad)
    assert isinstance(await world.refusal(bad), SlowDown)
    for number in range(20):
        await world.refusal(world.token(aud=str(number)))
    assert isinstance(await world.refusal(world.token()), SlowDown)


def test_small_and_doubtful_keys_are_not_used() -> None:
    small = jwk("s", SMALL_KEY, "RS256")
    good = jwk("g", RSA_KEY, "RS256")
    assert find_key([small], "RS256", "s") is None
    assert find_key([good, good], "RS256", "g") is None
    assert find_key([good | {"use": "enc"}], "RS256", "g") is None
    assert find_key([good | {"alg": "RS512"}], "RS256", "g") is None
    assert find_key([good | {"n": 5}], "RS256", "g") is None
    assert find_key([good], "RS256", "g") is not None
    assert find_key([good], "RS256", None) is not None
    assert find_key([good, jwk("h", OTHER_KEY, "RS256")], "RS256", None) is None


@pytest.mark.parametrize("document", [b"", b"[]", b"{}", b'{"keys": 5}', b"x"])
async def test_what_is_no_key_set_is_unavailable(document: bytes) -> None:
    async def fetch(_url: str) -> bytes:
        return document

    keys = IdentityKeys(fetch, MovedClock())
    with pytest.raises(Unavailable):
        await keys.find("x", "RS256", "r")
    await keys.close()
