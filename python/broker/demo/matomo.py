"""A stand-in for Matomo: a stateful HTTP server that replies as Matomo 5 does, as far as it is used.

It is for the demonstration and for tests; the same tests that run on it run on a real Matomo
(docs/analytics.md), and where the two differed it was mended here. So it has Matomo's odd sides too: errors
with status 200, a page where a token is wrong, ids that are numbers here and texts there, `[]` for an empty
object, dimensions of sites that are not there, groups compared without regard to case, a query that wins
over the body, names of parameters as PHP reads them, and two dimensions at once that race for one slot.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

import orjson

from broker.demo.serving import served

VERSION = "5.0.2"
SLOTS = 5
SUPERUSER = "provisioning"
READER = "reader"
TOKEN = "stand-in-provisioning"  # noqa: S105 - of nothing that is secret
READER_TOKEN = "stand-in-reader"  # noqa: S105 - of nothing that is secret

_VIEW = ("view", "write", "admin")
_SCOPES = ("visit", "action")
_DIMENSION_NAME = re.compile(r"[\w\s-]+")
_DATE = re.compile(
    r"today|yesterday|(last|previous)\d+|\d{4}-\d{2}-\d{2}(,(\d{4}-\d{2}-\d{2}|today|yesterday))?"
)
_BRACKETS = re.compile(r"\[([^\]]*)\]")
_PAGE = (
    "<!DOCTYPE html>\n<html>\n<head><title>Matomo &rsaquo; Error</title></head>\n"
    '<body id="simple"><div class="content"><h2>{}</h2></div></body>\n</html>\n'
)

Parameters = dict[str, Any]
StandInReply = tuple[int, str, bytes]


Handler = Callable[["StandIn", str, Parameters], Any]
_METHODS: dict[str, Handler] = {}


def _method(name: str) -> Callable[[Handler], Handler]:
    """Make a function what a method of the API does: it is given the user's name and the parameters."""

    def register(handler: Handler) -> Handler:
        _METHODS[name] = handler
        return handler

    return register


class Refused(Exception):
    """An error that Matomo tells in JSON; `status` is 401 where rights are missing."""

    def __init__(self, message: str, status: int = 200) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class Site:
    """A site with all that belongs to it."""

    id: int
    name: str
    group: str
    urls: list[str]
    dimensions: list[dict[str, Any]] = field(default_factory=list)
    reports: list[dict[str, Any]] = field(default_factory=list)
    access: dict[str, str] = field(default_factory=dict)
    actions: int = 0
    visitors: set[str] = field(default_factory=set)


