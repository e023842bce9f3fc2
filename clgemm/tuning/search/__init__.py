"""What to try (`candidates`), until when (`budget`), and the loop that does it (`search`)."""
