"""The command `rljob`: one file a command; errors become exit codes in `main`.

In: arguments and an RLJob's file. Out: text or JSON, and an exit code. `main` starts each command, and
imports what it needs then, so that `--help` is quick. `cluster` speaks with Kubernetes, `doctor` checks a
cluster, `bring_up` this machine's devices. Knows every room below; nothing imports it.
"""
