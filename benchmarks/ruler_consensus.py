"""What a consensus of passes gains over a single one, with a judge that is noisy and prefers what it sees first.

    python benchmarks/ruler_consensus.py [--groups 200] [--noise 0.25] [--position-bias 0.2] [--passes 3]

Groups are made by graded damage, so that their order is known; the judge knows the true quality of what it sees and
adds noise and a bonus for early places. The last line is `ratio NAME VALUE`: the pairwise accuracy of the consensus
over that of a single pass.
"""

from __future__ import annotations

import argparse
import asyncio
import random

from art_ruler import Ruler
from art_ruler.audit import AuditReport, LabelledGroup, audit, synthetic_groups
from art_ruler.auditview import as_table
from art_ruler.fakes import Attempt, NoisyJudge

CITIES = ("Lyon", "Graz", "Porto", "Turin", "Gdansk", "Bergen", "Cork", "Basel")


def good_trajectories(count: int, seed: int) -> list[LabelledGroup]:
    rng = random.Random(seed)
    made = []
    for number in range(count):
        city, hour, minute, platform, price = (
            rng.choice(CITIES),
            rng.randint(0, 23),
            rng.randint(0, 59),
            rng.randint(1, 24),
            rng.randint(9, 180),
        )
        answer = (
            f"Train {number} to {city} leaves at {hour:02}:{minute:02} from platform {platform}; a seat in second "
            f"class costs {price} euros, and a seat in first class costs {price * 2} euros."
        )
        messages = [
            {"role": "user", "content": f"When does train {number} leave, from where, and what does it cost?"},
            {"role": "assistant", "content": answer},
        ]
        made.append(LabelledGroup([messages], [None], where=f"trajectory {number}"))
    return made


def last_answer(attempt: Attempt) -> str:
    return next((text for kind, text in reversed(attempt) if kind == "assistant"), "")


async def compare(options: argparse.Namespace) -> AuditReport:
    groups = list(synthetic_groups(good_trajectories(options.groups, options.seed), size=6, seed=options.seed))
    truth = {
        trajectory[-1]["content"].strip(): label
        for group in groups
        for trajectory, label in zip(group.trajectories, group.labels, strict=True)
        if label is not None
    }
    judge = NoisyJudge(
        lambda attempt: truth.get(last_answer(attempt).strip(), 0.0),  # only an answer without a word left is not in it
        noise=options.noise,
        position_bias=options.position_bias,
        seed=options.seed,
    )
    rulers = {
        "1 pass": Ruler(judge, passes=1, seed=options.seed),
        f"{options.passes} passes": Ruler(judge, passes=options.passes, seed=options.seed),
    }
    return await audit(rulers, groups, seed=options.seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--groups", type=int, default=200)
    parser.add_argument("--noise", type=float, default=0.25, help="standard deviation, in score units")
    parser.add_argument("--position-bias", type=float, default=0.2, help="bonus of the first place, in score units")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    report = asyncio.run(compare(options))
    print(as_table(report))
    single, consensus = (judge.pairwise_accuracy.value or 0.0 for judge in report.judges)
    print(f"\npairwise accuracy: single pass {single:.4f}, consensus of {options.passes} {consensus:.4f}")
    print(f"ratio ruler_consensus {consensus / single:.3f}")


if __name__ == "__main__":
    main()
