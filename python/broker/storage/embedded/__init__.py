"""An embedded PostgreSQL server, for installations without one.

`server.EmbeddedPostgres` is the life cycle. Any number of processes may use one directory at a time; the
first starts the server, the last one out stops it. The parts: `binaries` finds programs that fit,
`os_user` says whom they run as, `locks` orders the users, `cluster` makes the data directory, `process`
starts, finds and stops the postmaster.

A directory looks like this::

    postgres/         for us alone
        lock          held while a user starts, stops or repairs the server
        users         held, shared, by every user for as long as it uses the server
        data/         the cluster, for the user that the server runs as
        run/          the socket, unless its path would be too long
        server.log    what the server reports; `server.log.1` is the part before
"""
