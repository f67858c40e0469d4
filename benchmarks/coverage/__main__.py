"""`python -m benchmarks.coverage`: the benchmark that has the name of its folder."""

import sys

from benchmarks.coverage.coverage import main

sys.exit(main())
