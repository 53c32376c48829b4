"""In place of the agent of Ray's dashboard: it says that no port of it is in use, and ends with the raylet.

Started by the raylet, which waits for the ports, as `local_ray` tells it to; an agent of a Ray without a
dashboard's packages says the same. The raylet ends with its agent, so it stays. Imports next to nothing.
"""

import os
import sys
import time

UNUSED = "-1"
LOOK_SECONDS = 0.5


def main(ports: list[str], session: str, node: str, raylet: int) -> None:
    """ports: names; session: folder where Ray's processes leave theirs for each other. raylet: its pid."""
    for port in ports:
        file = os.path.join(session, f"{port}_{node}")
        with open(f"{file}.draft", "w") as draft:
            draft.write(UNUSED)
        os.rename(draft.name, file)
    while os.getppid() == raylet:
        time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    (folder,) = (a.partition("=")[2] for a in sys.argv if a.startswith("--session-dir="))
    environment = os.environ
    main(
        sys.argv[1].split(","),
        folder,
        environment["RAY_NODE_ID"],
        int(environment["RAY_RAYLET_PID"]),
    )
