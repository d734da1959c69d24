"""The side-by-side measurements: `python -m bench`; see README.md for what each figure means."""
