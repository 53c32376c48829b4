"""A reward of one's own: the share of letters that stand where they belong."""


def letters_in_place(prompt: str, response: str, answer: str) -> float:
    """Between 0 and 1; too short and too long responses lose what is missing or too much."""
    in_place = sum(a == b for a, b in zip(response, answer, strict=False))
    return in_place / max(len(response), len(answer), 1)
