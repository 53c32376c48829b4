"""The algorithms of the contract: one file each, its parameters and the columns that it needs.
Those of installed packages come by entry point (`package`).

The runtime's part of an algorithm (advantages, loss) is the file of the same name in
`rljob_runtime.algorithms`.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Discriminator, Tag

from rljob_api.spec.algorithms import reinforce_plus_plus as plus_plus
from rljob_api.spec.algorithms.cispo import CISPO, CISPOParams
from rljob_api.spec.algorithms.dapo import DAPO, DAPOParams
from rljob_api.spec.algorithms.distillation import Distillation, DistillationParams
from rljob_api.spec.algorithms.dpo import DPO, DPOParams
from rljob_api.spec.algorithms.dr_grpo import DrGRPO, DrGRPOParams
from rljob_api.spec.algorithms.grpo import GRPO, GRPOParams
from rljob_api.spec.algorithms.gspo import GSPO, GSPOParams
from rljob_api.spec.algorithms.package_algorithm import PackageAlgorithm
from rljob_api.spec.algorithms.policy_params import PolicyParams
from rljob_api.spec.algorithms.ppo import PPO, PPOParams
from rljob_api.spec.algorithms.rloo import RLOO, RLOOParams
from rljob_api.spec.algorithms.sapo import SAPO, SAPOParams
from rljob_api.spec.extensions import is_extension

DEFAULT = "grpo"


def name_of(value: Any) -> str:
    """The member of the union that a mapping or a section names; the default where it names none."""
    named = value.get("name") if isinstance(value, Mapping) else getattr(value, "name", None)
    name = DEFAULT if named is None else str(named)
    return PackageAlgorithm.UNION_NAME if is_extension(name) else name


Algorithm = Annotated[
    Annotated[GRPO, Tag("grpo")]
    | Annotated[DrGRPO, Tag("dr-grpo")]
    | Annotated[RLOO, Tag("rloo")]
    | Annotated[plus_plus.ReinforcePlusPlus, Tag("reinforce-plus-plus")]
    | Annotated[plus_plus.ReinforcePlusPlusBaseline, Tag("reinforce-plus-plus-baseline")]
    | Annotated[DAPO, Tag("dapo")]
    | Annotated[GSPO, Tag("gspo")]
    | Annotated[CISPO, Tag("cispo")]
    | Annotated[SAPO, Tag("sapo")]
    | Annotated[PPO, Tag("ppo")]
    | Annotated[DPO, Tag("dpo")]
    | Annotated[Distillation, Tag("distillation")]
    | Annotated[PackageAlgorithm, Tag(PackageAlgorithm.UNION_NAME)],
    Discriminator(
        name_of,
        custom_error_type="unknown_name",
        custom_error_message="is not the name of an algorithm",
    ),
]
"""A union by name: each algorithm has parameters of its own."""

PARAMS: dict[str, type[PolicyParams]] = {
    "grpo": GRPOParams,
    "dr-grpo": DrGRPOParams,
    "rloo": RLOOParams,
    "reinforce-plus-plus": plus_plus.ReinforcePlusPlusParams,
    "reinforce-plus-plus-baseline": plus_plus.BaselineParams,
    "dapo": DAPOParams,
    "gspo": GSPOParams,
    "cispo": CISPOParams,
    "sapo": SAPOParams,
    "ppo": PPOParams,
    "dpo": DPOParams,
    "distillation": DistillationParams,
}
"""Each built-in algorithm's parameters by its name."""

__all__ = ["DEFAULT", "GRPO", "PARAMS", "Algorithm", "PackageAlgorithm"]
