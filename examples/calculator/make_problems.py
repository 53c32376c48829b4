"""Writes problems.jsonl: products, and how to find them with the tool. Run it again for more, or other
ones."""

import json
import random
from pathlib import Path

NUMBER = 4000


def main() -> None:
    """Write the file beside this one."""
    chance, lines = random.Random(1), []
    for _ in range(NUMBER):
        question = f"{chance.randint(10, 99)}*{chance.randint(10, 99)}"
        value = eval(question)  # our own digits
        shown = f"<calc>{question}</calc><result>{value}</result>{value}"
        lines.append(json.dumps({"prompt": question, "shown": shown}))
    Path(__file__).with_name("problems.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
