"""The ServiceAccount of a job: its pods run under a separate account that has no rights.

To give the pods a right (to pull images, to access a cloud's storage), name another account in
`podTemplates`, or bind a role to this one.
"""

from rljob_operator.build.identity import JobIdentity
from rljob_operator.build.names import Manifest, child_name, metadata


def service_account(identity: JobIdentity) -> Manifest:
    """Return the ServiceAccount. No pod gets its token."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(identity, child_name(identity), component="account"),
        "automountServiceAccountToken": False,
    }
