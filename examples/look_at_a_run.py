"""A finished run: how it ended, what its completions were like, what its model answers, how good it is elsewhere.

python examples/look_at_a_run.py runs/quickstart
"""

import sys

import pyarrow.compute as pc

import strop
from strop.data.generators import ChainSum

if len(sys.argv) != 2:
    raise SystemExit(__doc__)
run = strop.load(sys.argv[1])
if "steps" not in run.summary:
    raise SystemExit(f"{run.path} has not finished; first go on with it to its end")
print(run, run.plot().path)
last = run.rollouts(run.summary["steps"], ["prompt", "completion", "status", "reward", "finish_reason"])
for row in last.filter(pc.equal(last["status"], "wrong")).slice(0, 3).to_pylist():
    print("wrong:", row["prompt"], row["completion"])
print(run.sample(["3+5-2+7+1=", "9-1-1-1-1="], temperature=0.0))
longer = run.evaluate(ChainSum(terms=6, count=64), samples=4)
print(f"sums of six terms: {longer['pass_rate']:.0%} of {longer['problems']} problems")
