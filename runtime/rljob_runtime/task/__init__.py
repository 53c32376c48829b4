"""Define what is asked, and how an answer is judged: data, rewards, tools, environments.

Takes the prompts of a job's data and responses. Returns prompts, scores, answers of tools and
observations of games. Foreign code, and code that may hang, runs in child processes with a deadline.
Called by `processes.actors` and `rollout`. Independent of models and devices.
"""
