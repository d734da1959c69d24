"""Analytics sites and reports through the HTTP door, with the stand-in Matomo behind it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import orjson
import pytest

from broker.analytics.matomo import MatomoConfig
from broker.demo.matomo import (
    READER,
    READER_TOKEN,
    TOKEN,
    Parameters,
    Refused,
    StandIn,
    open_stand_in,
    outage,
)
from broker.domain.audit import Actor
from broker.errors import NotFound
from broker.resources.analytics_reports import SCRIPT_TYPE
from broker.storage.analytics import MatomoAccess
from tests.analytics.conftest import peer_of
from tests.product import Product, open_product

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]


@pytest.fixture(scope="module")
async def opened(module_dsn: str) -> AsyncIterator[tuple[Product, StandIn]]:
    async with (
        open_stand_in() as stand_in,
        open_product(
            module_dsn,
            **peer_of(stand_in).settings,
            token_lifetime_s=30_000_000,
            matomo_timeout_s=2.0,
            report_limit_bytes=2_000_000,
        ) as product,
    ):
        yield product, stand_in


@pytest.fixture
async def stand_in(opened: tuple[Product, StandIn]) -> StandIn:
    """As if it had been started for the test."""
    stand_in, url = opened[1], opened[1].url
    stand_in.__dict__.update(StandIn(url=url).__dict__)
    return stand_in


@pytest.fixture
async def product(opened: tuple[Product, StandIn], stand_in: StandIn) -> Product:
    """With two projects that have no site."""
    product = opened[0]
    platforms = product.services.analytics
    platforms._config = MatomoConfig(timeout_s=2.0)
    platforms.replies._kept.clear()
    platforms._faults.clear()
    platforms._groups.clear()
    async with product.services.database.connection() as connection:
        await connection.execute("DELETE FROM projects; DELETE FROM analytics_sites; DELETE FROM audit")
        await connection.execute("DELETE FROM analytics_platforms; DELETE FROM idempotency_keys")
    async with product.door() as door:
        for project in ("own", "foreign"):
            await door.post("/projects", json={"id": project, "name": project, "metadata": {"a": 1.5}})
    return product


async def ask(
    product: Product,
    method: str,
    path: str = "/site",
    *,
    project: str = "own",
    role: str = "producer",
    **sent: Any,
) -> httpx.Response:
    async with product.door(role) as door:
        return await door.request(method, f"/projects/{project}/analytics{path}", **sent)


async def make(product: Product, project: str = "own") -> dict[str, Any]:
    """A project's site, created."""
    answer = await ask(product, "POST", project=project, role="admin")
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


async def metadata_of(product: Product, project: str = "own") -> dict[str, Any]:
    async with product.door() as door:
        return dict((await door.get(f"/projects/{project}")).json()["metadata"])


async def set_metadata(product: Product, metadata: dict[str, Any], project: str = "own") -> None:
    async with product.door() as door:
        answer = await door.put(f"/projects/{project}", json={"name": "n", "metadata": metadata})
    assert answer.status_code == 200, answer.text


def told(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]


# -- the site


async def test_a_site_is_created_verified_and_known_to_metadata(product: Product, stand_in: StandIn) -> None:
    before = await ask(product, "GET")
    assert (before.status_code, before.json()["status"], before.json()["idSite"]) == (
        200,
        "not-created",
        None,
    )
    made = await ask(product, "POST")
    assert (made.status_code, made.headers["location"]) == (201, "/api/v1/projects/own/analytics/site")
    status = made.json()
    assert (status["status"], status["idSite"], status["proxyHasAccess"]) == ("ok", "1", True)
    assert (status["missingReports"], status["badReports"]) == ([], [])
    assert status["dimensionIds"]["action"]["programEvent"] in {
        one["idcustomdimension"] for one in status["dimensions"]
    }
    assert status["site"]["group"] == "own"
    assert set(status["reportIds"]) == {
        "programs", "componentsByProgram", "responsesByProgramEvent", "platforms",
    }  # fmt: skip
    verified = await ask(product, "GET")
    assert (verified.status_code, verified.json()) == (200, status)
    assert await metadata_of(product) == {
        "a": 1.5,
        "analytics": {key: status[key] for key in ("idSite", "dimensionIds", "reportIds")},
    }
    assert stand_in.sites[1].access == {READER: "view"}
    assert set(stand_in.queries) == {b""}


async def test_names_of_errors_are_those_of_the_interface(product: Product, stand_in: StandIn) -> None:
    assert told(await ask(product, "PUT")) == (500, "Bad config")
    await make(product)
    assert told(await ask(product, "POST")) == (500, "Already exists")
    del stand_in.sites[1]
    assert told(await ask(product, "GET")) == (404, "Not found")
    assert told(await ask(product, "PUT")) == (404, "Not found")
    stand_in.tokens.clear()
    assert told(await ask(product, "GET")) == (500, "Platform error")


