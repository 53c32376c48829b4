"""An agent with the `openai` package and a calculator of its own: it knows nothing of rljob.

The policy asks with `<calc>27*82</calc>`; `spec.data.stop` ends its turn there, and as everywhere with
OpenAI's interface the stop string is not in the answer.
"""

import operator
import re

import openai

SUM = re.compile(r"<calc>(\d+)([*+-])(\d+)")
SIGNS = {"*": operator.mul, "+": operator.add, "-": operator.sub}


def play(task: dict) -> float:
    """1 where the product is right."""
    client = openai.OpenAI()  # OPENAI_BASE_URL and OPENAI_API_KEY are the session's
    messages = [{"role": "user", "content": task["prompt"]}]
    for _ in range(2):
        answer = client.chat.completions.create(model="policy", messages=messages)
        said = answer.choices[0].message
        asked = SUM.fullmatch(said.content)
        if asked is None:
            left, right = task["prompt"].rstrip("=").split("*")
            return float(said.content.strip() == str(int(left) * int(right)))
        first, sign, second = asked.groups()
        result = SIGNS[sign](int(first), int(second))
        messages += [said, {"role": "user", "content": f"<result>{result}</result>"}]
    return 0.0