@dataclass
class StandIn:
    """The state; everything may be changed while it runs.

    Attributes:
        tokens: user name by token; the user `SUPERUSER` may do everything.
        plugins: those that are active.
        intercept: asked before each call with its method and its parameters; a reply in place of the real
            one, or None. It may wait, change the state, or raise `Refused`.
        calls: the method of every call in their order, those inside a call of several too.
        texts_for_numbers: whether a site's id is written as a text.
    """

    url: str = ""
    version: str = VERSION
    tokens: dict[str, str] = field(default_factory=lambda: {TOKEN: SUPERUSER, READER_TOKEN: READER})
    plugins: set[str] = field(
        default_factory=lambda: {"CustomDimensions", "CustomReports", "VisitsSummary", "Actions"}
    )
    sites: dict[int, Site] = field(default_factory=dict)
    orphans: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    texts_for_numbers: bool = False
    intercept: Callable[[str, Parameters], Awaitable[StandInReply | None]] | None = None
    calls: list[str] = field(default_factory=list)
    queries: list[bytes] = field(default_factory=list)

    async def __call__(
        self,
        scope: Mapping[str, Any],
        receive: Callable[[], Awaitable[Mapping[str, Any]]],
        send: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        """Serve one ASGI request."""
        content, more = b"", True
        while more:
            message = await receive()
            content, more = content + message.get("body", b""), message.get("more_body", False)
        self.queries.append(scope["query_string"])
        parameters = _php(content) | _php(scope["query_string"])
        status, media_type, body = await self._answer(scope["path"], parameters)
        headers = [(b"content-type", media_type.encode()), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, path: str, parameters: Parameters) -> StandInReply:
        if path == "/matomo.php":
            self._track(parameters)
            return 204, "image/gif", b""
        if path not in ("/", "/index.php") or parameters.get("module") != "API":
            return _page(404, "Not found")
        token = parameters.get("token_auth")
        if token is not None and token not in self.tokens:
            return _page(
                401, "Unable to authenticate with the provided token. It is either invalid or expired."
            )
        user = self.tokens.get(str(token), "anonymous")
        try:
            value = await self._call(str(parameters.get("method", "")), user, parameters)
        except Refused as error:
            return _json({"result": "error", "message": str(error)}, error.status)
        return value if isinstance(value, tuple) else _json(_wrapped(value))

    async def _call(self, method: str, user: str, parameters: Parameters) -> Any:
        self.calls.append(method)
        if self.intercept is not None:
            instead = await self.intercept(method, parameters)
            if instead is not None:
                return instead
        module, _, name = method.partition(".")
        if method == "API.getBulkRequest":
            return await self._bulk(user, _members(parameters.get("urls")))
        if module not in ("API", "SitesManager", "UsersManager") and module not in self.plugins:
            raise Refused(
                f"The plugin {module} is not enabled. You can activate the plugin on Settings > Plugins page"
                " in Matomo."
            )
        handler = _METHODS.get(method)
        if handler is None:
            raise Refused(f"The method '{name}' does not exist or is not available in the module '{module}'.")
        found = handler(self, user, parameters)
        return await found if asyncio.iscoroutine(found) else found

    async def _bulk(self, user: str, urls: list[Any]) -> list[Any]:
        replies = []
        for url in urls:
            inner = _php(str(url).encode())
            try:
                value = await self._call(str(inner.get("method", "")), user, inner)
                replies.append(orjson.loads(value[2]) if isinstance(value, tuple) else _wrapped(value))
            except Refused as error:
                replies.append({"result": "error", "message": str(error)})
        return replies

    # -- API

    @_method("API.getMatomoVersion")
    def _get_matomo_version(self, user: str, _parameters: Parameters) -> str:
        self._require_some_view(user)
        return self.version

    @_method("API.isPluginActivated")
    def _is_plugin_activated(self, user: str, parameters: Parameters) -> bool:
        self._require_some_view(user)
        return _required(parameters, "pluginName") in self.plugins

    # -- sites and users

    @_method("SitesManager.addSite")
    def _add_site(self, user: str, parameters: Parameters) -> int:
        self._require_superuser(user)
        name = _required(parameters, "siteName")
        number = max(self.sites, default=0) + 1
        urls = [str(url) for url in _members(parameters.get("urls"))]
        site = Site(number, name, str(parameters.get("group", "")).strip(), urls)
        site.dimensions = self.orphans.pop(number, [])
        self.sites[number] = site
        return number

    @_method("SitesManager.getSitesFromGroup")
    def _get_sites_from_group(self, user: str, parameters: Parameters) -> list[Any]:
        self._require_superuser(user)
        group = str(parameters.get("group", "")).strip().lower()
        return [self._described(site) for site in self.sites.values() if site.group.lower() == group]

    @_method("SitesManager.getSiteFromId")
    def _get_site_from_id(self, user: str, parameters: Parameters) -> dict[str, Any]:
        return self._described(self._site(user, parameters, "view"))

    @_method("SitesManager.getSitesIdWithAtLeastViewAccess")
    def _get_sites_id_with_at_least_view_access(self, user: str, _parameters: Parameters) -> list[int]:
        return [site.id for site in self.sites.values() if self._may(user, site, "view")]

    @_method("UsersManager.getUsersAccessFromSite")
    def _get_users_access_from_site(self, user: str, parameters: Parameters) -> Any:
        return self._site(user, parameters, "admin").access or []

    @_method("UsersManager.setUserAccess")
    def _set_user_access(self, user: str, parameters: Parameters) -> None:
        login, access = _required(parameters, "userLogin"), _required(parameters, "access")
        site = self._site(user, parameters, "admin", "idSites")
        if login == SUPERUSER:
            raise Refused(
                f"The user '{login}' has Super User access and has already permission to access all."
            )
        if login not in self.tokens.values():
            raise Refused(f"User '{login}' doesn't exist.")
        site.access[login] = access

    # -- dimensions

    @_method("CustomDimensions.getConfiguredCustomDimensions")
    def _get_configured_custom_dimensions(self, user: str, parameters: Parameters) -> Any:
        return self._dimensions(user, parameters)

    @_method("CustomDimensions.getAvailableScopes")
    def _get_available_scopes(self, user: str, parameters: Parameters) -> Any:
        known = self._dimensions(user, parameters)
        return [
            {
                "value": scope,
                "name": scope.capitalize(),
                "numSlotsAvailable": SLOTS,
                "numSlotsUsed": (used := sum(one["scope"] == scope for one in known)),
                "numSlotsLeft": SLOTS - used,
                "supportsExtractions": scope == "action",
            }
            for scope in _SCOPES
        ]

    @_method("CustomDimensions.configureNewCustomDimension")
    async def _configure_new_custom_dimension(self, user: str, parameters: Parameters) -> int:
        known = self._dimensions(user, parameters, "admin")
        name, scope = _required(parameters, "name"), _required(parameters, "scope")
        if not _DIMENSION_NAME.fullmatch(name):
            raise Refused("Allowed characters are any letters, numbers, whitespace, a dash and underline.")
        if scope not in _SCOPES:
            raise Refused(
                f"Invalid value '{scope}' for 'scope' specified. Available: visit, action, conversion"
            )
        number = str(parameters["idSite"])
        taken = {one["index"] for one in known if one["scope"] == scope}
        index = next((str(one) for one in range(1, SLOTS + 1) if str(one) not in taken), None)
        if index is None:
            raise Refused(f"All Custom Dimensions for website {number} in scope '{scope}' are already used.")
        new_id = max((int(one["idcustomdimension"]) for one in known), default=0) + 1
        await asyncio.sleep(0)  # another call may find the same slot now
        if any(one["scope"] == scope and one["index"] == index for one in known):
            raise Refused(
                f"SQLSTATE[23000]: Integrity constraint violation: 1062 Duplicate '{number}-{scope}-{index}'"
            )
        known.append(
            {
                "idcustomdimension": str(new_id),
                "idsite": number,
                "name": name,
                "index": index,
                "scope": scope,
                "active": str(parameters.get("active")) == "1",
                "extractions": _members(parameters.get("extractions")),
                "case_sensitive": str(parameters.get("caseSensitive", "1")) == "1",
            }
        )
        return new_id

    # -- custom reports

    @_method("CustomReports.getConfiguredReports")
    def _get_configured_reports(self, user: str, parameters: Parameters) -> Any:
        return self._site(user, parameters, "view").reports

    @_method("CustomReports.addCustomReport")
    def _add_custom_report(self, user: str, parameters: Parameters) -> int:
        site = self._site(user, parameters, "admin")
        metrics = _members(parameters.get("metricIds"))
        if not metrics:
            raise Refused("Please specify a value for 'metricIds'.")
        number = 1 + sum(len(one.reports) for one in self.sites.values())
        site.reports.append(
            {
                "idcustomreport": number,
                "idsite": site.id,
                "name": _required(parameters, "name"),
                "description": str(parameters.get("description", "")),
                "category": {"id": "CustomReports_CustomReports", "name": "Custom Reports"},
                "subcategory": None,
                "report_type": _required(parameters, "reportType"),
                "dimensions": _members(parameters.get("dimensionIds")),
                "metrics": metrics,
                "segment_filter": str(parameters.get("segmentFilter", "")),
                "status": "active",
            }
        )
        return number

    # -- reports

    @_method("VisitsSummary.get")
    def _visits_summary(self, user: str, parameters: Parameters) -> Any:
        site = self._reported(user, parameters)
        visits = len(site.visitors)
        return {
            "nb_uniq_visitors": visits,
            "nb_users": 0,
            "nb_visits": visits,
            "nb_actions": site.actions,
            "nb_visits_converted": 0,
            "bounce_count": 0,
            "sum_visit_length": 0,
            "max_actions": site.actions,
            "bounce_rate": "0%",
            "nb_actions_per_visit": round(site.actions / visits, 1) if visits else 0,
            "avg_time_on_site": 0,
        }

    @_method("Actions.getPageUrls")
    def _get_page_urls(self, user: str, parameters: Parameters) -> Any:
        site = self._reported(user, parameters)
        return [{"label": "/overlay", "nb_hits": site.actions}] if site.actions else []

    @_method("CustomDimensions.getCustomDimension")
    def _get_custom_dimension(self, user: str, parameters: Parameters) -> Any:
        site = self._reported(user, parameters)
        wanted = _required(parameters, "idDimension")
        if wanted not in [one["idcustomdimension"] for one in site.dimensions]:
            raise Refused(f"CustomDimension {wanted} for website {site.id} does not exist")
        return []

    def _track(self, parameters: Parameters) -> None:
        number = str(parameters.get("idsite", ""))
        site = self.sites.get(int(number)) if number.isdecimal() else None
        if site is not None:
            site.actions += 1
            site.visitors.add(str(parameters.get("_id", "")))

    # -- rights

    def _site(self, user: str, parameters: Parameters, access: str, name: str = "idSite") -> Site:
        number = _required(parameters, name)
        site = self.sites.get(int(number)) if number.isdecimal() else None
        if site is None and user == SUPERUSER:
            raise Refused(
                f"An unexpected website was found in the request: website id was set to '{number}' ."
            )
        if site is None or not self._may(user, site, access):
            raise Refused(
                f"You can't access this resource as it requires '{access}' access for the website id ="
                f" {number}.",
                401,
            )
        return site

    def _dimensions(self, user: str, parameters: Parameters, access: str = "view") -> list[dict[str, Any]]:
        """Those of a site; a superuser is not told that there is no such site, and may add some to it."""
        number = _required(parameters, "idSite")
        if user == SUPERUSER and number.isdecimal() and int(number) not in self.sites:
            return self.orphans.setdefault(int(number), [])
        return self._site(user, parameters, access).dimensions

    def _reported(self, user: str, parameters: Parameters) -> Site:
        site = self._site(user, parameters, "view")
        _required(parameters, "period")
        if not _DATE.fullmatch(_required(parameters, "date")):
            raise Refused("Date format must be: YYYY-MM-DD, or 'today' or 'yesterday' or any keyword")
        return site

    def _may(self, user: str, site: Site, access: str) -> bool:
        enough = _VIEW[_VIEW.index(access) :]
        return user == SUPERUSER or site.access.get(user) in enough

    def _require_some_view(self, user: str) -> None:
        if user != SUPERUSER and not any(self._may(user, site, "view") for site in self.sites.values()):
            raise Refused("You can't access this resource as it requires 'view' access for a website.", 401)

    def _require_superuser(self, user: str) -> None:
        if user != SUPERUSER:
            raise Refused("You can't access this resource as it requires a 'superuser' access.", 401)

    def _described(self, site: Site) -> dict[str, Any]:
        return {
            "idsite": str(site.id) if self.texts_for_numbers else site.id,
            "name": site.name,
            "main_url": site.urls[0] if site.urls else "",
            "ts_created": "2026-07-01 09:30:00",
            "ecommerce": 0,
            "sitesearch": 1,
            "timezone": "UTC",
            "currency": "USD",
            "group": site.group,
            "type": "website",
            "creator_login": SUPERUSER,
        }


@asynccontextmanager
async def open_stand_in(stand_in: StandIn | None = None, port: int = 0) -> AsyncIterator[StandIn]:
    """Serve a stand-in on this machine, on a free port if it is 0; `url` says which."""
    opened = stand_in or StandIn()
    async with served("stand-in Matomo", opened, port) as host:
        opened.url = f"http://{host}"
        yield opened


def _php(form: bytes) -> Parameters:
    """A form as PHP reads it: names end at NUL and `[`, spaces before them go, dots and spaces become `_`."""
    found: Parameters = {}
    for name, value in parse_qsl(form.decode("latin-1"), keep_blank_values=True, encoding="utf-8"):
        plain = name.lstrip(" ").partition("\0")[0]
        base, bracket, rest = plain.partition("[")
        keys = _BRACKETS.findall(bracket + rest)
        if bracket and not keys:  # never closed
            base = plain.replace("[", "_")
        _put(found, [re.sub(r"[. ]", "_", base), *keys], value)
    return found


def _put(target: Parameters, keys: list[str], value: str) -> None:
    key, *rest = keys
    key = key or str(len(target))
    if not rest:
        target[key] = value
        return
    inner = target.get(key)
    target[key] = inner if isinstance(inner, dict) else {}
    _put(target[key], rest, value)


def _required(parameters: Parameters, name: str) -> str:
    value = parameters.get(name)
    if not isinstance(value, str) or not value:
        raise Refused(f"Please specify a value for '{name}'.")
    return value


def _members(value: object) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else []


def _wrapped(value: Any) -> Any:
    """How a method's value is written: plain ones in an object, nothing as a success."""
    if value is None:
        return {"result": "success", "message": "ok"}
    return value if isinstance(value, list | dict) else {"value": value}


def _json(value: Any, status: int = 200) -> StandInReply:
    return status, "application/json; charset=utf-8", orjson.dumps(value)


def _page(status: int, text: str) -> StandInReply:
    return status, "text/html; charset=utf-8", _PAGE.format(text).encode()


def outage() -> StandInReply:
    """What a Matomo without its database answers."""
    return _page(500, "The database is not available.")
