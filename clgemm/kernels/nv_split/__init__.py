"""fp32 at fp32 accuracy from halves, by Hopper's warpgroup instructions."""
