"""The JavaScript with which an overlay reports to the project's site, with its dimensions by name.

Overlays send to Matomo themselves; the server does not. Values come from metadata and settings, so they are
written in such a way that none can end the script, the element around it, or a text inside it.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from broker.analytics.site import SiteIds

# Everything that HTML or older JavaScript reads as more than a character of a text.
_ESCAPED = {ord(one): f"\\u{ord(one):04x}" for one in "<>&'\u2028\u2029"}

_SNIPPET = """\
// Measures an overlay in Matomo. Put it into the page once; then, for example:
//   brokerAnalytics.set("program", "final-2026");
//   brokerAnalytics.track("Responses", "answer", "mvp", null, {{ responseName: "mvp" }});
(function (window, document) {{
  "use strict";
  var url = {url};
  var dimensions = {dimensions};
  var queue = (window._paq = window._paq || []);

  function find(name) {{
    var found = dimensions.action[name] || dimensions.visit[name];
    if (!found) throw new Error("there is no dimension " + name);
    return found;
  }}

  window.brokerAnalytics = {{
    dimensions: dimensions,
    // Give a dimension its value for everything that follows.
    set: function (name, value) {{
      queue.push(["setCustomDimension", find(name), String(value)]);
    }},
    // Count a page view.
    view: function (title) {{
      queue.push(["trackPageView", title]);
    }},
    // Count an event; `values` are those of dimensions by name, for this event alone.
    track: function (category, action, name, value, values) {{
      var sent = {{}};
      Object.keys(values || {{}}).forEach(function (key) {{
        sent["dimension" + find(key)] = String(values[key]);
      }});
      queue.push(["trackEvent", category, action, name, value, sent]);
    }}
  }};

  queue.push(["setTrackerUrl", url + "/matomo.php"], ["setSiteId", {id_site}], ["disableCookies"]);
  var script = document.createElement("script");
  script.async = true;
  script.src = url + "/matomo.js";
  document.head.appendChild(script);
}})(window, document);
"""


def build_snippet(url: str, ids: SiteIds) -> str:
    """The script for a site; `url` is Matomo's."""
    dimensions = {
        scope.value: {name: int(id_) for name, id_ in known.items()}
        for scope, known in ids.dimensions.items()
    }
    return _SNIPPET.format(
        url=_literal(url), dimensions=_literal(dimensions), id_site=_literal(ids.id_site or "")
    )


def _literal(value: str | Mapping[str, Any]) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode().translate(_ESCAPED)
