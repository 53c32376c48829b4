"""Which states and columns GRPO asks for."""

from rljob_api.spec.algorithms.grpo import GRPOParams


def test_a_kl_term_alone_starts_the_reference_state():
    without, with_kl = GRPOParams(), GRPOParams(kl_coefficient=0.01)

    assert without.states == ("generate", "reward", "update")
    assert with_kl.states == ("generate", "reward", "reference", "update")
    assert without.response_columns == ("response", "rollout_logprobs")
    assert with_kl.response_columns == ("response", "rollout_logprobs", "reference_logprobs")
    assert with_kl.scalars == ("reward",)
