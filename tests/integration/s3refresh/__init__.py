"""A package, so that fixtures of scope `package` end with the last test in here."""