async def test_put_adds_what_is_missing_and_changes_nothing_else(product: Product, stand_in: StandIn) -> None:
    status = await make(product)
    site = stand_in.sites[1]
    site.reports.clear()
    site.access.clear()
    incomplete = (await ask(product, "GET")).json()
    assert (incomplete["status"], incomplete["proxyHasAccess"]) == ("incomplete", False)
    assert [one["name"] for one in incomplete["missingReports"]] == [
        "Programs",
        "Components by program",
        "Responses by program event",
        "Platforms",
    ]
    completed = await ask(product, "PUT")
    assert (completed.status_code, completed.json()["status"]) == (200, "ok")
    assert completed.json()["dimensionIds"] == status["dimensionIds"]
    calls = len([call for call in stand_in.calls if ".add" in call or ".configure" in call])
    again = await ask(product, "PUT")
    assert again.json() == completed.json()
    assert len([call for call in stand_in.calls if ".add" in call or ".configure" in call]) == calls


async def test_put_refuses_what_it_cannot_mend(product: Product, stand_in: StandIn) -> None:
    await make(product)
    stand_in.sites[1].dimensions[0]["active"] = False
    stand_in.sites[1].reports.append(dict(stand_in.sites[1].reports[0], idcustomreport=99))
    status = (await ask(product, "GET")).json()
    assert status["status"] == "errors"
    assert [(bad["name"], bad["reason"]) for bad in status["badDimensions"]] == [
        ("Application version", "is not active")
    ]
    assert [bad["reason"] for bad in status["badReports"]] == ["exists 2 times"]
    answer = await ask(product, "PUT")
    assert told(answer) == (500, "Bad config")
    assert "Application version is not active" in answer.json()["error_description"]


async def test_without_custom_reports_the_rest_is_there(product: Product, stand_in: StandIn) -> None:
    stand_in.plugins.discard("CustomReports")
    status = await make(product)
    assert status["status"] == "incomplete"
    assert "CustomReports" in status["message"]
    assert len(status["missingReports"]) == 4
    assert len(status["dimensions"]) == 6
    assert status["proxyHasAccess"]
    stand_in.plugins.add("CustomReports")
    assert (await ask(product, "PUT")).json()["status"] == "ok"


async def test_numbers_as_texts_and_unknown_fields_are_taken(product: Product, stand_in: StandIn) -> None:
    stand_in.texts_for_numbers = True
    status = await make(product)
    assert (status["status"], status["site"]["idsite"]) == ("ok", "1")


@pytest.mark.parametrize("failing", range(1, 14))
@pytest.mark.parametrize("way", ["outage", "refused", "done"])
async def test_after_a_failure_anywhere_repeating_completes_one_site(
    product: Product, stand_in: StandIn, failing: int, way: str
) -> None:
    """`done`: Matomo does it, and its answer is an error."""
    changes = 0

    async def intercept(method: str, parameters: Parameters) -> Any:
        nonlocal changes
        if not any(verb in method for verb in (".add", ".configure", ".set")):
            return None
        changes += 1
        if changes != failing:
            return None
        if way == "outage":
            return outage()
        if way == "done":
            stand_in.intercept = None
            await stand_in._call(method, "provisioning", parameters)
            stand_in.intercept = intercept
        raise Refused("SQLSTATE[HY000]: General error: 2006 MySQL server has gone away")

    stand_in.intercept = intercept
    first = await ask(product, "POST")
    if failing <= 12:
        assert told(first) == (500, "Platform error")
        assert "SQLSTATE" not in first.text
        known = (await metadata_of(product)).get("analytics", {})
        again = await ask(product, "PUT" if known.get("idSite") else "POST")
        assert again.status_code < 300, again.text
    status = (await ask(product, "GET")).json()
    assert status["status"] == "ok"
    assert len(stand_in.sites) == 1
    assert len(stand_in.sites[1].dimensions) == 6
    assert len(stand_in.sites[1].reports) == 4
    kept = (await metadata_of(product))["analytics"]
    assert kept == {key: status[key] for key in ("idSite", "dimensionIds", "reportIds")}


async def test_every_id_is_in_metadata_before_the_next_change(product: Product, stand_in: StandIn) -> None:
    seen: list[int] = []

    async def intercept(method: str, _parameters: Parameters) -> Any:
        if any(verb in method for verb in (".add", ".configure", ".set")):
            kept = (await metadata_of(product)).get("analytics", {})
            ids = kept.get("dimensionIds", {"visit": {}, "action": {}})
            count = len(ids["visit"]) + len(ids["action"]) + len(kept.get("reportIds", {}))
            seen.append(count + bool(kept))
        return None

    stand_in.intercept = intercept
    await make(product)
    assert seen == list(range(12))


