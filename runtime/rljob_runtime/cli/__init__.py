"""The command `rljob`: one file per command; errors become exit codes in `main`.

In: arguments and an RLJob's file. Out: text or JSON, and an exit code. Commands import their dependencies
when they run, so that `--help` is fast. `cluster` calls Kubernetes, `doctor` checks a cluster, `bring_up`
checks this machine's devices. May import every package below; no package imports it.
"""
