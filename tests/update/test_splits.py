"""Loss, gradient and weights do not depend on how the batch was split over ranks and passes."""

import pytest
import torch

FULL = {"kl_coefficient": 0.05, "loss_aggregation": "sequence-mean"}


def deal(batch, ranks, micro_batch, order_seed):
    """Micro-batches of each rank: samples dealt in a random order, so that groups are split."""
    random = torch.Generator().manual_seed(order_seed)
    order = torch.randperm(batch.num_samples, generator=random).tolist()
    shares = [order[rank::ranks] for rank in range(ranks)]
    return [
        [batch.select(share[i : i + micro_batch]) for i in range(0, len(share), micro_batch)]
        for share in shares
    ]


def gradient_and_metrics(bench, batches_of_rank, loss, dtype):
    """Each rank's gradient after the all-reduce, as one tensor, and its metrics."""

    def run(rank, group):
        # AdamW's first moment after one step is (1 − β1) times the gradient.
        engine = bench.make_engine(
            bench.make_model(dtype=dtype), group, beta1=0.5, gradient_clip=1e9
        )
        metrics = engine.train(batches_of_rank[rank], loss, groups_with_signal=1)
        state = engine.state_dict()
        moments = [state[name] for name in sorted(state) if name.startswith("exp_avg.")]
        return torch.cat([moment.flatten() for moment in moments]) * 2, metrics

    return bench.on_ranks(len(batches_of_rank), run)


@pytest.mark.parametrize("params", [{}, FULL], ids=["token-mean", "sequence-mean-kl"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("micro_batch", [1, 3, 24])
def test_gradient_and_metrics_are_those_of_one_large_batch(bench, ranks, micro_batch, params):
    batch = bench.make_batch(6, 4)
    loss = bench.make_loss(**params)
    [(whole, expected)] = gradient_and_metrics(bench, [[batch]], loss, torch.float32)

    parts = deal(batch, ranks, micro_batch, order_seed=ranks)
    results = gradient_and_metrics(bench, parts, loss, torch.float32)

    for gradient, metrics in results:
        torch.testing.assert_close(gradient, whole, atol=1e-6, rtol=0)
        assert metrics == pytest.approx(expected, abs=1e-6, rel=1e-5)
        assert gradient.equal(results[0][0])


@pytest.mark.parametrize("ranks", [2, 4])
def test_in_double_precision_the_split_leaves_no_trace(both, ranks):
    _, bench = both  # the decoder's norms and logits are float32 by design
    batch = bench.make_batch(6, 4, dtype=torch.float64)
    loss = bench.make_loss(**FULL)
    [(whole, _)] = gradient_and_metrics(bench, [[batch]], loss, torch.float64)

    parts = deal(batch, ranks, 2, order_seed=7)
    gradient = gradient_and_metrics(bench, parts, loss, torch.float64)[0][0]

    torch.testing.assert_close(gradient, whole, atol=1e-12, rtol=0)


@pytest.mark.parametrize("ranks", [2, 4])
def test_three_steps_leave_the_weights_of_one_rank(bench, ranks):
    batches = [bench.make_batch(4, 4, seed=seed) for seed in range(3)]
    loss = bench.make_loss()

    def weights(parts_of_step):
        def run(rank, group):
            engine = bench.make_engine(bench.make_model(), group, epsilon=1e-3)
            for parts in parts_of_step:
                engine.train(parts[rank], loss, groups_with_signal=1)
            return {name: value.clone() for name, value in engine.weights()}

        return bench.on_ranks(len(parts_of_step[0]), run)

    [expected] = weights([[[batch]] for batch in batches])
    results = weights([deal(batch, ranks, 3, order_seed=1) for batch in batches])

    for got in results:
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)
        assert all(got[name].equal(results[0][name]) for name in got)


def test_a_rank_without_samples_takes_part(bench):
    batch = bench.make_batch(2, 4)
    loss = bench.make_loss(kl_coefficient=0.1)
    [(whole, expected)] = gradient_and_metrics(bench, [[batch]], loss, torch.float32)

    results = gradient_and_metrics(bench, [[batch], []], loss, torch.float32)

    for gradient, metrics in results:
        torch.testing.assert_close(gradient, whole, atol=1e-7, rtol=0)
        assert metrics == pytest.approx(expected)


def test_sharing_a_group_out_does_not_count_its_signal_twice(bench):
    batch = bench.make_batch(1, 4)
    loss = bench.make_loss()

    def run(rank, group):
        engine = bench.make_engine(bench.make_model(), group)
        share = batch.select([2 * rank, 2 * rank + 1])
        return engine.train(
            [share], loss, groups_with_signal=int(rank == 0), min_groups_with_signal=2
        )

    assert [metrics["skipped"] for metrics in bench.on_ranks(2, run)] == [1.0, 1.0]


def test_the_decoder_and_transformers_train_alike(both):
    batch = both[0].make_batch(6, 4)

    def train(bench):
        loss = bench.make_loss(**FULL)
        return gradient_and_metrics(bench, [[batch]], loss, torch.float32)[0]

    (gradient, metrics), (expected_gradient, expected_metrics) = train(both[0]), train(both[1])
    torch.testing.assert_close(gradient, expected_gradient, atol=1e-6, rtol=0)
    assert metrics == pytest.approx(expected_metrics, abs=1e-6, rel=1e-5)
