"""Small jobs, each slow in a way of its own, for tests and benchmarks of `rljob analyze`.

Their models know nothing: every token is drawn nearly alike, so that lengths follow from the strings that
end a response, and no warm-up is needed. Where generation matters it sleeps between tokens, as long on every
machine: `long_tail`, `slow_generation` and `large_teacher` need the folder of `write_paced_engine` on the
path.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.families import read_architecture
from rljob_runtime.models.tiny_recipe import CONFIG
from rljob_runtime.models.weights import save_hf
from rljob_runtime.task.tokenizer import save_byte_tokenizer

SLOW_REWARD = '''
import time
asked = [None]
def reward(prompt, response, answer):
    """A service that is asked once for all samples of a prompt, which come one after the other."""
    if prompt != asked[0]:
        asked[0] = prompt
        time.sleep(SECONDS)
    return float(sum(map(ord, response)) % 3)
'''
QUICK_REWARD = '''
def reward(prompt, response, answer):
    """Of as many values as groups need to differ."""
    return float(sum(map(ord, response)) % 3)
'''
LARGE: dict[str, Any] = CONFIG | {
    "hidden_size": 768,
    "intermediate_size": 2304,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 96,
}
TEACHER: dict[str, Any] = LARGE | {"num_hidden_layers": 6}
STEPS = 4
PACED = "paced.torch"
"""A rollout engine that waits 20 ms between two tokens of its samples."""
PACED_CODE = """
import time

from rljob_runtime.rollout.rollout_table import make_torch


def make(setup):
    engine = make_torch(setup)
    engine.between = lambda: time.sleep(0.02)  # once a step of all samples
    return engine
"""


def slow_reward() -> dict[str, Any]:
    """A reward that takes 2.4 s of a step, between generation and update."""
    job = _job("slow-reward", reward="slow.py")
    job["spec"] |= {
        "flow": {"mode": "sync"},
        "placement": {"mode": "separated", "updateDevices": 1, "rolloutDevices": 1},
    }
    job["spec"]["batch"] |= {"microBatchSize": 2}
    return job


@contextmanager
def slow_service() -> Iterator[str]:
    """A scoring service on this machine that takes 0.1 s for each sample, any number at a time; its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Scoring)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/score"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


class _Scoring(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        """Of as many values as groups need to differ."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(0.1)
        answer = json.dumps({"score": sum(map(ord, asked["response"])) % 3}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Nothing."""


def slow_answers(url: str) -> dict[str, Any]:
    """Samples that a service is asked for one after the other, 3.2 s in a step."""
    job = _job("slow-answers")
    service = {"url": url, "concurrency": 1}
    job["spec"]["rewards"] = [{"name": "any", "type": "http", "http": service}]
    return job


def long_tail() -> dict[str, Any]:
    """Responses of 30 tokens on average, of which some have 100; of two a prompt, which arrive together."""
    job = _job("long-tail")
    job["spec"]["batch"] |= {"globalBatchSize": 24, "samplesPerPrompt": 2, "maxResponseLength": 256}
    job["spec"]["data"]["stop"] = list("abcdefgh")
    job["spec"]["rollout"] = {"engine": PACED}
    return job


def slow_generation() -> dict[str, Any]:
    """64 tokens a sample in 1.3 s, all samples at the same time, and then 0.8 s of rewards."""
    job = _job("slow-generation", reward="brief.py")
    job["spec"]["rollout"] = {"engine": PACED}
    job["spec"]["batch"] |= {"maxResponseLength": 64, "microBatchSize": 2}
    job["spec"]["data"]["stop"] = []
    return job


def large_teacher() -> dict[str, Any]:
    """A teacher of 46 million weights beside a policy of few, whose 16 tokens a sample take 0.3 s."""
    job = _job("large-teacher")
    job["spec"] |= {
        "algorithm": {"name": "distillation"},
        "teacher": {"path": "teacher"},
        "rollout": {"engine": PACED},
    }
    job["spec"]["batch"] |= {"globalBatchSize": 16, "microBatchSize": 4}
    job["spec"]["data"]["stop"] = []
    return job


def heavy_update() -> dict[str, Any]:
    """Two epochs in passes of one prompt, each layer computed twice."""
    job = _job("heavy-update")
    job["spec"]["batch"] |= {
        "globalBatchSize": 16,
        "samplesPerPrompt": 2,
        "maxResponseLength": 32,
        "microBatchSize": 1,
        "epochs": 2,
    }
    job["spec"]["update"] = {"recompute": "full"}
    return job


SLOW_JOBS: dict[str, Callable[[], dict[str, Any]]] = {
    "reward": slow_reward,
    "generation": slow_generation,
    "tail": long_tail,
    "inference": large_teacher,
    "update": heavy_update,
}


def write_job(job: dict[str, Any], folder: Path) -> Path:
    """Write a job with all that it refers to into a folder; returns its file."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, seconds in {"slow.py": 0.3, "brief.py": 0.1}.items():
        (folder / name).write_text(SLOW_REWARD.replace("SECONDS", str(seconds)))
    (folder / "quick.py").write_text(QUICK_REWARD)
    lines = [json.dumps({"prompt": f"count to {n}=", "answer": ""}) for n in range(400)]
    (folder / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    for name, config in {"small": CONFIG, "large": LARGE, "teacher": TEACHER}.items():
        if name in _models(job) and not (folder / name).exists():
            decoder = Decoder(read_architecture(config))
            decoder.initialize(1)
            save_hf(decoder.named_hf_parameters(), folder=folder / name, config=config)
            save_byte_tokenizer(folder / name)
    file = folder / f"{job['metadata']['name']}.yaml"
    file.write_text(yaml.safe_dump(job))
    return file


def write_paced_engine(folder: Path) -> None:
    """Write the package of `PACED` into a folder, which belongs on the path."""
    (folder / "paced_engine_package.py").write_text(PACED_CODE)
    info = folder / "paced-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: paced\nVersion: 1.0\n")
    entry = f"[rljob.rollout_engines]\n{PACED} = paced_engine_package:make\n"
    (info / "entry_points.txt").write_text(entry)


def _models(job: dict[str, Any]) -> list[str]:
    spec = job["spec"]
    return [spec[section]["path"] for section in ("model", "teacher") if section in spec]


def _job(name: str, *, model: str = "small", reward: str = "quick.py") -> dict[str, Any]:
    return {
        "apiVersion": "rljob.io/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": name},
        "spec": {
            "steps": STEPS,
            "seed": 1,
            "model": {"path": model},
            "data": {
                "jsonl": {"path": "prompts.jsonl"},
                "stop": list("abcdefghijklmnop"),
            },
            "rewards": [{"name": "any", "type": "python", "python": {"path": reward}}],
            "batch": {
                "globalBatchSize": 8,
                "samplesPerPrompt": 4,
                "maxPromptLength": 16,
                "maxResponseLength": 16,
            },
            "accelerator": {"type": "emulated", "devicesPerNode": 2},
            "checkpoint": {},
        },
    }
