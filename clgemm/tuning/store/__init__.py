"""Parameters on disk: the user's, those that ship, and which of them serve here.

`lookup` asks all of them; `similar` knows how near another device is; `store` is the user's file of
one device and what is known beside it; `files` reads, exports and imports whole files, `entries`
what one of their entries holds; `locks` keep processes apart.
"""
