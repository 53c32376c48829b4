"""Layouts that a job could have on its devices, best first by predicted step time: `rljob plan --search`.

`candidates` says which there are and which the rules allow, `ranking` looks for the fastest that fit,
`remedies` says what would help where none does; `reasons`, `text` and `as_json` show it. Pure arithmetic,
as `plan`.
"""
