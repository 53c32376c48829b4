"""All Prometheus metrics of a driver: name, kind, meaning, labels. Units are in the names.

Step metrics in STEP_METRICS have names of their own: `rljob_` and the event's name. All others are samples of
STEP_METRIC.
"""

from rljob_runtime.report.prometheus.exposition import MetricFamily


def _gauge(name: str, meaning: str, *labels: str) -> MetricFamily:
    return MetricFamily(f"rljob_{name}", "gauge", meaning, labels)


def _counter(name: str, meaning: str, *labels: str) -> MetricFamily:
    return MetricFamily(f"rljob_{name}_total", "counter", meaning, labels)


FACTS = ("name", "model", "algorithm", "placement", "rollout_engine", "update_engine")
"""Fields of `run_started` that are labels."""
INFO = _gauge("run_info", "Always 1; what the run is.", *FACTS)
SPEC_STEPS = _gauge("spec_steps", "Steps that the job asks for (spec.steps).")
DEVICES = _gauge("devices", "Devices of the run.")
STEP = _gauge("step", "Steps that are done.")
LAST_STEP_SECONDS = _gauge("last_step_seconds", "Time of the last step.")
STEP_TIME = _gauge(
    "last_step_timestamp_seconds", "When the last step ended, or the run began; unix time."
)
STEPS = _counter("steps", "Steps that this driver has done.")
STEP_SECONDS = _counter("step_seconds", "Time of these steps.")
PHASE_SECONDS = _counter(
    "phase_seconds", "Time of each phase of the steps on its slowest worker.", "phase"
)
BUSY = _counter("busy_seconds", "Time in which a worker had work.", "role", "device")
BUBBLE = _gauge("bubble_ratio", "Share of the last ten steps' time without work.", "role", "device")
MEMORY_PEAK = _gauge("memory_peak_bytes", "Most that a device held within the last step.", "device")
MEMORY_LIMIT = _gauge("memory_limit_bytes", "What each device may hold (spec.accelerator.memory).")
CHECKPOINT = _gauge("checkpoint_step", "Step of the last checkpoint.")
EVALUATION_STEP = _gauge("evaluation_step", "Step of the last evaluation.")
EVALUATION = {
    "accuracy": _gauge("evaluation_accuracy", "Share of held-out samples that passed.", "suite"),
    "reward": _gauge("evaluation_reward", "Mean reward of held-out samples.", "suite"),
    "pass_at_k": _gauge(
        "evaluation_pass_at_k", "Share of held-out prompts with a sample that passed.", "suite"
    ),
}
REWARD = _gauge("reward", "Mean score of a reward, before its weight.", "reward")
REWARD_ERRORS = _counter("reward_errors", "Samples whose score failed.", "reward")
WARNINGS = _counter("warnings", "Warnings of the run.")
HANGS = _counter("hangs", "Deadlines that passed, with everybody's stacks in the run's folder.")
RECOVERIES = _counter(
    "recoveries", "Processes that died, or were slow, and were replaced in the run.", "role"
)
RECOVERY_SECONDS = _counter("recovery_seconds", "Time from each, once seen, to the sync.")
REPLICAS = {
    "live": _gauge("update_replicas", "Replicas that train now; with spec.elastic.update."),
    "wanted": _gauge("update_replicas_wanted", "Replicas of the job; with spec.elastic.update."),
}
SLOW = _gauge("slow_devices", "Devices that are slower than their peers now (spec.stragglers).")
STRAGGLERS = _counter("stragglers", "Times that a device was found slower than its peers.", "state")
ALARM = _gauge("alarm", "1 while the alarm of a guard is raised (spec.guards).", "alarm")
ALARMS = _counter("alarms", "Alarms of a guard that were raised.", "alarm")
ROLLBACKS = _counter("rollbacks", "Times that an alarm took the run back to a checkpoint.", "alarm")

