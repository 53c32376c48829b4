"""The job's settings of trackers: where else the metrics of its steps and evaluations are sent."""

from typing import Annotated, Literal

from pydantic import Field

from rljob_api.spec.pods import Name
from rljob_api.spec.section import Section

HOST = r"https?://[-A-Za-z0-9.:\[\]]+(/[-A-Za-z0-9_./]*)?"
Server = Annotated[str, Field(max_length=512, pattern=f"^{HOST}$")]
"""A URL that cannot contain a password."""
Title = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\s/\\#?%:]+$")]


class TensorBoard(Section):
    """Event files for TensorBoard in `tensorboard/` of the run's folder. Needs rljob[tensorboard]."""

    flush_seconds: float = Field(default=10.0, gt=0, le=3600)
    """Metrics are written to the files after at most this many seconds."""


class WeightsAndBiases(Section):
    """A run of Weights & Biases. Needs rljob[wandb]; its key is the variable WANDB_API_KEY."""

    project: Title = "rljob"
    """The project."""

    entity: Title | None = None
    """User or team that owns the project; default: the key's."""

    mode: Literal["online", "offline"] = "online"
    """`offline`: into `wandb/` of the run's folder, for `wandb sync`."""

    base_url: Server | None = None
    """The server, if it is not that of Weights & Biases."""


class MLflow(Section):
    """A run on an MLflow server. Its token is the variable MLFLOW_TRACKING_TOKEN, or its user and password
    MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD."""

    tracking_uri: Server
    """The server, e.g. `http://mlflow:5000`."""

    experiment: str = Field(default="rljob", min_length=1, max_length=128, pattern=r"^[^\n]+$")
    """The experiment; created if it does not exist."""


class Tracking(Section):
    """Trackers of the run, at least one (docs/tracking.md). A tracker that fails causes a warning and does
    not end the run."""

    tensorboard: TensorBoard | None = None
    """TensorBoard."""

    wandb: WeightsAndBiases | None = None
    """Weights & Biases."""

    mlflow: MLflow | None = None
    """MLflow."""

    secret_name: Name | None = None
    """On a cluster: Secret whose keys become variables of the head's environment, such as WANDB_API_KEY. On
    one machine they are read from its own environment."""

    timeout_seconds: float = Field(default=60.0, gt=0, le=3600)
    """A tracker that takes longer for a step's metrics is restarted; at its end the run waits as long for
    metrics that were not sent yet."""

    def named(self) -> dict[str, Section]:
        """Return the trackers that the job names, by their keys."""
        named = {"tensorboard": self.tensorboard, "wandb": self.wandb, "mlflow": self.mlflow}
        return {name: section for name, section in named.items() if section is not None}
