"""The projects' sites in Matomo: the plan of their set-up, the client that executes it, and reports."""
