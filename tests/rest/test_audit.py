"""The audit log: what is written, that it holds no secret, and who reads it."""

from typing import Any

import pytest

from broker.auth.administration import Administration
from broker.domain.users import Role
from broker.errors import NotFound
from broker.ids import IdSource
from broker.storage.audit import AuditQuery
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


async def test_deleting_a_project_tells_of_its_programs_too(product: Product) -> None:
    async with product.door() as door:
        assert (await door.post("/projects", json={"id": "cup", "name": "Cup"})).status_code == 201
        await product.make_program("cup-1", projectId="cup")
        assert (await door.delete("/projects/cup")).status_code == 409
        assert (await log(product, targetId="cup", action="project.deleted"))["total"] == 0
        assert (await door.delete("/projects/cup", params={"cascade": "true"})).status_code == 204
    (project, _) = (await log(product, targetId="cup"))["items"]
    (program,) = (await log(product, targetId="cup-1"))["items"]
    assert (project["action"], program["action"]) == ("project.deleted", "program.deleted")
    assert project["username"] == program["username"] == "admin"


async def test_the_life_of_a_project_is_told(product: Product) -> None:
    async with product.door(**{"Idempotency-Key": "league"}) as door:
        for _ in range(2):  # the second is the first one repeated
            await door.post("/projects", json={"id": "league", "name": "League"})
    async with product.door() as door:
        await door.put("/projects/league", json={"name": "League 2", "metadata": {"said": SECRET}})
        await door.put("/projects/league", json={"name": "League 2"})  # which changes nothing
        await door.delete("/projects/league")
    page = await log(product, targetId="league", order="asc")
    assert [(item["action"], item["details"]) for item in page["items"]] == [
        ("project.created", {}),
        ("project.updated", {"changed": ["metadata", "name"]}),
        ("project.deleted", {}),
    ]


async def test_the_life_of_a_revision_is_told(product: Product) -> None:
    async with product.door() as door:
        await door.post("/projects", json={"id": "own", "name": "Own"})
    async with product.door("producer", **{"Idempotency-Key": "revision"}) as door:
        at = "/projects/own/application/revisions"
        for _ in range(2):
            made = (await door.post(at, json={"content": {"said": SECRET}})).json()
    async with product.door("producer") as door:
        at = f"{at}/{made['id']}"
        await door.put(at, json={"title": SECRET})
        await door.put(at, json={"title": SECRET})  # which changes nothing
        merge = {"Content-Type": "application/merge-patch+json"}
        await door.patch(at, json={"status": "published", "description": "final"}, headers=merge)
        assert (await door.put(at, json={"content": {}})).status_code == 409
    page = await log(product, targetId=made["id"], order="asc")
    known = {"projectId": "own", "version": "1"}
    assert [(item["action"], item["details"]) for item in page["items"]] == [
        ("revision.created", known | {"status": "draft"}),
        ("revision.updated", known | {"status": "draft", "changed": ["title"]}),
        ("revision.published", known | {"status": "published", "changed": ["description", "status"]}),
    ]
    assert {item["username"] for item in page["items"]} == {"producer"}
    assert SECRET not in str(page)


async def test_the_life_of_an_api_token_is_told(product: Product) -> None:
    async with product.door("user") as door:
        made = (await door.post("/users/me/tokens", json={"name": "mixer"})).json()
        assert (await door.delete(f"/users/me/tokens/{made['id']}")).status_code == 204
        assert (await door.delete(f"/users/me/tokens/{made['id']}")).status_code == 404
    page = await log(product, targetId=made["id"], order="asc")
    assert [(item["action"], item["username"], item["details"]) for item in page["items"]] == [
        ("apiToken.created", "user", {"name": "mixer"}),
        ("apiToken.revoked", "user", {"name": "mixer"}),
    ]
    assert made["token"] not in str(page)


async def test_identity_providers_are_told(product: Product) -> None:
    services, issuer = product.services, "https://id.example.com/realm?a=b"
    administration = Administration(services.database, services.clock, IdSource(services.clock), CHEAP)
    for _ in range(2):
        await administration.set_provider("demo", issuer, ("broker",), "https://id.example.com/keys")
    await administration.remove_provider("demo", issuer)
    with pytest.raises(NotFound):
        await administration.remove_provider("demo", issuer)
    with pytest.raises(NotFound):
        await administration.set_provider("nobody", issuer, ("broker",), "https://id.example.com/keys")
    administration.close()
    page = await log(product, targetId=issuer, order="asc")
    assert [(item["action"], item["username"]) for item in page["items"]] == [
        ("identityProvider.created", "operator"),
        ("identityProvider.updated", "operator"),
        ("identityProvider.deleted", "operator"),
    ]


async def test_the_command_line_is_the_operator(product: Product) -> None:
    services = product.services
    administration = Administration(services.database, services.clock, IdSource(services.clock), CHEAP)
    await administration.add_account("fresh")
    user = await administration.add_user("fresh", "first", SECRET, Role.ADMIN)
    await administration.set_password("fresh", "first", f"{SECRET} again")
    await administration.set_origins("other", ("https://example.com",))
    await administration.set_origins("other", None)
    administration.close()
    rows, _ = await services.audit.filter("fresh", AuditQuery(limit=9, skip=0, descending=False))
    assert [(row.entry.action, row.entry.target_id) for row in rows] == [
        ("account.created", "fresh"),
        ("user.created", user.id),
        ("user.updated", user.id),
    ]
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
