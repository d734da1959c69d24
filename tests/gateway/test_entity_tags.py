"""What HTTP says with `ETag` and `If-Match`, said with params."""

from typing import Any

import pytest

from tests.gateway.world import RpcError, Viewer, World

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

SETTINGS = {"ws_messages_per_s": 0}


async def made(world: World, project_id: str) -> Viewer:
    """An admin's connection; the project and a revision `r` of it exist."""
    admin = await world.admin()
    await admin.call("createProject", id=project_id, name="n")
    await admin.call("createRevision", projectId=project_id, version="r")
    return admin


async def test_the_tag_is_the_one_that_http_tells(world: World) -> None:
    admin = await made(world, "same")
    await admin.call("storeValue", projectId="same", id="v", metadata={})
    for method, path, params in (
        ("getProject", "/projects/same", {"projectId": "same"}),
        ("getLatestRevision", "/projects/same/application/version/latest", {"projectId": "same"}),
        ("getStoredValue", "/storage/same/v", {"projectId": "same", "itemId": "v"}),
    ):
        plain = await admin.call(method, **params)
        tagged = await admin.call(method, **params, withEtag=True)
        async with world.product.door() as door:
            answer = await door.get(path)
        assert tagged == plain | {"etag": answer.headers["etag"]}
        assert plain == answer.json() == await admin.call(method, **params, withEtag=False)


async def changes(admin: Viewer, project_id: str) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Each operation that honours a tag: its name, what it names, what it changes."""
    revision = await admin.call("getRevisionByVersion", projectId=project_id, version="r")
    names = {"projectId": project_id, "revisionId": revision["id"]}
    return [
        ("updateProject", {"projectId": project_id}, {"name": "m"}),
        ("updateRevision", names, {"title": "T"}),
        ("patchRevision", names, {"patch": [{"op": "add", "path": "/content/a", "value": 1}]}),
        ("patchRevision", names, {"patch": {"title": "U"}}),
    ]


async def test_a_change_depends_on_its_tag(world: World) -> None:
    admin = await made(world, "guarded")
    for method, names, change in await changes(admin, "guarded"):
        read = method.replace("update", "get").replace("patch", "get")
        before = await admin.call(read, **names, withEtag=True)
        with pytest.raises(RpcError) as refused:
            await admin.call(method, **names, **change, ifMatch='"stale"')
        assert (refused.value.code, refused.value.name) == (412, "precondition_failed")
        assert await admin.call(read, **names, withEtag=True) == before
        after = await admin.call(method, **names, **change, ifMatch=before["etag"], withEtag=True)
        assert after["etag"] != before["etag"]
        assert await admin.call(read, **names, withEtag=True) == after
        with pytest.raises(RpcError, match="412"):
            await admin.call(method, **names, **change, ifMatch=before["etag"])
        await admin.call(method, **names, **change, ifMatch="*")
        await admin.call(method, **names, **change, ifMatch=None)


@pytest.mark.parametrize(("param", "value"), [("ifMatch", 5), ("ifMatch", ["*"]), ("withEtag", "true")])
async def test_a_param_of_the_wrong_type_is_named(world: World, param: str, value: Any) -> None:
    admin = await world.admin()
    with pytest.raises(RpcError) as refused:
        await admin.call("updateProject", projectId="none", name="n", **{param: value})
    assert refused.value.fields == [param]


@pytest.mark.parametrize("param", ["ifMatch", "withEtag"])
async def test_where_it_means_nothing_it_is_an_unknown_field(world: World, param: str) -> None:
    admin = await world.admin()
    with pytest.raises(RpcError) as refused:
        await admin.call("listUsers", **{param: None})
    assert refused.value.fields == [param]
