"""Errors of the device plugin.

    PluginError
    ├── UnknownChip      a chip that this node does not have
    ├── UnknownLevel     a level that MindCluster does not have
    ├── NotReported      the API server does not take the report
    ├── KubeletSilent    no socket of the kubelet, or nobody answers there: may pass by itself
    ├── Refused          the kubelet does not take the registration
    └── CannotServe      the plugin's own socket cannot be made

`registration` tries again after KubeletSilent and NotReported; `main` ends the process with 1 on the others.
"""


class PluginError(Exception):
    """Whatever the device plugin's own calls raise."""


class UnknownChip(PluginError):
    """Not the number of one of this node's chips."""


class UnknownLevel(PluginError):
    """Not a level of MindCluster's."""


class NotReported(PluginError):
    """The API server cannot be reached or refuses; the message is its own."""


class KubeletSilent(PluginError):
    """The kubelet is not there, or does not answer yet."""


class Refused(PluginError):
    """The kubelet answered no; the message is the kubelet's."""


class CannotServe(PluginError):
    """The plugin's own socket cannot be made."""
