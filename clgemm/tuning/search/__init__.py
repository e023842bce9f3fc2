"""What to try (`candidates`), until when (`budget`), and which of it wins (`finalists`).

`search` is the loop; `progress` shows it.
"""
