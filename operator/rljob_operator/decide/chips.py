"""Chips, nodes and switches of a job's pods that report a warning or a fault: what is reported, and when
their pods are replaced.

Used by `attempt`. KubeRay replaces a deleted pod from the RayCluster's current template, so the nodes to
avoid are added to the template first. The run replaces the devices within the attempt. A chip that stops is
replaced immediately, one that warns after a checkpoint.
"""

from collections.abc import Iterator

from rljob_api.spec.status import FaultyChip
from rljob_api.topology.devices import pods
from rljob_operator.decide.draft import Draft, condition, rfc3339
from rljob_operator.decide.model import AskCheckpoint, DeletePod, JobEvent, Pod
from rljob_operator.watch.fault_reports import LEVELS, NODE, NODE_WIDE, SWITCH, ChipFault

KIND = "AcceleratorHealthy"
MOST_CHIPS = 64
"""Most chips in the status; of more chips, the first ones are handled."""


def handle_chips(draft: Draft, *, trains: bool) -> None:
    """Report chips of the job's pods that warn or stop, and delete these pods. trains: a driver runs, which
    saves a checkpoint first if a chip only warns."""
    if draft.observed.faults is None:
        return
    known = {chip.key for chip in draft.status.faulty_chips}
    draft.update(faulty_chips=list(_affected_chips(draft))[:MOST_CHIPS])
    messages = []
    for chip in draft.status.faulty_chips:
        for pod in draft.observed.of_role("worker"):
            if not _hits(chip, pod):
                continue
            message_of_chip = _description(chip, _replace_pod(draft, chip, pod, trains=trains))
            messages.append(message_of_chip)
            if chip.key not in known:
                draft.events.append(
                    JobEvent(reason=_reason([chip]), message=message_of_chip, warning=True)
                )
    if pending := "" if messages else _awaited(draft):
        messages.append(pending)
    if messages:
        reason = _reason(draft.status.faulty_chips)
        draft.set(KIND, "False", reason, "; ".join(messages), emit=False)
        return
    previous = condition(draft.status, KIND)
    message = "no pod has a chip that warns or stops"
    draft.set(
        KIND,
        "True",
        "ChipsHealthy",
        message,
        emit=previous is not None and previous.status == "False",
    )


def hit_by_chips(draft: Draft) -> bool:
    """Return whether a chip of the current attempt's pods has started to warn or stop during it."""
    began = draft.status.attempt_time or ""
    return any(chip.time >= began for chip in draft.status.faulty_chips)


def _affected_chips(draft: Draft) -> Iterator[FaultyChip]:
    """Yield chips that a pod of the job has, or had when they started to warn or stop: its replacement must
    not be deleted for the same reason."""
    known = {(chip.node, chip.chip): chip for chip in draft.status.faulty_chips}
    current = [pod for pod in draft.observed.of_role("worker") if pod.deleting_since is None]
    progress = draft.status.progress
    for fault in draft.observed.faults or ():
        before = known.get((fault.node, fault.chip))
        if before is not None and LEVELS.get(before.level) == fault.severity:
            yield before.model_copy(update={"level": fault.level, "code": fault.code[:256]})
        elif (pod := next((pod for pod in current if _has(pod, fault)), None)) is not None:
            yield FaultyChip(
                node=fault.node,
                chip=fault.chip,
                level=fault.level,
                code=fault.code[:256],
                time=rfc3339(draft.unix_time),
                pod=pod.uid,
                step=progress.step if progress else 0,
            )


def _has(pod: Pod, fault: ChipFault) -> bool:
    """Return whether the pod has the faulty chip. A fault of the full node, or a pod with unknown chips,
    concerns only pods that existed before: a newer one was placed there knowingly, and the kubelet allocates
    no broken chip to it."""
    if pod.node != fault.node:
        return False
    if pod.chips and fault.chip not in NODE_WIDE:
        return fault.chip in pod.chips
    return fault.since is None or pod.created <= fault.since


def _hits(chip: FaultyChip, pod: Pod) -> bool:
    """Return whether this pod had the chip when the fault was observed."""
    if chip.chip in NODE_WIDE:
        return pod.node == chip.node and rfc3339(pod.created) <= chip.time
    return pod.uid == chip.pod


def _replace_pod(draft: Draft, chip: FaultyChip, pod: Pod, *, trains: bool) -> str:
    """Take the next step towards replacing the pod, and return its description."""
    saved = draft.status.last_checkpoint
    if pod.deleting_since is not None:
        return f"its pod {pod.name} is being replaced"
    if trains and LEVELS[chip.level] == "warns" and (saved is None or saved.step < chip.step):
        draft.do(AskCheckpoint())
        return f"its pod {pod.name} is replaced after a checkpoint of step {chip.step} or later"
    cluster = draft.observed.cluster
    if cluster is not None and chip.node not in cluster.avoided:
        draft.make_again()
    draft.do(DeletePod(pod=pod.name))
    return f"its pod {pod.name} is replaced"


def _awaited(draft: Draft) -> str:
    """Describe which pods of a replacement are still missing; "" for none."""
    previous, cluster = condition(draft.status, KIND), draft.observed.cluster
    if (
        previous is None
        or previous.status == "True"
        or cluster is None
        or not draft.status.faulty_chips
    ):
        return ""
    assert draft.observed.spec is not None
    ready = sum(pod.ready for pod in draft.observed.of_role("worker"))
    needed = cluster.workers - pods(draft.observed.spec).spare
    nodes = ", ".join(sorted({chip.node for chip in draft.status.faulty_chips}))
    return f"{ready} of {needed} worker pods are ready, off {nodes}" if ready < needed else ""


def _description(chip: FaultyChip, step: str) -> str:
    code = f" ({chip.code})" if chip.code else ""
    owner = {NODE: "", SWITCH: "switch of "}.get(chip.chip, f"chip {chip.chip} of ")
    return f"{owner}node {chip.node} reports {chip.level}{code}: {step}"


def _reason(chips: list[FaultyChip]) -> str:
    stops = any(LEVELS[chip.level] == "stops" for chip in chips)
    return "ChipBroken" if stops else "ChipWarns"
