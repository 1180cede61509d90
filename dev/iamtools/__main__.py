"""`python -m iamtools` makes the environment, so that no test has to."""

from iamtools import interpreter

interpreter()
