"""Errors of the device plugin.

    PluginError
    ├── UnknownChip      a chip that this node does not have
    ├── UnknownLevel     a level that MindCluster does not have
    ├── NotReported      the API server does not take the report
    ├── KubeletSilent    no socket of the kubelet, or no answer there: may be temporary
    ├── Refused          the kubelet does not take the registration
    └── CannotServe      the plugin's own socket cannot be made

`registration` tries again after KubeletSilent and NotReported; `main` ends the process with 1 on the others.
"""


class PluginError(Exception):
    """Base of all errors that the device plugin's own calls raise."""


class UnknownChip(PluginError):
    """The number is not one of this node's chips."""


class UnknownLevel(PluginError):
    """The level is not one of MindCluster's."""


class NotReported(PluginError):
    """The API server cannot be reached or refuses; the message is its own."""


class KubeletSilent(PluginError):
    """The kubelet is not running, or does not answer yet."""


class Refused(PluginError):
    """The kubelet refused the registration; the message is the kubelet's."""


class CannotServe(PluginError):
    """The plugin's own socket cannot be created."""
