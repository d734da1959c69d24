import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from broker.auth.keys import Keyring, KeyringConfig, KeyState, generate
from broker.domain.audit import Actor
from broker.storage.database import Database
from broker.storage.keys import Keys
from tests.auth.services import StoppedClock, open_database

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

CONFIG = KeyringConfig(token_lifetime_s=3600)


@pytest.fixture
async def database(migrated_dsn: str) -> AsyncIterator[Database]:
    async with open_database(migrated_dsn) as database:
        yield database


class CountedKeys(Keys):
    """Counts readings of the table."""

    readings = 0

    async def list(self) -> Any:
        self.readings += 1
        return await super().list()


def keyring(database: Database, clock: StoppedClock, config: KeyringConfig = CONFIG) -> Keyring:
    return Keyring(Keys(database), clock, config)


async def test_no_id_is_taken_for_an_option() -> None:
    ids = [generate(0).kid for _ in range(2_000)]
    assert [kid for kid in ids if kid.startswith("-")] == []


async def kids(ring: Keyring) -> list[str]:
    return [key["kid"] for key in (await ring.jwks())["keys"]]


async def test_processes_that_start_together_share_one_first_key(database: Database) -> None:
    clock = StoppedClock()
    signing = await asyncio.gather(*(keyring(database, clock).signing() for _ in range(6)))
    assert len({key.kid for key in signing}) == 1
    assert len(await Keys(database).list()) == 1


async def test_jwks_lists_the_public_half_only(database: Database) -> None:
    ring = keyring(database, StoppedClock())
    key = await ring.signing()
    document = await ring.jwks()
    assert list(document) == ["keys"]
    (jwk,) = document["keys"]
    assert {name: jwk[name] for name in ("kty", "crv", "use", "alg", "kid")} == {
        "kty": "OKP",
        "crv": "Ed25519",
        "use": "sig",
        "alg": "EdDSA",
        "kid": key.kid,
    }
    assert sorted(jwk) == ["alg", "crv", "kid", "kty", "use", "x"]
    assert len(jwk["x"]) == 43


async def test_new_key_is_known_everywhere_before_it_signs(database: Database) -> None:
    clock = StoppedClock()
    ring = keyring(database, clock)
    old = await ring.signing()
    await ring.rotate()
    (_, new) = await kids(ring)
    assert (await ring.signing()).kid == old.kid
    clock.ms += 59_999
    assert (await ring.signing()).kid == old.kid
    clock.ms += 1
    assert (await ring.signing()).kid == new


async def test_old_key_verifies_until_its_last_token_has_ended(database: Database) -> None:
    clock = StoppedClock()
    ring = keyring(database, clock)
    old = await ring.signing()
    await ring.rotate()
    clock.ms += (60 + 3600 + 60) * 1000 - 1
    assert await ring.find(old.kid) is not None
    await ring.purge()
    assert old.kid in [key.kid for key in await Keys(database).list()]
    clock.ms += 1
    assert await ring.find(old.kid) is None
    assert old.kid not in await kids(ring)
    clock.ms += 1
    await ring.purge()
    assert old.kid not in [key.kid for key in await Keys(database).list()]


async def test_two_rotations_in_a_row_leave_a_key_to_sign_with(database: Database) -> None:
    clock = StoppedClock()
    ring = keyring(database, clock)
    first = await ring.signing()
    await ring.rotate()
    clock.ms += 10_000
    await ring.rotate()
    _, second, third = await kids(ring)
    signed = []
    for _ in range(80):
        clock.ms += 1000
        signed.append((await ring.signing()).kid)
    assert list(dict.fromkeys(signed)) == [first.kid, second, third]


async def test_key_of_another_process_is_found(database: Database) -> None:
    clock = StoppedClock()
    ring, other = keyring(database, clock), keyring(database, clock)
    await ring.signing()
    await other.rotate()
    (_, new) = await kids(other)
    clock.ms += 1000
    assert isinstance(await ring.find(new), Ed25519PublicKey)


async def test_unknown_kids_read_the_table_at_most_once_a_second(database: Database) -> None:
    clock = StoppedClock()
    keys = CountedKeys(database)
    ring = Keyring(keys, clock, CONFIG)
    await ring.signing()
    clock.ms += 1000
    before = keys.readings
    for number in range(20):
        assert await ring.find(f"unknown-{number}") is None
    assert keys.readings == before + 1
    clock.ms += 1000
    assert await ring.find("unknown") is None
    assert keys.readings == before + 2


async def test_requests_at_a_cold_start_wait_for_one_reading(database: Database) -> None:
    clock = StoppedClock()
    kid = (await keyring(database, clock).signing()).kid
    keys = CountedKeys(database)
    ring = Keyring(keys, clock, CONFIG)
    found = await asyncio.gather(*(ring.find(kid) for _ in range(20)))
    assert None not in found
    assert keys.readings == 1


