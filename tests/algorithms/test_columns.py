"""Which states and columns GRPO asks for."""

from rljob_api.algorithms.grpo import GRPOParams, response_columns, scalar_columns, states


def test_a_kl_term_alone_starts_the_reference_state():
    without, with_kl = GRPOParams(), GRPOParams(kl_coefficient=0.01)

    assert states(without) == ("generate", "reward", "update")
    assert states(with_kl) == ("generate", "reward", "reference", "update")
    assert response_columns(without) == ("response", "rollout_logprobs")
    assert response_columns(with_kl) == ("response", "rollout_logprobs", "reference_logprobs")
    assert scalar_columns(with_kl) == ("reward",)
