"""What is asked, and how an answer is judged: data, rewards, tools, environments.

In: prompts of a job's data, responses. Out: prompts, scores, answers of tools, observations of games. What is
not ours, or may hang, runs in child processes with a deadline. Called by `processes.actors` and `rollout`.
Knows no model and no devices.
"""
