"""Replace the agent of Ray's dashboard: report that none of its ports is used, and end with the raylet.

Started by the raylet, which waits for the ports, on behalf of `local_ray`. The agent of a Ray without the
dashboard's packages reports the same. The raylet ends with its agent, so this process stays alive.
Imports next to nothing.
"""

import os
import sys
import time

UNUSED = "-1"
LOOK_SECONDS = 0.5


def main(ports: list[str], session: str, node: str, raylet: int) -> None:
    """Write the port files and wait for the raylet's end.

    ports: names of the ports. session: folder in which Ray's processes exchange them. raylet: its pid.
    """
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
