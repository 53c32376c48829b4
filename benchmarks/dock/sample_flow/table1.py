"""The six settings of MindSpeed RL's Table 1, as they stand and with few enough rows to run here."""

from dataclasses import replace

from rljob_api.model.volumes import SampleFlow

K = 1024
TABLE1 = tuple(
    SampleFlow(
        global_batch_size=prompts,
        samples_per_prompt=samples,
        max_prompt_length=prompt,
        max_response_length=response,
        response_items=items,
        scalars=scalars,
    )
    for prompts, samples, prompt, items, response, scalars in (
        (256, 8, 2 * K, 5, 8 * K, 3),
        (256, 16, 2 * K, 5, 16 * K, 3),
        (1 * K, 16, 2 * K, 5, 16 * K, 3),
        (1 * K, 32, 4 * K, 8, 32 * K, 5),
        (4 * K, 32, 4 * K, 8, 32 * K, 5),
        (8 * K, 64, 4 * K, 8, 64 * K, 5),
    )
)


def reduced(flow: SampleFlow, rows: int) -> SampleFlow:
    """The same rows, so many of them: one sample a prompt."""
    return replace(flow, global_batch_size=rows, samples_per_prompt=1)


def name(flow: SampleFlow) -> str:
    """As a table names it."""
    prompts, response = flow.global_batch_size, flow.max_response_length
    of = f"{prompts // K}K" if prompts >= K else str(prompts)
    return (
        f"G {of}, N {flow.samples_per_prompt}, PL {flow.max_prompt_length // K}K, "
        f"n {flow.response_items}, SL {response // K}K, M {flow.scalars}"
    )


def columns(flow: SampleFlow) -> dict[str, int]:
    """Values of a row in each column, of four bytes each."""
    items = {f"item{i}": flow.max_response_length for i in range(flow.response_items)}
    scalars = {f"scalar{i}": 1 for i in range(flow.scalars)}
    return {"prompt": flow.max_prompt_length, **items, **scalars}


def states(flow: SampleFlow, controllers: int) -> dict[str, list[str]]:
    """What the states read, so that the three of Eq. 2 move 2 PL + 3 n SL a row; others nothing."""
    everything = list(columns(flow))
    without_prompt = [column for column in everything if column != "prompt"]
    reading = {"infer": everything, "reward": without_prompt, "update": everything}
    return reading | {f"state{i}": [] for i in range(len(reading), controllers)}
