"""Documentation that would mislead fails here."""

import re
import subprocess
import tomllib
from pathlib import Path

import orjson

import broker.analytics.errors
import broker.fetching.errors
import broker.images.errors
import broker.owners.protocol  # noqa: F401  (its errors belong to the tree)
from broker import DISTRIBUTION
from broker.domain.data_sources import DataSource, find_data_source
from broker.domain.permission_table import PERMISSIONS, ROLES, Rule
from broker.domain.users import Role
from broker.errors import BrokerError
from broker.operations.listing import ListParams
from broker.owners.moved import Moved
from broker.resources.audit import AuditParams
from broker.resources.events import FilterEventsParams
from broker.resources.programs import FilterProgramsParams

ROOT = Path(__file__).parent.parent


def kinds(kind: type[BrokerError] = BrokerError) -> set[type[BrokerError]]:
    return {kind}.union(*(kinds(child) for child in kind.__subclasses__()))


def test_the_readme_lists_every_error_with_its_status() -> None:
    rows = set(re.findall(r"^\| (\d{3}) \| `([\w ]+)` \|", (ROOT / "README.md").read_text(), re.MULTILINE))
    told = [kind for kind in kinds() if kind.__module__.startswith("broker.") and kind is not Moved]
    expected = {(str(kind.status), kind.name) for kind in told}  # `Moved` never leaves our processes
    assert rows == expected


def test_what_is_installed_is_ours() -> None:
    """`broker` is somebody else's package, on PyPI and on npm."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == DISTRIBUTION
    assert project["scripts"]["broker"] == "broker.cli.main:main"
    foreign = re.compile(
        r"\b(?:pip3?|pipx|uv|uvx|npm|npx|pnpm|yarn) (?:install|add|i|tool)\b[^\n`]*?[ '\"]broker\b(?!\.)"
    )
    assert foreign.search("pip install -U 'broker[server]'")
    assert foreign.search("npm i broker")
    assert not foreign.search("pip install 'onair-broker[server]'")
    documents = [
        path for pattern in ("*.md", "docs/*.md", "deploy/*", "bench/*.md") for path in ROOT.glob(pattern)
    ]
    documents = [path for path in documents if path.is_file()]
    for page in [*documents, *(ROOT / "python").rglob("*.py"), ROOT / "Makefile"]:
        assert not foreign.search(page.read_text()), page.name


def test_the_readme_names_only_make_targets_that_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    readme = (ROOT / "README.md").read_text()
    named = set(re.findall(r"make ([a-z]+)", readme))
    assert named <= targets


def test_contributors_are_told_of_commands_and_tests_that_exist() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {name for line in re.findall(r"make ([a-z ]+)", page) for name in line.split()[:2]} <= targets
    for path, test in re.findall(r"(tests/[\w/]+\.py)::(\w+)", page):
        assert f"def {test}(" in (ROOT / path).read_text()
    for path in re.findall(r"`((?:python|tests|docs|bench)/[\w/.]+)`", page):
        assert (ROOT / path).exists(), path


def test_make_help_says_what_every_target_does() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE)) - {"toolchain", "nightly"}
    assert set(re.findall(r"^([a-z-]+):.*## .", makefile, re.MULTILINE)) == targets


def test_what_git_runs_before_a_commit_can_be_run() -> None:
    hook = ROOT / ".githooks" / "pre-commit"
    assert hook.stat().st_mode & 0o111
    subprocess.run(["bash", "-n", hook], check=True)


def test_links_in_the_documentation_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name} → {link}"


def test_files_and_modules_named_in_text_exist() -> None:
    """A file or module that moves is renamed in every page, docstring and comment that names it."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=True).stdout.split("\n")
    files = [name for name in listed if name and (ROOT / name).is_file()]
    lacking = []
    for name in files:
        if not name.endswith((".md", ".py", ".pyi", ".rs", ".ts", ".tsx", ".sql", ".yml")):
            continue
        text = (ROOT / name).read_text()
        paths = re.findall(rf"`((?:{_FOLDERS})/[\w./-]+\.(?:{_SUFFIXES}))`", text)
        lacking += [(name, path) for path in set(paths) if not (ROOT / path).exists()]
        modules = set(re.findall(r"`(broker(?:\.[a-z_]+)+(?:\.\w+)*)`", text)) - _NO_MODULES
        lacking += [(name, module) for module in modules if not _is_there(module)]
    assert len(files) > 1_000
    assert lacking == []


_FOLDERS = "python|native|tests|docs|bench|deploy|examples|js|models"
_SUFFIXES = "py|pyi|rs|ts|tsx|mjs|md|toml|json|sql|svg|yml|env|service"
_NO_MODULES = {"broker.service", "broker.log", "broker.log.1", "broker.look_s"}


