"""Read MindCluster's reports of broken chips, nodes and their switches from its ConfigMaps. Pure; called by
`fault_watch`.

Ascend's device plugin writes `mindx-dl-deviceinfo-NODE`, with one JSON document of chips under
`DeviceInfoCfg`, and on super-pods one of the node's switch under `SwitchInfoCfg`. NodeD writes
`mindx-dl-nodeinfo-NODE`, with one under `NodeInfo`. ClusterD gathers these in `cluster-info-device-N`,
`-switch-N` and `cluster-info-node-cm`, by the same names, under a key that is its own name. A document of
chips lists those that are unhealthy. Later versions add an entry for each faulty chip, with its codes and
level, and still later ones also name the level `fault_handling` and have a time for each code.
https://gitcode.com/Ascend/mind-cluster
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, TypeAdapter, ValidationError

from rljob_api.spec.json_text import parse_json
from rljob_operator.errors import MalformedReport

CHIPS_PREFIX = "mindx-dl-deviceinfo-"
CHIPS_KEY = "DeviceInfoCfg"
SWITCH_PREFIX = "mindx-dl-switchinfo-"
SWITCH_KEY = "SwitchInfoCfg"
NODE_PREFIX = "mindx-dl-nodeinfo-"
NODE_KEY = "NodeInfo"
CLUSTER_PREFIXES = ("cluster-info-device-", "cluster-info-switch-", "cluster-info-node-")
SEPARATED = "ManuallySeparateNPU"
NODE_WIDE = NODE, SWITCH = "node", "switch"
"""Used instead of a chip's name: the full node, and the switch that connects its chips with other nodes."""

Severity = Literal["nothing", "warns", "stops"]
LEVELS: dict[str, Severity] = {
    "NotHandleFault": "nothing",
    "SubHealthFault": "warns",
    "PreSeparateNPU": "warns",
    "RestartRequest": "stops",
    "RestartBusiness": "stops",
    "FreeRestartNPU": "stops",
    "RestartNPU": "stops",
    "SeparateNPU": "stops",
    SEPARATED: "stops",
    # Chips that are in a list and have no entry, as in the oldest reports.
    "NetworkUnhealthy": "warns",
    "Unhealthy": "stops",
    # Levels of nodes.
    "PreSeparateFault": "warns",
    "SeparateFault": "stops",
    # Levels of switches, in two versions.
    "NotHandle": "nothing",
    "SubHealth": "warns",
    "PreSeparate": "warns",
    "Reset": "stops",
    "Separate": "stops",
}
"""MindCluster's levels. `nothing`: the chip continues. `warns`: it works, but not for long or not well.
`stops`: what runs on it has failed or will hang."""
ORDER: tuple[Severity, ...] = ("nothing", "warns", "stops")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipFault:
    """A chip that warns or stops. chip: as `Ascend910-3`, or NODE or SWITCH. code: hexadecimal, several with
    commas, "" if there is none. since: unix seconds, None if the report has no time."""

    node: str
    chip: str
    level: str
    code: str = ""
    since: float | None = None

    @property
    def severity(self) -> Severity:
        """Return what the level means for a job."""
        return LEVELS[self.level]


def is_report(name: str) -> bool:
    """Return whether a ConfigMap of this name reports faults."""
    return name.startswith((CHIPS_PREFIX, NODE_PREFIX, *CLUSTER_PREFIXES))


def read_report(name: str, data: Mapping[str, str]) -> list[ChipFault]:
    """Return the faults that a ConfigMap reports, the worst of each chip, node and switch. Raises
    MalformedReport."""
    try:
        return [
            fault for node, document in _documents(name, data) for fault in document.faults(node)
        ]
    except (ValueError, KeyError, TypeError) as error:
        why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise MalformedReport(f"{type(error).__name__}: {why}") from error


class _Since(BaseModel):
    fault_time: int = 0
    fault_level: str = ""


class _Entry(BaseModel):
    npu_name: str = ""
    fault_code: str = ""
    fault_handling: str = ""
    fault_level: str = ""
    large_model_fault_level: str = ""
    fault_time_and_level_map: dict[str, _Since] = {}

    @property
    def level(self) -> str:
        """Return the worst level of all codes."""
        return self.fault_handling or self.fault_level or self.large_model_fault_level

    @property
    def since(self) -> float | None:
        """Return when it reached this level."""
        codes = self.fault_time_and_level_map.values()
        times = [code.fault_time for code in codes if code.fault_level == self.level]
        return max(times) / 1000 if times and max(times) > 0 else None


_ENTRIES = TypeAdapter(list[_Entry])


