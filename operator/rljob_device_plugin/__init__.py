"""A kubelet device plugin of emulated Ascend chips."""
