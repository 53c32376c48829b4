"""Errors of the device plugin.

    PluginError
    ├── UnknownChip      a chip that this node does not have
    ├── KubeletSilent    no socket of the kubelet, or nobody answers there: may pass by itself
    ├── Refused          the kubelet does not take the registration
    └── CannotServe      the plugin's own socket cannot be made

`registration` tries again after KubeletSilent; `main` ends the process with 1 on the others.
"""


class PluginError(Exception):
    """Whatever the device plugin's own calls raise."""


class UnknownChip(PluginError):
    """Not the number of one of this node's chips."""


class KubeletSilent(PluginError):
    """The kubelet is not there, or does not answer yet."""


class Refused(PluginError):
    """The kubelet answered no; the message is the kubelet's."""


class CannotServe(PluginError):
    """The plugin's own socket cannot be made."""
