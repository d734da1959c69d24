"""`broker.analytics.snippet`, run by a JavaScript engine."""

import json
import subprocess

from broker.analytics.site import SiteIds
from broker.analytics.snippet import build_snippet
from broker.analytics.wanted import Scope

PAGE = """
const loaded = [];
const document = { createElement: () => ({}), head: { appendChild: (one) => loaded.push(one.src) } };
const window = {};
"""
USE = """
window.brokerAnalytics.set("program", "final");
window.brokerAnalytics.track("Responses", "answer", "mvp", null, { platform: "tv" });
let fault = null;
try { window.brokerAnalytics.set("unknown", 1); } catch (error) { fault = error.message; }
console.log(JSON.stringify([loaded, window._paq, fault]));
"""


def test_the_script_sends_to_the_site_by_names() -> None:
    ids = SiteIds("7", dimensions={Scope.VISIT: {"platform": "1"}, Scope.ACTION: {"program": "2"}})
    script = PAGE + build_snippet("https://matomo.example.org", ids) + USE
    done = subprocess.run(["node", "-e", script], capture_output=True, text=True, check=True)
    loaded, queue, fault = json.loads(done.stdout)
    assert loaded == ["https://matomo.example.org/matomo.js"]
    assert queue == [
        ["setTrackerUrl", "https://matomo.example.org/matomo.php"],
        ["setSiteId", "7"],
        ["disableCookies"],
        ["setCustomDimension", 2, "final"],
        ["trackEvent", "Responses", "answer", "mvp", None, {"dimension1": "tv"}],
    ]
    assert fault == "there is no dimension unknown"
