"""Super-pods of Atlas A3, whose nodes' devices have one network, as Volcano's Ascend plugin hands them out.

It takes a job for one of a super-pod by its pods' policy, by `sp-block` or by the nodes' type, in this
order, and places blocks of `sp-block` devices inside of one each. What it refuses is pinned in
tests/fixtures/ascend.
Called by `cluster_rules` and the operator. Pure.
"""

from rljob_api.spec.pods import PodTemplate
from rljob_api.spec.rljob import RLJobSpec
from rljob_api.topology.devices import num_nodes
from rljob_api.topology.elastic import is_elastic

SP_BLOCK = "sp-block"
POLICY = "huawei.com/schedule_policy"
POLICIES = {"chip2-node16-sp": 16, "chip2-node8-sp": 8}
"""Devices of a node, by the policy that places pods in super-pods of such nodes."""
NODE_TYPE = "accelerator-type"
NODE_TYPES = {"module-a3-16-super-pod": 16, "module-a3-8-super-pod": 8}
"""Likewise, by the label of nodes."""
MOST_NODES = 48
"""Of a super-pod, unless Volcano is configured with another `super-pod-size`."""


def super_pod_node(spec: RLJobSpec) -> int | None:
    """Devices of a node of the super-pods that the job is placed in; None where it is placed otherwise."""
    if spec.scheduling.scheduler != "volcano" or spec.accelerator.type != "ascend910c":
        return None
    worker = spec.pod_templates.worker or PodTemplate()
    if (policy := worker.annotations.get(POLICY)) is not None:
        return POLICIES.get(policy)
    if SP_BLOCK in worker.annotations:
        return 16
    labels = worker.node_selector | spec.accelerator.node_selector
    return NODE_TYPES.get(labels.get(NODE_TYPE, ""))


def worker_pods(spec: RLJobSpec) -> int:
    """Pods with devices, spare ones among them: the plugin counts them alike."""
    return num_nodes(spec.placement, spec.accelerator) + spec.accelerator.spare_nodes


def sp_block(spec: RLJobSpec) -> int | None:
    """Devices that lie in one super-pod together, where the job does not say it itself: the most that a
    super-pod has and that divide the job's, a node's where their number changes."""
    if super_pod_node(spec) is None:
        return None
    pods = worker_pods(spec)
    together = next(n for n in range(min(pods, MOST_NODES), 0, -1) if pods % n == 0)
    return spec.accelerator.devices_per_node * (1 if is_elastic(spec) else together)
