"""`python -m caretaker`."""

from caretaker.cli import main

raise SystemExit(main())