def _is_there(dotted: str) -> bool:
    """Whether a module has that name, or a module has something in it that is called so."""
    place, names = ROOT / "python", dotted.split(".")
    while names and (place / names[0]).is_dir():
        place /= names.pop(0)
    sources = [place / "__init__.py"]
    if names:
        sources = [place / f"{names[0]}{suffix}" for suffix in (".py", ".pyi")]
        if any(source.exists() for source in sources):
            names.pop(0)
        else:
            sources = [place / "__init__.py"]
    text = "".join(source.read_text() for source in sources if source.exists())
    return bool(text or not names) and all(re.search(rf"\b{name}\b", text) for name in names)


def test_the_index_of_decisions_has_every_entry_once() -> None:
    index, *entries = (ROOT / "docs" / "decisions.md").read_text().split("\n## ")
    titles = [entry.partition("\n")[0] for entry in entries]
    listed = re.findall(r"\[([^\]]+)\]\(#([^)]+)\)", index)
    assert sorted(title for title, _ in listed) == sorted(titles)
    for title, anchor in listed:
        assert anchor == re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
    for entry in entries:
        assert [entry.count(f"**{part}.**") for part in ("Context", "Choice", "Price")] == [1, 1, 1]


FREE = {"public", "published", "new"}  # how targets begin that are open to others than a project's own


def may(rule: Rule, role: Role | None) -> str:
    """How the page on roles puts what a role may do by a rule."""
    about = [target for target in rule.rows if any(rule.allows(each, target) for each in ROLES)]
    allowed = [target for target in about if rule.allows(role, target)]
    if not allowed:
        return "no"
    if len(allowed) == len(about):
        return "yes"
    return "public" if all(target.split()[0] in FREE for target in allowed) else "own"


def test_the_page_on_roles_has_every_operation_as_it_is_decided() -> None:
    page = (ROOT / "docs" / "roles.md").read_text()
    rows = re.findall(r"^\| `([\w/]+)` \| (.*) \|$", page.partition("## Every operation")[2], re.MULTILINE)
    assert dict(rows) == {
        name: " | ".join(may(rule, role) for role in ROLES) for name, rule in PERMISSIONS.items()
    }


def test_the_page_on_lists_has_every_parameter_of_a_filter() -> None:
    page = (ROOT / "docs" / "lists.md").read_text()
    shared = {field.alias or name for name, field in ListParams.model_fields.items()}
    rows = dict(re.findall(r"^\| (programs|events|audit log) \| ([^|]*) \|", page, re.MULTILINE))
    assert set(rows) == {"programs", "events", "audit log"}
    for model, row in (
        (FilterProgramsParams, rows["programs"]),
        (FilterEventsParams, rows["events"]),
        (AuditParams, rows["audit log"]),
    ):
        own = {field.alias or name for name, field in model.model_fields.items()} - shared - {"programId"}
        assert set(re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", row))) == own
    names = {"limit", "skip", "order", "search"}
    assert names == shared
    assert names <= set(re.findall(r"^\| `(\w+)` \|", page.partition("## Filters")[2], re.MULTILINE))


def test_the_page_on_data_sources_has_the_shape_as_it_is() -> None:
    page = (ROOT / "docs" / "data-sources.md").read_text()
    members = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert members == [field.alias or name for name, field in DataSource.model_fields.items()]
    (sample,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    sources = orjson.loads(sample)["dataSources"]
    for source in sources:
        assert find_data_source(sources, source["id"]) is not None


def test_the_page_on_answers_has_the_settings_as_they_are() -> None:
    page = (ROOT / "docs" / "answers.md").read_text()
    settings = (ROOT / "docs" / "settings.md").read_text()
    defaults = dict(re.findall(r"^\| `(BROKER_\w+)` \| `?([^|`]*)`? \|", settings, re.MULTILINE))
    assert set(re.findall(r"`(BROKER_\w+)`", page)) <= set(defaults)
    rows = re.findall(r"^\| [^|`]* \| (`BROKER_[^|]*) \| ([0-9., ]+) \|$", page, re.MULTILINE)
    assert len(rows) == 9
    for names, values in rows:
        told = [float(value.replace(",", "")) for value in values.split(", ")]
        assert told == [float(defaults[name]) for name in re.findall(r"\w+", names)]


def test_the_readme_names_every_close_code() -> None:
    source = (ROOT / "native" / "server" / "src" / "figures.rs").read_text()
    codes = re.findall(r"\b\d{4}\b", source.partition("ENDS: ")[2].partition("];")[0])
    told = (ROOT / "README.md").read_text().partition("A gateway closes a connection with")[2]
    assert len(set(codes)) == 11
    assert set(re.findall(r"\b(\d{4})\s\(", told.partition("## Limits")[0])) == set(codes)
