"""The Secret with the token that everyone must show who talks to the job's Ray cluster."""

import base64

from rljob_operator.build.identity import Identity
from rljob_operator.build.names import TOKEN_KEY, Manifest, child_name, metadata


def token_secret(identity: Identity, token: str) -> Manifest:
    """The Secret. It has `data`: of `stringData` the API server forgets who applied it."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(identity, child_name(identity), component="token"),
        "type": "Opaque",
        "data": {TOKEN_KEY: base64.b64encode(token.encode()).decode()},
    }
