"""The projects' sites in Matomo: their set-up as a plan, the client that carries it out, and reports."""
