"""`python -m benchmarks.learning`: the benchmark that has the name of its folder."""

import sys

from benchmarks.learning.learning import main

sys.exit(main())
