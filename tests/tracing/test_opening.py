"""The tracer of a process: what arrives at a collector, and what there is without one."""

import subprocess
import sys
from pathlib import Path

import pytest

from broker.cli.main import run
from broker.clock import SystemClock
from broker.deployments.ports import free_port
from broker.settings import Settings
from broker.setup_error import SetupError
from broker.tracing.contexts import find_sampled, trace_id_of
from broker.tracing.opening import open_tracer, require_installed
from tests.tracing.collector import INTERNAL, SERVER, open_collector

pytestmark = pytest.mark.anyio

EXPORTER = "opentelemetry.exporter.otlp.proto.http"
REMEDY = r"pip install 'onair-broker\[server,traces\]'"
OFF = """
import sys
import broker.cli.up, broker.gateway.gateway, broker.owners.owner, broker.rest.app
from broker.clock import SystemClock
from broker.settings import Settings
from broker.tracing.opening import open_tracer
assert open_tracer(Settings(), "api", SystemClock()) is None
print([name for name in sys.modules if name.partition(".")[0] == "opentelemetry"])
"""


async def test_spans_arrive_as_they_were_given() -> None:
    clock = SystemClock()
    with open_collector() as collector:
        tracer = open_tracer(Settings(traces_url=collector.url), "owner-3", clock)
        assert tracer is not None
        now_s = clock.monotonic_s()
        root = tracer.begin("root", None, {"a": "ä", "b": 2}, since_s=now_s - 3.0, is_request=True)
        child = tracer.begin("child", root.context, since_s=now_s - 2.0)
        child.end({"c": 0.5}, until_s=now_s - 1.0)
        root.end()
        tracer.begin("never ended", root.context)
        await tracer.close()
        spans = collector.wait(trace_id_of(root.context), "root", "child")
    assert set(spans) == {"root", "child"}
    seen = spans["root"]
    assert find_sampled(root.context) == (seen.trace_id, seen.span_id)
    assert (seen.parent_id, spans["child"].parent_id) == ("", seen.span_id)
    assert (seen.kind, spans["child"].kind) == (SERVER, INTERNAL)
    assert (seen.attributes, spans["child"].attributes) == ({"a": "ä", "b": 2}, {"c": 0.5})
    assert seen.process["service.name"] == "broker"
    assert seen.process["broker.part"] == "owner-3"
    assert seen.start_ns < spans["child"].start_ns < spans["child"].end_ns < seen.end_ns


async def test_a_parent_that_is_none_begins_a_trace() -> None:
    with open_collector() as collector:
        tracer = open_tracer(Settings(traces_url=collector.url), "owner-0", SystemClock())
        assert tracer is not None
        span = tracer.begin("alone", "nonsense")
        span.end()
        await tracer.close()
        assert collector.wait(trace_id_of(span.context), "alone")["alone"].parent_id == ""


async def test_a_collector_that_is_away_is_no_error() -> None:
    url = f"http://127.0.0.1:{free_port()}/v1/traces"
    tracer = open_tracer(Settings(traces_url=url), "api", SystemClock())
    assert tracer is not None
    tracer.begin("lost", None).end()
    await tracer.close()


def test_without_a_collector_nothing_of_opentelemetry_is_loaded() -> None:
    done = subprocess.run([sys.executable, "-c", OFF], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_process_without_the_extra_goes_on_without_traces(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delitem(sys.modules, "broker.tracing.otlp", raising=False)
    monkeypatch.setitem(sys.modules, f"{EXPORTER}.trace_exporter", None)
    assert open_tracer(Settings(traces_url="http://127.0.0.1:4318/v1/traces"), "api", SystemClock()) is None
    assert [record.message for record in caplog.records] == ["traces_off"]


def test_a_start_without_the_extra_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    require_installed()
    monkeypatch.setitem(sys.modules, EXPORTER, None)
    with pytest.raises(SetupError, match=REMEDY):
        require_installed()
    monkeypatch.setenv("BROKER_TRACES_URL", "http://127.0.0.1:4318/v1/traces")
    assert run(["up", "--data-dir", str(tmp_path)]) == 1
    told = "the extra `traces` is not installed: pip install 'onair-broker[server,traces]'"
    assert capsys.readouterr().err == f"error: BROKER_TRACES_URL: {told}\n"
