"""What runs on Linux alone is tested there."""

import sys

collect_ignore = [] if sys.platform == "linux" else ["test_engine.py"]
