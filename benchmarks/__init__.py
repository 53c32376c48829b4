"""What is measured, and beside whom; docs/benchmarks.md is written from it. From the checkout's root:
`python -m benchmarks.dock.paths`.

`engines` alone, without a run; whole `run`s and their steps; what is learned (`learning`); what a `plan`
predicts; `reshard`, the `dock` and the `operator`;
what a death costs (`recovery`). `support` is what they share, `measured` what they found.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
