"""Search layouts for a job on its devices, ranked by predicted step time: `rljob plan --search`.

`candidates` lists the layouts that the rules allow, `ranking` finds the fastest that fit, and `remedies`
suggests changes if none fits. `reasons`, `search_text` and `search_json` format the result. Like `plan`, it
is pure arithmetic.
"""
