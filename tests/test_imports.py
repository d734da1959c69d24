"""The layers that `pyproject.toml` draws."""

from importlinter.cli import lint_imports


def test_imports_run_downwards() -> None:
    assert lint_imports(no_cache=True) == 0
