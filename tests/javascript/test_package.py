"""The npm package as an application gets it: packed, unpacked, compiled against and imported."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from broker.resources.catalogue import build_registry

CLIENT = Path(__file__).parents[2] / "js" / "client"
CONSUMER = Path(__file__).with_name("package") / "consumer.ts"
SUBPATHS = ("", "/core", "/shared", "/react", "/vue")


def run(folder: Path, *command: str) -> str:
    """What a command says; fails with it."""
    done = subprocess.run(
        command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=100
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An application that has installed the package, React and Vue."""
    folder = tmp_path_factory.mktemp("package")
    run(CLIENT, "npm", "pack", "--silent", "--ignore-scripts", "--pack-destination", str(folder))
    modules = folder / "node_modules"
    (packed,) = folder.glob("*.tgz")
    shutil.unpack_archive(packed, folder, "gztar")
    modules.mkdir()
    (folder / "package").rename(modules / "onair-broker")
    for name in ("react", "vue", "@types"):
        (modules / name).symlink_to(CLIENT / "node_modules" / name)
    (folder / "package.json").write_text(json.dumps({"type": "module"}))
    return folder


@pytest.mark.parametrize(("module", "resolution"), [("nodenext", "nodenext"), ("esnext", "bundler")])
def test_an_application_compiles(folder: Path, module: str, resolution: str) -> None:
    """So do calls of every operation, by its name."""
    names = sorted(each.name for each in build_registry().operations)
    lines = [
        'import { Client, type Params, type Result, type operations } from "onair-broker";',
        "type Known<T> = [T] extends [never] ? never : true;",
        "export const calls = (client: Client) => [",
        *(f'  (params: Params<operations["{name}"]>) => client.call("{name}", params),' for name in names),
        "];",
        "export const results = [",
        *(f'  true satisfies Known<Result<operations["{name}"]>>,' for name in names),
        "];",
    ]
    (folder / "operations.ts").write_text("\n".join(lines))
    (folder / "consumer.ts").write_text(CONSUMER.read_text())
    options = {
        "strict": True,
        "noEmit": True,
        "target": "es2022",
        "module": module,
        "moduleResolution": resolution,
        "lib": ["es2022", "dom", "dom.iterable", "dom.asynciterable"],
        "types": [],
    }
    (folder / "tsconfig.json").write_text(json.dumps({"compilerOptions": options, "include": ["*.ts"]}))
    assert len(names) >= 80
    run(folder, str(CLIENT / "node_modules" / ".bin" / "tsc"), "-p", ".")


def test_every_subpath_is_imported(folder: Path) -> None:
    code = f"""
        const found = {{}};
        for (const each of {json.dumps(SUBPATHS)}) {{
            found[each] = Object.keys(await import("onair-broker" + each));
        }}
        found["/worker"] = import.meta.resolve("onair-broker/worker");
        console.log(JSON.stringify(found));
    """
    (folder / "import.mjs").write_text(code)
    found = json.loads(run(folder, "node", "import.mjs"))
    assert set(found[""]) >= {"Client", "HistoryLost", "ApiError"}
    assert set(found["/core"]) >= {"Client", "HistoryLost"}
    assert "openShared" in found["/shared"]
    for each in ("/react", "/vue"):
        assert set(found[each]) >= {"useEvents", "useResults", "useConnection"}
    assert found["/worker"].endswith("/onair-broker/dist/worker.js")


def test_the_package_has_what_is_built_and_nothing_else(folder: Path) -> None:
    package = folder / "node_modules" / "onair-broker"
    files = [path.relative_to(package) for path in package.rglob("*") if path.is_file()]
    assert {path.parts[0] for path in files} == {"package.json", "README.md", "dist"}
    assert {path.suffix for path in files if path.parts[0] == "dist"} == {".js", ".ts"}
    told = json.loads((package / "package.json").read_text())
    paths = [told["main"], told["module"], told["types"], told["unpkg"]]
    for entry in told["exports"].values():
        paths += [entry] if isinstance(entry, str) else entry.values()
    assert [path for path in paths if not (package / path).is_file()] == []
    assert sum((package / path).stat().st_size for path in files) < 1 << 20