async def test_one_set_up_of_a_project_at_a_time(product: Product, stand_in: StandIn) -> None:
    inside, gate = asyncio.Event(), asyncio.Event()

    async def intercept(method: str, parameters: Parameters) -> Any:
        if method.endswith(".addSite") and parameters["group"] == "own":
            inside.set()
            await gate.wait()
        return None

    stand_in.intercept = intercept
    first = asyncio.create_task(ask(product, "POST"))
    await inside.wait()
    for method in ("POST", "PUT"):
        assert told(await ask(product, method)) == (409, "conflict")
    assert (await ask(product, "POST", project="foreign", role="admin")).status_code == 201
    gate.set()
    assert (await first).status_code == 201
    assert (await ask(product, "PUT")).status_code == 200


async def test_a_change_of_metadata_meanwhile_is_not_lost(product: Product, stand_in: StandIn) -> None:
    async def intercept(method: str, _parameters: Parameters) -> Any:
        if method == "CustomDimensions.configureNewCustomDimension":
            known = await metadata_of(product)
            await set_metadata(product, known | {"n": known.get("n", 0) + 1})
        return None

    stand_in.intercept = intercept
    status = await make(product)
    metadata = await metadata_of(product)
    assert (metadata["a"], metadata["n"]) == (1.5, 6)
    assert metadata["analytics"]["dimensionIds"] == status["dimensionIds"]


async def delete_foreign(product: Product) -> None:
    """Nobody is a member of it, so other tests miss nothing."""
    async with product.door() as door:
        assert (await door.delete("/projects/foreign")).status_code == 204


async def test_a_set_up_whose_project_goes_says_so(product: Product, stand_in: StandIn) -> None:
    async def intercept(method: str, _parameters: Parameters) -> Any:
        if method.endswith(".addSite"):
            await delete_foreign(product)
        return None

    stand_in.intercept = intercept
    answer = await ask(product, "POST", project="foreign", role="admin")
    assert told(answer) == (404, "not_found")
    assert "there is no project foreign" in answer.json()["error_description"]
    stand_in.intercept = None
    async with product.door() as door:
        assert (await door.post("/projects", json={"id": "foreign", "name": "again"})).status_code == 201
    assert await metadata_of(product, "foreign") == {}
    made = await make(product, "foreign")
    assert (made["status"], len(stand_in.sites)) == ("ok", 1), "the site that was left is adopted"


async def test_a_project_that_is_made_again_takes_nothing_of_the_set_up_before(
    product: Product, stand_in: StandIn
) -> None:
    async def intercept(method: str, _parameters: Parameters) -> Any:
        if method.endswith(".addSite"):
            await delete_foreign(product)
            async with product.door() as door:
                await door.post("/projects", json={"id": "foreign", "name": "again"})
        return None

    stand_in.intercept = intercept
    assert told(await ask(product, "POST", project="foreign", role="admin")) == (409, "conflict")
    assert await metadata_of(product, "foreign") == {}


async def set_up(product: Product, method: str, project: str) -> int:
    """As clients do: whoever meets another set-up comes again; a PUT that finds no site may be first."""
    while True:
        status = (await ask(product, method, project=project, role="admin")).status_code
        if status != 409:
            return int(status)
        await asyncio.sleep(0.02)


async def test_set_ups_and_changes_at_once_make_one_site_and_lose_nothing(
    product: Product, stand_in: StandIn
) -> None:
    async def rename(number: int) -> None:
        async with product.door() as door:
            while True:
                read = await door.get("/projects/own")
                metadata = read.json()["metadata"] | {f"n{number}": number}
                answer = await door.put(
                    "/projects/own",
                    json={"name": f"n{number}", "metadata": metadata},
                    headers={"If-Match": read.headers["etag"]},
                )
                if answer.status_code == 200:
                    return
                assert answer.status_code == 412

    methods = ("POST", "PUT", "POST", "POST", "PUT")
    set_ups = asyncio.gather(*(set_up(product, method, "own") for method in methods))
    await asyncio.gather(set_ups, *map(rename, range(4)))
    statuses = set_ups.result()
    assert set(statuses) <= {200, 201, 500}
    assert statuses.count(201) == 1
    status = (await ask(product, "GET")).json()
    assert (status["status"], len(stand_in.sites)) == ("ok", 1)
    metadata = await metadata_of(product)
    assert {f"n{number}" for number in range(4)} <= metadata.keys()
    assert metadata["analytics"] == {key: status[key] for key in ("idSite", "dimensionIds", "reportIds")}


