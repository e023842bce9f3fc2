"""BLIS' loops for integers and bool on CPU devices, exact as NumPy's: see `family`."""
