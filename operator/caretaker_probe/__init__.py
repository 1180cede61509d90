"""Checks from inside a Pod whether EC2's instance metadata service answers there, and if not, why.

A program of its own, of the standard library alone: it runs in Pods that have no rights and no account, from
a small image. It must not import caretaker, ask for credentials, follow a proxy or change anything.
"""
