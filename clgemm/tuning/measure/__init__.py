"""Find out whether a configuration is right (`verify`) and how fast it is (`measure`, `timing`)."""