async def test_set_ups_and_a_deletion_at_once_leave_nothing_behind(
    product: Product, stand_in: StandIn
) -> None:
    is_at_work = asyncio.Event()

    async def intercept(method: str, _parameters: Parameters) -> Any:
        if method == "CustomDimensions.configureNewCustomDimension":
            is_at_work.set()
        return None

    async def delete_then() -> None:
        await is_at_work.wait()
        await delete_foreign(product)

    stand_in.intercept = intercept
    set_ups = [set_up(product, method, "foreign") for method in ("POST", "PUT", "POST")]
    async with asyncio.timeout(20):
        statuses, _ = await asyncio.gather(asyncio.gather(*set_ups), delete_then())
    assert set(statuses) <= {200, 201, 404, 500}, "a set-up may end before the deletion begins"
    async with product.services.database.connection() as connection:
        left = "SELECT count(*) FROM analytics_setups WHERE project_id = 'foreign'"
        assert await connection.fetchval(left) == 0
    assert (await ask(product, "GET", project="foreign", role="admin")).status_code == 404
    assert len(stand_in.sites) == 1


async def test_a_set_up_and_a_deletion_wait_for_each_other_in_one_order(
    product: Product, stand_in: StandIn
) -> None:
    """A deletion holds the project and then its lease; the set-up that holds a lease wants the project."""
    await make(product, "foreign")
    platforms, account = product.services.analytics, "demo"
    lease = platforms.lease(account, "foreign")
    await platforms.storage.take_lease(lease)
    url = (await platforms.open(account, "foreign")).access.url
    async with product.services.database.transaction() as connection:
        await connection.execute("SELECT FROM projects WHERE id = 'foreign' FOR UPDATE")
        keeping = asyncio.ensure_future(platforms.storage.keep(lease, url, "1", dict))
        async with asyncio.timeout(20), product.services.database.connection() as other:
            while not await other.fetchval(_WAITING):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
        await connection.execute("DELETE FROM projects WHERE id = 'foreign'")
    with pytest.raises(NotFound):
        await keeping


_WAITING = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


async def test_after_a_request_without_an_answer_the_next_set_up_waits(
    product: Product, stand_in: StandIn
) -> None:
    """Matomo may still be at work on it, and would make the same twice."""
    gate = asyncio.Event()

    async def intercept(method: str, _parameters: Parameters) -> Any:
        if method.endswith(".addSite"):
            await gate.wait()
        return None

    stand_in.intercept = intercept
    slow = product
    slow.services.analytics._config = MatomoConfig(timeout_s=0.3)
    answer = await ask(slow, "POST")
    assert told(answer) == (500, "Platform error")
    assert "in time" in answer.json()["error_description"]
    gate.set()
    assert told(await ask(product, "POST")) == (409, "conflict")
    async with product.services.database.connection() as connection:
        await connection.execute("UPDATE analytics_setups SET expires = now()")
    assert (await ask(product, "POST")).status_code == 201
    assert len(stand_in.sites) == 1


async def test_a_set_up_whose_lease_was_taken_over_writes_nothing_more(
    product: Product, stand_in: StandIn
) -> None:
    async def intercept(method: str, _parameters: Parameters) -> Any:
        if method.endswith(".addSite"):
            async with product.services.database.connection() as connection:
                await connection.execute("UPDATE analytics_setups SET holder = 'another'")
        return None

    stand_in.intercept = intercept
    assert told(await ask(product, "POST")) == (409, "conflict")
    assert await metadata_of(product) == {"a": 1.5}


async def test_what_is_no_id_of_a_site_never_reaches_matomo(product: Product, stand_in: StandIn) -> None:
    for value in ("all", "1,2", 0, ["1"], {"x": 1}, "1&method=x"):
        await set_metadata(product, {"analytics": {"idSite": value}})
        status = await ask(product, "GET")
        assert (status.status_code, status.json()["status"]) == (200, "errors")
        assert told(await ask(product, "PUT")) == (500, "Bad config")
        assert told(await ask(product, "POST")) == (500, "Already exists")
        assert told(await report(product)) == (404, "not_found")
    assert stand_in.calls == []


@pytest.mark.parametrize("metadata", [{"analytics": []}, {"analytics": "x"}])
async def test_metadata_that_is_something_else(product: Product, metadata: dict[str, Any]) -> None:
    await set_metadata(product, metadata)
    assert (await ask(product, "GET")).json()["status"] == "errors"
    assert told(await ask(product, "PUT")) == (500, "Bad config")


async def test_a_matomo_that_is_too_old(product: Product, stand_in: StandIn) -> None:
    stand_in.version = "4.15.1"
    answer = await ask(product, "POST")
    assert told(answer) == (500, "Platform error")
    assert answer.json()["error_description"] == "Matomo is 4.15.1; 5.0 or newer is required"
    assert stand_in.sites == {}


async def test_a_matomo_that_is_down(product: Product, stand_in: StandIn) -> None:
    await make(product)

    async def intercept(_method: str, _parameters: Parameters) -> Any:
        return outage()

    stand_in.intercept = intercept
    for method in ("GET", "PUT"):
        assert told(await ask(product, method)) == (500, "Platform error")
    assert told(await report(product)) == (502, "bad_gateway")


