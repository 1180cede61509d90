"""A fault-injecting proxy in front of any SQS: what no emulator does by itself, and a log of all calls."""
