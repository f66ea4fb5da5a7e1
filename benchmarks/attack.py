"""All attacks of web clients at once, until a signal: the argument is the port."""

import contextlib
import itertools
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping

PAGES = ("/", "/status", "/incidents", "/events", "/clients/600-1", "/api/v1/status", "/api/v1/incidents", "/runbooks")
PAUSE_SECONDS = 0.01
DRIP_SECONDS = 0.05
MOST_SECONDS = 10.0
GET = "GET {} HTTP/1.1\r\nHost: localhost\r\n"


def main() -> None:
    """Attack, with several threads of each kind."""
    port, numbers = int(sys.argv[1]), itertools.count()

    def connect() -> socket.socket:
        return socket.create_connection(("127.0.0.1", port), timeout=MOST_SECONDS)

    def ask(head: str) -> None:
        with connect() as connection:
            connection.sendall(f"{head}\r\n".encode())
            while connection.recv(1 << 16):
                pass

    def say_nothing() -> None:
        with connect() as connection:
            connection.recv(1)

    def write_slowly() -> None:
        with connect() as connection:
            connection.sendall(f"{GET.format('/metrics')}X: ".encode())
            while connection.send(b"x"):
                time.sleep(DRIP_SECONDS)

    def read_slowly() -> None:
        with connect() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
            connection.sendall(f"{GET.format('/metrics')}\r\n".encode())
            while connection.recv(1 << 6):
                time.sleep(DRIP_SECONDS)

    def connect_often() -> None:
        for connection in [connect() for _ in range(20)]:
            connection.close()
        time.sleep(PAUSE_SECONDS)

    def send_big_heads() -> None:
        ask(GET.format("/metrics") + "".join(f"X-{number}: {'x' * 1000}\r\n" for number in range(90)))
        time.sleep(PAUSE_SECONDS)

    def ask_for_pages() -> None:
        number = next(numbers)
        ask(f"{GET.format(PAGES[number % len(PAGES)] + f'?{number}')}Accept: text/html\r\n")

    def offer_encodings() -> None:
        ask(
            f"{GET.format('/metrics')}Accept-Encoding: {'gzip;q=0.1,' * 500}\r\nAccept: {'text/plain;q=0.3,' * 500}\r\n"
        )
        ask("POST /metrics HTTP/1.1\r\nContent-Encoding: gzip\r\nContent-Length: 1000000\r\n")
        time.sleep(PAUSE_SECONDS)

    attacks: Mapping[Callable[[], None], int] = {
        say_nothing: 60,
        write_slowly: 40,
        read_slowly: 40,
        connect_often: 1,
        send_big_heads: 2,
        ask_for_pages: 8,
        offer_encodings: 2,
    }
    for attack, count in attacks.items():
        for _ in range(count):
            threading.Thread(target=_repeat, args=(attack,), daemon=True).start()
    threading.Event().wait()


def _repeat(attack: Callable[[], None]) -> None:
    while True:
        with contextlib.suppress(OSError):
            attack()


if __name__ == "__main__":
    main()