async def test_reads_are_tried_again_and_changes_are_not(product: Product, stand_in: StandIn) -> None:
    failed: set[str] = set()

    async def intercept(method: str, _parameters: Parameters) -> Any:
        if method in failed or method not in ("API.getBulkRequest", "SitesManager.addSite"):
            return None
        failed.add(method)
        return outage()

    stand_in.intercept = intercept
    assert told(await ask(product, "POST")) == (500, "Platform error")
    assert stand_in.calls.count("SitesManager.addSite") == 1
    assert stand_in.calls.count("API.getBulkRequest") == 2


async def test_a_reader_with_a_wrong_token(product: Product, stand_in: StandIn) -> None:
    stand_in.tokens.pop(READER_TOKEN)
    stand_in.tokens["another"] = READER
    answer = await ask(product, "POST")
    assert told(answer) == (500, "Bad config")
    assert "does not accept the read-only user's token" in answer.json()["error_description"]
    assert (await ask(product, "GET")).json()["proxyHasAccess"] is False


async def test_a_repeat_with_the_same_key_answers_the_first_result(
    product: Product, stand_in: StandIn
) -> None:
    first = await ask(product, "POST", headers={"Idempotency-Key": "k"})
    calls = len(stand_in.calls)
    again = await ask(product, "POST", headers={"Idempotency-Key": "k"})
    assert (again.status_code, again.json()) == (201, first.json())
    assert len(stand_in.calls) == calls


async def test_what_was_done_is_in_the_audit_log(product: Product) -> None:
    await make(product)
    async with product.door() as door:
        answer = await door.get("/audit?action=analyticsSite.created")
    assert [entry["targetId"] for entry in answer.json()["items"]] == ["own"]


# -- accounts


async def test_without_a_matomo_the_setting_is_named(migrated_dsn: str) -> None:
    async with open_product(migrated_dsn, matomo_url="http://127.0.0.1:9", matomo_token="x") as product:
        async with product.door() as door:
            await door.post("/projects", json={"id": "own", "name": "own"})
        for method, path in (("GET", "/site"), ("POST", "/site"), ("PUT", "/site"), ("GET", "/snippet")):
            answer = await ask(product, method, path)
            assert told(answer) == (503, "unavailable")
            assert "BROKER_MATOMO_READER is missing" in answer.json()["error_description"]
        assert told(await report(product)) == (503, "unavailable")


async def give_other_account(product: Product, stand_in: StandIn) -> httpx.AsyncClient:
    """The account `other` with the same Matomo and a project of the same id; its admin's door."""
    access = MatomoAccess(stand_in.url, TOKEN, READER, READER_TOKEN)
    await product.services.analytics.storage.set_access("other", access, Actor.operator())
    async with product.door("admin", account="other") as door:
        await door.post("/projects", json={"id": "own", "name": "own"})
    return product.door("admin", account="other")


async def test_an_account_without_a_matomo_of_its_own_has_none(product: Product) -> None:
    async with product.door("admin", account="other") as door:
        await door.post("/projects", json={"id": "own", "name": "own"})
        answer = await door.get("/projects/own/analytics/site")
    assert told(answer) == (503, "unavailable")


async def test_accounts_that_share_a_matomo_share_no_site(product: Product, stand_in: StandIn) -> None:
    await make(product)
    async with await give_other_account(product, stand_in) as door:
        path = "/projects/own/analytics"
        # Not by the group, although the project has the same id there.
        made = await door.post(f"{path}/site")
        assert (made.status_code, made.json()["idSite"]) == (201, "2")
        # Nor by naming it.
        await door.put("/projects/own", json={"name": "n", "metadata": {"analytics": {"idSite": "1"}}})
        assert told(await door.get(f"{path}/site")) == (404, "Not found")
        assert told(await door.put(f"{path}/site")) == (404, "Not found")
        assert told(await door.get(path, params=REPORT)) == (404, "not_found")
        assert told(await door.get(f"{path}/snippet")) == (404, "not_found")


async def read_both(product: Product, project: str) -> list[httpx.Response]:
    """A report, and the snippet."""
    asked = (("", REPORT), ("/snippet", {}))
    return [
        await ask(product, "GET", path, project=project, role="admin", params=sent) for path, sent in asked
    ]


async def test_projects_of_an_account_share_no_site(product: Product, stand_in: StandIn) -> None:
    await make(product)
    await set_metadata(product, await metadata_of(product), "foreign")
    for _ in range(2):
        for answer in await read_both(product, "foreign"):
            assert told(answer) == (500, "Bad config")
            assert "belongs to the group own in Matomo, not to foreign" in answer.json()["error_description"]
        assert [answer.status_code for answer in await read_both(product, "own")] == [200, 200]
    assert stand_in.calls.count("VisitsSummary.get") == 1


