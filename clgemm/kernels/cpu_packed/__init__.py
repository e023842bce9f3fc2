"""BLIS' loops in one launch, one persistent work-group a core: for CPU devices."""
