"""What a row gets from which no token is drawn, for kernels too: apart from the cards, whose words are not source."""

NO_TOKEN = -1
"""What a row gets whose logits are no numbers."""
