"""How Sphinx makes a site of the pages: `make docs`.

The source folder is the repository, so that links between pages are the same in a checkout and on the site.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from pygments.lexers.special import TextLexer

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "The broker"
extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/*.md", "bench/*.md", "deploy/*.md", "examples/*/*.md"]
# Folders that hold no page are not walked: what is installed there has 100,000 files.
exclude_patterns = [
    path.name
    for path in Path(__file__).parent.parent.iterdir()
    if path.is_dir() and path.name not in {"docs", "bench", "deploy", "examples"}
]
myst_heading_anchors = 4  # the anchors that forges give to headings, so that links to them are checked
html_theme = "furo"
html_title = "The broker"
html_extra_path = ["site"]  # the first page leads on to docs/index.html
html_copy_source = False
html_show_copyright = False
html_use_index = False
nitpicky = True


def setup(app: "Sphinx") -> None:
    """Leave samples plain whose languages Pygments does not know."""
    for language in ("jsx", "transcript"):
        app.add_lexer(language, TextLexer)
