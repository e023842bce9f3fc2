"""From a `Call` to what computes it.

`engines` has the engine of each device, and computes calls by those in use: with it the faces
speak.  `engine` decides on kinds of calls and keeps what was decided; `building` makes the kernels
of a problem; `route` has every rule about where a product runs, from what `break_even` measured and
`times` predicts; `trial` runs both sides where these are near; `copying` is for operands that have
to be copied first; `integers` has the rules about types that no BLAS has; `multi_device` shares one
product among several devices; `explanation` puts a decision into words.
"""
