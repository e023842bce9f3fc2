"""Products with a vector and outer products, at the rate of the memory."""
