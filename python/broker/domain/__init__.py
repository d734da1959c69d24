"""Models and rules that need no process, no network and no database."""
