"""The documentation as a site, built as by `make docs`. A warning, such as a dead link, fails the build."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    options = ["--quiet", "--fail-on-warning", "--keep-going", "--doctree-dir", f"{folder}/doctrees"]
    command = [sys.executable, "-m", "sphinx", "-c", "docs", *options, ".", f"{folder}/html"]
    built = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=300)
    assert built.returncode == 0, built.stderr
    return folder / "html"


def test_every_page_is_in_the_navigation(site: Path) -> None:
    pages = {page.relative_to(ROOT).with_suffix(".html") for page in (ROOT / "docs").glob("*.md")}
    first = (site / "docs" / "index.html").read_text()
    navigation = first.partition('class="sidebar-tree"')[2].partition("</aside>")[0]
    listed = {Path("docs") / link for link in re.findall(r'href="([^"#]+)"', navigation)}
    assert len(pages) > 25
    assert pages - {Path("docs/index.html")} <= listed
    assert Path("docs/../README.html") in listed


def test_the_first_page_leads_to_the_documentation(site: Path) -> None:
    (target,) = re.findall(r"url=([^\"]+)", (site / "index.html").read_text())
    assert (site / target).is_file()


def test_search_finds_words_without_a_server(site: Path) -> None:
    """The index is a script, which a page of a file may load."""
    script = (site / "searchindex.js").read_text()
    index = json.loads(script.removeprefix("Search.setIndex(").removesuffix(")"))
    names = {index["docnames"][number] for number in index["terms"]["epoch"]}
    assert {"docs/protocol", "docs/architecture"} <= names
    assert '<script src="searchindex.js">' in (site / "search.html").read_text()


def test_no_page_asks_another_host_for_anything(site: Path) -> None:
    asks = re.compile(
        r"""<(?:script|link|img|iframe|source|object|embed)\b[^>]*?\b(?:src|href|data)=["']?(?:https?:)?//"""
        r"""|url\(["']?(?:https?:)?//|@import""",
        re.IGNORECASE,
    )
    assert asks.search('<img alt="" src="https://example.org/x.png">')
    assert asks.search("src: url(//fonts.example.org/x)")
    files = [path for path in site.rglob("*") if path.suffix in {".html", ".css"}]
    assert len(files) > 30
    assert [path.name for path in files if asks.search(path.read_text())] == []
