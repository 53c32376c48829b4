"""A rollout rank's share of a model: the `ModelShare` of several ranks. Made by `rollout_torch`."""

from collections.abc import Iterable
from pathlib import Path

from torch import Tensor

from rljob_api.model.architecture import Shape, read_shape
from rljob_api.topology.devices import RolloutDegrees
from rljob_runtime.errors import ConfigError
from rljob_runtime.models.config import read_config
from rljob_runtime.models.families import read_architecture
from rljob_runtime.models.fused.fused_decoder import FusedDecoder
from rljob_runtime.models.fused.fused_weights import New
from rljob_runtime.models.weights import weights_checksum
from rljob_runtime.parallel.vocabulary import VocabularyShare
from rljob_runtime.rollout.parallel_rollout.draws import RankDraw
from rljob_runtime.rollout.parallel_rollout.joins import RankJoins
from rljob_runtime.rollout.parallel_rollout.parts import PartWeights, model_part
from rljob_runtime.rollout.rollout_engine import Sampling
from rljob_runtime.rollout.rollout_grid import Purpose
from rljob_runtime.rollout.rollout_groups import RolloutGroups


class RankShare:
    """A `ModelShare`. new, max_length: as in `FusedDecoder`. Raises ConfigError for degrees that the
    model cannot have."""

    def __init__(self, path: Path, groups: RolloutGroups, *, new: New, max_length: int) -> None:
        entries = read_config(path)
        architecture = read_architecture(entries)
        shape = read_shape(entries, name=f"{path}/config.json")
        assert shape is not None, f"the contract lacks {architecture.name}"
        check_degrees(shape, groups.grid.degrees)
        held = VocabularyShare.of(architecture.vocab_size, groups[Purpose.TENSOR])
        self.model = FusedDecoder(
            model_part(architecture, groups.grid.part(shape, groups.rank)),
            RankJoins(held, groups, new.device),
            new,
            max_length=max_length,
        )
        self.views = self.model.hf_views()
        self._weights = PartWeights(self.views, shape, groups)
        self.shapes = self._weights.shapes
        self._draw = RankDraw(architecture.vocab_size, groups)

    def load(self, path: Path) -> None:
        """See ModelShare."""
        self._weights.load(path)

    def copy(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """See ModelShare."""
        self._weights.copy(weights)

    def checksum(self) -> str:
        """See ModelShare. All ranks of a model call it together."""
        return weights_checksum(self._weights.whole())

    def draw(
        self, logits_BV: Tensor, uniforms_B: Tensor, sampling: Sampling
    ) -> tuple[Tensor, Tensor]:
        """See ModelShare."""
        return self._draw(logits_BV, uniforms_B, sampling)

    def logprobs(self, logits_BV: Tensor, tokens_B: Tensor) -> Tensor:
        """See ModelShare."""
        return self._draw.logprobs(logits_BV, tokens_B)


PATH = "spec.rollout.parallelism"


def check_degrees(shape: Shape, degrees: RolloutDegrees) -> None:
    """Raise ConfigError for a degree that does not fit the model."""
    tensor, expert = degrees.tensor, degrees.expert
    if shape.heads % tensor:
        raise ConfigError(
            f"tensor={tensor} does not divide num_attention_heads={shape.heads} ({PATH}.tensor); use a "
            "divisor"
        )
    if max(shape.kv_heads, tensor) % min(shape.kv_heads, tensor):
        raise ConfigError(
            f"num_key_value_heads={shape.kv_heads} can be neither split nor repeated over "
            f"tensor={tensor} ({PATH}.tensor); use a divisor or a multiple of it"
        )
    narrowest = _narrowest(shape, expert)
    if narrowest < tensor:
        raise ConfigError(
            f"tensor={tensor} leaves ranks without any of a feed-forward's {narrowest} features "
            f"({PATH}.tensor); use at most {narrowest}"
        )
    if degrees.pipeline > shape.layers:
        raise ConfigError(
            f"pipeline={degrees.pipeline} is more than num_hidden_layers={shape.layers} "
            f"({PATH}.pipeline); use at most {shape.layers}"
        )
    count = shape.experts.count if shape.experts else 1
    if count % expert:
        raise ConfigError(
            f"expert={expert} does not divide the {count} experts of a layer ({PATH}.expert); use a "
            "divisor, or 1 for a model without experts"
        )


def _narrowest(shape: Shape, expert: int) -> int:
    """Inner features of the narrowest feed-forward that tensor ranks share."""
    widths = [shape.intermediate]
    if shape.experts is not None:
        widths += [shape.experts.shared_intermediate or shape.intermediate]
        widths += [shape.experts.intermediate] if expert == 1 else []
    return min(widths)