@pytest.mark.parametrize(("age_s", "rotates"), [(30 * 86_400, False), (30 * 86_400 + 1, True)])
async def test_key_that_served_its_time_is_replaced_once(
    database: Database, age_s: int, rotates: bool
) -> None:
    clock = StoppedClock()
    rings = [keyring(database, clock) for _ in range(3)]
    for ring in rings:
        await ring.signing()
    clock.ms += age_s * 1000
    await asyncio.gather(*(ring.rotate_if_old() for ring in rings))
    assert len(await Keys(database).list()) == (2 if rotates else 1)


async def test_secret_is_shared_and_differs_by_purpose(database: Database) -> None:
    clock = StoppedClock()
    one, two = keyring(database, clock), keyring(database, clock)
    assert await one.secret("a") == await two.secret("a")
    assert await one.secret("a") != await one.secret("b")
    assert len(await one.secret("a")) == 32


async def test_private_key_is_in_no_repr(database: Database) -> None:
    ring = keyring(database, StoppedClock())
    key = await ring.signing()
    (stored,) = await Keys(database).list()
    assert "private" not in repr(key) + repr(stored)
    assert repr(stored.private_key) not in repr(replace(stored))


OPERATOR = Actor.operator()


async def states(ring: Keyring) -> dict[str, str]:
    return {key.kid: key.state.value for key in await ring.list()}


async def test_revoked_key_verifies_nothing_and_another_signs_at_once(database: Database) -> None:
    clock = StoppedClock()
    ring, other = keyring(database, clock), keyring(database, clock)
    old = await ring.signing()
    assert await other.find(old.kid) is not None
    heard: list[str] = []
    other.on_revocation(heard.append)
    assert await ring.revoke([old.kid, "unknown"], OPERATOR) == [old.kid]
    new = await ring.signing()
    assert new.kid != old.kid
    assert await ring.find(old.kid) is None
    assert await kids(ring) == [new.kid]
    await other.refresh()
    await other.refresh()
    assert heard == [old.kid]
    assert other.is_revoked(old.kid)
    assert await other.find(old.kid) is None
    assert (await other.signing()).kid == new.kid
    # Once more does nothing, and does not make a third key.
    assert await ring.revoke([old.kid], OPERATOR) == []
    assert await states(ring) == {old.kid: KeyState.REVOKED, new.kid: KeyState.SIGNING}


async def test_all_keys_can_be_revoked_together(database: Database) -> None:
    clock = StoppedClock()
    ring = keyring(database, clock)
    await ring.signing()
    await ring.rotate()
    known = await kids(ring)
    await ring.revoke(known, OPERATOR)
    (only,) = await kids(ring)
    assert only not in known
    assert (await ring.signing()).kid == only


async def test_announced_key_signs_early_when_the_one_before_is_revoked(database: Database) -> None:
    ring = keyring(database, StoppedClock())
    old = await ring.signing()
    await ring.rotate()
    (_, announced) = await kids(ring)
    assert await states(ring) == {old.kid: "signing", announced: "announced"}
    await ring.revoke([old.kid], OPERATOR)
    assert await kids(ring) == [announced]
    assert (await ring.signing()).kid == announced


async def test_key_that_only_verifies_can_be_revoked_without_a_new_one(database: Database) -> None:
    clock = StoppedClock()
    ring = keyring(database, clock)
    old = await ring.signing()
    await ring.rotate()
    clock.ms += 60_000
    new = (await ring.signing()).kid
    assert await states(ring) == {old.kid: "verifying", new: "signing"}
    await ring.revoke([old.kid], OPERATOR)
    assert await kids(ring) == [new]


async def test_revoked_key_stays_revoked_after_its_row_is_gone(database: Database) -> None:
    clock = StoppedClock()
    ring = keyring(database, clock)
    old = await ring.signing()
    await ring.revoke([old.kid], OPERATOR)
    clock.ms += (3600 + 60) * 1000 + 1
    await ring.purge()
    assert old.kid not in await states(ring)
    assert await ring.find(old.kid) is None
    assert await keyring(database, clock).find(old.kid) is None


async def test_ended_key_is_shown_as_such_until_it_is_deleted(database: Database) -> None:
    clock = StoppedClock()
    ring = keyring(database, clock)
    old = await ring.signing()
    await ring.rotate()
    clock.ms += (60 + 3600 + 60) * 1000
    (first, _) = await ring.list()
    assert (first.kid, first.state, first.ends_ms) == (old.kid, KeyState.ENDED, clock.ms)


async def test_by_whom_keys_change_is_in_every_audit_log(database: Database) -> None:
    async with database.connection() as connection:
        await connection.execute("INSERT INTO accounts (name, created_time) VALUES ('arena', now())")
        accounts = {row["name"] for row in await connection.fetch("SELECT name FROM accounts")}
    ring = keyring(database, StoppedClock())
    old = await ring.signing()
    await ring.rotate(OPERATOR)
    await ring.revoke([old.kid], OPERATOR)
    (new,) = await kids(ring)
    async with database.connection() as connection:
        rows = await connection.fetch(
            "SELECT account, actor_name, action, target_type, target_id FROM audit ORDER BY id"
        )
    expected = [("key.rotated", new), ("key.revoked", old.kid)]
    assert sorted(tuple(row) for row in rows) == sorted(
        (account, "operator", action, "key", kid) for account in accounts for action, kid in expected
    )
