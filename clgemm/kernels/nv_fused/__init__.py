"""fp32 at fp32 accuracy from halves in one launch, by Hopper's warpgroup instructions."""
