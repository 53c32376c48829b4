"""A run as the reaper sees it.

Says the pids of a process that it had before and of one that it started, and ends as its input tells.
"""

import subprocess
import sys

from rljob_runtime.processes.reaper import Reaper

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]

if __name__ == "__main__":
    older = subprocess.Popen(SLEEP, stdout=subprocess.DEVNULL)
    reaper = Reaper()
    left = subprocess.Popen(SLEEP, stdout=subprocess.DEVNULL)
    reaper.watch_descendants()
    sys.stdout.write(f"{older.pid} {left.pid}\n")
    sys.stdout.flush()
    if sys.stdin.readline().strip() == "goodbye":
        reaper.dismiss()