async def test_whose_site_it_is_is_asked_once_and_remembered(product: Product, stand_in: StandIn) -> None:
    await make(product)
    asked = stand_in.calls.count("SitesManager.getSiteFromId")
    await read_both(product, "own")  # the only project with this site
    assert stand_in.calls.count("SitesManager.getSiteFromId") == asked
    await set_metadata(product, await metadata_of(product), "foreign")
    product.clock.forward_ms += 61_000
    for _ in range(3):
        await read_both(product, "own")
    assert stand_in.calls.count("SitesManager.getSiteFromId") == asked + 1

    async def intercept(_method: str, _parameters: Parameters) -> Any:
        return outage()

    stand_in.intercept = intercept
    product.clock.forward_ms += 61_000
    assert [(await ask(product, "GET", "/snippet", project=project, role="admin")).status_code
            for project in ("own", "foreign")] == [200, 500]  # fmt: skip


async def test_a_shared_site_is_nobodys_until_matomo_says_whose(product: Product, stand_in: StandIn) -> None:
    await make(product)
    await set_metadata(product, await metadata_of(product), "foreign")

    async def intercept(_method: str, _parameters: Parameters) -> Any:
        return outage()

    stand_in.intercept = intercept
    for project in ("own", "foreign"):
        assert [told(answer) for answer in await read_both(product, project)] == [(502, "bad_gateway")] * 2
    stand_in.intercept = None
    assert [answer.status_code for answer in await read_both(product, "own")] == [200, 200]


async def test_a_site_without_a_group_may_be_shared(product: Product, stand_in: StandIn) -> None:
    await make(product)
    stand_in.sites[1].group = ""
    await set_metadata(product, await metadata_of(product), "foreign")
    assert [answer.status_code for answer in await read_both(product, "foreign")] == [200, 200]


