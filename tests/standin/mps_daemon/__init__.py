"""The MPS control daemon and its server, without CUDA: the same files, sockets, replies, log lines and failures.

`entry` reads the command line; `client` is the side that sends commands, `launch` starts daemons and servers. The
daemon is `control` (sockets, sessions, users), `commands` (its commands), `server` (clients, faults
and server.log), `side_channel` (commands of a test) on a `loop` of one thread. So what
blocks the daemon blocks everything, as in the real one.

Python's standard library only: it runs under any python3 that a PATH finds.
"""
