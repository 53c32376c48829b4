"""What is wrong with a job: rules between fields, each a generator of problems that name value, limit and
remedy.

`load` reads a file and asks all of them; `run_rules` says what may be planned but not run. Rules of one field
stand with the field, in `spec`.
"""