class _Chips(BaseModel):
    """Chips of a node. separated: chips that were separated manually."""

    DeviceList: dict[str, str]
    separated: str = ""

    def faults(self, node: str) -> Iterator[ChipFault]:
        """Yield the worst fault of each chip."""
        return _faults(node, self.DeviceList | {f"-{SEPARATED}": self.separated})


class _NodeDevice(BaseModel):
    FaultCode: list[str] = []
    FaultLevel: str = ""


class _Node(BaseModel):
    FaultDevList: list[_NodeDevice] | None = None

    def faults(self, node: str) -> Iterator[ChipFault]:
        """Yield the worst fault of its devices, such as processors, memory and disks."""
        return _worst(node, NODE, self.FaultDevList or [])


class _SwitchFault(BaseModel):
    AssembledFaultCode: str = ""


class _Switch(BaseModel):
    FaultCode: list[str | _SwitchFault] | None = None
    FaultLevel: str = ""

    def faults(self, node: str) -> Iterator[ChipFault]:
        """Yield the fault of the switch; the level applies to all codes together."""
        codes = [c if isinstance(c, str) else c.AssembledFaultCode for c in self.FaultCode or []]
        return _worst(node, SWITCH, [_NodeDevice(FaultCode=codes, FaultLevel=self.FaultLevel)])


def _documents(
    name: str, data: Mapping[str, str]
) -> Iterator[tuple[str, _Chips | _Switch | _Node]]:
    """Yield (node, document about it)."""
    if name.startswith(CHIPS_PREFIX):
        node = name.removeprefix(CHIPS_PREFIX)
        chips = parse_json(data[CHIPS_KEY])["DeviceInfo"]
        yield node, _Chips.model_validate(chips | {"separated": data.get(SEPARATED, "")})
        if SWITCH_KEY in data:
            yield node, _Switch.model_validate_json(data[SWITCH_KEY])
        return
    if name.startswith(NODE_PREFIX):
        node = name.removeprefix(NODE_PREFIX)
        yield node, _Node.model_validate(parse_json(data[NODE_KEY])["NodeInfo"])
        return
    documents: dict[str, Any] = parse_json(data[name])
    for key, document in documents.items():
        for prefix, kind in _KINDS.items():
            if key.startswith(prefix):
                yield key.removeprefix(prefix).strip(), kind.model_validate(document)


_KINDS: dict[str, type[_Chips | _Switch | _Node]] = {
    CHIPS_PREFIX: _Chips,
    SWITCH_PREFIX: _Switch,
    NODE_PREFIX: _Node,
}


def _worst(node: str, device: str, reports: Iterable[_NodeDevice]) -> Iterator[ChipFault]:
    """Yield the worst of several levels; none if no known level is above `nothing`."""
    known = [report for report in reports if LEVELS.get(report.FaultLevel, "nothing") != "nothing"]
    if known:
        worst = max(known, key=lambda report: ORDER.index(LEVELS[report.FaultLevel]))
        code = ",".join(code for report in known for code in report.FaultCode)
        yield ChipFault(node=node, chip=device, level=worst.FaultLevel, code=code)


def _faults(node: str, chips: Mapping[str, str]) -> Iterator[ChipFault]:
    """Yield the faults of a node's chips. An entry has more detail than a list of unhealthy chips, so
    lists count for chips without an entry. Entries without a chip concern full nodes, which have separate
    reports."""
    worst: dict[str, ChipFault] = {}
    for entry in _entries(chips):
        fault = ChipFault(
            node=node,
            chip=entry.npu_name,
            level=entry.level,
            code=entry.fault_code.replace(" ", ""),
            since=entry.since,
        )
        known = worst.get(fault.chip)
        if known is None or ORDER.index(fault.severity) > ORDER.index(known.severity):
            worst[fault.chip] = fault
    for chip in _listed(chips, SEPARATED):
        worst[chip] = ChipFault(node=node, chip=chip, level=SEPARATED)
    for level in ("Unhealthy", "NetworkUnhealthy"):
        for chip in _listed(chips, level):
            worst.setdefault(chip, ChipFault(node=node, chip=chip, level=level))
    for _, fault in sorted(worst.items()):
        if fault.severity != "nothing":
            yield fault


def _entries(chips: Mapping[str, str]) -> Iterator[_Entry]:
    """Yield entries with a chip and a known level; the lists may still contain other chips."""
    for key, text in chips.items():
        if key.endswith("-Fault") and text:
            entries = _ENTRIES.validate_json(text)
            yield from (entry for entry in entries if entry.npu_name and entry.level in LEVELS)


def _listed(chips: Mapping[str, str], list_name: str) -> Iterator[str]:
    for key, text in chips.items():
        if key.endswith(f"-{list_name}"):
            yield from filter(None, (chip.strip() for chip in text.split(",")))
