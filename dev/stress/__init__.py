"""`make stress TEST=...`: repeats tests beside processes that burn the CPUs, until one fails."""
