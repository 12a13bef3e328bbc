"""What a holdout measures, and that its interval holds as often as it says."""

from math import exp
from random import Random

import pytest

from policies.money.bills import FEWEST, Arm, ArmCounts, BillSums, ConversationRow, Labels, arm_counts, measured_saving
from proxy.kernel.prepare import Holdout
from proxy.memory import Key

LABELS = Labels(tenant="t", owner="o", model="m", preset="p", api="openai_chat")


def row_of(arm: Arm, paid: float, by_rules: float) -> ConversationRow:
    sums = BillSums(requests=1, paid=paid, by_rules=by_rules)
    return ConversationRow(conversation="c", labels=LABELS, arm=arm, first_at=0.0, at=0.0, sums=sums)


def costs_of(random: Random) -> tuple[float, float, float]:
    """A conversation's size, and what it costs with nothing done and compacted: large ones, of which there are few,
    save more, and the rules miss what is paid by some."""
    size = exp(random.gauss(-1.5, 1.0))
    passed = size * exp(random.gauss(0.05, 0.1))
    share = min(0.6, 0.15 + 0.15 * size) + random.gauss(0.0, 0.08)
    return size, passed, passed * (1 - share)


def coverage(seed: int, conversations: int, share: float, resamplings: int) -> float:
    """The share of intervals that hold the true saving: that of a large pool from which conversations, and the secret
    that tells their arms, are drawn again and again."""
    random = Random(seed)
    pool = [costs_of(random) for _ in range(4_000)]
    truth = 1 - sum(compacted for _, _, compacted in pool) / sum(passed for _, passed, _ in pool)
    hits = 0
    for draw in range(resamplings):
        holdout, rows = Holdout(share, f"{seed} {draw}".encode()), list[ConversationRow]()
        for name, (size, passed, compacted) in enumerate(random.choices(pool, k=conversations)):
            arm = holdout.arm(Key("t", str(name)))
            rows.append(row_of(arm, passed if arm == "holdout" else compacted, size))
        saving = measured_saving(rows)
        assert saving is not None
        hits += saving.low <= truth <= saving.high
    return hits / resamplings


def test_the_interval_holds_the_true_saving_in_90_to_99_of_100_resamplings() -> None:
    assert 0.90 <= coverage(seed=1, conversations=250, share=0.1, resamplings=200) <= 0.99


def test_nothing_is_said_of_too_few_conversations() -> None:
    rows = [row_of("on", 1.0, 2.0)] * 100 + [row_of("holdout", 2.0, 2.0)] * FEWEST
    every = [*rows, row_of("left", 9.0, 1.0), row_of("", 9.0, 1.0)]
    saving = measured_saving(every)
    assert saving is not None
    assert (saving.share, saving.low, saving.high) == pytest.approx((0.5, 0.5, 0.5))
    assert arm_counts(every) == ArmCounts(on=100, holdout=FEWEST, left=1)
    assert measured_saving(rows[:-1]) is None
    assert measured_saving([row_of("on", 0.0, 0.0), *rows[100:]]) is None


def test_a_holdout_is_a_share_by_tenant_and_conversation_and_the_same_in_every_replica() -> None:
    keys = [Key(tenant, str(name)) for tenant in ("a", "b") for name in range(1_000)]
    arms = [Holdout(0.1, b"secret").arm(key) for key in keys]
    assert arms == [Holdout(0.1, b"secret").arm(key) for key in keys]
    assert 150 < arms.count("holdout") < 250
    assert arms[:1_000] != arms[1_000:]
    assert {Holdout(0.0, b"secret").arm(key) for key in keys} == {""}
