"""Programs that transform one image again and again; each measures its own CPU time.

Each reads `run FILE FORMAT COUNT` on its input and answers with a line of JSON: CPU seconds, user and system,
of all its threads and processes, and the size of the last result in bytes.
"""
