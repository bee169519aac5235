"""Numbers that decide who does what, in one table, each with what was measured when it was chosen.

They are starting points of sizes and not of beliefs: what makes an answer one to trust is in `questions/conclude.py`.
"""

from __future__ import annotations

import math

# Dimensions ---------------------------------------------------------------------------------------------------------

# Boxes of inputs are halved up to here and the signs of ReLUs above. Between ACAS Xu (5) and CollisionDetection (6),
# where all 686 verdicts come by boxes, and mnistfc (784), where 36 of 49 proofs come by ReLUs, it was not measured.
HALVED = 20

# Branch and bound over boxes is worth asking before and after sampling: the 500 CollisionDetection properties (6) take
# 1 s in all on two cores. Between 8 and 784 inputs it was not measured.
SEARCHED = 8

# A normal mixture fitted to a few hundred survivors of splitting makes a good proposal: RMSE 0.04 with 31,000 calls on
# CollisionDetection (6). Above it lines have taken over since version 0.1; the limit was set on spheres with 5 and 8.
FITTED = 8

# Up to here a proposal lives in all of z-space, above in a subspace of 8 gradients.
FULL_COVARIANCE = 12

# Shares of the target error that a method aims at ------------------------------------------------------------------

# Larger splitting and plain counting: their std is known to 25 per cent from 8 islands, so that aiming at the target
# itself misses it every other time.
COUNTED_SHARE = 0.75

# The second round of lines: on the six MNIST references the std of 8 replicates came out 0.7 of the spread over seeds.
LINES_SHARE = 0.7

# Importance sampling and counting between bounds: a draw costs one call and no start-up, so that half the target costs
# 8,000 calls, and 2,000, where they apply.
WEIGHTS_SHARE = 0.5

# Sizes of `Auto` ----------------------------------------------------------------------------------------------------

PILOT = 1000  # independent inputs drawn first: 3 % of the cost of a rare problem, and p <= 0.003 whatever follows
COMMON = 0.004  # share of the pilot from which plain Monte Carlo is cheaper than anything else: 45,000 calls at 0.1
# Boxes of each problem in the short count, where boxes limit it and no clock: on 60 CollisionDetection references
# proved bounds are 0.4 nats over the truth after 70 boxes in the median, 1 after 110 in nine of ten, 0.2 ms a box.
BOXES = 400
QUICK_SECONDS, QUICK_SECONDS_EACH = 1.0, 0.05  # for such bounds, in all and of each problem
MORE_BOXES = 10_000  # of each problem that nothing faster has answered: ten pyramids in five dimensions take 1,800
QUICK_COUNT = 20_000  # inputs that are counted in what they leave: as many as splitting would take
CHANCE = 500_000  # inputs that plain Monte Carlo may draw where there is nothing to climb: p = 4e-5 to 0.22
LARGEST = 128  # times the referee's size that a larger splitting run may take: 2 million calls at log p = -20
STAGE = 16  # times the size before: on shells in 20 and 60 dimensions one step to 128 gave 0.014 to 0.04 for 0.1
LARGER = 16  # times, in few dimensions, where a larger run shows a proposal where to look before the largest answers
FEW_DIMENSIONS = 4  # times as many particles of the referee up to `FITTED` dimensions, where lost modes are the danger:
# with a quarter of it one CollisionDetection problem of 1,200 came out silently wrong (docs/benchmarks.md)
LOG_FLOOR = math.log(1e-100)
VAGUE = 3.0  # times the target error from which an answer is worth another method
DRAWN = 1e-4  # thresholds from which `test` draws independent inputs before anything else: 37,000 without a violation
REFEREE_ERROR = 0.3  # standard deviation of log p that a larger splitting run aims at where it only has to decide
# Share of log p, as such an error, and three times both where it agrees already: at log p = -40 MNIST took 2.6 million
# calls in one run of 20 to reach 0.3.
REFEREE_SHARE = 0.02
LOST = 0.2  # share of violations found from far out that may lie where splitting has none: on planes in 20 and 60
# dimensions, which have one region, it was up to 0.11
