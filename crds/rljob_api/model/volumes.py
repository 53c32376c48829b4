"""Equations 1–5 of MindSpeed RL (arXiv:2507.19017): sample volume, redundant weights, throughput.

Called by `plan` and by the runtime's metrics. Units are the paper's: K = 1024 tokens,
GB = 1024³ bytes, MB = 1024² bytes; the paper's tables truncate where these functions do not.
"""

from dataclasses import dataclass

GB = 1024**3
MB = 1024**2
BYTES_PER_ITEM = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFlow:
    """Sizes of one step's samples; letters are the paper's.

    global_batch_size: G, prompts. samples_per_prompt: N. max_prompt_length: PL and max_response_length: SL,
    tokens. response_items: n, columns as long as the response. scalars: M, single numbers per sample.
    bytes_per_item: B.

    The paper has neither of the following. picture_bytes: pictures of a prompt, stored once per group and
    sent wherever prompts are sent. route_bytes: routes of a sample's tokens, sent only to the update.
    """

    global_batch_size: int
    samples_per_prompt: int
    max_prompt_length: int
    max_response_length: int
    response_items: int
    scalars: int
    bytes_per_item: int = BYTES_PER_ITEM
    picture_bytes: int = 0
    route_bytes: int = 0

    def stage_gb(self) -> float:
        """Return eq. 1: CV, the volume that one worker state (the update) requests in a step, GB."""
        return self._gb(prompts=1, responses=1, scalars=1)

    def total_gb(self) -> float:
        """Return eq. 2: TCV, the volume that the last three stages of a step move through one central buffer,
        GB."""
        return self._gb(prompts=2, responses=3, scalars=8)

    def per_warehouse_gb(self, *, warehouses: int, controllers: int) -> float:
        """Return eq. 4: TCV of each of S warehouses that broadcast to C controllers, GB."""
        return self._gb(prompts=2, responses=3, scalars=8 * (controllers + 1)) / warehouses

    def _gb(self, *, prompts: int, responses: int, scalars: int) -> float:
        items = (
            prompts * self.max_prompt_length
            + responses * self.response_items * self.max_response_length
            + scalars * self.scalars
        )
        sample = self.bytes_per_item * items + self.route_bytes
        group = self.samples_per_prompt * sample + prompts * self.picture_bytes
        return self.global_batch_size * group / GB


def dispatch_seconds(volume_gb: float, *, megabytes_per_second: float) -> float:
    """Return the time to move a volume over one connection. T100 of Table 1 is 100 MB/s, T1K is 1024 MB/s."""
    return volume_gb * GB / MB / megabytes_per_second


def redundant_bytes(
    *,
    tensor_bytes: int,
    expert_bytes: int,
    update_tensor: int,
    rollout_expert: int,
    rollout_data: int,
) -> float:
    """Return eq. 3: R = GDP × (TW / UTP + EW / GEP), the bytes that a naive reshard leaves on the devices.

    tensor_bytes: TW, weights that tensor parallelism cuts. expert_bytes: EW, weights of experts.
    update_tensor: UTP. rollout_expert: GEP. rollout_data: GDP.
    """
    return rollout_data * (tensor_bytes / update_tensor + expert_bytes / rollout_expert)


def tokens_per_second(
    *,
    global_batch_size: int,
    samples_per_prompt: int,
    max_prompt_length: int,
    max_response_length: int,
    num_devices: int,
    seconds: float,
) -> float:
    """Return eq. 5: T = G × N × (PL + SL) / ND / ETE, tokens per second and device at the *longest* lengths.

    seconds: ETE, end-to-end time of one step.
    """
    tokens = global_batch_size * samples_per_prompt * (max_prompt_length + max_response_length)
    return tokens / num_devices / seconds
