"""The MPS control daemon and its server, without CUDA: the same files, sockets, replies, log lines and failures.

`entry` reads the command line; `client` is the side that sends commands, `launch` starts daemons and servers. The
daemon is `control` (sockets, sessions, whose turn it is), `commands` (what one may ask), `server` (clients and their
faults, and server.log), `side_channel` (by which a test says what happens) on a `loop` of one thread, so that whatever
blocks the daemon blocks everything, as it does the real one.

Python's standard library only: it runs under any python3 that a PATH finds.
"""
