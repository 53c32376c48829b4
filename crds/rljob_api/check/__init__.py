"""Check jobs: rules between fields, each a generator of problems that name value, limit and remedy.

`load` reads a file and applies all of them; `run_rules` lists what may be planned but not run. Rules of a
single field are defined with the field, in `spec`.
"""
