"""The ServiceAccount of a job: its pods run under a name of their own that has no rights.

Whoever wants to give the pods a right (to pull images, to reach a cloud's storage) names another account in
`podTemplates`, or binds a role to this one.
"""

from rljob_operator.build.identity import Identity
from rljob_operator.build.names import Manifest, child_name, metadata


def service_account(identity: Identity) -> Manifest:
    """The ServiceAccount. No pod gets its token."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(identity, child_name(identity), component="account"),
        "automountServiceAccountToken": False,
    }
