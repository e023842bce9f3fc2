"""`python -m tests.fuzz`."""

from .command import main

raise SystemExit(main())
