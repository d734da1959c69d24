"""The browser of the tests starts where the machine lacks NSS, with the libraries that its package brings."""

import os
import shutil
import subprocess

import pytest

from tests.javascript.test_client import BUILT, CHROMIUM, ROOT, TEMPORARY, unpack_browser

HIDE = """
names='^lib(nss|nspr|smime|softokn|freebl|plc|plds|expat)'
for file in $(ldconfig -p | awk -v names="$names" '$1 ~ names {print $NF}' | sort -u)
do mount --bind /dev/null "$file"; done
for folder in /lib/*/nss /usr/lib64/nss
do [ ! -d "$folder" ] || mount -t tmpfs none "$folder"; done
exec node --input-type=module -e "$1"
"""
"""Hides the machine's NSS, NSPR and Expat from the processes of a mount namespace of their own."""

OPEN = f"""
const {{ openBrowser }} = await import({str(BUILT / "product" / "world.mjs")!r});
const browser = await openBrowser();
const page = await browser.newPage();
await page.setContent("<h1>drawn</h1>");
console.log(await page.evaluate(() => document.body.innerText));
await browser.close();
"""


def open_without_nss(**environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", HIDE, "sh", OPEN],
        cwd=ROOT,
        env={**os.environ, **environment},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=100,
    )


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="only root can hide libraries"
)
def test_it_starts_with_the_libraries_that_its_package_brings() -> None:
    unpack_browser()
    done = open_without_nss(**CHROMIUM)
    assert (done.returncode, done.stdout) == (0, "drawn\n")
    # They are what it needs: without them it does not start.
    bare = open_without_nss(TMPDIR=str(TEMPORARY), FONTCONFIG_FILE=CHROMIUM["FONTCONFIG_FILE"])
    assert bare.returncode != 0
    assert "error while loading shared libraries" in bare.stdout
