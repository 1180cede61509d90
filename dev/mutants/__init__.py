"""Mutation testing of the pure modules: mutmut changes them one small thing at a time, and every change has
to fail a unit test or a simulation.

What follows is what mutmut lacks: one module at a time on a copy of the tree (workplace.py), and a score that
leaves out the mutants which equivalent.toml says nobody could tell from the original (score.py).
"""
