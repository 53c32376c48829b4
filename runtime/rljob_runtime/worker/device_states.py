"""The states of one device, called in turn. Made by `build`."""

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
from rljob_runtime.worker.compare import Compare
from rljob_runtime.worker.digests import joined
from rljob_runtime.worker.generate import Generate
from rljob_runtime.worker.in_flight import InFlight
from rljob_runtime.worker.inference import Inference
from rljob_runtime.worker.kept_state import KeptState
from rljob_runtime.worker.partial_rollout import PartialRollout
from rljob_runtime.worker.trained_model import TrainedModel
from rljob_runtime.worker.update import Update


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStates:
    """The states that a role has; None where it has not. inference: by the state's name. policy, critic: what
    is trained here. port: where new weights come from and go to."""

    spec: ResolvedSpec
    policy: TrainedModel | None
    critic: TrainedModel | None
    generate: Generate | None
    partial_rollout: PartialRollout | None
    inference: dict[str, Inference]
    compare: Compare | None
    update: Update | None
    teach_critic: Update | None
    port: Port
    in_flight: InFlight | None
    tokenizer: Tokenizer
    tools: ToolSettings | None = None
    games: GameSettings | None = None
    agents: AgentDesk | None = None

    def sampling(self, batch: BatchName) -> Sampling:
        """How responses are drawn: the rollout's way in training, its set's to held-out prompts."""
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
        """Give the rollout layout the update layout's weights."""
        if self.update is not None:
            self.update.settle(version, first=True)
        return self.port.run(version)

    def weights_sums(self) -> dict[str, int]:
        """Of all that is trained here, once it is on the device, as `RankDigest` has them."""
        return joined((name, model.held) for name, model in self._trained)

    def end_generation(self) -> None:
        """The device generates no more before the next `sync`."""
        self.port.end_generation()

    def traffic(self) -> dict[str, DockTraffic]:
        """What each state moved through the dock since the last call."""
        return {name: state.dock.take_traffic() for name, state in self._states.items()}

    def save(self, folder: Path) -> None:
        """Write the models' directories and the optimizers' states, the critic's in a folder of its own.

        All update ranks call it together.
        """
        assert self.policy is not None, "only update ranks save"
        files = self.policy.save(folder, at=self.port.values)
        if self.critic is not None:
            files += self.critic.save(folder / CRITIC_FOLDER)
        write_rank_sums(folder, files, rank=self.policy.share[0])

    def load(self, folder: Path, *, step: int) -> None:
        """Read what `save` wrote after this step; a `sync` follows before anything is generated. All update
        ranks call it together, and compare checksums of a share of the files. Raises CheckpointDamaged,
        CheckpointError."""
        assert self.policy is not None and self.update is not None, "only update ranks load"
        self.port.ready_to_train()
        with verifying_checksums(folder, share=self.policy.share):
            self.policy.load(folder)
            if self.critic is not None:
                self.critic.load(folder / CRITIC_FOLDER)
        self.update.settle(step)

    def live(self) -> dict[str, dict[str, Tensor]]:
        """All that is trained here, on this device or its host, by part of a `KeptState`."""
        self.port.ready_to_train()
        return {
            f"{name}/{kind}": tensors
            for name, model in self._trained
            for kind, tensors in model.live(self.port.values).items()
        }

    def take_up(self, kept: KeptState) -> None:
        """Be as a rank was that kept this; a `sync` follows. Raises WeightsError where it has changed."""
        assert self.update is not None, "only update ranks are trained"
        kept.check()
        self.port.ready_to_train()
        for name, model in self._trained:
            model.take_up(
                {"weights": kept.parts[f"{name}/weights"], "state": kept.parts[f"{name}/state"]}
            )
        self.update.settle(kept.step)

    def close(self) -> None:
        """Leave the dock and everybody that weights are exchanged with."""
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
    def _states(self) -> dict[str, Generate | Inference | Compare | Update]:
        states: dict[str, Generate | Inference | Compare | Update | None] = {
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
