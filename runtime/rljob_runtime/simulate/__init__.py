"""Simulation of a job in virtual time: the run's own decisions, with numbers in place of work that takes
time.

`run.simulate` creates a `SimulatedWorld` (`world`). `processes.placement.place_workers` starts workers
through the interface of `processes.workers`, implemented by `workers.SimulatedWorkers`. The run's own
`Driver` and `run_steps` then use them inside `processes.clock.on_clock(VirtualClock)`. All other code is
the run's: schedules of prompts, `run_ahead`, stages and their courses, elasticity, checkpoints, metrics,
events and the report.

- `virtual_clock`: the queue of future events. The driver's waits process it; there is one thread. Work that
  takes time is a generator, which yields seconds or a call.
- `workers`: the third implementation of the interface. A stand-in's method that is a generator takes time.
- `device`, `others`: the stand-ins, with the calls and reports of `processes.actors`.
- `dock`: the controllers' own ledgers; warehouses store lengths instead of bytes.
- `costs`: each number that time is computed from. `planned` fills them in by the planner's arithmetic;
  measured rates replace single fields. `decoding` computes when samples end, `draws` the random values.
- `answers`: the results of runs with several seeds, computed from events alone. `several` runs them, `sweep`
  does so for many jobs.
- `fit`: rates of a recorded run, which replace the planner's.

A test compares the calls that a real driver makes with those of its simulated twin
(`tests/simulate/test_same_decisions.py`).
"""
