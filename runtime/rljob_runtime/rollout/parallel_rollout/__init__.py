"""The `torch` rollout engine on several ranks: tensor and pipeline ranks share each model, expert ranks a
layer's experts.

Called by `rollout_torch`, through `rank_share` only. `rollout_grid` computes the ranks of each group, and
`rollout_groups` creates the process groups. `parts` slices the model, `joins` communicates in a forward pass,
and `draws` samples tokens from a vocabulary that ranks share.

All ranks of a model get the same prompts and make the same decisions, so that ranks exchange hidden states
and tokens, and nothing of the schedule.
"""
