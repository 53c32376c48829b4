"""The manifests of typical jobs, in full. `RLJOB_WRITE_GOLDEN=1 pytest tests/operator` writes them."""

import os
from pathlib import Path

import pytest
import yaml

FOLDER = Path(__file__).parent / "golden"
ASCEND = {"accelerator": {"type": "ascend910b", "nodes": 2, "devicesPerNode": 8}}
INJECTED = {"type": "ascend910b", "nodes": 2, "devicesPerNode": 8}
TEMPLATES = {
    "image": "example.com/mine:2",
    "checkpoint": {"every": 5, "storage": {"persistentVolumeClaim": {"claimName": "runs"}}},
    "dock": {"warehouses": 4},
    "podTemplates": {
        "worker": {
            "resources": {"requests": {"cpu": 2}, "limits": {"memory": "8Gi"}},
            "nodeSelector": {"pool": "training"},
            "tolerations": [{"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}],
            "env": [
                {"name": "HOME", "value": "/data"},
                {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "hub"}}},
            ],
            "labels": {"team": "rl"},
            "annotations": {"example.com/note": "a note"},
            "priorityClassName": "high",
            "serviceAccountName": "trainer",
            "imagePullSecrets": [{"name": "registry"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        }
    },
}
REMOTE = {
    "uri": "s3://runs/research",
    "secretName": "storage-keys",
    "endpoint": "https://storage.example.com",
}
# name: (changes of the spec, whether all children or the RayCluster alone)
CASES = {
    "emulated": ({}, True),
    "ascend910b": (ASCEND, True),
    "separated": ({"placement": {"mode": "separated", "updateDevices": 2}}, False),
    "injection-host-path": ({"accelerator": INJECTED | {"injection": "hostPath"}}, False),
    "injection-dra": ({"accelerator": INJECTED | {"injection": "dra"}}, True),
    "templates": (TEMPLATES, False),
    "remote-storage": ({"checkpoint": {"every": 5, "storage": {"remote": REMOTE}}}, False),
    **{
        f"scheduler-{name}": ({"scheduling": {"scheduler": name, **rest}}, False)
        for name, rest in {
            "volcano": {"queue": "research", "priorityClass": "high"},
            "kueue": {"queue": "research", "priorityClass": "high"},
            "scheduler-plugins": {"priorityClass": "high"},
            "yunikorn": {"queue": "root.research"},
            "kai": {"queue": "research"},
        }.items()
    },
}


class Dumper(yaml.SafeDumper):
    """Texts of several lines as blocks, nothing by reference."""

    def ignore_aliases(self, data):
        return True


def text(dumper, value):
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


Dumper.add_representer(str, text)


@pytest.mark.parametrize("case", CASES)
def test_a_typical_job_has_exactly_these_children(built, case):
    spec, whole = CASES[case]
    manifests = built(spec) if whole else built(spec)[-1:]
    found = yaml.dump_all(manifests, Dumper=Dumper, sort_keys=False, width=100)
    file = FOLDER / f"{case}.yaml"

    if os.environ.get("RLJOB_WRITE_GOLDEN"):
        file.write_text(found)

    assert found == file.read_text()


def test_no_golden_file_is_left_over():
    assert {file.stem for file in FOLDER.glob("*")} == set(CASES)