async def test_tokens_are_never_shown(
    product: Product, stand_in: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    await make(product)
    stand_in.tokens.clear()
    texts = [(await ask(product, method)).text for method in ("GET", "PUT")]
    texts += [(await report(product)).text, caplog.text, repr(product.services.analytics)]
    async with product.door() as door:
        texts.append((await door.get("/audit?limit=100")).text)
    assert [text for token in (TOKEN, READER_TOKEN) for text in texts if token in text] == []
    assert TOKEN not in repr(MatomoAccess(stand_in.url, TOKEN, READER, READER_TOKEN))


# -- reports

REPORT = {"method": "VisitsSummary.get", "period": "day", "date": "today"}


async def report(product: Product, by: str = "GET", **changes: Any) -> httpx.Response:
    sent = {name: value for name, value in (REPORT | changes).items() if value is not None}
    if by in ("GET", "DELETE"):
        return await ask(product, by, "", role="user", params=sent)
    return await ask(product, by, "", role="user", json=sent)


async def track(stand_in: StandIn, *visitors: str) -> None:
    async with httpx.AsyncClient(base_url=stand_in.url, trust_env=False) as tracker:
        for visitor in visitors:
            await tracker.get("/matomo.php", params={"idsite": 1, "rec": 1, "_id": visitor})


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
async def test_a_report_by_any_method(product: Product, stand_in: StandIn, method: str) -> None:
    await make(product)
    await track(stand_in, "a", "b", "a")
    answer = await report(product, method)
    assert answer.status_code == 200, answer.text
    assert (answer.json()["nb_visits"], answer.json()["nb_actions"]) == (2, 3)
    assert answer.headers["content-type"] == "application/json"


async def test_parameters_of_a_post_may_be_in_the_query(product: Product, stand_in: StandIn) -> None:
    await make(product)
    assert (await ask(product, "POST", "", params=REPORT)).status_code == 200
    both = await ask(product, "POST", "", params=REPORT, json={"segment": "x==y"})
    assert told(both) == (400, "invalid_request")


async def test_callers_parameters_are_passed_and_ours_enforced(product: Product, stand_in: StandIn) -> None:
    await make(product)
    seen: list[Parameters] = []

    async def intercept(_method: str, parameters: Parameters) -> Any:
        seen.append(parameters)
        return None

    stand_in.intercept = intercept
    sent: dict[str, Any] = {
        "segment": "deviceType==tv;actions>=2&x",
        "flat": 1,
        "filter_limit": 7,
        "label": "é ü",
    }
    assert (await report(product, "POST", **sent)).status_code == 200
    (parameters,) = seen
    assert {name: parameters[name] for name in sent} == {name: str(value) for name, value in sent.items()}
    assert (parameters["idSite"], parameters["token_auth"]) == ("1", READER_TOKEN)
    assert (parameters["module"], parameters["format"]) == ("API", "json")
    assert set(stand_in.queries) == {b""}


SMUGGLED = [
    "idSite", "idSites", "idSite[]", "idSite[0]", "idsite", " idSite", "idSite ", "id.Site",
    "idSite\0x", "idSites[]",
    "token_auth", "token.auth", "token auth", "token[auth", "force_api_session", "module", " module",
    "mod\0ule",
    "method[]", "method ", " method", "Method", "format", "format[]", "urls", "urls[]", "urls[0]", "action",
    "apiModule", "apiAction", "idSite%5B%5D", "\uff49dSite", "serialize", "callback", "jsoncallback",
    "trigger",
    "compareSegments[]", "comparePeriods[]", "idGoals[]", "_showAllSegments",
    "filter_update_columns_when_show_all_goals",
]  # fmt: skip


@pytest.mark.parametrize("name", SMUGGLED)
async def test_a_parameter_that_is_ours_or_nobodys_is_refused(
    product: Product, stand_in: StandIn, name: str
) -> None:
    await make(product)
    asked = len(stand_in.calls)
    for value in ("2", "all"):
        for answer in (
            await ask(product, "GET", "", params=REPORT | {name: value}),
            await ask(product, "POST", "", params=REPORT | {name: value}),
            await ask(product, "POST", "", json=REPORT | {name: value}),
            await ask(product, "POST", "", json=REPORT | {name: [value]}),
        ):
            assert told(answer) == (400, "invalid_request")
    assert len(stand_in.calls) == asked


@pytest.mark.parametrize(
    "method",
    [
        "API.getBulkRequest", "API.getProcessedReport", "API.getRowEvolution", "API.getReportMetadata",
        "SitesManager.getAllSites", "SitesManager.deleteSite", "UsersManager.createAppSpecificTokenAuth",
        "Live.getLastVisitsDetails", "Live.getVisitorProfile", "MultiSites.getAll", "visitssummary.get",
        "VisitsSummary.get ", "VisitsSummary.get&method=API.getBulkRequest",
        "VisitsSummary_get",
        "CustomDimensions.configureNewCustomDimension", "x",
    ],
)  # fmt: skip
async def test_a_method_that_is_no_report_is_refused(
    product: Product, stand_in: StandIn, method: str
) -> None:
    await make(product)
    asked = len(stand_in.calls)
    for way in ("GET", "POST"):
        assert told(await report(product, way, method=method)) == (403, "insufficient_scope")
    assert len(stand_in.calls) == asked


@pytest.mark.parametrize(
    "changes",
    [
        {"method": None}, {"method": ["VisitsSummary.get"]}, {"method": "API.get\0"},
        {"filter_limit": 10_001}, {"filter_limit": -1},
        {"filter_limit": 0}, {"filter_limit": "10"}, {"period": "all"}, {"date": "2026-13-01"},
        {"date": "2026-02-30"},
        {"date": "today,all"}, {"date": "last0"}, {"segment": "a\0b"}, {"segment": "x" * 5000},
        {"language": "../etc"},
        {"columns": "a b"}, {"idSubtable": -1}, {"idDimension": "1,2"}, {"flat": 2}, {"segment": {"a": "b"}},
    ],
)  # fmt: skip
async def test_a_value_that_cannot_be_is_refused(
    product: Product, stand_in: StandIn, changes: dict[str, Any]
) -> None:
    await make(product)
    asked = len(stand_in.calls)
    assert told(await report(product, "POST", **changes)) == (400, "invalid_request")
    assert len(stand_in.calls) == asked


async def test_a_project_without_a_site_has_no_reports(product: Product) -> None:
    assert told(await report(product)) == (404, "not_found")
    assert told(await ask(product, "GET", "/snippet")) == (404, "not_found")


@pytest.mark.parametrize(("date", "kept_s"), [("today", 60), ("2026-07-01", 3600)])
async def test_a_report_is_used_again_for_as_long_as_its_days_allow(
    product: Product, stand_in: StandIn, date: str, kept_s: int
) -> None:
    await make(product)
    for forward_s, asked in ((0, 1), (kept_s - 30, 1), (30, 2)):
        product.clock.forward_ms += forward_s * 1000
        answer = await report(product, date=date)
        assert answer.status_code == 200, answer.text
        assert answer.headers["cache-control"].startswith("private, max-age=")
        assert stand_in.calls.count("VisitsSummary.get") == asked


async def test_nothing_is_shared_between_projects_and_requests(product: Product, stand_in: StandIn) -> None:
    await make(product)
    await make(product, "foreign")
    for project in ("own", "foreign"):
        for changes in ({}, {"segment": "a==b"}, {"date": "2026-07-01"}):
            answer = await ask(product, "GET", "", project=project, role="admin", params=REPORT | changes)
            assert answer.status_code == 200
    assert stand_in.calls.count("VisitsSummary.get") == 6


async def test_equal_requests_at_the_same_time_are_one(product: Product, stand_in: StandIn) -> None:
    await make(product)
    inside, gate = asyncio.Event(), asyncio.Event()

    async def intercept(_method: str, _parameters: Parameters) -> Any:
        inside.set()
        await gate.wait()
        return None

    stand_in.intercept = intercept
    asking = [asyncio.create_task(report(product)) for _ in range(5)]
    await inside.wait()
    gate.set()
    assert {answer.status_code for answer in await asyncio.gather(*asking)} == {200}
    assert stand_in.calls.count("VisitsSummary.get") == 1


async def test_a_project_has_a_bounded_share(product: Product, stand_in: StandIn) -> None:
    await make(product)
    gate = asyncio.Event()
    waiting = asyncio.Semaphore(0)

    async def intercept(_method: str, _parameters: Parameters) -> Any:
        waiting.release()
        await gate.wait()
        return None

    stand_in.intercept = intercept
    asking = [asyncio.create_task(report(product, segment=f"a=={n}")) for n in range(8)]
    for _ in asking:
        await waiting.acquire()
    assert told(await report(product, segment="one==more")) == (429, "slow_down")
    gate.set()
    assert {answer.status_code for answer in await asyncio.gather(*asking)} == {200}


def rows(size: int) -> bytes:
    """A JSON list of about so many bytes."""
    return orjson.dumps([{"label": "x" * 980, "nb_hits": 1}] * (size // 1000))


async def answer_with(
    stand_in: StandIn, body: bytes, media_type: str = "application/json", status: int = 200
) -> None:
    async def intercept(_method: str, _parameters: Parameters) -> Any:
        return status, media_type, body

    stand_in.intercept = intercept


async def test_a_large_report_is_streamed_whole_and_not_kept(product: Product, stand_in: StandIn) -> None:
    await make(product)
    body = rows(1_900_000)
    await answer_with(stand_in, body)
    for _ in range(2):
        answer = await report(product)
        assert (answer.status_code, answer.content) == (200, body)
        assert answer.headers["cache-control"] == "no-store"
    assert len([call for call in stand_in.calls if call == "VisitsSummary.get"]) == 2


async def test_a_report_beyond_the_limit_is_an_error(product: Product, stand_in: StandIn) -> None:
    await make(product)
    await answer_with(stand_in, rows(2_100_000))
    answer = await report(product)
    assert told(answer) == (502, "bad_gateway")
    assert "2000000 bytes" in answer.json()["error_description"]


@pytest.mark.parametrize(
    ("body", "media_type", "status"),
    [
        (b"<html>", "text/html", 200),
        (b"<html>", "text/html", 500),
        (b"<html>", "text/html", 401),
        (b'{"result":"error","message":"nobody may"}', "application/json", 401),
        (b'{"result":"error","message":"SQLSTATE[42S02]"}', "application/json", 200),
        (b"{", "application/json", 200),
        (b"", "application/json", 200),
        (b"[]", "application/json", 500),
        (b"[]", "text/plain", 200),
        (b"", "text/html", 302),
    ],
)
async def test_what_is_no_report_is_an_error(
    product: Product, stand_in: StandIn, body: bytes, media_type: str, status: int
) -> None:
    await make(product)
    await answer_with(stand_in, body, media_type, status)
    answer = await report(product)
    assert told(answer) == (502, "bad_gateway")
    assert "SQLSTATE" not in answer.text
    stand_in.intercept = None
    assert (await report(product)).status_code == 200


async def test_a_slow_matomo_is_a_timeout(product: Product, stand_in: StandIn) -> None:
    await make(product)
    product.services.analytics._config = MatomoConfig(timeout_s=0.3)
    gate = asyncio.Event()

    async def intercept(_method: str, _parameters: Parameters) -> Any:
        await gate.wait()
        return None

    stand_in.intercept = intercept
    assert told(await report(product)) == (504, "gateway_timeout")
    assert told(await ask(product, "GET")) == (500, "Platform error")
    gate.set()


async def test_no_matomo_at_all_is_a_bad_gateway(product: Product) -> None:
    await make(product)
    access = MatomoAccess("http://127.0.0.1:9", TOKEN, READER, READER_TOKEN)
    await product.services.analytics.storage.set_access("demo", access, Actor.operator())
    assert told(await report(product)) == (502, "bad_gateway")
    assert told(await ask(product, "GET")) == (500, "Platform error")


# -- the snippet


async def test_the_snippet_has_the_site_and_its_dimensions(product: Product, stand_in: StandIn) -> None:
    status = await make(product)
    answer = await ask(product, "GET", "/snippet")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == f"{SCRIPT_TYPE}; charset=utf-8"
    assert f'var url = "{stand_in.url}";' in answer.text
    assert '["setSiteId", "1"]' in answer.text
    assert f'"programEvent":{status["dimensionIds"]["action"]["programEvent"]}' in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_nothing_in_metadata_ends_the_script(product: Product) -> None:
    await make(product)
    metadata = await metadata_of(product)
    metadata["analytics"]["dimensionIds"]["visit"]["</script><b a=\"'\u2028"] = "7"
    await set_metadata(product, metadata)
    answer = await ask(product, "GET", "/snippet")
    assert '"\\u003c/script\\u003e\\u003cb a=\\"\\u0027\\u2028":7' in answer.text
    assert "<" not in answer.text.replace("<=", "")
