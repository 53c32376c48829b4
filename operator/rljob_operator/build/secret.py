"""The Secret with the token that every client of the job's Ray cluster must send."""

import base64

from rljob_operator.build.identity import JobIdentity
from rljob_operator.build.names import TOKEN_KEY, Manifest, child_name, metadata


def token_secret(identity: JobIdentity, token: str) -> Manifest:
    """Return the Secret. It has `data`, since the API server does not track who applied `stringData`."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(identity, child_name(identity), component="token"),
        "type": "Opaque",
        "data": {TOKEN_KEY: base64.b64encode(token.encode()).decode()},
    }
