"""Messages and services of the kubelet's device plugin interface, v1beta1, as far as rljob uses it.

Called by `service` and `registration`. The classes are created at import from the table below, so there is no
generated code. Fields that neither side needs here are left out: proto3 skips unknown fields.
https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/
"""

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

VERSION = "v1beta1"
REGISTER = f"/{VERSION}.Registration/Register"
PLUGIN_SERVICE = f"{VERSION}.DevicePlugin"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"

# Variable stands for an entry of a map<string, string>: both look the same on the wire.
_FIELDS = {
    "Empty": "",
    "DevicePluginOptions": "bool get_preferred_allocation_available = 2",
    "RegisterRequest": """
        string version = 1
        string endpoint = 2
        string resource_name = 3
        DevicePluginOptions options = 4""",
    "Device": """
        string ID = 1
        string health = 2""",
    "ListAndWatchResponse": "repeated Device devices = 1",
    "ContainerPreferredAllocationRequest": """
        repeated string available_deviceIDs = 1
        repeated string must_include_deviceIDs = 2
        int32 allocation_size = 3""",
    "PreferredAllocationRequest": "repeated ContainerPreferredAllocationRequest container_requests = 1",
    "ContainerPreferredAllocationResponse": "repeated string deviceIDs = 1",
    "PreferredAllocationResponse": "repeated ContainerPreferredAllocationResponse container_responses = 1",
    "ContainerAllocateRequest": "repeated string devices_ids = 1",
    "AllocateRequest": "repeated ContainerAllocateRequest container_requests = 1",
    "Variable": """
        string key = 1
        string value = 2""",
    "DeviceSpec": """
        string container_path = 1
        string host_path = 2
        string permissions = 3""",
    "ContainerAllocateResponse": """
        repeated Variable envs = 1
        repeated DeviceSpec devices = 3""",
    "AllocateResponse": "repeated ContainerAllocateResponse container_responses = 1",
}
_SCALARS = {
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "int32": FieldDescriptorProto.TYPE_INT32,
    "string": FieldDescriptorProto.TYPE_STRING,
}


def _field(line: str) -> FieldDescriptorProto:
    *label, kind, name, _, number = line.split()
    field = FieldDescriptorProto(name=name, number=int(number))
    field.label = field.LABEL_REPEATED if label else field.LABEL_OPTIONAL
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type_name = f".{VERSION}.{kind}"
    return field


def _classes() -> dict[str, type[Message]]:
    file = FileDescriptorProto(name="deviceplugin.proto", package=VERSION, syntax="proto3")
    for name, fields in _FIELDS.items():
        lines = [line for line in fields.splitlines() if line.strip()]
        file.message_type.append(DescriptorProto(name=name, field=map(_field, lines)))
    pool = DescriptorPool()  # a separate one: another library may define the full interface
    pool.Add(file)
    return {
        name: GetMessageClass(pool.FindMessageTypeByName(f"{VERSION}.{name}")) for name in _FIELDS
    }


_messages = _classes()
Empty = _messages["Empty"]
DevicePluginOptions = _messages["DevicePluginOptions"]
RegisterRequest = _messages["RegisterRequest"]
Device = _messages["Device"]
ListAndWatchResponse = _messages["ListAndWatchResponse"]
PreferredAllocationRequest = _messages["PreferredAllocationRequest"]
PreferredAllocationResponse = _messages["PreferredAllocationResponse"]
AllocateRequest = _messages["AllocateRequest"]
AllocateResponse = _messages["AllocateResponse"]
