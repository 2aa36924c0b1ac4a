import pytest
import torch

from interlace.config import StageSettings
from interlace.training.loop import learning_rate, optimizer_batches
from tests.training.toy import batch_of, trajectories


def test_learning_rate_warms_up_and_decays_to_zero_at_the_last_step() -> None:
    s = StageSettings(steps=10, lr=1.0, warmup_steps=3)
    assert [learning_rate(s, 1.0, i) for i in range(3)] == pytest.approx([0.25, 0.5, 0.75])
    assert learning_rate(s, 1.0, 3) == 1.0
    assert learning_rate(s, 1.0, 10) == 0.0
    cosine = StageSettings(steps=10, lr=1.0, lr_schedule="cosine")
    assert learning_rate(cosine, 1.0, 5) == pytest.approx(0.5)
    assert learning_rate(StageSettings(steps=10, lr_schedule="constant"), 2.0, 9) == 2.0


def test_optimizer_batches_cover_every_row_once_an_epoch_and_split_no_group() -> None:
    batch = batch_of(trajectories(1, groups=6))
    s = StageSettings(epochs_per_rollout=2, updates_per_epoch=3)
    parts = list(optimizer_batches(batch, s, step=4, seed=0))
    assert [e for e, _ in parts] == [0, 0, 0, 1, 1, 1]
    for epoch in (0, 1):
        rows = torch.cat([r for e, r in parts if e == epoch])
        assert sorted(rows.tolist()) == list(range(batch.n_rows))
        seen: dict[int, int] = {}
        for i, (e, r) in enumerate(parts):
            if e == epoch:
                for g in batch.group[r].tolist():
                    assert seen.setdefault(g, i) == i
    again = list(optimizer_batches(batch, s, step=4, seed=0))
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(parts, again, strict=True))


def test_demonstrations_of_their_own_feed_are_spread_evenly() -> None:
    rows = [r for r in trajectories(1, groups=9) if r.group == "alone" or r.sampling is not None]
    demo = rows[-1]
    rows += [type(demo)(**{**demo.__dict__, "row": 1000 + i, "group": f"d{i}"}) for i in range(5)]
    batch = batch_of(rows)
    s = StageSettings(updates_per_epoch=3)
    counts = [int((~batch.is_rollout[r]).sum()) for _, r in optimizer_batches(batch, s, step=0, seed=0)]
    assert counts == [2, 2, 2]
