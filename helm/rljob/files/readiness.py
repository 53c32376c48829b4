"""Asks the operator's service whether a replica is ready, for at most two minutes. Run by `helm test`."""

import sys
import time
import urllib.request

SECONDS = 120

url, deadline = sys.argv[1], time.monotonic() + SECONDS
while True:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            sys.stdout.write(f"{url}: {answer.read().decode()}")
            sys.exit(0)
    except OSError as error:
        if time.monotonic() > deadline:
            sys.exit(f"{url} was not ready within {SECONDS} s: {error}")
        sys.stdout.write(f"{url}: {error}\n")
        time.sleep(2)
