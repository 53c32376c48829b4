"""Reading over TCP beside a bare pair of sockets: `python -m …sample_flow.link serve|read HOST PORT`.

`serve` sends as many bytes as it is asked for, from memory; `read` receives them into memory that it
has, and prints the rate. What Python can do over this link without any system.
"""

import json
import socket
import statistics
import struct
import sys
import time

ASKED = struct.Struct("<Q")
CHUNK_BYTES = 1 << 20


def serve(host: str, port: int) -> None:
    """Answer one reader after the other."""
    data = memoryview(bytes(64 << 20))
    with socket.create_server((host, port)) as server:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            connection, _ = server.accept()
            with connection:
                while asked := connection.recv(ASKED.size, socket.MSG_WAITALL):
                    connection.sendall(data[: ASKED.unpack(asked)[0]])


def read(host: str, port: int, num_bytes: int, turns: int) -> float:
    """The median rate, bytes a second, after one turn that warms up."""
    data = memoryview(bytearray(num_bytes))
    rates = []
    with socket.create_connection((host, port)) as connection:
        for _ in range(turns + 1):
            started, filled = time.perf_counter(), 0
            connection.sendall(ASKED.pack(num_bytes))
            while filled < num_bytes:
                filled += connection.recv_into(data[filled : filled + CHUNK_BYTES])
            rates.append(num_bytes / (time.perf_counter() - started))
    return statistics.median(rates[1:])


if __name__ == "__main__":
    command, where, number, *rest = sys.argv[1:]
    if command == "serve":
        serve(where, int(number))
    sys.stdout.write(json.dumps(read(where, int(number), int(rest[0]), int(rest[1]))) + "\n")
