"""A job in virtual time: the run's own decisions, and numbers in place of what takes time.

`run.simulate` makes a `World` (`world`), has `processes.placement.place` start workers through the seam of
`processes.workers`, carried out by `workers.SimulatedWorkers`, and gives them to the run's own `Driver` and
`run_steps` inside `processes.clock.on_clock(VirtualClock)`. From there on all code is the run's: schedules of
prompts, `run_ahead`, stages and their courses, elasticity, checkpoints, metrics, the events and so the
report.

- `virtual_clock`: what is to happen, in order. The driver's waits carry it out; there is one thread. Work
that
  takes time is a generator, which yields seconds or a call.
- `workers`: the third implementation of the seam. A method of a stand-in that is a generator takes time.
- `device`, `others`: the stand-ins, with the calls and reports of `processes.actors`.
- `dock`: the controllers' own ledgers; warehouses keep lengths instead of bytes.
- `costs`: each number that time comes from. `planned` fills them in by the planner's arithmetic; whoever has
  measured rates replaces fields. `decoding` says when samples end, `draws` what chance decides.
- `answers`: what is told of runs with several seeds. It reads events alone. `several` makes the runs, `sweep`
  does so for many jobs.
- `fit`: rates of a recorded run, in place of the planner's.

A test compares the calls that a real driver makes with those of its simulated twin
(`tests/simulate/test_same_decisions.py`).
"""
