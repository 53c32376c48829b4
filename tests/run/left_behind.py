"""A run as the guardian sees it.

Says the pids of a process that it had before and of one that it started, and ends as its input tells.
"""

import subprocess
import sys

from rljob_runtime.processes.guardian import Guardian

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]

if __name__ == "__main__":
    older = subprocess.Popen(SLEEP, stdout=subprocess.DEVNULL)
    guardian = Guardian()
    left = subprocess.Popen(SLEEP, stdout=subprocess.DEVNULL)
    guardian.watch_descendants()
    sys.stdout.write(f"{older.pid} {left.pid}\n")
    sys.stdout.flush()
    if sys.stdin.readline().strip() == "goodbye":
        guardian.dismiss()
