"""The API of RLJob: what a user may write, and the figures that follow from it. No torch, no Ray.

From top to bottom, each room imports those below: `schema` writes the resource's definition, `check` finds
what is wrong with a job, `model` is the shape of a language model, `topology` which devices and pods a job
has, `spec` the fields themselves. Read by the operator, the planner (`rljob_plan`) and the runtime.
"""
