"""The papers' claims, tried on the embedded model. One JSON object a line; a table in Markdown and a figure.

    python bench/claims/run.py                             # every claim: hours of one core
    python bench/claims/run.py mask-before-truncates opefo-lambda-positive --seeds 3 --out runs/claims --jobs 2
    python bench/claims/run.py batch-deviation --docs docs # the seeds that its line of docs/claims/results.json lacks
    python bench/claims/run.py --tell --docs docs          # no runs: judge what is there, and write docs/claims.md anew
    python bench/claims/run.py --list                      # claims and the arms they need

What is finished is not run again: the same command goes on where it stopped. See docs/claims.md.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from bench.claims.command import main

    sys.exit(main())
