"""Right is what follows the last tool's answer, or a response without a call, if it is the product."""


def reward(prompt: str, response: str, answer: str) -> float:
    """answer: the worked example; behind its last tag stands the product."""
    return float(response.strip() == answer.rsplit(">", 1)[1])
