"""The states of one device, called in turn. `build` creates them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from rljob_api.topology.resolved import ResolvedSpec
from rljob_runtime.dock.stats import DockTraffic
from rljob_runtime.record.checkpoint import CRITIC_FOLDER
from rljob_runtime.record.checksums import verifying_checksums, write_rank_sums
from rljob_runtime.record.reports import SyncReport
from rljob_runtime.rollout.agents.agent_turns import AgentDesk
from rljob_runtime.rollout.rollout_engine import GameSettings, Sampling, ToolSettings
from rljob_runtime.samples.batches import BatchName
from rljob_runtime.task.environments.game_pool import GamePool
from rljob_runtime.task.tokenizer import Tokenizer, make_stopped
from rljob_runtime.task.tools.tool_pool import ToolPool
from rljob_runtime.weights.port import Port
from rljob_runtime.worker.compare import CompareState
from rljob_runtime.worker.digests import sums_of_models
from rljob_runtime.worker.generate import GenerateState
from rljob_runtime.worker.in_flight import InFlight
from rljob_runtime.worker.inference import InferenceState
from rljob_runtime.worker.kept_state import KeptState
from rljob_runtime.worker.partial_rollout import PartialRolloutState
from rljob_runtime.worker.trained_model import TrainedModel
from rljob_runtime.worker.update import UpdateState


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStates:
    """The states of a role; None for those that it lacks.

    inference: by the state's name. policy, critic: the models trained on this device. port: exchanges new
    weights.
    """

    spec: ResolvedSpec
    policy: TrainedModel | None
    critic: TrainedModel | None
    generate: GenerateState | None
    partial_rollout: PartialRolloutState | None
    inference: dict[str, InferenceState]
    compare: CompareState | None
    update: UpdateState | None
    teach_critic: UpdateState | None
    port: Port
    in_flight: InFlight | None
    tokenizer: Tokenizer
    tools: ToolSettings | None = None
    games: GameSettings | None = None
    agents: AgentDesk | None = None

    def sampling(self, batch: BatchName) -> Sampling:
        """Return how responses are drawn: by the rollout's settings in training, by the set's for held-out
        prompts."""
        rollout, evaluation = self.spec.rollout, self.spec.evaluation
        held_out, temperature = batch.kind == "eval", rollout.temperature
        if held_out:
            assert evaluation is not None, "an evaluation without spec.evaluation"
            temperature = evaluation.set_of(batch.suite).temperature
        return Sampling(
            temperature=temperature or 1.0,
            greedy=temperature == 0,
            top_p=1.0 if held_out else rollout.top_p,
            top_k=0 if held_out else rollout.top_k,
            max_response_length=self.spec.batch.max_response_length,
            eos_ids=self.tokenizer.eos_ids,
            stopped=self._stopped(),
            tools=self.tools,
            games=self.games,
            agents=self.agents,
        )

    def sync(self, version: int) -> SyncReport:
        """Transfer the update layout's weights to the rollout layout."""
        if self.update is not None:
            self.update.settle(version, first=True)
        return self.port.run(version)

    def weights_sums(self) -> dict[str, int]:
        """Return checksums of all weights trained on this device, after they are on the device, as in
        `RankDigest`."""
        return sums_of_models((name, model.shard) for name, model in self._trained)

    def end_generation(self) -> None:
        """End generation on the device until the next `sync`."""
        self.port.end_generation()

    def traffic(self) -> dict[str, DockTraffic]:
        """Return what each state moved through the dock since the last call."""
        return {name: state.dock.take_traffic() for name, state in self._states.items()}

    def save(self, folder: Path) -> None:
        """Write the models' directories and the optimizers' states, the critic's in a separate folder.

        All update ranks call it together.
        """
        assert self.policy is not None, "only update ranks save"
        files = self.policy.save(folder, read_live=self.port.values)
        if self.critic is not None:
            files += self.critic.save(folder / CRITIC_FOLDER)
        write_rank_sums(folder, files, rank=self.policy.share[0])

    def load(self, folder: Path, *, step: int) -> None:
        """Read what `save` wrote after this step; a `sync` must follow before any generation.

        All update ranks call it together, and each verifies checksums of a share of the files. Raises
        CheckpointDamaged and CheckpointError.
        """
        assert self.policy is not None and self.update is not None, "only update ranks load"
        self.port.ready_to_train()
        with verifying_checksums(folder, share=self.policy.share):
            self.policy.load(folder)
            if self.critic is not None:
                self.critic.load(folder / CRITIC_FOLDER)
        self.update.settle(step)

    def live(self) -> dict[str, dict[str, Tensor]]:
        """Return all trained tensors, on this device or its host, by part of a `KeptState`."""
        self.port.ready_to_train()
        return {
            f"{name}/{kind}": tensors
            for name, model in self._trained
            for kind, tensors in model.live(self.port.values).items()
        }

    def take_up(self, kept_state: KeptState) -> None:
        """Restore the state that a rank kept; a `sync` must follow. Raises WeightsError if it has changed."""
        assert self.update is not None, "only update ranks are trained"
        kept_state.check()
        self.port.ready_to_train()
        for name, model in self._trained:
            model.take_up(
                {
                    "weights": kept_state.parts[f"{name}/weights"],
                    "state": kept_state.parts[f"{name}/state"],
                }
            )
        self.update.settle(kept_state.step)

    def close(self) -> None:
        """Close the connections to the dock and to all peers that weights are exchanged with."""
        if self.in_flight is not None:
            self.in_flight.listen(None)
        self.port.leave()
        for state in self._states.values():
            state.dock.close()
        for pool in (self.tools and self.tools.pool, self.games and self.games.pool):
            if isinstance(pool, ToolPool | GamePool):
                pool.close()
        if self.agents is not None:
            self.agents.close()

    @property
    def _trained(self) -> list[tuple[str, TrainedModel]]:
        named = [("policy", self.policy), ("critic", self.critic)]
        return [(name, model) for name, model in named if model is not None]

    @property
    def _states(self) -> dict[str, GenerateState | InferenceState | CompareState | UpdateState]:
        states: dict[str, GenerateState | InferenceState | CompareState | UpdateState | None] = {
            "generate": self.generate,
            **self.inference,
            "compare": self.compare,
            "update": self.update,
            "critic": self.teach_critic,
        }
        return {name: state for name, state in states.items() if state}

    def _stopped(self) -> Callable[[list[int]], bool] | None:
        stop = self.spec.data.stop
        return make_stopped(self.tokenizer, stop) if stop else None
