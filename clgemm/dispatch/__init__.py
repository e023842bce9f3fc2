"""From a `Call` to what computes it.

`engine` keeps what was decided on a device, and is what the faces speak with; `route` has every
rule about where a product runs, from what `break_even` measured and `times` predicts; `trial` runs
both sides where these are near; `copying` is for operands that have to be copied first;
`integers` has the rules about types that no BLAS has; `multi_device` shares one product among
several; `explanation` puts a decision into words.
"""
