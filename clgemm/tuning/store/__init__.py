"""Parameters on disk: the user's (`store`), those that ship, and which of them serve here.

`lookup` asks all of them, `similar` knows how near another device is, `entries` reads and writes
what a search found, `files` are the files themselves, `locks` and `journal` keep processes apart,
`exchange` is what leaves the cache directory and comes back.
"""
