"""The audit log: what is written, that it holds no secret, and who reads it."""

from typing import Any

import pytest

from broker.auth.administration import Administration
from broker.ids import IdSource
from tests.auth.services import CHEAP
from tests.product import Product

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

SECRET = "never tell anybody"


async def log(product: Product, account: str = "demo", **params: Any) -> Any:
    async with product.door(account=account) as door:
        answer = await door.get("/audit", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def make_user(product: Product, username: str, account: str = "demo") -> str:
    body = {"username": username, "password": SECRET, "role": "user", "projectIds": ["own"]}
    async with product.door(account=account) as door:
        return str((await door.post("/users", json=body)).json()["id"])


async def admin_id(product: Product) -> str:
    async with product.door() as door:
        return str((await door.get("/users/me")).json()["id"])


async def test_the_life_of_a_user_is_told(product: Product) -> None:
    user_id = await make_user(product, "lived")
    async with product.door() as door:
        await door.put(f"/users/{user_id}", json={"role": "producer", "email": "a@example.com"})
        await door.put(f"/users/{user_id}", json={"password": f"{SECRET} again"})
        await door.put(f"/users/{user_id}", json={"role": "producer"})  # which changes nothing
        assert (await door.delete(f"/users/{user_id}")).status_code == 204
    page = await log(product, targetId=user_id, order="asc")
    assert [(item["action"], item["details"]) for item in page["items"]] == [
        ("user.created", {"username": "lived", "role": "user", "projectIds": ["own"]}),
        ("user.updated", {"role": "producer", "changed": ["email"]}),
        ("user.updated", {"changed": ["password"]}),
        ("user.deleted", {"username": "lived", "role": "producer"}),
    ]
    first = page["items"][0]
    assert (first["userId"], first["username"]) == (await admin_id(product), "admin")
    assert (first["targetType"], first["targetId"]) == ("user", user_id)
    assert first["time"].endswith("Z")


async def test_no_secret_is_told(product: Product) -> None:
    await make_user(product, "secretive")
    async with product.door() as door:
        text = (await door.get("/audit", params={"limit": 1000})).text
    assert "secretive" in text
    assert SECRET not in text
    assert "argon2" not in text


async def test_what_is_refused_is_not_told(product: Product) -> None:
    await make_user(product, "taken")
    before = (await log(product))["total"]
    async with product.door() as door:
        body = {"username": "taken", "password": SECRET, "role": "user"}
        assert (await door.post("/users", json=body)).status_code == 409
        assert (await door.delete(f"/users/{await admin_id(product)}")).status_code == 409
        assert (await door.delete("/programs/unknown")).status_code == 404
    assert (await log(product))["total"] == before


async def test_the_own_profile_is_told_of(product: Product) -> None:
    async with product.door("user") as door:
        await door.put("/users/me", json={"name": "Kim"})
    (item,) = (await log(product, action="user.updated", search="USER", limit=1))["items"]
    assert (item["username"], item["details"]) == ("user", {"changed": ["name"]})


async def test_deleting_a_program_is_told_once(product: Product) -> None:
    await product.make_program("doomed", projectId="own")
    async with product.door("producer") as door:
        assert (await door.delete("/programs/doomed")).status_code == 204
        assert (await door.delete("/programs/doomed")).status_code == 404
    page = await log(product, targetId="doomed")
    assert [(item["action"], item["username"]) for item in page["items"]] == [("program.deleted", "producer")]
    assert page["total"] == 1


async def test_the_command_line_is_the_operator(product: Product) -> None:
    services = product.services
    administration = Administration(services.database, services.clock, IdSource(services.clock), CHEAP)
    await administration.set_origins("other", ("https://example.com",))
    await administration.set_origins("other", None)
    administration.close()
    page = await log(product, account="other", order="asc", action="account.updated")
    assert [item["details"] for item in page["items"]] == [
        {"origins": ["https://example.com"]},
        {"origins": None},
    ]
    assert {(item["userId"], item["username"]) for item in page["items"]} == {(None, "operator")}


async def test_accounts_are_apart(product: Product) -> None:
    user_id = await make_user(product, "elsewhere", "other")
    assert (await log(product, targetId=user_id))["total"] == 0
    assert (await log(product, "other", targetId=user_id))["total"] == 1


async def test_paging(product: Product) -> None:
    ids = [await make_user(product, f"paged{number}") for number in range(3)]
    newest = await log(product, search="paged", action="user.created", limit=2)
    assert (newest["total"], newest["limit"], newest["skip"]) == (0, 2, 0)  # user names are details
    page = await log(product, action="user.created", limit=2, skip=1)
    assert [item["targetId"] for item in page["items"]] == [ids[1], ids[0]]
    assert (await log(product, skip=2**31 - 1))["items"] == []
    both = await log(product, action="user.deleted,user.created", userId=await admin_id(product))
    assert both["total"] >= page["total"]


async def test_times_select(product: Product) -> None:
    user_id = await make_user(product, "timed")
    (item,) = (await log(product, targetId=user_id))["items"]
    assert (await log(product, targetId=user_id, to=item["time"]))["total"] == 0
    assert (await log(product, targetId=user_id, **{"from": item["time"]}))["total"] == 1
    assert (await log(product, targetId=user_id, **{"from": "2200-01-01"}))["total"] == 0


@pytest.mark.parametrize(
    ("role", "expected"), [("admin", 200), ("producer", 403), ("user", 403), ("client", 403), (None, 401)]
)
async def test_only_admins_read_it(product: Product, role: str | None, expected: int) -> None:
    async with product.door(role) as door:
        assert (await door.get("/audit")).status_code == expected


async def test_old_entries_go(product: Product) -> None:
    await make_user(product, "aged")
    audit = product.services.audit
    assert not await audit.purge(1, 10)
    assert (await log(product))["total"] > 0
    async with product.services.database.connection() as connection:
        await connection.execute("UPDATE audit SET time = time - interval '25 hours'")
    while await audit.purge(1, 1):
        continue
    assert (await log(product))["total"] == 0
