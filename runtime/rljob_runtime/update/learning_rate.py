"""Learning rate of each optimizer step. Pure; the update engines and reports call it."""

import math

from rljob_api.spec.engines import Optimizer


def learning_rate(step: int, optimizer: Optimizer, total_steps: int) -> float:
    """Return the learning rate of optimizer step `step`, 1 … total_steps.

    It rises linearly from 0 (at the step before the first) to the peak at step warmupSteps. After that it is
    constant, or follows half a cosine from the peak to minLearningRate at the last step.
    """
    peak = optimizer.learning_rate
    if step < optimizer.warmup_steps:
        return peak * step / optimizer.warmup_steps
    if optimizer.schedule == "constant":
        return peak
    lowest = min(optimizer.min_learning_rate, peak)
    done = (step - optimizer.warmup_steps) / max(total_steps - optimizer.warmup_steps, 1)
    return lowest + (peak - lowest) * (1 + math.cos(math.pi * min(done, 1.0))) / 2