STEP_METRICS = {
    name: _gauge(name.replace("/", "_"), meaning)
    for name, meaning in {
        "tokens_per_second": "True tokens of prompts and responses a second, all devices.",
        "response_tokens_per_second": "True tokens of responses a second, all devices.",
        "pictures_per_second": "Pictures of prompts a second, each prompt counted once.",
        "picture_tokens_per_second": "Tokens of prompts that stand for pictures a second, all devices.",
        "tps_eq5": "Tokens a second and device by the paper's Eq. 5, which counts maximum lengths.",
        "eta_seconds": "Time to the last step.",
        "reward/mean": "Mean reward of the step's samples.",
        "reward/std": "Standard deviation of their rewards.",
        "reward/error_share": "Share of samples whose score failed.",
        "pass_rate": "Share of samples that pass the first reward.",
        "groups/with_signal": "Share of groups whose rewards differ.",
        "response_length/mean": "Mean tokens of a response.",
        "response_length/p80": "Tokens that four fifths of the responses do not exceed.",
        "response_length/max": "Tokens of the longest response.",
        "response_length/clipped_share": "Share of responses cut at the limit.",
        "entropy": "Mean entropy of response tokens, nats.",
        "kl": "Mean KL divergence from the reference, nats a token.",
        "clip_fraction": "Share of tokens whose ratio was clipped.",
        "loss": "Loss of the update.",
        "gradient_norm": "Norm of the gradient before clipping.",
        "learning_rate": "Learning rate of the step.",
        "mismatch/kl": "KL divergence between rollout and update, nats a token.",
        "mismatch/max": "Largest distance of a token's log-probs between rollout and update, nats.",
        "staleness": "Mean weight versions that samples were behind.",
        "staleness/max": "Most weight versions that a sample was behind.",
        "staleness/tokens": "Mean weight versions that tokens were behind.",
    }.items()
}
STEP_METRIC = _gauge("step_metric", "Every other metric of the last step, by name.", "metric")

ROWS = _gauge("dock_rows", "Rows at a state of the dock at the last look.", "state", "rows")
PEAK = _gauge(
    "dock_peak_bytes", "Bytes in a warehouse at the last step's fullest moment.", "warehouse"
)
CAPACITY = _gauge("dock_capacity_bytes", "Bytes that a warehouse may hold.", "warehouse")
REPLICATED = _gauge(
    "dock_replicated",
    "1 while a warehouse's rows are in a standby too; replicas: 2.",
    "warehouse",
)
DONE = _counter("dock_done_rows", "Rows that a state wrote or acknowledged.", "state")
READ_ROWS = _counter("dock_read_rows", "Rows that a state read of another's.", "writer", "reader")
READ_BYTES = _counter(
    "dock_read_bytes", "Bytes that a state read of another's columns.", "writer", "reader"
)
WRITTEN = _counter("dock_written_bytes", "Bytes that a state wrote.", "state")
WAITED = _counter(
    "dock_wait_seconds", "Time that workers of a state waited for another.", "state", "awaited"
)
TRANSFER = _counter(
    "dock_transfer_seconds", "Time that workers of a state read and wrote.", "state"
)
DROPPED = _counter("dock_dropped_rows", "Rows that were dropped and generated again.", "reason")
AGES = MetricFamily(
    "rljob_dock_row_age_versions",
    "histogram",
    "Weight versions that rows were behind at the update.",
)

RESHARDS = _counter("reshards", "Reshards; each passed its checks.")
RESHARD_SECONDS = _counter(
    "reshard_seconds", "Time of reshards on the slowest device, by part.", "part"
)
RESHARD_CHECKS = _counter("reshard_checks", "Comparisons of names, sums and log-probs that passed.")
MOVED = _counter("reshard_moved_bytes", "Weights that devices received of others.")
RESHARD_PEAK = _gauge(
    "reshard_peak_bytes", "Weights and buffers of the fullest device, last reshard."
)
RESHARD_BOUND = _gauge("reshard_bound_bytes", "What that peak may be.")
REDUNDANT = _gauge(
    "reshard_redundant_bytes", "Update weights that devices keep while they generate, all together."
)
RELEASED = _gauge("reshard_released_bytes", "Update weights on the host, of all devices.")
OVERLAP = _gauge("reshard_overlap_ratio", "Share of the last way back that was hidden.")
IN_FLIGHT = _counter("reshard_in_flight", "Versions of the weights that came in flight.")
IN_FLIGHT_SECONDS = _counter(
    "reshard_in_flight_seconds", "Time of weights in flight on the slowest device, by part.", "part"
)
IN_FLIGHT_TOKENS = _counter("reshard_in_flight_tokens", "Tokens that devices drew meanwhile.")
IN_FLIGHT_BYTES = _counter(
    "reshard_in_flight_bytes", "Weights that came in flight, to all devices."
)
IN_FLIGHT_VERSION = _gauge(
    "reshard_in_flight_version", "Version of the last weights that came in flight."
)


def families() -> list[MetricFamily]:
    """Return all metrics, in the order of this file."""
    all_families: list[MetricFamily] = []
    for value in globals().values():
        if isinstance(value, MetricFamily):
            all_families.append(value)
        elif isinstance(value, dict):
            all_families += [each for each in value.values() if isinstance(each, MetricFamily)]
    return all_families
