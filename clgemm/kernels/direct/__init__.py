"""One work-item an element of C: the last resort."""
