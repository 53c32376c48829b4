"""The `torch` rollout engine on several ranks: tensor and pipeline ranks share each model, expert ranks a
layer's experts.

Called by `rollout_torch`, through the one door `rank_share`. `rollout_grid` says which ranks come together
for what, by arithmetic, and `rollout_groups` makes process groups of that; `parts` cuts the model, `joins`
puts together what the parts compute in a pass, `draws` draws tokens of a vocabulary that ranks share.

Every rank of a model is given the same prompts and makes the same decisions of them, so that ranks tell
each other hidden states and tokens, and nothing of the schedule.
"""
