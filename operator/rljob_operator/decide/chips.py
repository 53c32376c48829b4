"""Chips, nodes and switches that warn or stop under a job: what is told, and when the pods that have them go.

Used by `attempt`. For a pod that goes KubeRay makes another, from the RayCluster's template of that moment:
so the template is told first which nodes to keep off. The run replaces the devices within the attempt. A chip
that stops takes its pod with it at once, one that warns after a checkpoint.
"""

from collections.abc import Iterator

from rljob_api.spec.status import FaultyChip
from rljob_api.topology.devices import pods
from rljob_operator.decide.draft import Draft, condition, rfc3339
from rljob_operator.decide.model import AskCheckpoint, DeletePod, Event, Pod
from rljob_operator.watch.fault_reports import LEVELS, NODE, SWITCH, WHOLE, ChipFault

KIND = "AcceleratorHealthy"
MOST_CHIPS = 64
"""In the status; of more, those are looked at that come first."""


def look_at_chips(draft: Draft, *, trains: bool) -> None:
    """Tell of chips that the job's pods have and that warn or stop, and let these pods go. trains: a driver
    runs, which is asked for a checkpoint first where a chip only warns."""
    if draft.seen.faults is None:
        return
    known = {chip.key for chip in draft.status.faulty_chips}
    draft.update(faulty_chips=list(_had(draft))[:MOST_CHIPS])
    told = []
    for chip in draft.status.faulty_chips:
        for pod in draft.seen.of_role("worker"):
            if not _hits(chip, pod):
                continue
            said = _said(chip, _let_go(draft, chip, pod, trains=trains))
            told.append(said)
            if chip.key not in known:
                draft.events.append(Event(reason=_reason([chip]), message=said, warning=True))
    if waits := "" if told else _awaited(draft):
        told.append(waits)
    if told:
        reason = _reason(draft.status.faulty_chips)
        draft.set(KIND, "False", reason, "; ".join(told), tell=False)
        return
    was = condition(draft.status, KIND)
    message = "no pod has a chip that warns or stops"
    draft.set(KIND, "True", "ChipsHealthy", message, tell=was is not None and was.status == "False")


def hit_by_chips(draft: Draft) -> bool:
    """Whether a chip of the present attempt's pods has begun to warn or stop within it."""
    began = draft.status.attempt_time or ""
    return any(chip.time >= began for chip in draft.status.faulty_chips)


def _had(draft: Draft) -> Iterator[FaultyChip]:
    """Chips that a pod of the job has, or had when they began to warn or stop: the pod that comes after it is
    not to go for the same reason."""
    known = {(chip.node, chip.chip): chip for chip in draft.status.faulty_chips}
    there = [pod for pod in draft.seen.of_role("worker") if pod.deleting_since is None]
    progress = draft.status.progress
    for fault in draft.seen.faults or ():
        before = known.get((fault.node, fault.chip))
        if before is not None and LEVELS.get(before.level) == fault.severity:
            yield before.model_copy(update={"level": fault.level, "code": fault.code[:256]})
        elif (pod := next((pod for pod in there if _has(pod, fault)), None)) is not None:
            yield FaultyChip(
                node=fault.node,
                chip=fault.chip,
                level=fault.level,
                code=fault.code[:256],
                time=rfc3339(draft.now),
                pod=pod.uid,
                step=progress.step if progress else 0,
            )


def _has(pod: Pod, fault: ChipFault) -> bool:
    """Of a whole node, and where nobody says which chips a pod has, the pods that were there before: a newer
    one was put there knowingly, and the kubelet gives no broken chip to it."""
    if pod.node != fault.node:
        return False
    if pod.chips and fault.chip not in WHOLE:
        return fault.chip in pod.chips
    return fault.since is None or pod.created <= fault.since


def _hits(chip: FaultyChip, pod: Pod) -> bool:
    """Whether this pod had it when it was seen."""
    if chip.chip in WHOLE:
        return pod.node == chip.node and rfc3339(pod.created) <= chip.time
    return pod.uid == chip.pod


def _let_go(draft: Draft, chip: FaultyChip, pod: Pod, *, trains: bool) -> str:
    """Take the next step towards another pod; what that is."""
    saved = draft.status.last_checkpoint
    if pod.deleting_since is not None:
        return f"its pod {pod.name} is being replaced"
    if trains and LEVELS[chip.level] == "warns" and (saved is None or saved.step < chip.step):
        draft.do(AskCheckpoint())
        return f"its pod {pod.name} is replaced after a checkpoint of step {chip.step} or later"
    cluster = draft.seen.cluster
    if cluster is not None and chip.node not in cluster.avoided:
        draft.make_again()
    draft.do(DeletePod(pod=pod.name))
    return f"its pod {pod.name} is replaced"


def _awaited(draft: Draft) -> str:
    """Which pods a replacement lacks still; "" for none."""
    was, cluster = condition(draft.status, KIND), draft.seen.cluster
    if was is None or was.status == "True" or cluster is None or not draft.status.faulty_chips:
        return ""
    assert draft.seen.spec is not None
    ready = sum(pod.ready for pod in draft.seen.of_role("worker"))
    wanted = cluster.workers - pods(draft.seen.spec).spare
    nodes = ", ".join(sorted({chip.node for chip in draft.status.faulty_chips}))
    return f"{ready} of {wanted} worker pods are ready, off {nodes}" if ready < wanted else ""


def _said(chip: FaultyChip, what: str) -> str:
    code = f" ({chip.code})" if chip.code else ""
    who = {NODE: "", SWITCH: "switch of "}.get(chip.chip, f"chip {chip.chip} of ")
    return f"{who}node {chip.node} reports {chip.level}{code}: {what}"


def _reason(chips: list[FaultyChip]) -> str:
    stops = any(LEVELS[chip.level] == "stops" for chip in chips)
    return "ChipBroken" if stops else "ChipWarns"
