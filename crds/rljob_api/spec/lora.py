"""The job's settings of low-rank adapters. Called by `engines`; `adapters` lists their tensors."""

from typing import Annotated

from pydantic import Field

from rljob_api.spec.section import Section

ALL_LINEAR = "all-linear"


class Lora(Section):
    """Low-rank adapters on matrices of a frozen model (LoRA); defaults are PEFT's."""

    rank: int = Field(default=8, ge=1, le=1024)
    """Rank of the adapters (PEFT's `r`)."""

    alpha: int = Field(default=8, ge=1, le=1_000_000)
    """Numerator of the scale alpha / rank that adapters are multiplied with (PEFT's `lora_alpha`)."""

    target_modules: list[Annotated[str, Field(min_length=1, max_length=64)]] = Field(
        default=["q_proj", "v_proj"], min_length=1, max_length=16
    )
    """Matrices with an adapter, by the last component of their module's name, in all layers; `all-linear`,
    alone: every matrix of the layers except routers and routed experts."""

    @property
    def scale(self) -> float:
        """Return the factor that the product B A is multiplied with."""
        return self.alpha / self.rank
