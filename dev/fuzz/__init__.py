"""Fuzzing: every decoder and planner of what others write, with inputs as large as they are let through.

`python -m fuzz MINUTES [SUBJECT ...]`, or `make fuzz MINUTES=n`. inputs.py makes inputs of recipes, cost.py
judges one call, subjects.py names what is called.
"""
